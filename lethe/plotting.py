"""One house style for every figure of the book.

Legible in print (8 pt at a column width), safe for colour-blind readers (Okabe and Ito's
palette), and one convention throughout: **black is tolerance-free**, grey is what a band
decided, an open circle is a published figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent.parent / "figures"

TOLERANCE_FREE = "black"
BAND = "#9a9a9a"
PUBLISHED = "#D55E00"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito, *Color Universal Design* (2008), in the order in which figures use them."""

WIDTH = 6.4
"""Inches: the text width of a printed page; figures are drawn at the size at which they print."""


def use_style() -> None:
    """Make the house style matplotlib's default for this process."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 300,
            "savefig.bbox": "tight",
            "font.size": 9,
            "axes.labelsize": 9,
            "axes.titlesize": 9,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "legend.fontsize": 8,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": False,
            "axes.prop_cycle": cycler(color=PALETTE),
            "svg.hashsalt": "lethe",
            "pdf.fonttype": 42,
        }
    )


def save(figure: Figure, name: str, folder: Path = FOLDER) -> list[Path]:
    """Write ``<folder>/<name>.svg`` and ``.png`` without dates, so that equal figures are equal files.

    The figure is closed: a notebook shows it once, as the value of a cell.
    """
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        path = folder / f"{name}.{suffix}"
        figure.savefig(path, metadata=metadata)
        paths.append(path)
    plt.close(figure)
    return paths


def _axes(rows: int = 1, height: float = 3.0, **options: Any) -> tuple[Figure, Any]:
    import matplotlib.pyplot as plt

    use_style()
    return plt.subplots(rows, 1, figsize=(WIDTH, height), layout="constrained", **options)


def _legend_above(ax: Axes) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)


def funnel(here: pd.DataFrame, published: pd.DataFrame, *, titles: tuple[str, str]) -> Figure:
    """Two acceptance funnels, one above the other.

    Both frames hold ``stage``, ``rows`` and ``kind`` (``"row"``, ``"violation"`` or ``"floor"``).
    """
    colours = {"row": BAND, "violation": PALETTE[0], "floor": TOLERANCE_FREE}
    lengths = [len(here), len(published)]
    figure, both = _axes(2, 0.27 * sum(lengths) + 0.9, height_ratios=lengths)
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
    figure, ax = _axes(height=3.4)
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
    _legend_above(ax)
    _empty(ax, int(table["applicable"].sum()))
    return figure


def class_rates(table: pd.DataFrame) -> Figure:
    """Rate of violations (grey) and of the floor (black) by operator class, with intervals.

    `table` holds ``family``, ``rows``, ``rate``, ``low``, ``high``, ``floor_rate``.
    """
    figure, ax = _axes(height=0.3 * len(table) + 0.9)
    y = range(len(table))
    ax.barh(y, 100 * table["rate"], color=BAND, height=0.66, label="any contract")
    ax.barh(y, 100 * table["floor_rate"], color=TOLERANCE_FREE, height=0.66, label="tolerance-free floor")
    spread = [100 * (table["rate"] - table["low"]), 100 * (table["high"] - table["rate"])]
    ax.errorbar(100 * table["rate"], y, xerr=spread, fmt="none", ecolor="#3b6ea5", elinewidth=1.0, capsize=2)
    ax.set_yticks(list(y), [f"{f} (n = {n})" for f, n in zip(table["family"], table["rows"], strict=True)])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("% of judged, accepted rows")
    _legend_above(ax)
    return figure


def counts(labels: Sequence[str], values: Sequence[int], *, xlabel: str, tolerance_free: bool) -> Figure:
    """Horizontal bars of counts, black if they are tolerance-free."""
    figure, ax = _axes(height=0.32 * len(labels) + 0.7)
    y = range(len(labels))
    ax.barh(y, values, color=TOLERANCE_FREE if tolerance_free else BAND, height=0.62)
    for position, n in zip(y, values, strict=True):
        ax.text(n, position, f" {n:,}", va="center", fontsize=8)
    ax.set_yticks(list(y), labels)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(1, *values) if values else 1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel(xlabel)
    _empty(ax, sum(values))
    return figure


def _empty(ax: Axes, n: int) -> None:
    if n == 0:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center")
