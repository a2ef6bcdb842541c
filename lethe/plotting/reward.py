"""Figures of the reward: regret over measurements, and how attempts end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lethe.plotting.style import BAND, PALETTE, PUBLISHED, panels, say_if_empty

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def regret_curves(
    runs: dict[str, dict[str, Sequence[tuple[int, float]]]], scatter: dict[str, float]
) -> Figure:
    """Regret over measurements, a panel for each kernel; the grey band is the scatter of the clock.

    `runs`: by kernel, by method, (measurements, regret) of every point of every seed, in order; a method's
    seeds are drawn as points, their running median as a line. Regrets of zero lie on the axis.
    """
    figure, axes = panels(rows=max(len(runs), 1), height=2.1 * max(len(runs), 1) + 0.4, squeeze=False)
    for ax, (kernel, methods) in zip(axes[:, 0], runs.items(), strict=False):
        ax.axhspan(0, 100 * scatter.get(kernel, 0.0), color=BAND, alpha=0.25, linewidth=0)
        for colour, (name, points) in zip(("black", *PALETTE), methods.items(), strict=False):
            ordered = sorted(points)
            ax.plot(
                [x for x, _ in ordered], [100 * y for _, y in ordered], "o", ms=2.5, color=colour, alpha=0.6
            )
            ax.plot(
                [x for x, _ in ordered], _running([100 * y for _, y in ordered]), color=colour, label=name
            )
        ax.set_ylim(bottom=0)
        ax.set_title(kernel, loc="left")
        ax.set_ylabel("regret, %")
        ax.legend()
    axes[-1, 0].set_xlabel("measurements spent, all training shapes together")
    say_if_empty(axes[0, 0], len(runs))
    return figure


def _running(values: Sequence[float], reach: int = 2) -> list[float]:
    """Median of each value and its neighbours."""
    import statistics

    return [statistics.median(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def outcome_shares(labels: Sequence[str], here: Sequence[int], published: Sequence[int | None]) -> Figure:
    """Shares of outcomes, ours as bars and the published ones as open circles."""
    figure, ax = panels(height=0.32 * max(len(labels), 1) + 1.0)
    total = sum(here) or 1
    theirs = sum(n or 0 for n in published) or 1
    ax.barh(range(len(labels)), [100 * n / total for n in here], color=BAND, height=0.6)
    for y, n in enumerate(published):
        if n is not None:
            ax.plot(100 * n / theirs, y, "o", ms=5, mfc="white", mec=PUBLISHED)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("share of attempts, % (open circle: published)")
    say_if_empty(ax, sum(here))
    return figure
