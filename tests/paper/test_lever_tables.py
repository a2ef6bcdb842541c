"""A lever's outcome is computed from the tuning record, shape by shape."""

from __future__ import annotations

import pytest

from lethe.paper import lever_tables
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import ROOT

LEVERS = lever_tables.noted(ROOT / "data" / "review" / "mamba3_levers.json")
LEVER = {
    "lever": "fewer registers", "expected": "more programs",
    "kept": {"pass": "backward", "registers": None}, "tried": {"pass": "backward", "registers": 96},
}  # fmt: skip


def row(length: int, registers: int | None, us: float | None, direction: str = "backward") -> dict:
    found = {"suite": "scan", "batch": 1, "length": length, "pass": direction, "registers": registers}
    return found | ({"error": "no"} if us is None else {"us": {"median": us}})


def test_shapes_that_both_were_timed_at_are_compared() -> None:
    rows = [
        row(512, None, 10.0), row(512, 96, 20.0), row(2048, None, 10.0), row(2048, 96, 5.0),
        row(4096, None, 7.0), row(4096, 96, None), row(512, 96, 1.0, "forward"),
    ]  # fmt: skip
    assert lever_tables.ratios(LEVER, rows) == pytest.approx([2.0, 0.5])
    line = lever_tables.table([LEVER], rows).iloc[0]
    assert list(line) == ["fewer registers", "backward", "more programs", "1.00 (0.50 to 2.00)", "by shape"]


@pytest.mark.parametrize(("us", "outcome"), [(20.0, "slower everywhere"), (5.0, "faster everywhere")])
def test_the_outcome_is_said_in_words(us: float, outcome: str) -> None:
    found = lever_tables.table([LEVER], [row(512, None, 10.0), row(512, 96, us)])
    assert found["outcome"][0] == outcome


def test_without_a_record_a_lever_says_so() -> None:
    assert lever_tables.table([LEVER], [])["time over what is built"][0] == MISSING


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever["lever"])
@pytest.mark.parametrize("which", ["kept", "tried"])
def test_a_noted_lever_names_one_candidate_of_the_tuning(lever: dict, which: str) -> None:
    from lethe.kernels.mamba3.tune import candidates

    named = [c for c in candidates() if lever[which].items() <= c.facts().items()]
    assert len(named) == 1
