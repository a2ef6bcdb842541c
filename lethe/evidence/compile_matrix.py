"""The record of the compile matrix: what the six kernels need on every architecture, found without a GPU.

python -m lethe.kernels.mamba3.resources > matrix.jsonl
python -m lethe.evidence.compile_matrix matrix.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lethe import provenance

EXPERIMENT = "compile_matrix"


def record(lines: Path, measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write ``cpu/compile_matrix.json`` from the JSON lines of `lethe.kernels.mamba3.resources`.

    Raises ValueError where the matrix is not complete, so that a gap is never read as a fit.
    """
    from lethe.kernels.mamba3 import resources

    rows: list[dict[str, Any]] = [json.loads(line) for line in lines.read_text().splitlines()]
    there = {(r["kernel"], r["target"], r["num_warps"]) for r in rows}
    wanted = {
        (k, f"sm_{t}", w) for k in resources.KERNELS for t in resources.TARGETS for w in resources.WARPS
    }
    if wanted - there:
        raise ValueError(f"{len(wanted - there)} cells are missing, e.g. {sorted(wanted - there)[0]}")
    path = measured / "cpu" / f"{EXPERIMENT}.json"
    provenance.record(
        path,
        experiment=EXPERIMENT,
        samples=rows,
        parameters={
            "states": resources.STATES, "head_states": resources.HEAD_STATES, "rank": resources.RANK,
            "dtype": "bfloat16",
        },
        script="lethe/kernels/mamba3/resources.py",
        on=provenance.device("cpu"),
        command="python -m lethe.kernels.mamba3.resources",
        units={"stack_bytes": "B", "spill_bytes": "B", "shared_bytes": "B"},
    )  # fmt: skip
    return path


if __name__ == "__main__":
    print(record(Path(sys.argv[1])))
