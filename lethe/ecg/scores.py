"""How good a classifier is: areas under the ROC curve, by class and macro, with bootstrap intervals.

The area is the probability that a record of a class scores above one that is not of it, ties counting half
(Mann and Whitney 1947). An interval takes the records with replacement, all classes and models together, so
that it keeps what they have in common; differences between two models are taken within each draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lethe.ecg.ptbxl import CLASSES

DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval at `LEVEL`."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ranks(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Ranks from 1; equal scores share the mean of their ranks."""
    _, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Area under the ROC curve of one class; NaN where the records are all of it or none is."""
    positive = labels > 0.5
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((ranks(scores)[positive].sum() - n * (n + 1) / 2) / (n * m))


def class_aucs(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Areas [classes] for labels and scores [n, classes]."""
    return np.array([auc(y, s) for y, s in zip(labels.T, scores.T, strict=True)])


def macro_auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Mean area over the classes that can be judged; NaN where none can."""
    areas = class_aucs(labels, scores)
    known = areas[~np.isnan(areas)]
    return float(known.mean()) if len(known) else float("nan")


def resamples(n: int, draws: int = DRAWS, seed: int = 0) -> NDArray[np.int64]:
    """Positions [draws, n] with replacement; the same for every model judged with the same seed."""
    return np.random.default_rng(seed).integers(0, n, (draws, n))


def interval(value: float, drawn: NDArray[np.float64]) -> Interval:
    """The interval that holds the middle `LEVEL` of the values `drawn`; NaN draws are left out."""
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def intervals(
    labels: NDArray[np.floating], scores: NDArray[np.floating], draws: int = DRAWS, seed: int = 0
) -> dict[str, Interval]:
    """``macro`` and every class, with intervals, for labels and scores [n, 5]."""
    drawn = np.array([class_aucs(labels[i], scores[i]) for i in resamples(len(labels), draws, seed)])
    areas = class_aucs(labels, scores)
    seen = ~np.isnan(drawn).all(1)
    macro = np.full(len(drawn), np.nan)
    macro[seen] = np.nanmean(drawn[seen], 1)
    found = {"macro": interval(macro_auc(labels, scores), macro)}
    return found | {name: interval(float(areas[i]), drawn[:, i]) for i, name in enumerate(CLASSES)}


def difference(
    labels: NDArray[np.floating],
    ours: Sequence[NDArray[np.floating]],
    theirs: Sequence[NDArray[np.floating]],
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """Mean macro AUC over the seeds of one model less that of another, on the same records [n, 5]."""

    def gap(i: NDArray[np.int64]) -> float:
        means = [np.mean([macro_auc(labels[i], s[i]) for s in group]) for group in (ours, theirs)]
        return float(means[0] - means[1])

    drawn = np.array([gap(i) for i in resamples(len(labels), draws, seed)])
    return interval(gap(np.arange(len(labels))), drawn)


def roc(
    labels: NDArray[np.floating], scores: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """False and true positive rates at every threshold, from (0, 0) to (1, 1), for one class."""
    order = np.argsort(-scores, kind="stable")
    hit = labels[order] > 0.5
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores are one threshold
    true, false = np.cumsum(hit)[last], np.cumsum(~hit)[last]
    return np.append(0.0, false / max(1, false[-1])), np.append(0.0, true / max(1, true[-1]))
