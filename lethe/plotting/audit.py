"""Figures of an audit: the funnel, rates by gate and class, counts, how a rate moves with a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lethe.plotting.style import BAND, PALETTE, PUBLISHED, TOLERANCE_FREE, legend_above, panels, say_if_empty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def funnel(here: pd.DataFrame, published: pd.DataFrame, *, titles: tuple[str, str]) -> Figure:
    """Two acceptance funnels, one above the other.

    Both frames hold ``stage``, ``rows`` and ``kind`` (``"row"``, ``"violation"`` or ``"floor"``).
    """
    colours = {"row": BAND, "violation": PALETTE[0], "floor": TOLERANCE_FREE}
    lengths = [len(here), len(published)]
    figure, both = panels(2, 0.27 * sum(lengths) + 0.9, height_ratios=lengths)
    for ax, table, title in zip(both, (here, published), titles, strict=True):
        positions = range(len(table))
        ax.barh(positions, table["rows"], color=[colours[k] for k in table["kind"]], height=0.62)
        largest = max(1, int(table["rows"].max()))
        for y, n in zip(positions, table["rows"], strict=True):
            ax.text(n + 0.01 * largest, y, f"{n:,}", va="center", fontsize=8)
        ax.set_yticks(positions, table["stage"])
        ax.set_xlim(0, 1.12 * largest)
        ax.invert_yaxis()
        ax.set_title(title, loc="left")
        ax.xaxis.set_visible(False)
        ax.spines["bottom"].set_visible(False)
    return figure


def gate_rates(table: pd.DataFrame) -> Figure:
    """Failure rate of each gate, the tolerance-free part in black, published rates as circles.

    `table` holds ``gate``, ``applicable``, ``rate``, ``low``, ``high``, ``rate_T`` (share of the applicable
    rows with a tolerance-free finding) and ``published`` (a rate, NaN where none was published).
    """
    figure, ax = panels(height=3.4)
    x = range(len(table))
    ax.bar(x, 100 * table["rate"], color=BAND, width=0.66, label="a band decided")
    ax.bar(x, 100 * table["rate_T"], color=TOLERANCE_FREE, width=0.66, label="tolerance-free")
    spread = [100 * (table["rate"] - table["low"]), 100 * (table["high"] - table["rate"])]
    ax.errorbar(x, 100 * table["rate"], yerr=spread, fmt="none", ecolor="#3b6ea5", elinewidth=1.0, capsize=2)
    ax.plot(
        x,
        100 * table["published"],
        "o",
        mfc="white",
        mec=PUBLISHED,
        mew=1.4,
        ms=5.5,
        label="published (B200)",
    )
    ax.set_xticks(list(x), table["gate"], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_ylabel("failing, % of applicable rows")
    ax.set_ylim(bottom=0)
    legend_above(ax)
    say_if_empty(ax, int(table["applicable"].sum()))
    return figure


def class_rates(table: pd.DataFrame) -> Figure:
    """Rate of violations (grey) and of the floor (black) by operator class, with intervals.

    `table` holds ``family``, ``rows``, ``rate``, ``low``, ``high``, ``floor_rate``.
    """
    figure, ax = panels(height=0.3 * len(table) + 0.9)
    y = range(len(table))
    ax.barh(y, 100 * table["rate"], color=BAND, height=0.66, label="any contract")
    ax.barh(y, 100 * table["floor_rate"], color=TOLERANCE_FREE, height=0.66, label="tolerance-free floor")
    spread = [100 * (table["rate"] - table["low"]), 100 * (table["high"] - table["rate"])]
    ax.errorbar(100 * table["rate"], y, xerr=spread, fmt="none", ecolor="#3b6ea5", elinewidth=1.0, capsize=2)
    ax.set_yticks(list(y), [f"{f} (n = {n})" for f, n in zip(table["family"], table["rows"], strict=True)])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("% of judged, accepted rows")
    legend_above(ax)
    return figure


def counts(labels: Sequence[str], values: Sequence[int], *, xlabel: str, tolerance_free: bool) -> Figure:
    """Horizontal bars of counts, black if they are tolerance-free."""
    figure, ax = panels(height=0.32 * len(labels) + 0.7)
    y = range(len(labels))
    ax.barh(y, values, color=TOLERANCE_FREE if tolerance_free else BAND, height=0.62)
    for position, n in zip(y, values, strict=True):
        ax.text(n, position, f" {n:,}", va="center", fontsize=8)
    ax.set_yticks(list(y), labels)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(1, *values) if values else 1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel(xlabel)
    say_if_empty(ax, sum(values))
    return figure


def moving_rate(points: Sequence[dict[str, Any]]) -> Figure:
    """How a headline moves with what is counted: one line for each choice, with its interval.

    Each point holds ``name``, ``rate``, ``low``, ``high`` (in [0, 1], NaN where nothing is recorded),
    ``published`` (a rate or None) and ``tolerance_free``.
    """
    figure, ax = panels(height=0.23 * len(points) + 0.8)
    for y, p in enumerate(points):
        colour = TOLERANCE_FREE if p["tolerance_free"] else BAND
        spread = [[100 * (p["rate"] - p["low"])], [100 * (p["high"] - p["rate"])]]
        ax.errorbar(100 * p["rate"], y, xerr=spread, fmt="o", ms=5, color=colour, capsize=2)
        if p["published"] is not None:
            ax.plot(100 * p["published"], y, "o", mfc="none", mec=PUBLISHED, mew=1.4, ms=6.5)
    for colour, name in ((TOLERANCE_FREE, "tolerance-free"), (BAND, "any contract")):
        ax.plot([], [], "o", color=colour, ms=5, label=name)
    ax.plot([], [], "o", mfc="none", mec=PUBLISHED, mew=1.4, ms=6.5, label="published (B200)")
    ax.set_yticks(range(len(points)), [p["name"] for p in points])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("% of judged, accepted rows (95% Wilson interval)")
    legend_above(ax)
    if not any(p["rate"] == p["rate"] for p in points):
        ax.text(0.5, 0.5, "not recorded yet", transform=ax.transAxes, ha="center", va="center")
    return figure
