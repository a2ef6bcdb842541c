"""Intervals for the audit's proportions."""

from __future__ import annotations

import math

from lethe.verifier.blame import binomial_upper

Z95 = 1.959963984540054
"""97.5% quantile of the standard normal distribution: two-sided 95%."""


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927, JASA 22:209).

    Returns (low, high) within [0, 1]; (nan, nan) for no trials.
    Raises ValueError unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if trials == 0:
        return math.nan, math.nan
    p = successes / trials
    denominator = 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / denominator
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / denominator
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion (Clopper and Pearson 1934, Biometrika 26:404).

    Returns (low, high) within [0, 1]; (0, 1) for no trials.
    Raises ValueError unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    return 1 - binomial_upper(trials - successes, trials, tail), binomial_upper(successes, trials, tail)
