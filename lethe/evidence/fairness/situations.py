"""Innocent situations: what the rules outside a single verdict protect (times, rates, recorded verdicts)."""

from __future__ import annotations

from dataclasses import dataclass

from lethe.evidence.fairness.innocent import key


@dataclass(frozen=True)
class Situation:
    """A true account that would be miscounted without its rule; the fields read as those of an Innocent."""

    rule: int
    title: str
    where: str
    """What applies the rule."""
    cleared: str
    charged: str
    why: str

    @property
    def key(self) -> str:
        return key(self.rule)


TUNING_CALLS = (9.0, 9.0, 9.0, 1.0, 1.0)
"""Seconds of five calls of a kernel that tries three schedules first."""

SITUATIONS = (
    Situation(
        rule=24,
        title="a kernel that tries three schedules on its first three calls",
        where="lethe.audit.acceptance",
        cleared="1 s a call",
        charged="9 s a call",
        why="tuning is paid once; what is compared is the tuned kernel",
    ),
    Situation(
        rule=27,
        title="a verifier that rejected none of 20 honest kernels",
        where="lethe.evidence.honest.report",
        cleared="at most 13.9% of honest kernels",
        charged="at most 0.0% of honest kernels",
        why="none of twenty does not show that there is none among a thousand",
    ),
    Situation(
        rule=28,
        title="a kernel that an earlier version of the rules convicted, in an audit that is continued",
        where="lethe.audit.run",
        cleared="judged again: clean",
        charged="the old conviction stands",
        why="a verdict speaks by the rules it was reached by, and those were wrong about this kernel",
    ),
    Situation(
        rule=47,
        title="a network with a pooling kernel, whose convolutions differ in a last bit by graph replay",
        where="lethe.verifier.gates.ord02",
        cleared="clean",
        charged="FAIL ORD-02 graph",
        why="a library chooses its algorithm by stream, workspace and capture; the pooling always adds alike",
    ),
)
