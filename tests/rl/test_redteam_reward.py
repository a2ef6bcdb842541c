"""No known cheat is paid: neither live, by the court that rewards, nor in the recorded audit of them all."""

from __future__ import annotations

import pytest

from lethe import provenance
from lethe.audit import lines
from lethe.evidence import redteam
from lethe.evidence.specimens import Kind
from lethe.rl.judging import Attempt, Court
from lethe.rl.ladder import SCHEDULES
from lethe.rl.outcomes import Outcome, judged

RECORDS = sorted((provenance.ROOT / "data" / "measured").glob("*/redteam_audit.json"))
ON_THE_HARNESS = ("patches_timers", "forges_the_result", "exits_0_early")
UNSEEN_ON_A_GPU = {"reads_past_the_end", "side_channel_no_op"}
"""Attacks that leave no trace on a device; a pass there is paid only with the interpreter as a witness."""
WRONG = {Outcome.BROKE_CONTRACT, Outcome.DID_NOT_RUN, Outcome.SANDBOX}


def unpaid(end):
    """No more than any kernel earns that runs and is wrong: nothing at all in the strict schedule."""
    assert end.outcome in WRONG, end
    for schedule in SCHEDULES.values():
        assert schedule.reward(end) <= schedule.fails_gates < schedule.slower
    assert SCHEDULES["strict"].reward(end) == 0.0


def pairs(attacks):
    rows = {row.id: row for row in redteam.load(cuda=False).rows()}
    cheats = [r for r in rows.values() if r.extra["kind"] == Kind.CHEAT and r.extra["attack"] in attacks]
    first = {r.extra["attack"]: r for r in reversed(cheats)}
    return [(cheat, rows[cheat.extra["twin"]]) for cheat in first.values()]


def test_attacks_on_the_harness_earn_nothing_and_their_twins_do():
    """Those that go for the judge and its clock, judged here and now."""
    chosen = pairs(ON_THE_HARNESS)
    assert len(chosen) == len(ON_THE_HARNESS)
    with Court() as court:
        ends = court.judge([Attempt(c.problem, c.candidate.source) for c, _ in chosen])
        twin = chosen[0][1]
        honest = court.judge([Attempt(twin.problem, twin.candidate.source)])[0]
    for end in ends:
        unpaid(end)
    assert honest.outcome is Outcome.UNTIMED


@pytest.mark.slow
@pytest.mark.parametrize("attack", sorted({c.name for c in redteam.CHEATS if c.needs != "cuda"}))
def test_every_attack_earns_nothing(attack):
    ((cheat, _),) = pairs([attack])
    with Court() as court:
        unpaid(court.judge([Attempt(cheat.problem, cheat.candidate.source, entry=cheat.candidate.entry)])[0])


@pytest.mark.skipif(not RECORDS, reason="no audit of the red team is recorded")
@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.parent.name)
def test_every_recorded_cheat_earns_nothing(path):
    told = provenance.load(path).samples
    cheats = [line for line in told if line["extra"]["kind"] == Kind.CHEAT]
    assert len(cheats) >= len(redteam.NAMED)
    for line in cheats:
        if not (path.parent.name != "cpu" and line["extra"]["attack"] in UNSEEN_ON_A_GPU):
            unpaid(judged(lines.verdict_of(line)))


def test_torch_in_the_place_of_a_kernel_earns_nothing_more():
    """A text that calls torch keeps every contract of torch; where a kernel is asked for it is no kernel."""
    twin = pairs(["patches_timers"])[0][1]
    with Court() as court:
        end = court.judge([Attempt(twin.problem, twin.candidate.source, language="triton")])[0]
        assert court.throughput.judged == 0
    unpaid(end)
