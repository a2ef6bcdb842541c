"""Search/replace edits, and the scripted ones."""

from __future__ import annotations

import random

import pytest

from lethe.audit import house
from lethe.rl import edits, mutations
from lethe.rl.edits import Edit, EditError, apply, parse

SOURCE = "a = 1\nb = 2\nc = a + b\nb = 2\n"


def test_an_edit_survives_its_text():
    for edit in (Edit("a = 1", "a = 3\nd = 4"), Edit("a = 1\nb = 2", ""), Edit("  x", "  y")):
        assert parse(f"Sure:\n{edit.text()}\nDone.") == [edit]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (Edit("a = 1", "a = 3"), "a = 3\nb = 2\nc = a + b\nb = 2\n"),
        (Edit("a = 1\nb = 2", "z"), "z\nc = a + b\nb = 2\n"),
        (Edit("c = a + b", ""), "a = 1\nb = 2\nb = 2\n"),
    ],
    ids=["line", "lines", "delete"],
)
def test_applies(edit, expected):
    assert apply(SOURCE, edit.text()) == expected


def test_several_apply_in_order():
    both = Edit("a = 1", "a = 5").text() + "\n" + Edit("a = 5", "a = 6").text()
    assert apply(SOURCE, both).startswith("a = 6\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Use fewer warps.", "holds no edit"),
        (Edit("b = 2", "b = 3").text(), "stands there 2 times"),
        (Edit("a = 1 ", "a = 3").text(), "does not stand in the kernel"),
        (Edit("= 1", "= 3").text(), "does not stand in the kernel"),
        (Edit("", "a").text(), "searches for nothing"),
        (Edit("a = 1", "a = 1").text(), "changes nothing"),
        (Edit("a = 1", "a = 3").text().removesuffix(edits.REPLACE), "not closed"),
    ],
    ids=["prose", "twice", "blank", "part-of-a-line", "empty", "same", "torn"],
)
def test_does_not_apply(answer, why):
    with pytest.raises(EditError, match=why):
        apply(SOURCE, answer)


@pytest.fixture(scope="module")
def sources():
    return {row.id: row.candidate.source for row in house.load().rows()}


@pytest.mark.parametrize("name", mutations.NAMES)
def test_every_operator_proposes_what_it_says(name, sources):
    """Those that apply change the text; the last two never apply."""
    tried = 0
    for source in sources.values():
        if not mutations.applicable(source)[mutations.NAMES.index(name)]:
            continue
        for seed in range(3):
            text = mutations.answer(source, name, random.Random(seed))
            tried += 1
            if name in ("misremember", mutations.NO_EDIT):
                with pytest.raises(EditError):
                    apply(source, text)
            else:
                assert apply(source, text) != source
    assert tried, "no kernel of the corpus has a place for it"


def test_an_operator_without_a_place_says_so():
    with pytest.raises(ValueError, match="finds nothing to change"):
        mutations.answer("x\n", "warps", random.Random(0))
