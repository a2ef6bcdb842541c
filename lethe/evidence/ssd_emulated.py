"""The engine's kernels without their GPU: what they need for each target, and executed from their PTX.

    python -m lethe.evidence.ssd_emulated

`resources` compiles every kernel of the speed shapes for sm_80, sm_90 and sm_100 and reads registers, spills,
shared memory and tensor-memory columns. `execute` runs a small case, forward and backward, by `lethe.ptx`:
Triton's own PTX for a target, instruction by instruction, against float64. Where the emulator stops, the row
says at what.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence.ssd_cases import Case, described, draw
from lethe.kernels.ssd import cases as engine_cases
from lethe.kernels.ssd.emulate import Emulated

TARGETS = (80, 90, 100)
EXECUTED = (90, 100)
EXPERIMENT = "ssd_emulated"

SMALL = Case(
    "two tiles", batch=1, length=100, heads=2, groups=1, bias=True, D="head", gate=True, initial=True,
    final=True,
)  # fmt: skip
"""One full tile and one partial, both heads in one group, every operand there."""

Row = dict[str, Any]


# --- resources ------------------------------------------------------------------------------------


def resources(target: int, cases: list[engine_cases.Case] | None = None) -> Iterator[Row]:
    """A row for every kernel of the cases (the short speed shapes of one group), as compiled for a target."""
    from lethe.kernels.ssd.engine import compiled, specialisation
    from lethe.kernels.ssd.plan import layout
    from lethe.kernels.triton_report import used

    seen = set()
    short = [case for case in engine_cases.speed() if (case.length, case.groups) == (2048, 1)]
    for case in short if cases is None else cases:
        for graph in engine_cases.graphs(case):
            plan = layout(graph.nodes[0], "", target)
            for launch in plan.launches:
                key = specialisation(launch)
                if key in seen:
                    continue
                seen.add(key)
                about = {
                    "case": case.id, "op": plan.op, "kernel": launch.kernel, "target": f"sm_{target}",
                    "num_warps": launch.warps,
                }  # fmt: skip
                try:
                    kernel = compiled(launch, target)
                except RuntimeError as error:  # a compiler that gives up on a target is a finding
                    yield {**about, "error": str(error)[:200]}
                    continue
                registers, stack, spill = used(kernel)
                yield {
                    **about, "registers": registers, "stack_bytes": stack,
                    "spill_bytes": spill, "shared_bytes": kernel.metadata.shared,
                    "tmem_columns": getattr(kernel.metadata, "tmem_size", 0) or 0,
                    "products": products(kernel.asm["ptx"]), "read_early": read_early(kernel.asm["ptx"]),
                }  # fmt: skip


def products(ptx: str) -> dict[str, int]:
    """How many matrix instructions of each kind a kernel's PTX has."""
    names = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
    counts = {name: ptx.count(f"{name}.") for name in names}
    return {name: count for name, count in counts.items() if count}


# --- execution ------------------------------------------------------------------------------------


def executed(target: int, case: Case = SMALL, schedule: str | int = "early", checks: bool = True) -> Row:
    """The small case by `lethe.ptx` for a target: errors against float64, or what stopped it.

    ``checks`` are the emulator's: without them a kernel that breaks a rule of the ISA still gives numbers.
    """
    import torch

    from lethe.evidence.ssd_accuracy import beyond, error, exact

    start = time.monotonic()
    call = draw(case)
    machine = Emulated(described(case), target, schedule, checks)
    row: Row = {"target": f"sm_{target}", "case": case.id, "schedule": str(schedule), "checks": checks}
    try:
        with torch.no_grad():
            forward = machine.run("SSD", call.tensors)
            upstream = {"dy": call.dy, "dfinal_states": call.dfinal, "checkpoints": forward["checkpoints"]}
            backward = machine.run("SSD_BWD", call.tensors | upstream)
    except Exception as fault:  # or an instruction that the emulator does not know
        row |= {"status": getattr(fault, "kind", type(fault).__name__), "message": str(fault)[:500]}
    else:
        found = forward | backward | {"final": forward["final_states"]}
        expected, terms = exact(call)
        errors = {name: error(found[name], t, terms.get(name, 0.0)) for name, t in expected.items()}
        row |= {"status": "wrong" if beyond(errors) else "right", "errors": errors}
    return {**row, "instructions": machine.instructions, "seconds": round(time.monotonic() - start, 1)}


def read_early(ptx: str) -> int:
    """Registers of a ``tcgen05.ld`` that an instruction reads before the next ``tcgen05.wait::ld`` in the
    text, which PTX forbids."""
    pending: set[str] = set()
    count = 0
    for line in ptx.splitlines():
        text = line.strip()
        if "tcgen05.wait::ld" in text:
            pending.clear()
        elif loaded := re.match(r"(?:@!?%p\d+\s+)?tcgen05\.ld\S*\s+\{([^}]*)\}", text):
            pending |= set(re.findall(r"%r\d+", loaded[1]))
        else:
            read = pending & set(re.findall(r"%r\d+", text))
            count += len(read)
            pending -= read
    return count


# --- the record ------------------------------------------------------------------------------------


def record(measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write ``cpu/ssd_emulated.json``: resources for every target, and the small case on those in
    `EXECUTED`."""
    needs = [row for target in TARGETS for row in resources(target)]
    runs = [executed(target) for target in EXECUTED]
    runs += [executed(int(r["target"][3:]), checks=False) for r in runs if r["status"] == "missing-wait"]
    path = measured / "cpu" / f"{EXPERIMENT}.json"
    provenance.record(
        path,
        experiment=EXPERIMENT,
        samples={"resources": needs, "executed": runs},
        parameters={"case": SMALL.id},
        script="lethe/evidence/ssd_emulated.py",
        sources=["lethe/kernels/ssd", "lethe/ptx"],
        on=provenance.device("cpu"),
        command="python -m lethe.evidence.ssd_emulated",
        units={"stack_bytes": "B", "spill_bytes": "B", "shared_bytes": "B"},
    )
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{record()}\n")
