"""The positive control of the gated linear recurrence: gates by member, on a GPU and on a processor."""

from __future__ import annotations

import pandas as pd

from lethe.evidence import controls, gdn_controls
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Measurement
from lethe.verifier import catalog


def gates(on_gpu: Measurement | None, here: Measurement | None) -> pd.DataFrame:
    """One row a gate, a column for each member; the GPU's status before the stroke, the processor's after."""
    tables = [None if r is None else controls.gate_table(r.samples) for r in (on_gpu, here)]
    columns = ["gate", *gdn_controls.GATES]
    if all(t is None for t in tables):
        return pd.DataFrame([[MISSING, *[""] * len(gdn_controls.GATES)]], columns=columns)
    rows = [
        [gate, *(" / ".join(_cell(t, gate, m) for t in tables) for m in columns[1:])] for gate in catalog.IDS
    ]
    return pd.DataFrame(rows, columns=columns)


def _cell(table: pd.DataFrame | None, gate: str, member: str) -> str:
    if table is None or gate not in table.index or member not in table.columns:
        return MISSING
    return str(table.loc[gate, member]).replace("_", " ")


def score(record: Measurement | None) -> str:
    """``"7 of 7"``, or that it was not measured."""
    if record is None:
        return MISSING
    return f"{gdn_controls.passed(record.samples)} of {len(gdn_controls.GATES)}"


def resources(record: Measurement | None) -> str:
    """The most registers a thread and shared memory a block that RES-02 saw in a launch of the kernels."""
    seen = [
        result.measured
        for line in (record.samples if record is not None else ())
        for result in controls.verdict_of(line).gates
        if result.gate == "RES-02" and result.measured
    ]
    if not seen:
        return MISSING
    registers, shared = (
        max(value for measured in seen for name, value in measured.items() if name.endswith(what))
        for what in (":registers", ":shared_bytes")
    )
    return f"{registers:.0f} registers a thread and {shared / 1024:.0f} KiB a block"
