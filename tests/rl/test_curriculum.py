"""Levels open when enough is right, and stay open."""

from __future__ import annotations

import pytest

from lethe.rl.curriculum import Curriculum
from lethe.rl.outcomes import Outcome

LEVELS = (("a", "b"), ("c",), ("d", "e"))


def test_only_the_first_level_is_open_at_first():
    assert set(Curriculum(LEVELS).draw(20)) == {"a", "b"}


def test_a_level_opens_after_a_full_window_with_enough_right():
    c = Curriculum(LEVELS, share=0.5, window=4)
    for outcome in (Outcome.NOT_FASTER, Outcome.FASTER, Outcome.NOT_APPLIED):
        c.report("a", outcome)
    assert c.open == 1, "the window is not full"
    c.report("b", Outcome.BROKE_CONTRACT)
    assert c.open == 2
    assert "c" in c.draw(2) and set(c.draw(2)) - {"c"} <= {"a", "b"}


def test_wrong_attempts_open_nothing():
    c = Curriculum(LEVELS, share=0.5, window=4)
    for _ in range(20):
        c.report("a", Outcome.BROKE_CONTRACT)
    assert c.open == 1


def test_success_at_an_earlier_level_opens_nothing():
    c = Curriculum(LEVELS, share=0.5, window=2)
    for _ in range(2):
        c.report("a", Outcome.UNTIMED)
    assert c.open == 2
    for _ in range(4):
        c.report("a", Outcome.UNTIMED)
    assert c.open == 2


def test_an_attempt_that_nobody_could_judge_does_not_count():
    c = Curriculum(LEVELS, share=0.5, window=2)
    for _ in range(4):
        c.report("a", Outcome.UNDECIDED)
    assert c.open == 1


def test_the_last_level_is_the_last():
    c = Curriculum(LEVELS, share=0.5, window=1)
    for task in ("a", "c", "d", "d", "d"):
        c.report(task, Outcome.UNTIMED)
    assert c.open == 3


def test_draws_differ_as_long_as_there_are_tasks():
    assert set(Curriculum(LEVELS).draw(2)) == {"a", "b"}


def test_an_empty_level_is_refused():
    with pytest.raises(ValueError, match="at least one task"):
        Curriculum([[]])
