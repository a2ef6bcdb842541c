"""What an audit costs: time by gate, throughput, and the price against KernelBench's five-trial check.

`samples` reduces audit lines to the times of each row; a measured file ``audit_cost.json`` holds them with
the steps' entries (`ledger`). Every rate is about rows that the same run judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from lethe.audit.kernelbench_check import VARIANTS
from lethe.audit.lines import Line
from lethe.verifier.catalog import IDS

if TYPE_CHECKING:
    import pandas as pd

    from lethe.audit.ledger import Entry

PUBLISHED_TRAJECTORIES = 8920
"""Rows of the corpus whose price the book names: every trajectory of drkernel-coldstart-8k."""
REFERENCE = "the reference: sizes, first draws and runs"
OUTSIDE = "outside the gates: start, load, first run, confirmation"

Sample = dict[str, Any]


def samples(audit_lines: Iterable[Line], file: str) -> list[Sample]:
    """For each line: id, corpus, file, status, wall and gates (gate -> seconds), elapsed."""
    return [
        {
            "id": line["id"],
            "corpus": line["corpus"],
            "file": file,
            "status": line["verdict"]["status"],
            "wall": line["timing"]["wall"],
            "gates": line["timing"]["gates"],
            "elapsed": line["timing"].get("elapsed", {}),
        }
        for line in audit_lines
    ]


def breakdown(rows: Sequence[Sample]) -> pd.DataFrame:
    """Where a row's wall time goes: part, seconds (mean for each judged row), share of the whole."""
    import pandas as pd

    judged = [r for r in rows if r["gates"]]
    total = sum(r["wall"] for r in judged)
    parts = {gate: sum(r["gates"].get(gate, 0.0) for r in judged) for gate in IDS}
    parts[REFERENCE] = sum(r["elapsed"].get("reference", 0.0) for r in judged)
    parts[OUTSIDE] = max(0.0, total - sum(parts.values()))
    return pd.DataFrame(
        [
            {
                "part": part,
                "seconds": seconds / len(judged) if judged else float("nan"),
                "share": seconds / total if total else float("nan"),
            }
            for part, seconds in parts.items()
        ]
    )


def throughput(steps: Iterable[Entry]) -> pd.DataFrame:
    """Per step, over all its runs: step, rows, hours, workers, rows_per_hour, core_seconds (for each row).

    Shards that ran beside each other on several devices count each with its own time: the rate is of one.
    """
    import pandas as pd

    grouped: dict[str, list[Entry]] = {}
    for entry in steps:
        if entry.rows:
            grouped.setdefault(entry.step, []).append(entry)
    rows = []
    for step, entries in grouped.items():
        n, wall = sum(e.rows for e in entries), sum(e.wall for e in entries)
        rows.append(
            {
                "step": step,
                "rows": n,
                "hours": wall / 3600,
                "workers": max(e.workers for e in entries),
                "rows_per_hour": 3600 * n / wall if wall else float("nan"),
                "core_seconds": sum(e.cpu for e in entries) / n,
            }
        )
    columns = ["step", "rows", "hours", "workers", "rows_per_hour", "core_seconds"]
    return pd.DataFrame(rows, columns=columns)


def price(table: pd.DataFrame, step: str, rows: int = PUBLISHED_TRAJECTORIES) -> dict[str, float] | None:
    """What `rows` rows cost at a step's measured rate: device_hours and core_hours; None if unmeasured."""
    found = table[table["step"] == step]
    if found.empty:
        return None
    measured = found.iloc[0]
    return {
        "device_hours": rows / float(measured["rows_per_hour"]),
        "core_hours": rows * float(measured["core_seconds"]) / 3600,
    }


def against_check(
    rows: Sequence[Sample], checks: Iterable[Mapping[str, Any]], implementation: str = "theirs"
) -> pd.DataFrame:
    """The audit's wall time over that of KernelBench's check, on the same rows, for each variant.

    `checks` are differential lines. Columns: variant, compiles, rows, audit (mean seconds), check (mean
    seconds), ratio (of the sums), median_ratio (over rows). Rows that one side did not finish are left out.
    The checks of a row share what they compile, so that only the first variant pays for it (`compiles`).
    """
    import pandas as pd

    walls = {(r["corpus"], r["id"]): r["wall"] for r in rows if r["status"] == "judged"}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for line in checks:
        key, seconds = (line["corpus"], line["id"]), line["outcome"]["seconds"]
        if line["implementation"] == implementation and seconds and key in walls:
            pairs.setdefault(line["variant"], []).append((walls[key], seconds))
    found = []
    for variant, both in pairs.items():
        audit, check = sum(a for a, _ in both), sum(c for _, c in both)
        found.append(
            {
                "variant": variant,
                "compiles": variant == next(iter(VARIANTS)),
                "rows": len(both),
                "audit": audit / len(both),
                "check": check / len(both),
                "ratio": audit / check,
                "median_ratio": median(a / c for a, c in both),
            }
        )
    return pd.DataFrame(
        found, columns=["variant", "compiles", "rows", "audit", "check", "ratio", "median_ratio"]
    )
