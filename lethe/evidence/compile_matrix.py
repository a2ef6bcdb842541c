"""The record of the compile matrix: what the six kernels need on every architecture, found without a GPU.

python -m lethe.kernels.mamba3.resources > matrix.jsonl
python -m lethe.evidence.compile_matrix matrix.jsonl

Several files may be given, each from a part of the matrix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lethe import provenance

EXPERIMENT = "compile_matrix"


def record(files: Iterable[Path], measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write ``cpu/compile_matrix.json`` from JSON lines of `lethe.kernels.mamba3.resources`.

    Raises ValueError where the matrix is not complete, so that a gap is never read as a fit, or where a cell
    is there twice.
    """
    from lethe.kernels.mamba3 import resources

    rows: list[dict[str, Any]] = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    wanted = [(k, f"sm_{t}", w) for k, t, w in resources.cells()]
    for kernel, target, warps in wanted:
        found = [r for r in rows if (r["kernel"], r["target"], r["num_warps"]) == (kernel, target, warps)]
        functions = [f.fn.__name__ for f, _ in resources.specialisations(kernel, warps)]
        if sorted(r["function"] for r in found) != sorted(functions):
            where = f"{kernel} on {target} with {warps} warps"
            raise ValueError(f"{where} has {len(found)} rows for {len(functions)} functions")
    rows.sort(key=lambda r: wanted.index((r["kernel"], r["target"], r["num_warps"])))
    path = measured / "cpu" / f"{EXPERIMENT}.json"
    provenance.record(
        path,
        experiment=EXPERIMENT,
        samples=rows,
        parameters={
            "states": resources.STATES, "head_states": resources.HEAD_STATES, "rank": resources.RANK,
            "dtype": "bfloat16", "launched": resources.LAUNCHED,
        },
        script="lethe/kernels/mamba3/resources.py",
        on=provenance.device("cpu"),
        command="python -m lethe.kernels.mamba3.resources",
        units={"stack_bytes": "B", "spill_bytes": "B", "shared_bytes": "B"},
    )  # fmt: skip
    return path


if __name__ == "__main__":
    print(record(map(Path, sys.argv[1:])))
