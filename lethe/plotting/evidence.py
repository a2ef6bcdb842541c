"""Figures about the referee: calibration, matrices of rejections and kills, operating points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lethe.plotting.style import BAND, PALETTE, PUBLISHED, panels, say_if_empty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def calibration(rows: Sequence[dict[str, Any]], published: dict[str, Any]) -> Figure:
    """Noise floor, threshold and onset of each gate and operator on one logarithmic axis.

    `rows` are those of a calibration (``gate``, ``operator``, ``noise_error``, ``threshold``, ``onset`` as
    relative errors, None where there is none; ``thin``): one for each line of the figure, those without a
    threshold are left out. `published` maps a gate to its published ``noise_floor``, ``trip`` and ``onset``,
    drawn as open circles on a line of their own.
    """
    lines = _calibration_lines(rows, published)
    figure, ax = panels(height=0.19 * len(lines) + 1.0)
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
    say_if_empty(ax, len(lines))
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
    figure, ax = panels(height=0.17 * len(table) + 1.0)
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
    figure, ax = panels(height=0.15 * len(table) + 1.0)
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
    figure, ax = panels(height=3.0)
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
