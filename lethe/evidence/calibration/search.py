"""Finding the smallest defect that is seen: brackets on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

WIDTH = 1.1
"""A bracket is narrow enough when its ends differ by this factor."""
START = 1e-3
FLOOR = 2.0**-26
"""A quarter of float32's unit roundoff: below it an injected error rounds away."""
CEILING = 2.0**12
"""Where even this relative error is not seen, the check does not look at it."""
STEP = 64.0
ASIDE = 1.04
"""Half a bracket: how far beside a predicted onset the two probes stand that confirm it."""
MAX_PROBES = 24


@dataclass(frozen=True)
class Probe:
    """What a check says of one amount of error."""

    fails: bool
    ratio: float | None = None
    """Its metric over its bound, if it measures one: proportional to the amount, once above the noise."""


@dataclass(frozen=True)
class Onset:
    """The bracket of the smallest amount that fails."""

    amount: float | None
    """The smallest amount seen to fail; None if nothing up to `CEILING` does."""
    passes: float
    """The largest amount below it that was seen to pass (0: none was)."""
    probes: int


def onset(check: Callable[[float], Probe], start: float = START) -> Onset:
    """The smallest amount at which `check` fails, to within a factor `WIDTH`.

    `check` must pass where there is no error. Its ratio is used to predict the onset, so that four probes
    usually do; where the prediction is wrong, the bracket is halved.
    """
    low, high, at = 0.0, math.inf, start
    guesses: list[float] = []
    for count in range(1, MAX_PROBES + 1):
        probe = check(at)
        if probe.fails:
            high = min(high, at)
        else:
            low = max(low, at)
        if high <= max(low, FLOOR) * WIDTH:
            return Onset(high, low, count)
        if math.isinf(high) and at >= CEILING:
            return Onset(None, low, count)
        if probe.ratio and math.isfinite(probe.ratio):
            predicted = at / probe.ratio
            guesses = [predicted / ASIDE, predicted * ASIDE, predicted]
        at = _next(low, high, guesses)
    return Onset(high if math.isfinite(high) else None, low, MAX_PROBES)


def _next(low: float, high: float, guesses: list[float]) -> float:
    """A guess inside the bracket if there is one, else its (geometric) middle, else further up."""
    while guesses:
        at = guesses.pop()
        if max(low, FLOOR) * 1.001 < at < high / 1.001 and at <= CEILING:
            return at
    if math.isinf(high):
        return min(low * STEP, CEILING)
    return math.sqrt(max(low, FLOOR) * high)


def largest(check: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest whole number from `low` to `high` at which `check` fails (True), if any; failing at one
    number implies failing at all below."""
    if not check(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if check(middle):
            low = middle
        else:
            high = middle - 1
    return low
