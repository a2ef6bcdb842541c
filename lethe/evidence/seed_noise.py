"""Is the difference between two ways to train a model within what other seeds would have changed?

Both ways have trained the same n seeds, and `compare` takes one number of every training (a mean loss,
say). If the candidate were the reference with n further seeds, the difference of the means would have the
variance 2 s^2 / n, s being the standard deviation between seeds. With s estimated from the reference's n, a
share 1 - a of such differences lies within

    t s sqrt(2 / n),    t: two-sided quantile of Student's distribution for 1 - a, n - 1 degrees of freedom,

the prediction interval for the mean of n further results. Seed by seed both begin with the same weights and
data, which brings the means closer together than that. Among several comparisons a is shared out evenly
(Bonferroni), so that `ERROR` is the chance that any of them rejects what is only another draw of seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ERROR = 0.01


@dataclass(frozen=True)
class Compared:
    """Means over the seeds of the reference and of the candidate; the standard deviation between the
    reference's seeds; and how many of these the means may be apart."""

    reference: float
    candidate: float
    spread: float
    allowed: float

    @property
    def apart(self) -> float:
        """Candidate less reference, in spreads; NaN where one is not finite or the seeds do not differ."""
        return (self.candidate - self.reference) / self.spread if self.spread else math.nan

    @property
    def within(self) -> bool:
        """Whether that is noise of the seeds; False for NaN."""
        return abs(self.apart) <= self.allowed


def compare(reference: Sequence[float], candidate: Sequence[float], comparisons: int = 1) -> Compared:
    """One of so many comparisons. Raises ValueError unless both have as many seeds, and two at least."""
    n = len(reference)
    if n != len(candidate) or n < 2:
        raise ValueError(f"the two have {n} and {len(candidate)} seeds; they need as many, and two at least")
    allowed = student(1 - ERROR / comparisons, n - 1) * math.sqrt(2 / n)
    middle = statistics.fmean(reference)
    spread = math.sqrt(sum((x - middle) ** 2 for x in reference) / (n - 1))
    return Compared(middle, statistics.fmean(candidate), spread, allowed)


def student(share: float, freedom: int) -> float:
    """t such that `share` of Student's distribution lies within -t and t; `freedom` is at least 1.

    Raises ValueError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"a share of {share} is not between 0 and 1")
    low, high = 0.0, 1.0
    while _within(high, freedom) < share:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < share else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Share of Student's distribution within -t and t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term = total = cosine if odd else 1.0
    for k in range(2 if odd else 1, freedom - 1, 2):
        term *= k / (k + 1) * cosine**2
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * (total if freedom > 1 else 0.0))
