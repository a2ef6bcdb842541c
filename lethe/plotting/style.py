"""One house style for every figure of the book.

Legible in print (8 pt at a column width), safe for colour-blind readers (Okabe and Ito's
palette), and one convention throughout: **black is tolerance-free**, grey is what a band
decided, an open circle is a published figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent.parent.parent / "figures"

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


def panels(rows: int = 1, height: float = 3.0, **options: Any) -> tuple[Figure, Any]:
    import matplotlib.pyplot as plt

    use_style()
    return plt.subplots(rows, 1, figsize=(WIDTH, height), layout="constrained", **options)


def legend_above(ax: Axes) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2)


def say_if_empty(ax: Axes, n: int) -> None:
    if n == 0:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center")
