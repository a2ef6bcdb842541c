"""Record what a build does not repeat: ``python -m lethe.paper.ptx_measure faults|silicon --out FILE``.

``faults`` breaks the recorded kernels in one line each and writes by what every mutant was noticed (any
machine); ``silicon`` runs the sm_90a kernels on a Hopper GPU and in `lethe.ptx` and compares bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.ptx import injection, silicon

RECORDED = "lethe/ptx/examples/recorded"


def faults(kernels: Sequence[str], seeds: int, limit: int | None = None) -> list[dict[str, Any]]:
    """One row per mutant; ``limit`` takes so many, spread evenly over all."""
    records = [injection.load(name) for name in kernels]
    every = [(record, m) for record in records for m in injection.mutations(record)]
    if limit is not None and limit < len(every):
        every = [every[i * len(every) // limit] for i in range(limit)]
    schedules: list[str | int] = ["late", "reverse", *range(seeds)]
    verdicts = [injection.detect(record, mutation, schedules) for record, mutation in every]
    return [
        {
            "kernel": v.mutation.kernel,
            "operator": v.mutation.operator,
            "line": v.mutation.line,
            "answer": v.answer,
            "checks": v.checks,
            "schedules": v.schedules,
            "lint": v.lint,
        }
        for v in verdicts
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code 2 where there is no suitable GPU."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("what", choices=("faults", "silicon"))
    options.add_argument("--out", type=Path, required=True)
    options.add_argument(
        "--seeds", type=int, default=8, help="random schedules for faults, beside late and reverse"
    )
    chosen = options.parse_args(arguments)
    if chosen.what == "faults":
        samples: list[dict[str, Any]] = faults(injection.KERNELS, chosen.seeds)
        parameters: dict[str, Any] = {"kernels": list(injection.KERNELS), "seeds": chosen.seeds}
        on = provenance.device("cpu")
    else:
        try:
            samples = [{**asdict(c), "agrees": c.agrees} for c in silicon.compare_all()]
        except silicon.DriverError as error:
            print(f"lethe.paper.ptx_measure: {error}", file=sys.stderr)
            return 2
        parameters, on = {}, provenance.device("cuda")
    provenance.record(
        chosen.out,
        experiment=f"ptx_{chosen.what}",
        samples=samples,
        parameters=parameters,
        script="lethe/paper/ptx_measure.py",
        sources=[RECORDED],
        on=on,
    )
    print(f"{len(samples)} rows in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
