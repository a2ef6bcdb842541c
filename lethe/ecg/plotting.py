"""Figures of the electrocardiograms: one as cardiologists read it, and how well they are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lethe.ecg.wfdb import LEADS
from lethe.plotting import BAND, PALETTE, PUBLISHED, TOLERANCE_FREE, WIDTH, use_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED, GAIN = 25.0, 10.0
"""Millimetres a second and a millivolt: the standard of a printed electrocardiogram."""
GRID = [("I", "AVR", "V1", "V4"), ("II", "AVL", "V2", "V5"), ("III", "AVF", "V3", "V6")]
"""Three rows of four leads, 2.5 s each; lead II is repeated below as the rhythm strip."""
NAMES = {"AVR": "aVR", "AVL": "aVL", "AVF": "aVF"}
PAPER, FINE = "#f0a9a0", "#fae0dc"
MILLIMETRE = 1 / 25.4
"""Inches."""
ROW = 25.0
"""Millimetres between two rows."""
EDGE = 13.0
"""Millimetres before the traces, with the calibration pulse in them."""


def twelve_leads(millivolts: NDArray[np.float32], rate: float, title: str) -> Figure:
    """A record [12, samples] of ten seconds on its paper: 25 mm/s, 10 mm/mV, 3 x 4 leads and a rhythm strip.

    The figure is drawn at its true scale: a large square is 5 mm wide, 0.2 s and 0.5 mV.
    """
    import matplotlib.pyplot as plt

    use_style()
    seconds = 10.0
    wide, high = EDGE + SPEED * seconds + 7, 4 * ROW + 15
    figure = plt.figure(figsize=(wide * MILLIMETRE, high * MILLIMETRE))
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_xlim(0, wide)
    ax.set_ylim(0, high)
    ax.axis("off")
    for step, colour, width in ((1, FINE, 0.3), (5, PAPER, 0.6)):
        ax.vlines(np.arange(0, wide + 1e-9, step), 0, high, color=colour, linewidth=width)
        ax.hlines(np.arange(0, high + 1e-9, step), 0, wide, color=colour, linewidth=width)
    part = seconds / 4
    for row, names in enumerate([*GRID, ("II",)]):
        level = high - 20 - ROW * row
        pulse = np.array([2, 4, 4, 9, 9, 11]), np.array([0, 0, 1, 1, 0, 0])
        ax.plot(pulse[0], level + GAIN * pulse[1], color=TOLERANCE_FREE, linewidth=0.8)
        for column, name in enumerate(names):
            first, last = (0.0, seconds) if row == 3 else (column * part, (column + 1) * part)
            samples = np.arange(round(first * rate), min(round(last * rate), millivolts.shape[1]))
            trace = millivolts[LEADS.index(name), samples]
            x = EDGE + SPEED * samples / rate
            ax.plot(x, level + GAIN * trace, color=TOLERANCE_FREE, linewidth=0.7, solid_joinstyle="round")
            ax.text(x[0] + 1, level + 8, NAMES.get(name, name), fontsize=8, weight="bold")
            if column:
                ax.vlines(x[0], level - 4, level + 4, color=TOLERANCE_FREE, linewidth=0.6)
    ax.text(2, high - 4, title, fontsize=8)
    ax.text(wide - 2, 2, "25 mm/s   10 mm/mV", fontsize=8, ha="right")
    return figure


def roc_curves(
    curves: Mapping[str, Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]],
    areas: Mapping[str, Mapping[str, str]],
) -> Figure:
    """ROC curves, a panel a class and a line a model. `curves` and `areas`: class -> model -> value."""
    import matplotlib.pyplot as plt

    use_style()
    figure, axes = plt.subplots(
        1, max(1, len(curves)), figsize=(WIDTH, 2.1), layout="constrained", sharey=True, squeeze=False
    )
    for ax, (name, lines) in zip(axes[0], curves.items(), strict=False):
        ax.plot([0, 1], [0, 1], color=BAND, linewidth=0.6)
        for colour, (model, (false, true)) in zip((TOLERANCE_FREE, *PALETTE), lines.items(), strict=False):
            ax.plot(false, true, color=colour, linewidth=1.0, label=model)
        ax.set_title("\n".join([name, *areas.get(name, {}).values()]), fontsize=7)
        ax.set_aspect("equal")
        ax.set_xticks([0, 1])
        ax.set_yticks([0, 1])
    axes[0][0].set_ylabel("true positive rate")
    axes[0][len(axes[0]) // 2].set_xlabel("false positive rate")
    if curves:
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles[0:], labels, loc="outside lower center", ncols=4)
    else:
        axes[0][0].text(0.02, 0.5, "not measured here yet", fontsize=8)
    return figure


def learning(
    losses: Mapping[str, Sequence[float | None]], validation: Mapping[str, Sequence[float | None]]
) -> Figure:
    """Loss by step on the left, validation AUC by epoch on the right; a line a run."""
    import matplotlib.pyplot as plt

    use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.6), layout="constrained")
    for colour, name in zip((TOLERANCE_FREE, *PALETTE), losses, strict=False):
        values = np.array([np.nan if x is None else x for x in losses[name]], dtype=float)
        left.plot(_smoothed(values), color=colour, linewidth=0.9, label=name)
        scores = [np.nan if x is None else x for x in validation.get(name, [])]
        right.plot(range(1, len(scores) + 1), scores, "o-", ms=3, color=colour, linewidth=0.9)
    left.set_xlabel("step")
    left.set_ylabel("loss")
    right.set_xlabel("epoch")
    right.set_ylabel("validation macro AUC")
    if losses:
        left.legend(fontsize=7)
    else:
        left.text(0.02, 0.5, "not measured here yet", transform=left.transAxes, fontsize=8)
    return figure


def same_loss(runs: Mapping[str, Sequence[float | None]], published: str = "") -> Figure:
    """Loss by step of runs that should agree, one line each, the first in black."""
    import matplotlib.pyplot as plt

    use_style()
    figure, ax = plt.subplots(figsize=(WIDTH, 2.6), layout="constrained")
    styles: list[dict[str, Any]] = [
        {"color": TOLERANCE_FREE}, {"color": PUBLISHED, "linestyle": "--"}, *({"color": c} for c in PALETTE)
    ]  # fmt: skip
    for style, (name, losses) in zip(styles, runs.items(), strict=False):
        ax.plot([np.nan if x is None else x for x in losses], linewidth=0.9, label=name, **style)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    if runs:
        ax.legend()
    else:
        ax.text(0.02, 0.5, "not measured here yet", transform=ax.transAxes, fontsize=8)
    return figure


def _smoothed(values: NDArray[np.float64], share: float = 0.9) -> NDArray[np.float64]:
    """An exponential mean, for the eye."""
    shown, now = [], float("nan")
    for value in values:
        now = value if now != now else share * now + (1 - share) * value
        shown.append(now)
    return np.array(shown)
