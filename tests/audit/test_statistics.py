"""Intervals against values printed elsewhere."""

from __future__ import annotations

import math

import pytest

from lethe.audit.statistics import clopper_pearson, wilson


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.3084971),  # 1 - 0.025 ** (1 / 10)
        (10, 10, 0.6915029, 1.0),
        (1, 10, 0.0025286, 0.4450161),
        (5, 10, 0.1870860, 0.8129140),
        (0, 500, 0.0, 0.0073506),
    ],
)
def test_clopper_pearson_matches_printed_tables(k, n, low, high):
    assert clopper_pearson(k, n) == pytest.approx((low, high), abs=2e-7)


def test_clopper_pearson_covers_and_is_wider_than_wilson():
    for k in range(31):
        exact, score = clopper_pearson(k, 30), wilson(k, 30)
        assert exact[0] <= k / 30 <= exact[1]
        assert exact[1] - exact[0] >= score[1] - score[0] - 1e-3


def test_intervals_refuse_impossible_counts():
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    assert all(map(math.isnan, wilson(0, 0)))
    for interval in (clopper_pearson, wilson):
        with pytest.raises(ValueError, match="3 successes in 2 trials"):
            interval(3, 2)
