"""Areas under the ROC curve against their definition, their intervals, and the curves."""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ecg.ptbxl import CLASSES
from lethe.ecg.scores import auc, class_aucs, difference, intervals, macro_auc, ranks, roc


def by_pairs(labels, scores):
    """The share of pairs that are in the right order, a tie being half a pair."""
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels > 0] for n in scores[labels == 0]]
    return float(np.mean(pairs))


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("seed", range(4))
def test_area_is_the_share_of_ordered_pairs(seed, ties):
    draw = np.random.default_rng(seed)
    labels, scores = (draw.random(37) < 0.4).astype(float), draw.normal(size=37)
    scores = np.round(scores) if ties else scores
    exact = by_pairs(labels, scores)
    # sums of at most 37^2 halves are exact in float64; one division follows
    assert auc(labels, scores) == pytest.approx(exact, abs=2**-50)
    false, true = roc(labels, scores)
    assert np.trapezoid(true, false) == pytest.approx(exact, abs=1e-12)


def test_ends():
    labels = np.array([0.0, 0.0, 1.0, 1.0])
    assert auc(labels, labels) == 1.0 and auc(labels, -labels) == 0.0
    assert auc(labels, np.zeros(4)) == 0.5
    assert np.isnan(auc(np.ones(4), labels)) and np.isnan(auc(np.zeros(4), labels))
    assert ranks(np.array([3.0, 1.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    false, true = roc(labels, labels)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


def test_a_class_that_cannot_be_judged_is_left_out_of_the_mean():
    labels = np.zeros((6, 5))
    labels[:3, 0] = labels[::2, 1] = 1
    scores = np.random.default_rng(0).random((6, 5))
    areas = class_aucs(labels, scores)
    assert np.isnan(areas[2:]).all()
    assert macro_auc(labels, scores) == pytest.approx(areas[:2].mean())
    assert np.isnan(macro_auc(np.zeros((3, 5)), np.zeros((3, 5))))


def _case(n=120, seed=0):
    draw = np.random.default_rng(seed)
    labels = (draw.random((n, 5)) < 0.35).astype(float)
    return labels, labels + draw.normal(0, 1.0, (n, 5))


def test_intervals_hold_the_value_and_narrow_with_the_records():
    found = intervals(*_case(), draws=200)
    assert set(found) == {"macro", *CLASSES}
    assert all(x.low < x.value < x.high for x in found.values())
    few = intervals(*_case(40), draws=200)["macro"]
    assert few.high - few.low > found["macro"].high - found["macro"].low
    assert intervals(*_case(), draws=200)["macro"] == found["macro"]


def test_the_bootstrap_agrees_with_the_known_standard_error():
    """Hanley and McNeil's variance of an area, for normal scores one standard deviation apart."""
    labels, scores = _case(400, seed=3)
    interval = intervals(labels, scores, draws=400)["MI"]
    area, n = interval.value, labels[:, 1].sum()
    m = len(labels) - n
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    error = np.sqrt((area * (1 - area) + (n - 1) * (q1 - area**2) + (m - 1) * (q2 - area**2)) / (n * m))
    # 400 draws know a 95% width to about 10% (two standard errors of a quantile); the formula is as rough
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_a_difference_is_paired():
    labels, scores = _case()
    same = difference(labels, [scores], [scores], draws=50)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    worse = scores + np.random.default_rng(1).normal(0, 2, scores.shape)
    found = difference(labels, [scores, scores], [worse], draws=100)
    assert found.low > 0 and found.value == pytest.approx(
        macro_auc(labels, scores) - macro_auc(labels, worse)
    )
