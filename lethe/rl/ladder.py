"""The ladder of rewards: what an outcome is worth, in the two variants that were published.

The paper has 0 for what does not compile, 0.1 for what fails a gate, 1.0 plus a bounded bonus for what
passes. The public record's README has 0, 0.1, 0.5 for what is right but not faster, and 1 + log(speedup)
for what is. Neither says which bonus, and to which base: here the bonus is ``most (1 - 1/speedup)``, the
share of the time that was saved, and the logarithm is natural.

In every schedule speed pays only where all gates passed, so a rung can only be climbed by being right first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lethe.rl.outcomes import Judged, Outcome


@dataclass(frozen=True)
class Schedule:
    """Rewards by outcome. Their order is that of the outcomes, whatever the speedup."""

    name: str
    no_compile: float
    """Does not apply, parse, compile or run."""
    fails_gates: float
    slower: float
    """Right, and not shown to be faster."""
    faster: float
    """Right and faster, without its bonus."""
    most: float | None
    """Bound of the bonus ``most (1 - 1/speedup)``; None: the bonus is ``log(speedup)``, without a bound."""

    def bonus(self, speedup: float) -> float:
        """What being `speedup` times as fast adds; zero unless it is faster."""
        if speedup <= 1.0:
            return 0.0
        return math.log(speedup) if self.most is None else self.most * (1.0 - 1.0 / speedup)

    def reward(self, judged: Judged) -> float:
        """NaN where nobody could decide: such an answer takes no part in its group."""
        outcome = judged.outcome
        if outcome is Outcome.UNDECIDED:
            return math.nan
        if outcome in (Outcome.NOT_APPLIED, Outcome.DID_NOT_RUN, Outcome.SANDBOX):
            return self.no_compile
        if outcome is Outcome.BROKE_CONTRACT:
            return self.fails_gates
        if outcome is Outcome.FASTER and judged.speedup is not None:
            return self.faster + self.bonus(judged.speedup)
        return self.slower


PAPER = Schedule("paper", no_compile=0.0, fails_gates=0.1, slower=1.0, faster=1.0, most=1.0)
README = Schedule("readme", no_compile=0.0, fails_gates=0.1, slower=0.5, faster=1.0, most=None)
STRICT = replace(PAPER, name="strict", fails_gates=0.0)
"""Ours: a kernel that breaks a contract is worth nothing at all, not even for running."""

SCHEDULES = {s.name: s for s in (PAPER, README, STRICT)}


def schedule(name: str) -> Schedule:
    """The schedule of that name. Raises ValueError naming those that exist."""
    if name not in SCHEDULES:
        raise ValueError(f"no reward schedule {name!r}; the schedules are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
