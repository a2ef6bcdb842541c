"""The native kernels of the gated linear recurrence as compiled for sm_90a, executed without a GPU: a record.

    python -m lethe.evidence.gdn_emulated [--folder FOLDER] [--seeds 20]

It needs nvidia-cutlass-dsl, and writes ``data/measured/cpu/gdn_emulated.json``. Each case is a plan of the
backend (`cute_sm90`: forward, then backward), the very launches that a GPU gets, on tensors of the CPU whose
outputs and workspaces are poisoned, under several schedules of their asynchronous work. A row holds the
errors against float64 with their bounds, whether all schedules gave the same bits, and for each launch what
it is: grid, threads, shared memory, warp instructions executed, and what ptxas says of the same text.
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
from lethe.evidence.gdn_precision import MEMBERS, Case

RECORD = provenance.ROOT / "data" / "measured" / "cpu" / "gdn_emulated.json"
KERNELS = "lethe/kernels/gdn"
LENGTH, PROCESSORS = 140, 2
"""Three chunks, the last one ragged; programs that the persistent kernel is given."""

Row = dict[str, Any]
Launched = dict[str, Row]


def cases() -> Iterator[Case]:
    """The general member in both dtypes and with both d_v, then every other member once."""
    yield Case("gdn2", "unit", "silu", 128, "fp16", LENGTH, 1)
    yield Case("gdn2", "strong", "silu", 64, "bf16", LENGTH, 1)
    rest = [name for name in reversed(MEMBERS) if name != "gdn2"]
    for at, member in enumerate(rest):
        dv, io = (128, "bf16") if at % 2 else (64, "fp16")
        yield Case(member, "mild" if MEMBERS[member][0] else "none", "silu", dv, io, LENGTH, 1)


def schedules(first: bool, seeds: int) -> list[str | int]:
    """Earliest, latest, reverse and random orders of completion; fewer random ones after the first case."""
    return ["early", "late", "reverse", *range(seeds if first else 2)]


def poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor of which every byte is 0xFF."""
    import torch

    size = torch.empty(0, dtype=dtype).element_size()
    return torch.full((*shape[:-1], shape[-1] * size), 0xFF, dtype=torch.uint8).view(dtype)


def measure(case: Case, orders: Sequence[str | int], folder: Path | None) -> Row:
    """One case under every schedule."""
    import torch

    from lethe.evidence.gdn_gpu_checks import call, exact, worst
    from lethe.kernels.gdn import cute_sm90
    from lethe.kernels.gdn.precision import PINS, ROUNDOFF

    c = call(case, device="cpu")
    expected, differ = exact(c), set()
    first: dict[str, torch.Tensor] = {}
    launched: Launched = {}
    for order in orders:
        ahead, made = cute_sm90.plan_forward(c.a, False, poisoned)
        back, found = cute_sm90.plan_backward(c.a, c.do, c.dfinal, None, poisoned, PROCESSORS)
        launched = _execute([("forward", s) for s in ahead] + [("backward", s) for s in back], order, folder)
        results = {"o": made["o"], "final": made["final"], **{f"d{n}": t for n, t in found.items()}}
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
        "differ": sorted(differ),
        "kernels": list(launched.values()),
        "passed": not differ and all(e <= bounds[n] for n, e in errors.items()),
    }


def _execute(steps: Sequence[tuple[str, Any]], order: str | int, folder: Path | None) -> Launched:
    """The launches of a plan on the memory of its tensors, and what each was."""
    import torch

    def array(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.view(torch.int16).numpy().view("uint16") if t.dtype == torch.bfloat16 else t.numpy()

    seen: Launched = {}
    for way, step in steps:
        kernel = compiled(step.stage, json.dumps(step.options, sort_keys=True), folder)
        values = {name: array(t) for name, t in step.arguments.items()}
        report = kernel.run(values, order)
        (launch,) = kernel.launches(values)
        seen[f"{way}.{step.stage}"] = {
            "pass": way,
            "stage": step.stage,
            "variant": kernel.variant.name,
            "grid": list(launch.grid),
            "threads": launch.block[0] * launch.block[1] * launch.block[2],
            "shared": launch.shared,
            "instructions": report.instructions,
            "asynchronous": report.operations,
            **resources(kernel.ptx),
        }
    return seen


@functools.cache
def compiled(stage: str, options: str, folder: Path | None) -> Any:
    """A variant by its options (JSON), made ready once."""
    from lethe.kernels.gdn import emulate
    from lethe.kernels.gdn.architecture import SM90

    return emulate.load(SM90, stage, folder, **json.loads(options))


@functools.cache
def resources(ptx: str) -> Row:
    """Registers and spilled bytes a thread, where an assembler is there that knows this PTX."""
    from lethe.kernels.ptxas import assembled

    try:
        registers, _, spilled = assembled(ptx, 90)
    except (ImportError, OSError, RuntimeError):
        return {}
    return {"registers": registers, "spilled": spilled}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, record and print."""
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.gdn_emulated", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--seeds", type=int, default=20, help="random schedules of the first case")
    given = parser.parse_args(argv)
    samples = []
    for at, case in enumerate(cases()):
        start, orders = time.monotonic(), schedules(at == 0, given.seeds)
        try:
            found = measure(case, orders, given.folder)
        except Exception as error:  # the other cases are still worth having
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}", "passed": False}
        samples.append({**asdict(case), **found})
        print(case.member, case.io, case.dv, "passed" if found["passed"] else found.get("error", "FAILED"),
              f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    provenance.record(
        RECORD,
        experiment="gdn_emulated",
        samples=samples,
        parameters={"seeds": given.seeds, "length": LENGTH},
        script="lethe/evidence/gdn_emulated.py",
        sources=[KERNELS],
        units={"errors": "max|x - x64| / max|x64|", "shared": "B", "spilled": "B"},
        on=provenance.device("cpu"),
        command="python -m lethe.evidence.gdn_emulated",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
