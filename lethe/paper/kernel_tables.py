"""Tables about the six kernels: the control, the compile matrix, issue 904, and the speeds.

A record that is missing gives a table that says *not measured yet*, never an empty one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from lethe.evidence import controls, issue_904, issue_904_res02
from lethe.provenance import Measurement

MISSING = "not measured yet"
BANDWIDTH = 4.3e12
"""Bytes a second that a copy kernel reaches on an H200 (measured; the data sheet says 4.8e12)."""

SHOWN = {"CMP-02": "worst_ratio", "CMP-03": "worst_ratio", "RES-02": "registers"}
"""What of a gate's measurements the control's table names first."""

KINDS = {
    "healthy": {
        "scan": ("selective_scan CUDA", "selective_scan PyTorch"),
        "block": ("conv1d, selective_scan CUDA",),
        "siso": ("official SISO",),
    },
    "crippled": {"siso": ("official SISO, two warps",)},
    "earlier": dict.fromkeys(("scan", "block", "siso", "mimo"), ("ours serial",)),
}
"""The three kinds of baseline, by suite; a table holds one kind and one baseline only."""

SUITES = {
    "scan": "Selective scan (C1, C2)", "block": "Fused block (C5, C6)", "siso": "Mamba-3, one input (SISO)",
    "mimo": "Mamba-3, four inputs (MIMO; C4, C3)",
}  # fmt: skip
"""The suites of the bench, as a caption names them."""


def missing(record: Measurement | None, columns: Sequence[str]) -> pd.DataFrame | None:
    """A table of one row that says so, where there is no record."""
    if record is not None:
        return None
    return pd.DataFrame([[MISSING] + [""] * (len(columns) - 1)], columns=list(columns))


def sanitized(found: dict[str, Any]) -> str:
    """What one tool of compute-sanitizer found, in words."""
    if found["status"] is None:
        return str(found["why"])
    if "hazards" in found:
        return (
            f"{found['hazards']:,} hazards, in {found['same_value']:,} of them both threads write one value"
        )
    return "clean" if found["status"] == 0 else "not clean"


# --- the control --------------------------------------------------------------------------------


def control_table(sides: dict[str, Measurement | None]) -> pd.DataFrame:
    """One row a gate, a column for each kernel; a cell holds what every device that was measured says."""
    tables = [controls.gate_table(record.samples) for record in sides.values() if record is not None]
    if not tables:
        return pd.DataFrame([[MISSING, *[""] * 6]], columns=["gate", *controls.NAMES])
    rows = []
    for gate in tables[0].index:
        cells = [
            " / ".join(str(t.loc[gate].get(kernel, MISSING)).replace("_", " ") for t in tables)
            for kernel in controls.NAMES
        ]
        rows.append([gate, *cells])
    return pd.DataFrame(rows, columns=["gate", *controls.NAMES])


def control_score(record: Measurement | None) -> str:
    """``"6 of 6"``, or that it was not measured."""
    if record is None:
        return MISSING
    return f"{controls.passed(record.samples)} of {len(controls.NAMES)}"


def measured_table(record: Measurement | None) -> pd.DataFrame:
    """What each gate measured on each control, and why it does not apply where it does not."""
    columns = ["gate", "kernel", "status", "measured or reason"]
    if (table := missing(record, columns)) is not None:
        return table
    assert record is not None
    found = controls.gates(record.samples).sort_values(["gate", "kernel"], kind="stable")
    text = found["measured"].where(found["measured"] != "", found["reason"].str.replace("_", " "))
    shown = found.assign(text=text, status=found["status"].str.replace("_", " "))
    return shown[["gate", "kernel", "status", "text"]].set_axis(columns, axis=1)


# --- the compile matrix -------------------------------------------------------------------------


def matrix(record: Measurement | None) -> pd.DataFrame:
    """One row a kernel and number of warps, the worst over its functions and the architectures."""
    needs = ("registers", "spills (B)", "shared (B)", "TMEM columns")
    columns = ["kernel", "warps", "functions", *needs, "fits"]
    if (table := missing(record, columns)) is not None:
        return table
    assert record is not None
    df = pd.DataFrame(record.samples)
    df["warps"] = df["num_warps"].astype(str)
    shipped = pd.DataFrame(launched(record)).assign(warps="as launched")
    rows = []
    for (kernel, warps), part in pd.concat([df, shipped]).groupby(["kernel", "warps"]):
        fits = "everywhere" if not any(part["exceeds"]) else "; ".join(s for e in part["exceeds"] for s in e)
        worst = [int(part[c].max()) for c in ("registers", "spill_bytes", "shared_bytes", "tmem_columns")]
        rows.append([kernel, warps, int(part["function"].nunique()), *worst, fits])
    return pd.DataFrame([row for row in rows if row[1] != "1"], columns=columns)


def launched(record: Measurement | None) -> list[dict[str, Any]]:
    """The matrix's rows at the warps with which each function is launched."""
    if record is None:
        return []
    return [r for r in record.samples if r["num_warps"] == record.parameters["launched"][r["function"]]]


def worst_spill(rows: Sequence[dict[str, Any]]) -> str:
    """The most bytes that a function spills a thread, and which function that is."""
    if not rows:
        return MISSING
    worst = max(rows, key=lambda r: r["spill_bytes"])
    where = f"{worst['kernel']}'s {worst['function']} with {worst['num_warps']} warps on {worst['target']}"
    return f"{worst['spill_bytes']:,} ({where})" if worst["spill_bytes"] else "none"


# --- issue 904 ----------------------------------------------------------------------------------


def columns_by_version(rows: Sequence[dict[str, Any]], target: str) -> pd.DataFrame:
    """TMEM columns by configuration (rows) and version of Triton (columns), for one target.

    The register limits of a configuration that agree are one cell; ✗ marks what Triton's loader refuses.
    """
    there = [r for r in rows if r["target"] == target and not r.get("error")]
    if not there:
        return pd.DataFrame([[MISSING]], columns=["stages"])
    cells: dict[tuple[int, int, str], set[str]] = {}
    for r in there:
        text = f"{r['tmem_columns']}{' ✗' if issue_904.refused(r) else ''}"
        cells.setdefault((r["num_stages"], r["num_warps"], r["triton"]), set()).add(text)
    versions = sorted({r["triton"] for r in there}, key=issue_904.version)
    out = [
        [stages, warps, *(" or ".join(sorted(cells.get((stages, warps, v), {MISSING}))) for v in versions)]
        for stages, warps in sorted({(r["num_stages"], r["num_warps"]) for r in there})
    ]
    return pd.DataFrame(out, columns=["stages", "warps", *(f"Triton {v}" for v in versions)])


def loading_by_target(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """What was compiled of the tuning space, and what Triton's loader says of it, by target and version."""
    space = len({(r["num_stages"], r["num_warps"], r["maxnreg"]) for r in rows})
    out = []
    for (target, version), part in _by_target(rows).items():
        there = [r for r in part if not r.get("error")]
        columns = [r["tmem_columns"] for r in there]
        shared = max((r["shared_bytes"] for r in there), default=0)
        out.append(
            {
                "target": target, "Triton": version, "compiled": f"{len(there)} of {space}",
                "columns": f"{min(columns)} to {max(columns)}" if columns else MISSING,
                "shared, most (KiB)": f"{shared / 1024:.0f}",
                "refused: columns": sum("tensor memory" in r["load"] for r in there),
                "refused: shared": sum("shared memory" in r["load"] for r in there),
                "a single trap": sum(r["trap"] for r in there),
            }
        )  # fmt: skip
    return pd.DataFrame(out or [{"target": MISSING}])


def agreement_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """How Triton's loader and RES-02 agree, by target and version; what did not compile is left out."""
    out = [
        {"target": target, "Triton": version, **issue_904_res02.agreement(part)}
        for (target, version), part in _by_target(rows).items()
    ]
    return pd.DataFrame(out or [{"target": MISSING}])


def _by_target(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by target and version, in the order of the numbers in their names."""
    keys = sorted(
        {(r["target"], r["triton"]) for r in rows}, key=lambda k: (int(k[0][3:]), issue_904.version(k[1]))
    )
    return {k: [r for r in rows if (r["target"], r["triton"]) == k] for k in keys}


# --- speeds -------------------------------------------------------------------------------------


def speed_rows(record: Measurement | None) -> list[dict[str, Any]]:
    """The cases that were timed."""
    return [] if record is None else [r for r in record.samples if "times" in r]


def median(row: dict[str, Any], name: str, direction: str) -> float:
    """Microseconds of one direction of one contestant."""
    times = row["times"][name]
    return float(times["forward_us"]["median"] if direction == "forward" else times["backward_us"])


def speed_table(rows: Sequence[dict[str, Any]], suite: str, baseline: str) -> pd.DataFrame:
    """Ours against one baseline, both directions: time, ratio, and the distance to the memory roofline."""
    columns = ["batch", "tokens", "channels", "states", "plan", "forward µs", "× baseline", "× roofline",
               "backward µs", "× baseline ", "× roofline "]  # fmt: skip
    out = []
    for r in rows:
        if r["suite"] != suite or baseline not in r["times"]:
            continue
        cells: list[Any] = [r["batch"], r["length"], r["width"], r["states"], r["plan"]["mode"]]
        for direction in ("forward", "backward"):
            mine = median(r, "ours auto", direction)
            floor = r["traffic_bytes"][direction] / BANDWIDTH * 1e6
            cells += [f"{mine:,.0f}", f"{median(r, baseline, direction) / mine:.2f}", f"{mine / floor:.1f}"]
        out.append(cells)
    if not out:
        out = [[MISSING, *[""] * (len(columns) - 1)]]
    return pd.DataFrame(out, columns=columns)


def ratios(rows: Iterable[dict[str, Any]], baseline: str, direction: str) -> list[float]:
    """A baseline's time over ours, for every case that has both."""
    return [
        median(r, baseline, direction) / median(r, "ours auto", direction)
        for r in rows
        if {baseline, "ours auto"} <= set(r["times"])
    ]


def geometric_mean(values: Sequence[float]) -> float | None:
    """None where there is nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def selector_gain(rows: Iterable[dict[str, Any]], direction: str = "forward") -> float | None:
    """Geometric mean of always serial over the selector's choice; None where nothing was timed."""
    return geometric_mean(ratios(rows, "ours serial", direction))


TARGETS = (
    ("forward", "selective_scan CUDA", "at least as fast as", 1.0),
    ("backward", "selective_scan CUDA", "three quarters as fast as", 0.75),
    ("forward", "ours serial", "the choice by shape, over", 2.17),
)
"""Direction, baseline, words, and the ratio baseline / ours that was asked for, as a geometric mean."""


def targets(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """What was asked for beforehand, the geometric mean over the shapes, and how many of them meet it."""
    out = []
    for direction, baseline, words, wanted in TARGETS:
        found = ratios(rows, baseline, direction)
        mean = geometric_mean(found)
        out.append(
            {
                "target": f"{direction}: {words} {baseline}", "asked": f"{wanted:.2f}",
                "geometric mean": MISSING if mean is None else f"{mean:.2f}",
                "shapes that meet it": f"{sum(q >= wanted for q in found)} of {len(found)}",
                "met": MISSING if mean is None else "yes" if mean >= wanted else "**no**",
            }
        )  # fmt: skip
    return pd.DataFrame(out)


def ratio_range(rows: Iterable[dict[str, Any]], baseline: str, direction: str) -> str:
    """The smallest and largest ratio baseline / ours, or that it was not measured."""
    found = ratios(rows, baseline, direction)
    return f"{min(found):.2f} to {max(found):.2f}" if found else MISSING
