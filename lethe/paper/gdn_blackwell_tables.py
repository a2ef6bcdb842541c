"""The kernels for sm_100a in the book: their map of tensor memory, what they use, and how they were executed.

The map is the one in the docstrings of ``lethe/kernels/gdn/sm100``; the kernels take their addresses from
`scan_map`, `prep_map` and `out_map`, and a test compares the columns. Everything else comes from the record
of `lethe.evidence.gdn_blackwell`; without one the tables say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lethe.paper.gdn_tables import filled, samples
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Measurement

Row = Mapping[str, Any]

FLOAT32, OPERAND = "float32 accumulator", "float16 operand"


@dataclass(frozen=True)
class Region:
    """Columns ``first`` to ``first + columns - 1`` of all 128 lanes; ``name``: of the constant in its map.

    ``turn``: 0 for what stands there first in a chunk, 1 for what takes its place.
    """

    kernel: str
    name: str
    first: int
    columns: int
    what: str
    form: str
    turn: int = 0


ALLOCATED = {"prep": 256, "scan": 512, "out": 512}
"""Columns by kernel: the one allocation of a CTA."""

RESIDENT = ("scan", "STATE")
"""What stays from the first chunk of a sequence to the last; everything else lives within a chunk."""

REGIONS = (
    Region("prep", "W", 0, 64, "Wᵀ", FLOAT32),
    Region("prep", "NEGATED", 0, 32, "−dNlocᵀ", OPERAND, 1),
    Region("prep", "WV", 32, 32, "(w v)ᵀ", OPERAND, 1),
    Region("prep", "LOCAL", 64, 64, "dNlocᵀ, then Uᵀ", FLOAT32),
    Region("prep", "PH", 128, 32, "Phᵀ", OPERAND),
    Region("prep", "P", 128, 128, "Pᵀ", FLOAT32, 1),
    Region("scan", "STATE", 0, 128, "Sᵀ or Dᵀ", FLOAT32),
    Region("scan", "PRODUCT", 128, 64, "Xᵀ or Yᵀ", FLOAT32),
    Region("scan", "PACKED", 192, 64, "packed state", OPERAND),
    Region("scan", "SECOND", 256, 32, "N, −Y", OPERAND),
    Region("scan", "OUTPUT", 288, 64, "oᵀ (forward)", FLOAT32),
    Region("out", "WRITTEN", 0, 64, "Eᵀ, Nᵀ", FLOAT32),
    Region("out", "ERASERS", 0, 32, "pᵀ", OPERAND, 1),
    Region("out", "STATE_PART", 64, 64, "Dᵀ Ktᵀ", FLOAT32),
    Region("out", "ADJOINT", 128, 64, "dNᵀ, Rᵀ", FLOAT32),
    Region("out", "E", 192, 32, "Eᵀ", OPERAND),
    Region("out", "KEYS", 192, 32, "kᵀ", OPERAND, 1),
    Region("out", "DN", 224, 32, "dNᵀ", OPERAND),
    Region("out", "QUERIES", 224, 32, "qᵀ", OPERAND, 1),
    Region("out", "PAIR", 256, 64, "dA over dM", FLOAT32),
    Region("out", "DQ", 320, 64, "dqᵀ", FLOAT32),
    Region("out", "DP", 384, 64, "dpᵀ", FLOAT32),
    Region("out", "DK", 448, 64, "dkᵀ", FLOAT32),
)


def _gates(row: Row) -> str:
    return "channel" if row["member"] in ("gdn2", "kda", "gla") else "head" if row["gate"] != "none" else "–"


def shown(record: Measurement | None) -> list[Row]:
    """The recorded cases that ran to their end."""
    return [r for r in samples(record) if "error" not in r]


def resources(record: Measurement | None) -> pd.DataFrame:
    """Every launch of the cases with decay: what the assembler gives it, and what the static checks say."""
    columns = ["launch", "g a", "d_v", "threads", "registers", "spilled (B)", "shared (B)",
               "columns of tensor memory", "violations", "undecided"]  # fmt: skip
    rows: dict[tuple[str, int, str], list[Any]] = {}
    for r in shown(record):
        for k in r["kernels"]:
            key = (f"{k['pass']}: {k['stage']}", r["dv"], _gates(r))
            use = (k["threads"], k.get("registers"), k.get("spilled"), k["shared"], k["tmem_columns"])
            found = (len(k["violations"]), len(k["undecided"]))
            rows.setdefault(key, [key[0], _gates(r), r["dv"], *use, *found])
    order = [f"{way}: {stage}" for way, stage in _LAUNCHES]
    kept = [row for key, row in rows.items() if key[2] != "–"]
    return filled(columns, sorted(kept, key=lambda row: (order.index(row[0]), row[1], -row[2])))


_LAUNCHES = (("backward", "prep"), ("backward", "scan"), ("backward", "out"), ("forward", "prep"),
             ("forward", "forward"))  # fmt: skip


def most_schedules(record: Measurement | None) -> str:
    """How many schedules the most thorough case ran under, or that there is none."""
    counts = [r["schedules"] for r in shown(record)]
    return str(max(counts)) if counts else MISSING


def lifecycle(record: Measurement | None) -> str:
    """What the static checks found over all kernels, as half a sentence."""
    kernels = {k["variant"]: k for r in shown(record) for k in r["kernels"]}
    if not kernels:
        return MISSING
    violations = sum(len(k["violations"]) for k in kernels.values())
    undecided = sum(len(k["undecided"]) for k in kernels.values())
    return f"{len(kernels)} compiled kernels, {violations} violations, {undecided} questions left undecided"
