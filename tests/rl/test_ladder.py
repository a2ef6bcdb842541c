"""The ladder's rungs and their order, whatever the speed."""

from __future__ import annotations

import math

import pytest

from lethe.audit import report
from lethe.rl.ladder import SCHEDULES, schedule
from lethe.rl.outcomes import Judged, Outcome, judged
from lethe.rl.speed import Speed
from lethe.verifier.verdict import Blame, GateResult, GateStatus, Status, Verdict

WRONG = (Outcome.NOT_APPLIED, Outcome.SANDBOX, Outcome.DID_NOT_RUN, Outcome.BROKE_CONTRACT)


def end(outcome, speedup=None):
    return Judged(outcome, "", speedup=speedup)


@pytest.mark.parametrize("name", SCHEDULES)
def test_being_right_pays_more_than_any_way_of_being_wrong(name):
    s = schedule(name)
    best_wrong = max(s.reward(end(o, 1000.0)) for o in WRONG)
    right = [end(Outcome.UNTIMED), end(Outcome.NOT_FASTER, 1e-3), end(Outcome.FASTER, 1.01)]
    assert best_wrong < min(s.reward(r) for r in right)


@pytest.mark.parametrize("name", SCHEDULES)
def test_speed_pays_only_where_it_was_shown(name):
    s = schedule(name)
    assert s.reward(end(Outcome.NOT_FASTER, 3.0)) == s.reward(end(Outcome.UNTIMED)) == s.slower
    assert s.reward(end(Outcome.BROKE_CONTRACT, 3.0)) == s.fails_gates
    rewards = [s.reward(end(Outcome.FASTER, x)) for x in (1.001, 1.1, 2.0, 10.0, 1e6)]
    assert rewards == sorted(rewards) and rewards[0] > s.slower


def test_papers_bonus_is_bounded_and_the_readmes_is_not():
    paper, readme = schedule("paper"), schedule("readme")
    assert paper.reward(end(Outcome.FASTER, math.inf)) == 2.0
    assert paper.reward(end(Outcome.FASTER, 2.0)) == 1.5
    assert readme.reward(end(Outcome.FASTER, math.e**3)) == pytest.approx(4.0, rel=1e-15)


def test_rungs_are_the_published_ones():
    told = report.published()["rl"]
    paper, readme = schedule("paper"), schedule("readme")
    assert (paper.no_compile, paper.fails_gates, paper.slower) == (
        told["reward"]["no_compile"], told["reward"]["fails_gates"], told["reward"]["passes"],
    )  # fmt: skip
    variant = told["reward_readme_variant"]
    assert (readme.no_compile, readme.fails_gates, readme.slower) == (
        variant["no_compile"], variant["fails_contracts"], variant["correct_slower"],
    )  # fmt: skip
    assert variant["faster"] == "1+log(speedup)" and readme.faster == 1.0


def test_undecided_is_no_reward_at_all():
    assert all(math.isnan(s.reward(end(Outcome.UNDECIDED))) for s in SCHEDULES.values())


def verdict(status=Status.JUDGED, gates=()):
    return Verdict("p", "c", "derived", status, "", gates=gates)


def gate(status, whose=None):
    return GateResult("CMP-01", status, "B", whose=whose)


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (verdict(Status.COMPILE_FAILED), Outcome.DID_NOT_RUN),
        (verdict(Status.TIMED_OUT), Outcome.SANDBOX),
        (verdict(Status.NO_CUSTOM_KERNEL), Outcome.BROKE_CONTRACT),
        (verdict(gates=(gate(GateStatus.FAIL),)), Outcome.BROKE_CONTRACT),
        (verdict(gates=(gate(GateStatus.PASS),)), Outcome.UNTIMED),
        (verdict(gates=(gate(GateStatus.ERROR, Blame.CANDIDATE),)), Outcome.BROKE_CONTRACT),
        (verdict(gates=(gate(GateStatus.ERROR, Blame.HARNESS),)), Outcome.UNDECIDED),
        (verdict(gates=(gate(GateStatus.NOT_APPLICABLE),)), Outcome.UNDECIDED),
        (verdict(Status.REFERENCE_FAILED), Outcome.UNDECIDED),
    ],
    ids=["compile", "time", "torch", "gate", "passes", "own-error", "our-error", "vacuous", "reference"],
)
def test_outcome_of_a_verdict(told, outcome):
    assert judged(told).outcome is outcome


def test_every_status_has_an_outcome():
    assert {judged(verdict(s)).outcome for s in Status} <= set(Outcome)
    assert judged(verdict(Status.JUDGED)).outcome is Outcome.UNDECIDED, "no gate passed"


def test_speed_counts_only_where_the_interval_clears_one():
    clean = verdict(gates=(gate(GateStatus.PASS),))
    surely = Speed(tuple(1.5 + 0.01 * i for i in range(15)))
    perhaps = Speed(tuple(0.8 + 0.05 * i for i in range(15)))
    assert judged(clean, surely).outcome is Outcome.FASTER
    assert perhaps.ratio > 1 and judged(clean, perhaps).outcome is Outcome.NOT_FASTER
    assert judged(clean, Speed((), valid=False, reason="a wrong value")).outcome is Outcome.BROKE_CONTRACT


def test_the_interval_covers_the_median_as_it_says():
    """Ranks 4 and 12 of 15 miss the median when at most 3 of 15 fair coins fall on one side."""
    miss = 2 * sum(math.comb(15, k) for k in range(4)) / 2**15
    ordered = tuple(float(i) for i in range(1, 16))
    assert Speed(ordered).interval == (4.0, 12.0)
    assert 0.96 < 1 - miss < 0.97
