"""How an attempt ended, read from its verdict and its time: the taxonomy that rewards and tables share.

The first five are those of the published record of edits (320 attempts). A verdict that says nothing about
the candidate (the reference cannot be used, the harness failed) is no outcome of the attempt and is kept
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lethe.verifier.verdict import Blame, GateStatus, Status, Verdict

if TYPE_CHECKING:
    from lethe.rl.speed import Speed


class Outcome(StrEnum):
    """Ordered from worst to best, but for the last."""

    NOT_APPLIED = "not_applied"
    """The answer holds no edit, or one that does not fit the text, or one that changes nothing."""
    SANDBOX = "sandbox"
    """It was stopped: time, memory, a crash, garbage on the pipe."""
    DID_NOT_RUN = "did_not_run"
    """It does not parse, import, build, compile or run."""
    BROKE_CONTRACT = "broke_contract"
    """A gate or an integrity probe failed, or no kernel of its own was launched."""
    UNTIMED = "correct_untimed"
    """Every gate passed; its speed was not measured."""
    NOT_FASTER = "correct_not_faster"
    """Every gate passed; no faster than the baseline by more than the clock's scatter."""
    FASTER = "faster"
    UNDECIDED = "undecided"
    """Nothing can be said about the candidate; see `reason`."""


STOPPED = frozenset(
    {Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.CRASHED, Status.GARBAGE, Status.RESOURCE_LIMIT}
)
UNABLE = frozenset(
    {
        Status.MALFORMED_CANDIDATE,
        Status.IMPORT_FAILED,
        Status.BUILD_FAILED,
        Status.COMPILE_FAILED,
        Status.RUN_FAILED,
        Status.WRONG_TYPE,
    }
)


@dataclass(frozen=True)
class Judged:
    """An attempt's end."""

    outcome: Outcome
    reason: str
    """One sentence."""
    failed: tuple[str, ...] = ()
    """Gates that failed."""
    speedup: float | None = None
    """Time of the baseline over that of the candidate; only where every gate passed."""


def not_applied(reason: str) -> Judged:
    return Judged(Outcome.NOT_APPLIED, reason)


def judged(verdict: Verdict, speed: Speed | None = None) -> Judged:
    """What a verdict, and the time of a candidate that passed, come to."""
    if verdict.status in STOPPED:
        return Judged(Outcome.SANDBOX, verdict.message)
    if verdict.status in UNABLE:
        return Judged(Outcome.DID_NOT_RUN, verdict.message)
    if verdict.status is Status.NO_CUSTOM_KERNEL or verdict.violated:
        return Judged(Outcome.BROKE_CONTRACT, verdict.message, verdict.failed)
    own = [g for g in verdict.gates if g.status is GateStatus.ERROR and g.whose is Blame.CANDIDATE]
    if own:
        return Judged(Outcome.BROKE_CONTRACT, f"{own[0].gate}: {own[0].detail}", tuple(g.gate for g in own))
    if not verdict.clean:
        return Judged(Outcome.UNDECIDED, verdict.message or str(verdict.status))
    if speed is None:
        return Judged(Outcome.UNTIMED, verdict.message)
    if not speed.valid:
        return Judged(Outcome.BROKE_CONTRACT, speed.reason)
    outcome = Outcome.FASTER if speed.faster else Outcome.NOT_FASTER
    return Judged(outcome, verdict.message, speedup=speed.ratio)
