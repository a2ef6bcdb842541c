"""Figures of kernels: what they need of an architecture, speeds, errors, tensor memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lethe.plotting.style import BAND, PALETTE, PUBLISHED, TOLERANCE_FREE, legend_above, panels, say_if_empty

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compile_matrix(rows: Sequence[dict[str, Any]]) -> Figure:
    """Registers a thread of every function, one column an architecture; a number where registers spill.

    `rows` are those of the compile matrix (``kernel``, ``function``, ``target``, ``num_warps``,
    ``registers``, ``spill_bytes``); of a function with several tiles the most is drawn.
    """
    import numpy as np

    lines = list(dict.fromkeys((r["kernel"], r["function"], r["num_warps"]) for r in rows))
    targets = sorted({r["target"] for r in rows}, key=lambda t: int(t.removeprefix("sm_")))
    figure, ax = panels(height=0.24 * max(len(lines), 1) + 0.9)
    grid = np.full((max(len(lines), 1), max(len(targets), 1)), np.nan)
    spilt = np.zeros(grid.shape, int)
    for r in rows:
        y, x = lines.index((r["kernel"], r["function"], r["num_warps"])), targets.index(r["target"])
        grid[y, x] = np.fmax(grid[y, x], r["registers"])
        spilt[y, x] = max(spilt[y, x], r["spill_bytes"])
    for y, x in np.argwhere(~np.isnan(grid)):
        text = f"{grid[y, x]:.0f}" + (f"  ({spilt[y, x]:,} B spilt)" if spilt[y, x] else "")
        color = "white" if grid[y, x] > 150 else "black"
        ax.text(x, y, text, ha="center", va="center", fontsize=7, color=color)
    ax.imshow(grid, aspect="auto", cmap="Greys", vmin=0, vmax=255)
    ax.set_xticks(range(len(targets)), targets)
    ax.set_yticks(
        range(len(lines)), [f"{kernel} {name}, warps: {n}" for kernel, name, n in lines], fontsize=7
    )
    ax.set_xlabel("registers a thread, of 255")
    say_if_empty(ax, len(rows))
    return figure


def tensor_memory(rows: Sequence[dict[str, Any]], limit: int) -> Figure:
    """Tensor-memory columns of every configuration on one target, one line a version, against the limit.

    `rows`: ``triton``, ``num_warps``, ``num_stages``, ``tmem_columns``; black is what fits, a cross what does
    not.
    """
    versions = list(dict.fromkeys(r["triton"] for r in rows))
    figure, ax = panels(height=0.5 * max(len(versions), 1) + 1.0)
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
    say_if_empty(ax, len(rows))
    return figure


def speed_ratios(
    groups: dict[str, Sequence[tuple[str, float]]], published: Sequence[float], *, xlabel: str
) -> Figure:
    """Ratios baseline over ours, one line a group and a point a shape; published ones as open circles."""
    names = [*groups, "published"]
    figure, ax = panels(height=0.42 * len(names) + 0.9)
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
    figure, ax = panels(height=3.6)
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
    figure, ax = panels(height=0.21 * (len(points) + 1) + 0.9)
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
    legend_above(ax)
    if not any(p["measured"] for p in points):
        ax.text(0.02, 0.03, "not measured here yet", transform=ax.transAxes, fontsize=8)
    return figure


def tensor_memory_map(kernels: dict[str, int], regions: Sequence[Any], resident: tuple[str, str]) -> Figure:
    """Columns of tensor memory by kernel, what stands in them, and below it what takes its place.

    `kernels`: columns that each allocates; `regions`: ``kernel``, ``name``, ``first``, ``columns``, ``what``,
    ``form``, ``turn``; `resident`: the kernel and name of what lives for the whole loop, drawn in black.
    """
    figure, axes = panels(len(kernels), height=0.85 * len(kernels) + 0.7, sharex=True, squeeze=False)
    forms = list(dict.fromkeys(r.form for r in regions))
    drawn: dict[str, Any] = {}
    for ax, (kernel, columns) in zip(axes[:, 0], kernels.items(), strict=True):
        ax.add_patch(_rectangle(0, 0, columns, 2, facecolor="none", edgecolor=BAND, linestyle=":"))
        for r in (r for r in regions if r.kernel == kernel):
            black = (kernel, r.name) == resident
            face = TOLERANCE_FREE if black else PALETTE[forms.index(r.form)]
            patch = _rectangle(r.first, 1 - r.turn, r.columns, 0.94, facecolor=face, edgecolor="white")
            drawn.setdefault("resident state" if black else r.form, ax.add_patch(patch))
            dark = black or face == PALETTE[0]
            ax.text(r.first + r.columns / 2, 1.47 - r.turn, r.what, ha="center", va="center", fontsize=6,
                    color="white" if dark else TOLERANCE_FREE)  # fmt: skip
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
