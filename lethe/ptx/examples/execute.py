"""Run a recorded example in the machine and say whether its answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lethe.ptx.examples.record import Record
from lethe.ptx.examples.tensors import Array, Values
from lethe.ptx.faults import Fault


@dataclass(frozen=True)
class Outcome:
    """``status``: right, wrong (beyond the oracle's bound, or not finite) or fault; ``kind``: of the fault.

    ``error``: largest error over the bound. ``instructions``: executed, per warp; 0 after a fault.
    """

    status: str
    kind: str = ""
    message: str = ""
    error: float = 0.0
    instructions: int = 0


def run(record: Record, arrays: Mapping[str, Array], schedule: str | int = "early", **options: Any) -> Any:
    """Execute on these arrays (outputs are written in place); the machine's report. Raises Fault.

    ``schedule`` and ``options``: of `lethe.ptx.run`.
    """
    from lethe.ptx.machine import run as execute
    from lethe.ptx.memory import GlobalMemory
    from lethe.ptx.parse import parse

    memory = GlobalMemory()
    for tensor in record.tensors:
        memory.add(
            arrays[tensor.name], tensor.name, writable=tensor.role != "input", poison=tensor.role == "output"
        )
    launch = record.launch
    return execute(
        parse(record.ptx),
        launch.kernel,
        grid=launch.grid,
        block=launch.block,
        params=record.parameters(arrays),
        memory=memory,
        dynamic_shared=launch.shared,
        schedule=schedule,
        cluster=launch.cluster,
        **options,
    )


def outcome(
    record: Record,
    schedule: str | int = "early",
    ptx: str = "",
    seed: int = 0,
    values: Values = "normal",
    **options: Any,
) -> Outcome:
    """Draw inputs, execute (``ptx``, or the recorded text), compare with the oracle. Raises no Fault."""
    return _finish(replace(record, ptx=ptx or record.ptx), record.draw(seed, values), schedule, **options)


def _finish(record: Record, arrays: Mapping[str, Array], schedule: str | int, **options: Any) -> Outcome:
    expected = record.expected(arrays)
    try:
        report = run(record, arrays, schedule, **options)
    except Fault as fault:
        return Outcome("fault", fault.kind, str(fault))
    error = record.worst(arrays, expected)
    return Outcome("right" if error <= 1 else "wrong", "", "", error, int(report.instructions))


@dataclass(frozen=True)
class Agreement:
    """One kernel under several schedules. ``difference``: the first schedule whose bits or status differ.

    ``error``: of the first schedule, over the oracle's bound. ``instructions``: of the first, per warp.
    """

    schedules: int
    difference: str
    status: str
    kind: str
    error: float
    instructions: int


def agree(record: Record, schedules: Sequence[str | int], seed: int = 0) -> Agreement:
    """Run under every schedule on the same inputs and compare the outputs' bits with the first schedule's."""
    outputs = [t.name for t in record.tensors if t.role != "input"]
    first: tuple[Outcome, dict[str, bytes]] | None = None
    difference = ""
    for schedule in schedules:
        arrays = record.draw(seed)
        found = _finish(record, arrays, schedule)
        bits = {name: arrays[name].tobytes() for name in outputs}
        if first is None:
            first = found, bits
        elif not difference and (found.status, found.kind) != (first[0].status, first[0].kind):
            difference = f"{schedule}: {found.kind or found.status}"
        elif not difference and bits != first[1] and found.status != "fault":
            difference = f"{schedule}: other bits"
    if first is None:
        raise ValueError("no schedule was given")
    started = first[0]
    return Agreement(
        len(schedules), difference, started.status, started.kind, started.error, started.instructions
    )
