"""Rows of `lethe.ptx` experiments as the tables of the chapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lethe.ptx.examples.execute import Agreement
from lethe.ptx.examples.record import Record

Row = Mapping[str, Any]
NOTICED: dict[str, Callable[[Row], bool]] = {
    "answer": lambda r: bool(r["answer"]),
    "checks": lambda r: bool(r["answer"] or r["checks"]),
    "schedules": lambda r: bool(r["answer"] or r["checks"] or r["schedules"]),
    "lint": lambda r: bool(r["lint"]),
    "any": lambda r: bool(r["answer"] or r["checks"] or r["schedules"] or r["lint"]),
}
"""By what a mutant was noticed, cumulative up to schedules; lint stands alone."""


def validation(found: Mapping[str, tuple[Record, Agreement]]) -> pd.DataFrame:
    """One row per recorded kernel: what it is, who compiled it for which architecture, how many warp
    instructions were executed and under how many schedules."""
    rows = [
        {
            "kernel": f"`{name}`",
            "what": record.about,
            "by": f"{_compiler(record)}, {record.origin['arch']}",
            "instructions": f"{agreement.instructions:,}" if agreement.instructions else "–",
            "schedules": agreement.schedules,
            "answer": _answer(record, agreement),
        }
        for name, (record, agreement) in found.items()
    ]
    return pd.DataFrame(rows)


def _compiler(record: Record) -> str:
    return str(record.origin["compiler"]).replace("nvidia-cutlass-dsl", "CuTe DSL")


def _answer(record: Record, agreement: Agreement) -> str:
    if agreement.difference:
        return f"differs under {agreement.difference}"
    if agreement.status == "fault":
        return f"fault: {agreement.kind}" + (", as it should" if agreement.kind == record.fault else "")
    return f"{agreement.error:.2g} of the bound" if agreement.status == "right" else "wrong"


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Mutants noticed by each way."""
    return {way: sum(map(test, rows)) for way, test in NOTICED.items()}


def faults(rows: Sequence[Row]) -> pd.DataFrame:
    """One row per operator: mutants, and how many each way of looking notices."""
    table = [
        {"fault": operator, "mutants": len(of), **counts(of)}
        for operator in dict.fromkeys(r["operator"] for r in rows)
        for of in [[r for r in rows if r["operator"] == operator]]
    ]
    total = {"fault": "all", "mutants": len(rows), **counts(rows)}
    names = {"answer": "wrong or hangs", "checks": "+ checks", "schedules": "+ schedules", "lint": "static"}
    return pd.DataFrame([*table, total]).rename(columns=names)


def silicon(rows: Sequence[Row]) -> pd.DataFrame:
    """One row per kernel and kind of inputs: equal elements, distance, and why bits may differ."""
    return pd.DataFrame(
        [
            {
                "kernel": f"`{r['kernel']}`",
                "values": r["values"],
                "equal": f"{r['equal']:,} of {r['elements']:,}",
                "ulp": f"{r['ulps']:,}",
                "device": f"{r['device_error']:.2g}",
                "emulator": f"{r['emulator_error']:.2g}",
                "why bits may differ": r["why"] or "they may not",
            }
            for r in rows
        ]
    )
