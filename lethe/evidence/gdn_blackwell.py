"""The native kernels of the gated linear recurrence for sm_100a, executed without a GPU: a record.

    python -m lethe.evidence.gdn_blackwell [--folder FOLDER] [--seeds 17] [--cases N]

It needs nvidia-cutlass-dsl, and writes ``data/measured/cpu/gdn_blackwell.json``. Each case is the plan of the
backend `cute_sm100` (forward, then backward) on one sequence of three chunks, the last one ragged, and two
heads, in `lethe.ptx` under several schedules of its asynchronous work: the earliest order of completion, the
latest, the reverse, and seeded ones. The first four cases, both d_v with one gate a channel and with one a
head, run under all seeds, the other members under one. A row holds the errors against float64 with their
bounds, whether all schedules gave the same bits, and for every launch what ptxas says of the same text, and
what `lethe.ptx.lint` finds in it: columns of tensor memory, violations, and what it could not decide. A run
that was cut short goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence.gdn_emulated import poisoned
from lethe.evidence.gdn_precision import MEMBERS, Case

RECORD = provenance.ROOT / "data" / "measured" / "cpu" / "gdn_blackwell.json"
LENGTH, HEADS, PROCESSORS = 140, 2, 2
"""Three chunks, the last one ragged; programs that the persistent kernel is given."""

THOROUGH = 4
"""Cases under every seed."""

AHEAD = 5
"""Schedules of the forward pass; the backward pass runs under all."""

SOURCES = ["lethe/kernels/gdn/cute_sm100.py", "lethe/kernels/gdn/sm100", "lethe/kernels/gdn/sm90"]
Row = dict[str, Any]


def cases() -> Iterator[Case]:
    """Channel-wise and scalar gates with both d_v, then every other member once."""
    yield Case("gdn2", "unit", "silu", 128, "fp16", LENGTH, HEADS)
    yield Case("gdn", "mild", "silu", 128, "bf16", LENGTH, HEADS)
    yield Case("gdn2", "strong", "silu", 64, "bf16", LENGTH, HEADS)
    yield Case("gdn", "mild", "silu", 64, "fp16", LENGTH, HEADS)
    rest = [name for name in MEMBERS if name not in ("gdn2", "gdn")]
    for at, member in enumerate(rest):
        dv, io = (128, "bf16") if at % 2 else (64, "fp16")
        yield Case(member, "mild" if MEMBERS[member][0] else "none", "silu", dv, io, LENGTH, HEADS)


def schedules(thorough: bool, seeds: int) -> list[str | int]:
    """Earliest, latest, reverse and seeded orders of completion."""
    return ["early", "late", "reverse", *range(seeds if thorough else min(seeds, 1))]


def measure(case: Case, orders: Sequence[str | int], folder: Path | None) -> Row:
    """One case under every schedule."""
    import torch

    from lethe.evidence.gdn_gpu_checks import call, exact, worst
    from lethe.kernels.gdn import cute_sm100
    from lethe.kernels.gdn.precision import PINS, ROUNDOFF

    c = call(case, device="cpu")
    expected, differ = exact(c), set()
    first: dict[str, torch.Tensor] = {}
    launched: dict[str, Row] = {}
    for at, order in enumerate(orders):
        back, made = cute_sm100.plan_backward(c.a, c.do, c.dfinal, None, poisoned, PROCESSORS)
        steps, results = [("backward", s) for s in back], {f"d{n}": t for n, t in made.items()}
        if at < AHEAD:
            ahead, made = cute_sm100.plan_forward(c.a, False, poisoned)
            steps = [*(("forward", s) for s in ahead), *steps]
            results |= {"o": made["o"], "final": made["final"]}
        for way, step in steps:
            seen = execute(step, order, folder)
            launched.setdefault(f"{way}.{step.stage}", {"pass": way, **seen})
        first = first or results
        differ |= {
            n for n, t in results.items() if not torch.equal(t.view(torch.uint8), first[n].view(torch.uint8))
        }
    gate = 0.0 if c.a.g is None else float(c.a.g.abs().max())
    pin = PINS["fp16" if case.io == "fp16" and gate <= 1 else "bf16"]
    errors = {name: worst(first[name], e) for name, e in expected.items()}
    bounds = {n: pin + (0.0 if first[n].dtype == torch.float32 else ROUNDOFF[case.io]) for n in errors}
    return {
        "errors": {n: e if e < float("inf") else None for n, e in errors.items()},
        "bounds": bounds,
        "pin": pin,
        "schedules": len(orders),
        "schedules_forward": min(AHEAD, len(orders)),
        "differ": sorted(differ),
        "kernels": list(launched.values()),
        "passed": not differ
        and all(e <= bounds[n] for n, e in errors.items())
        and not any(k["violations"] for k in launched.values()),
    }


def execute(step: Any, order: str | int, folder: Path | None) -> Row:
    """One launch on the memory of its tensors, and what it was."""
    import torch

    def array(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.view(torch.int16).numpy().view("uint16") if t.dtype == torch.bfloat16 else t.numpy()

    kernel = compiled(step.stage, json.dumps(step.options, sort_keys=True), folder)
    values = {name: array(t) for name, t in step.arguments.items()}
    report = kernel.run(values, order)
    (launch,) = kernel.launches(values)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    return {
        "stage": step.stage,
        "variant": kernel.variant.name,
        "grid": list(launch.grid),
        "threads": threads,
        "shared": launch.shared,
        "instructions": report.instructions,
        "asynchronous": report.operations,
        **resources(kernel.ptx),
        **static(kernel.ptx, threads),
    }


@functools.cache
def compiled(stage: str, options: str, folder: Path | None) -> Any:
    """A variant by its options (JSON), made ready once."""
    from lethe.kernels.gdn import emulate
    from lethe.kernels.gdn.architecture import SM100

    return emulate.load(SM100, stage, folder, **json.loads(options))


@functools.cache
def static(ptx: str, threads: int) -> Row:
    """What `sm100.lifecycle` says."""
    from lethe.kernels.gdn.sm100.lifecycle import lifecycle

    return dict(lifecycle(ptx, threads))


@functools.cache
def resources(ptx: str) -> Row:
    """Registers and spilled bytes a thread, where an assembler is there that knows this PTX."""
    from lethe.kernels.ptxas import assembled

    try:
        registers, _, spilled = assembled(ptx, 100)
    except (ImportError, OSError, RuntimeError):
        return {}
    return {"registers": registers, "spilled": spilled}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, record and print."""
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.gdn_blackwell", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--seeds", type=int, default=17, help="seeded schedules of the first cases")
    parser.add_argument("--cases", type=int, default=100, help="only the first of them; for a trial")
    parser.add_argument("--record", type=Path, default=RECORD, help="the file to write")
    given = parser.parse_args(argv)
    samples = finished(given.record, given.seeds)
    for at, case in enumerate(list(cases())[: given.cases]):
        if any(asdict(case).items() <= sample.items() for sample in samples):
            continue
        start, orders = time.monotonic(), schedules(at < THOROUGH, given.seeds)
        try:
            found = measure(case, orders, given.folder)
        except Exception as error:  # the other cases are still worth having
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}", "passed": False}
        samples.append({**asdict(case), **found})
        print(case.member, case.io, case.dv, "passed" if found["passed"] else found.get("error", "FAILED"),
              f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
        write(given.record, samples, given.seeds)
    return 0


def finished(record: Path, seeds: int) -> list[Row]:
    """The cases that passed in an earlier run of these very sources with as many seeds."""
    try:
        earlier = provenance.load(record)
    except (OSError, provenance.ProvenanceError):
        return []
    if provenance.stale(earlier) or earlier.parameters.get("seeds") != seeds:
        return []
    return [dict(sample) for sample in earlier.samples if sample["passed"]]


def write(record: Path, samples: list[Row], seeds: int) -> None:
    """The record so far."""
    provenance.record(
        record,
        experiment="gdn_blackwell",
        samples=samples,
        parameters={"seeds": seeds, "length": LENGTH, "heads": HEADS},
        script="lethe/evidence/gdn_blackwell.py",
        sources=SOURCES,
        units={"errors": "max|x - x64| / max|x64|", "shared": "B", "spilled": "B", "tmem_columns": "columns"},
        on=provenance.device("cpu"),
        command="python -m lethe.evidence.gdn_blackwell",
    )


if __name__ == "__main__":
    sys.exit(main())
