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


def moving_rate(points: Sequence[dict[str, Any]]) -> Figure:
    """How a headline moves with what is counted: one line for each choice, with its interval.

    Each point holds ``name``, ``rate``, ``low``, ``high`` (in [0, 1], NaN where nothing is recorded),
    ``published`` (a rate or None) and ``tolerance_free``.
    """
    figure, ax = _axes(height=0.23 * len(points) + 0.8)
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
    _legend_above(ax)
    if not any(p["rate"] == p["rate"] for p in points):
        ax.text(0.5, 0.5, "not recorded yet", transform=ax.transAxes, ha="center", va="center")
    return figure


def _empty(ax: Axes, n: int) -> None:
    if n == 0:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center")


def calibration(rows: Sequence[dict[str, Any]], published: dict[str, Any]) -> Figure:
    """Noise floor, threshold and onset of each gate and operator on one logarithmic axis.

    `rows` are those of a calibration (``gate``, ``operator``, ``noise_error``, ``threshold``, ``onset`` as
    relative errors, None where there is none; ``thin``): one for each line of the figure, those without a
    threshold are left out. `published` maps a gate to its published ``noise_floor``, ``trip`` and ``onset``,
    drawn as open circles on a line of their own.
    """
    lines = _calibration_lines(rows, published)
    figure, ax = _axes(height=0.19 * len(lines) + 1.0)
    marks = (("noise_error", "|", PALETTE[0]), ("threshold", "d", BAND), ("onset", "o", PALETTE[5]))
    for y, (_, row, is_published) in enumerate(lines):
        known = [(row[k], m, c) for k, m, c in marks if row.get(k)]
        ax.plot([known[0][0], known[-1][0]], [y, y], color="#d8d8d8", linewidth=1.0, zorder=0)
        for value, marker, colour in known:
            face = {"mfc": "white", "mec": PUBLISHED} if is_published else {"color": colour}
            ax.plot(value, y, "o" if is_published else marker, ms=5, mew=1.4, **face)
        if row.get("thin"):
            ax.text(known[-1][0], y, "  thin", va="center", fontsize=7)
    for (_, marker, colour), name in zip(marks, ("honest noise", "threshold", "onset"), strict=True):
        ax.plot([], [], marker, color=colour, ms=5, mew=1.4, label=name)
    ax.plot([], [], "o", mfc="white", mec=PUBLISHED, mew=1.4, ms=5, label="published (noise, trip, onset)")
    ax.set_yticks(range(len(lines)), [label for label, _, _ in lines], fontsize=7)
    ax.set_xscale("log")
    ax.set_xlabel("relative error")
    ax.set_ylim(len(lines) - 0.5, -0.5)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, borderaxespad=0.2)
    _empty(ax, len(lines))
    return figure


def _calibration_lines(
    rows: Sequence[dict[str, Any]], published: dict[str, Any]
) -> list[tuple[str, dict[str, Any], bool]]:
    """(label, marks, whether published), gate by gate, the published line of a gate after ours."""
    lines: list[tuple[str, dict[str, Any], bool]] = []
    for gate in sorted({r["gate"] for r in rows} | set(published)):
        lines += [
            (f"{gate} {r['operator']}", r, False) for r in rows if r["gate"] == gate and r.get("threshold")
        ]
        if gate in published:
            p = published[gate]
            marks = {"noise_error": p["noise_floor"], "threshold": p["trip"], "onset": p["onset"]}
            lines.append((f"{gate} published", marks, True))
    return lines


def rejection_matrix(table: pd.DataFrame) -> Figure:
    """Attacks by gates: the share of operators on which a gate rejects an attack, its target in a box.

    `table` is indexed by attack and holds ``operators`` and one column for each gate with cells ``"3/4"``,
    ``"3/4*"`` (the target) or ``""``; in the column ``status`` (refused before any gate) ``"3/4 crashed*"``.
    """
    gates = [c for c in table.columns if c != "operators"]
    figure, ax = _axes(height=0.17 * len(table) + 1.0)
    for y, cells in enumerate(table[gates].itertuples(index=False)):
        for x, text in enumerate(map(str, cells)):
            part, _, whole = text.rstrip("*").split(" ")[0].partition("/")
            if part and int(part):
                ax.add_patch(_square(x, y, str(1 - int(part) / int(whole) * 0.85), None))
            if text.endswith("*"):
                ax.add_patch(_square(x, y, "none", PUBLISHED))
    names = ["refused" if gate == "status" else gate for gate in gates]
    _grid_of(ax, names, [str(a).replace("_", " ") for a in table.index])
    return figure


def kill_matrix(table: pd.DataFrame, gates: Sequence[str]) -> Figure:
    """Mutation operators by gates: the share of an operator's mutants that each gate kills.

    `table` holds ``operator``, ``mutants``, ``equivalent`` and a count for each of `gates`.
    """
    shown = [g for g in gates if g in table.columns]
    figure, ax = _axes(height=0.15 * len(table) + 1.0)
    for y, row in enumerate(table.to_dict("records")):
        alive = max(1, row["mutants"] - row["equivalent"])
        for x, gate in enumerate(shown):
            if row[gate]:
                ax.add_patch(_square(x, y, str(1 - 0.85 * row[gate] / alive), None))
    _grid_of(ax, shown, [str(o).replace("_", " ") for o in table["operator"]])
    return figure


def _square(x: float, y: float, face: str, edge: str | None) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (x - 0.44, y - 0.44), 0.88, 0.88, facecolor=face, edgecolor=edge or "none", linewidth=1.2
    )


def _grid_of(ax: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="left", fontsize=7)
    ax.set_yticks(range(len(rows)), rows, fontsize=6.5)
    ax.xaxis.tick_top()
    ax.set_xlim(-0.6, len(columns) - 0.4)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def operating_points(points: Sequence[dict[str, Any]]) -> Figure:
    """Sensitivity against specificity: each check as one point with its intervals.

    Each point holds ``name``, ``kill`` and ``kill_interval`` (share of mutants rejected), ``false`` (share of
    honest candidates rejected) and ``false_upper`` (its exact upper bound), all in [0, 1].
    """
    figure, ax = _axes(height=3.0)
    for colour, p in zip(PALETTE, points, strict=False):
        low, high = p["kill_interval"]
        error = {"yerr": [[100 * (p["kill"] - low)], [100 * (high - p["kill"])]]}
        error["xerr"] = [[0.0], [100 * (p["false_upper"] - p["false"])]]
        ax.errorbar(
            100 * p["false"],
            100 * p["kill"],
            fmt="o",
            ms=6,
            color=colour,
            capsize=2,
            label=p["name"],
            **error,
        )
    ax.set_xlabel("honest candidates rejected, % (bar: exact 95% upper bound)")
    ax.set_ylabel("mutants rejected, %")
    ax.set_ylim(0, 102)
    ax.set_xlim(left=-0.1)
    ax.legend(loc="lower right")
    return figure


def compile_matrix(rows: Sequence[dict[str, Any]], warps: int) -> Figure:
    """Registers a thread of every function, one column an architecture; a number where registers spill.

    `rows` are those of the compile matrix (``kernel``, ``function``, ``target``, ``num_warps``,
    ``registers``, ``spill_bytes``); only those at `warps` warps are drawn.
    """
    import numpy as np

    shown = [r for r in rows if r["num_warps"] == warps]
    lines = list(dict.fromkeys((r["kernel"], r["function"]) for r in shown))
    targets = sorted({r["target"] for r in shown}, key=lambda t: int(t.removeprefix("sm_")))
    figure, ax = _axes(height=0.24 * max(len(lines), 1) + 0.9)
    grid = np.full((max(len(lines), 1), max(len(targets), 1)), np.nan)
    for r in shown:
        y, x = lines.index((r["kernel"], r["function"])), targets.index(r["target"])
        grid[y, x] = r["registers"]
        text = f"{r['registers']}" + (f"  ({r['spill_bytes']} B spilt)" if r["spill_bytes"] else "")
        ax.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if r["registers"] > 150 else "black",
        )
    ax.imshow(grid, aspect="auto", cmap="Greys", vmin=0, vmax=255)
    ax.set_xticks(range(len(targets)), targets)
    ax.set_yticks(range(len(lines)), [f"{kernel} {name}" for kernel, name in lines], fontsize=7)
    ax.set_xlabel(f"registers a thread of 255, {warps} warps")
    _empty(ax, len(shown))
    return figure


def tensor_memory(rows: Sequence[dict[str, Any]], limit: int) -> Figure:
    """Tensor-memory columns of every configuration on one target, one line a version, against the limit.

    `rows`: ``triton``, ``num_warps``, ``num_stages``, ``tmem_columns``; black is what fits, a cross what does
    not.
    """
    versions = list(dict.fromkeys(r["triton"] for r in rows))
    figure, ax = _axes(height=0.5 * max(len(versions), 1) + 1.0)
    for r in rows:
        y = versions.index(r["triton"]) + 0.09 * (r["num_stages"] - 2) - 0.03 * ((r["num_warps"] == 8) - 0.5)
        fits = r["tmem_columns"] <= limit
        mark: dict[str, Any] = {"mfc": "none", "mec": TOLERANCE_FREE} if fits else {"color": PUBLISHED}
        ax.plot(r["tmem_columns"], y, "o" if fits else "x", ms=4, mew=1.2, **mark)
    ax.axvline(limit, color=TOLERANCE_FREE, linewidth=0.9)
    ax.text(limit, -0.62, f" {limit} columns", fontsize=7, va="bottom")
    ax.set_yticks(range(len(versions)), [f"Triton {v}" for v in versions])
    ax.set_ylim(len(versions) - 0.4, -0.7)
    ax.set_xlabel("columns of tensor memory")
    _empty(ax, len(rows))
    return figure


def speed_ratios(
    groups: dict[str, Sequence[tuple[str, float]]], published: Sequence[float], *, xlabel: str
) -> Figure:
    """Ratios baseline over ours, one line a group and a point a shape; published ones as open circles."""
    names = [*groups, "published"]
    figure, ax = _axes(height=0.42 * len(names) + 0.9)
    for y, name in enumerate(groups):
        ax.plot(
            [ratio for _, ratio in groups[name]], [y] * len(groups[name]), "o", ms=4, color=TOLERANCE_FREE
        )
    ax.plot(published, [len(names) - 1] * len(published), "o", ms=5, mfc="white", mec=PUBLISHED)
    ax.axvline(1.0, color=BAND, linewidth=0.9)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlabel(xlabel)
    if not any(groups.values()):
        ax.text(0.02, 0.9, "not measured here yet", transform=ax.transAxes, fontsize=8)
    return figure


def times_over_length(lines: dict[str, Sequence[tuple[int, float]]], floors: Sequence[str]) -> Figure:
    """Microseconds over the length of a sequence, both logarithmic; lines named in `floors` are dashed.

    A line without points is left out; a floor is drawn in grey, what was published as open circles.
    """
    figure, ax = _axes(height=3.6)
    colours = iter(("black", *PALETTE))
    drawn = {name: points for name, points in lines.items() if points}
    for name, points in drawn.items():
        x, y = zip(*points, strict=True)
        if name in floors:
            ax.plot(x, y, "--" if name == floors[0] else ":", color=BAND, linewidth=1.2, label=name)
        elif name.startswith("published"):
            ax.plot(x, y, "o", mfc="white", mec=PUBLISHED, mew=1.4, ms=5, label=name)
        else:
            ax.plot(x, y, "o-", ms=4, linewidth=1.2, color=next(colours), label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    lengths = sorted({length for points in drawn.values() for length, _ in points})
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.minorticks_off()
    ax.set_xlabel("tokens of a sequence")
    ax.set_ylabel("µs")
    if drawn:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)
    if not any(name not in floors and not name.startswith("published") for name in drawn):
        ax.text(0.5, 0.5, "not measured here yet", transform=ax.transAxes, ha="center", va="center")
    return figure


def errors_and_pins(
    points: Sequence[dict[str, Any]], pins: Sequence[float], published: Sequence[float]
) -> Figure:
    """Errors by line on one logarithmic axis: measured as dots, emulated as grey ticks, pins as lines.

    Each point holds ``name``, ``measured`` and ``planned`` (errors, perhaps none).
    """
    figure, ax = _axes(height=0.21 * (len(points) + 1) + 0.9)
    for y, p in enumerate(points):
        ax.plot(p["planned"], [y + 0.18] * len(p["planned"]), "|", color=BAND, ms=5)
        ax.plot(p["measured"], [y - 0.12] * len(p["measured"]), "o", color=TOLERANCE_FREE, ms=2.5)
    ax.plot(published, [len(points)] * len(published), "o", mfc="white", mec=PUBLISHED, mew=1.4, ms=5)
    for pin in pins:
        ax.axvline(pin, color=PALETTE[0], linewidth=0.9)
    for marker, style, name in (
        ("o", {"color": TOLERANCE_FREE, "ms": 2.5}, "measured on the GPU"),
        ("|", {"color": BAND, "ms": 5}, "emulated plan"),
        ("o", {"mfc": "white", "mec": PUBLISHED, "mew": 1.4, "ms": 5}, "published worst (B200)"),
    ):
        ax.plot([], [], marker, label=name, **style)
    ax.set_yticks(range(len(points) + 1), [*(p["name"] for p in points), "published"], fontsize=7)
    ax.set_ylim(len(points) + 0.6, -0.6)
    ax.set_xscale("log")
    ax.set_xlabel("error of a gradient, max|x − x₆₄| / max|x₆₄|; lines are the pins")
    _legend_above(ax)
    if not any(p["measured"] for p in points):
        ax.text(0.02, 0.03, "not measured here yet", transform=ax.transAxes, fontsize=8)
    return figure


def regret_curves(
    runs: dict[str, dict[str, Sequence[tuple[int, float]]]], scatter: dict[str, float]
) -> Figure:
    """Regret over measurements, a panel for each kernel; the grey band is the scatter of the clock.

    `runs`: by kernel, by method, (measurements, regret) of every point of every seed, in order; a method's
    seeds are drawn as points, their running median as a line. Regrets of zero lie on the axis.
    """
    figure, axes = _axes(rows=max(len(runs), 1), height=2.1 * max(len(runs), 1) + 0.4, squeeze=False)
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
    _empty(axes[0, 0], len(runs))
    return figure


def _running(values: Sequence[float], reach: int = 2) -> list[float]:
    """Median of each value and its neighbours."""
    import statistics

    return [statistics.median(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def outcome_shares(labels: Sequence[str], here: Sequence[int], published: Sequence[int | None]) -> Figure:
    """Shares of outcomes, ours as bars and the published ones as open circles."""
    figure, ax = _axes(height=0.32 * max(len(labels), 1) + 1.0)
    total = sum(here) or 1
    theirs = sum(n or 0 for n in published) or 1
    ax.barh(range(len(labels)), [100 * n / total for n in here], color=BAND, height=0.6)
    for y, n in enumerate(published):
        if n is not None:
            ax.plot(100 * n / theirs, y, "o", ms=5, mfc="white", mec=PUBLISHED)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("share of attempts, % (open circle: published)")
    _empty(ax, sum(here))
    return figure


def tensor_memory_map(kernels: dict[str, int], regions: Sequence[Any], resident: tuple[str, str]) -> Figure:
    """Columns of tensor memory by kernel, what stands in them, and below it what takes its place.

    `kernels`: columns that each allocates; `regions`: ``kernel``, ``name``, ``first``, ``columns``, ``what``,
    ``form``, ``turn``; `resident`: the kernel and name of what lives for the whole loop, drawn in black.
    """
    figure, axes = _axes(len(kernels), height=0.85 * len(kernels) + 0.7, sharex=True, squeeze=False)
    forms = list(dict.fromkeys(r.form for r in regions))
    drawn: dict[str, Any] = {}
    for ax, (kernel, columns) in zip(axes[:, 0], kernels.items(), strict=True):
        ax.add_patch(_rectangle(0, 0, columns, 2, facecolor="none", edgecolor=BAND, linestyle=":"))
        for r in (r for r in regions if r.kernel == kernel):
            black = (kernel, r.name) == resident
            face = TOLERANCE_FREE if black else PALETTE[forms.index(r.form)]
            patch = _rectangle(r.first, 1 - r.turn, r.columns, 0.94, facecolor=face, edgecolor="white")
            drawn.setdefault("resident state" if black else r.form, ax.add_patch(patch))
            ax.text(r.first + r.columns / 2, 1.47 - r.turn, r.what, ha="center", va="center", fontsize=6,
                    color="white" if black else TOLERANCE_FREE)  # fmt: skip
        ax.set_xlim(0, max(kernels.values()))
        ax.set_ylim(0, 2.05)
        ax.set_yticks([1.47, 0.47], ["first", "then"])
        ax.set_ylabel(kernel)
    axes[-1, 0].set_xticks(range(0, max(kernels.values()) + 1, 64))
    axes[-1, 0].set_xlabel("column of tensor memory")
    axes[0, 0].legend(drawn.values(), drawn, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    return figure


def _rectangle(x: float, y: float, width: float, height: float, **options: Any) -> Any:
    """A rectangle by its lower left corner."""
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, **options)
