"""Figures of trainings: losses over steps, one way beside another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lethe.plotting.style import BAND, PALETTE, TOLERANCE_FREE, WIDTH, say_if_empty, use_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4


def learning_curves(trainings: Sequence[dict[str, Any]]) -> Figure:
    """Losses over steps, a panel for each training: torch's seeds as a band, the native ones as lines on it.

    Each has ``title``, ``task``, ``steps``, ``native`` and ``torch`` (a curve for each seed, of stretches of
    equal length, None where a loss was not finite) and ``memoryless``, the loss of who cannot look back
    (dashed). Grey: least to largest of torch's seeds, and their mean; thin blue: the same of the native ones.
    Losses are logarithmic; panels of one task share them, and begin a row of their own.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    use_style()
    tasks = list(dict.fromkeys(t["task"] for t in trainings))
    groups = [[t for t in trainings if t["task"] == task] for task in tasks]
    rows = [-(-len(group) // COLUMNS) for group in groups]
    size = (WIDTH, 1.35 * max(sum(rows), 1) + 0.5)
    figure, axes = plt.subplots(max(sum(rows), 1), COLUMNS, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flatten():
        ax.axis("off")
    say_if_empty(axes[0, 0], len(trainings))
    for task, group, first in zip(tasks, groups, np.cumsum([0, *rows]), strict=False):
        panels = axes[first:].flatten()
        for ax, t in zip(panels, group, strict=False):
            ax.axis("on")
            native, torch = (np.array(t[name], dtype=float) for name in ("native", "torch"))
            at = (np.arange(native.shape[1]) + 0.5) * t["steps"] / native.shape[1]
            ax.fill_between(at, torch.min(0), torch.max(0), color=BAND, alpha=0.4, linewidth=0)
            ax.plot(at, torch.mean(0), color=BAND, linewidth=3.0)
            for of_seeds, width in ((native.min(0), 0.5), (native.max(0), 0.5), (native.mean(0), 1.0)):
                ax.plot(at, of_seeds, color=PALETTE[0], linewidth=width)
            ax.axhline(t["memoryless"], color=TOLERANCE_FREE, linestyle="--", linewidth=0.7)
            ax.set_yscale("log", base=2)
            ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
            ax.grid(axis="y", color=BAND, alpha=0.3, linewidth=0.5)
            ax.set_title(t["title"], fontsize=8)
            ax.tick_params(labelleft=ax in axes[:, 0])
            if ax is not panels[0]:
                ax.sharey(panels[0])
        panels[0].set_ylabel(f"{task}, bits")
    axes[-1, 0].set_xlabel("steps")
    return figure
