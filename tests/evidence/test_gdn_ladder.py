"""The ladder that the book climbs: every rung holds, and members are described by what they do."""

from __future__ import annotations

import pytest

from lethe.evidence import gdn_ladder
from lethe.references.gdn_reductions import REDUCTIONS

PAIRS = list(zip(gdn_ladder.kept(), REDUCTIONS.values(), strict=True))


def test_rungs_hold_and_say_so():
    rows = gdn_ladder.ladder(100, dv=64)
    assert [r["holds"] for r in rows] == [True] * len(rows)
    assert sum(r["bound"] == gdn_ladder.EXACT for r in rows) == 4
    assert max(rows[-1]["errors"].values()) > 1e-5  # the last one does round


def test_members_equal_their_definitions():
    rows = gdn_ladder.definitions(20)
    assert len(rows) == 7
    assert all(e < gdn_ladder.EXACT for r in rows for e in r["errors"].values())


@pytest.mark.parametrize(("row", "expected"), PAIRS, ids=list(REDUCTIONS))
def test_what_a_member_keeps_is_the_table_of_reductions(row, expected):
    """By observation here, written down there; a decay is given as its logarithm here."""
    assert row["identity"] == expected.identity
    found = [row[name] for name in "gbw"]
    assert found == [getattr(expected, name).replace("log a", "g") for name in "gbw"]
