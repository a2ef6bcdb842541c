"""Run a kernel: blocks of warps in lockstep batches, scheduling, waiting, deadlock.

Execution is by compiled basic blocks (``program``) on runs of warps (``warps``). A warp that cannot go on
(named barrier, mbarrier phase) yields; when nothing can run, one asynchronous operation completes; when
nothing is left to complete, a suspended ``try_wait`` times out with false, as the ISA allows; when that
changes nothing either, the kernel is deadlocked and the report says who waits for what.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lethe.ptx.cta import Layout
from lethe.ptx.faults import Fault
from lethe.ptx.memory import GlobalMemory
from lethe.ptx.program import Program
from lethe.ptx.report import Report
from lethe.ptx.residency import Residency
from lethe.ptx.syntax import Kernel, Module, Param

Dim = tuple[int, int, int]

_PACK = {"f32": "<f", "f64": "<d"}


def pack_parameter(param: Param, value: Any) -> bytes:
    """Bytes of a kernel parameter.

    Args:
        param: its declaration.
        value: bytes of exactly its size, or a Python or numpy number.

    Raises:
        Fault: kind ``launch`` when the size does not match.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
    elif isinstance(value, np.ndarray):
        raw = value.tobytes()
    elif isinstance(value, np.generic):
        raw = value.tobytes() if value.itemsize == param.size else pack_parameter(param, value.item())
    elif param.type in _PACK:
        raw = struct.pack(_PACK[param.type], value)
    elif isinstance(value, float):
        raw = struct.pack("<f" if param.size == 4 else "<d", value)
    else:
        raw = (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
    if len(raw) != param.size:
        raise Fault("launch", f"parameter {param.name}: {len(raw)} bytes given, {param.size} declared")
    return raw


class Machine:
    """One launch of one kernel.

    Args:
        module, kernel_name: what to run.
        grid, block: launch shape.
        params: one entry per kernel parameter (see ``pack_parameter``).
        memory: device memory.
        dynamic_shared: bytes of dynamic shared memory.
        schedule: ``"early"``, ``"late"``, ``"reverse"`` or a seed (see ``schedule.Engine``).
        checks: poison, ordering and accounting checks.
        cluster: only clusters of one CTA.
        interleave: CTAs that run at the same time.
        limit: most warp-instructions.

    Raises:
        Fault: kind ``launch`` or ``unsupported``.
    """

    def __init__(
        self,
        module: Module,
        kernel_name: str,
        grid: Dim,
        block: Dim,
        params: Sequence[Any],
        memory: GlobalMemory,
        *,
        dynamic_shared: int = 0,
        schedule: str | int = "early",
        checks: bool = True,
        cluster: Dim = (1, 1, 1),
        interleave: int = 1,
        limit: int = 2_000_000_000,
    ) -> None:
        if cluster != (1, 1, 1):
            raise Fault("unsupported", f"cluster {cluster}: clusters of one CTA are modelled")
        if kernel_name not in module.kernels:
            raise Fault("launch", f"no kernel {kernel_name!r}; the module has {sorted(module.kernels)}")
        self.kernel = module.kernels[kernel_name]
        self._check_launch(self.kernel, block, params)
        self.module, self.grid, self.block, self.memory = module, grid, block, memory
        self.dynamic_shared, self.schedule, self.checks = dynamic_shared, schedule, checks
        self.interleave, self.limit = interleave, limit
        self.program = _program(module, self.kernel, checks)
        raw = [pack_parameter(p, v) for p, v in zip(self.kernel.params, params, strict=True)]
        self.layout = Layout(self.program, raw, dynamic_shared)
        self._place_globals()
        self.random = np.random.default_rng(schedule) if isinstance(schedule, int) else None
        self.executed = 0
        self.visits = [0] * len(self.program.blocks)
        names = [i.name for i in self.kernel.instructions]
        proxies = ("tcgen05", "wgmma", "cp.async.bulk", "cp.reduce")
        self.asynchronous = any(n.startswith(("cp.async", *proxies)) for n in names)
        self.fences = any(n.startswith("tcgen05.fence::after") for n in names)
        self.proxies = any(n.startswith(proxies) for n in names)

    @staticmethod
    def _check_launch(kernel: Kernel, block: Dim, params: Sequence[Any]) -> None:
        if len(params) != len(kernel.params):
            raise Fault("launch", f"{len(params)} parameters given, {kernel.name} has {len(kernel.params)}")
        threads = block[0] * block[1] * block[2]
        if not 1 <= threads <= 1024:
            raise Fault("launch", f"{threads} threads a block")
        required = kernel.directives.get("reqntid")
        if required and tuple(required) + (1,) * (3 - len(required)) != tuple(block):
            raise Fault("launch", f"block {block}, kernel requires {required}")
        most = kernel.directives.get("maxntid")
        if most and threads > int(np.prod(most)):
            raise Fault("launch", f"{threads} threads, kernel allows {most}")
        explicit = kernel.directives.get("reqnctapercluster")
        if explicit and int(np.prod(explicit)) != 1:
            raise Fault("unsupported", f"cluster {explicit}: clusters of one CTA are modelled")

    def _place_globals(self) -> None:
        for v in self.module.variables.values():
            if v.space == "global":
                data = np.zeros(v.size + 16, np.uint8)
                shift = -data.ctypes.data % 16
                data = data[shift : shift + v.size]
                if v.init:
                    data[:] = np.frombuffer(v.init, np.uint8)
                self.layout.address[v.name] = self.memory.add(data, v.name)

    # -- the grid
    def run(self) -> Report:
        """Run every CTA.

        Raises:
            Fault: the first violation, with line, text and warps.
        """
        begin, cpu = time.perf_counter(), time.process_time()
        report = Report(self.schedule)
        indices = [(x, y, z) for z, y, x in itertools.product(*(range(n) for n in self.grid[::-1]))]
        slots: list[Residency] = []
        queue = iter(indices)
        with np.errstate(all="ignore"):
            for number in range(min(self.interleave, len(indices))):
                slots.append(Residency(self, number))
            self._fill(slots, queue)
            while any(s.groups for s in slots):
                self._round(slots)
                for s in slots:
                    if s.running and not s.groups:
                        s.finish()
                        report.ctas += 1
                self._fill(slots, queue)
        report.seconds, report.cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
        for index, visits in enumerate(self.visits):
            b = self.program.blocks[index]
            report.instructions += visits * b.counts.total()
            for name, n in b.counts.items() if visits else ():
                report.counts[name] += n * visits
        for s in slots:
            for index, hits in zip(self.program.bodies, s.cta.hits, strict=True):
                body = self.program.instructions[index + 1 : self.program.hammocks[index]]
                report.instructions += hits * len(body)
                for name, n in Counter(i.name for i in body).items() if hits else ():
                    report.counts[name] += n * hits
        report.operations = sum(s.engine.completed for s in slots)
        return report

    def _fill(self, slots: list[Residency], queue: Iterator[Dim]) -> None:
        for s in slots:
            if not s.running:
                index = next(queue, None)
                if index is not None:
                    s.begin(index)

    def _round(self, slots: list[Residency]) -> None:
        moved = False
        for s in slots:
            moved |= s.round()
        if moved:
            return
        for s in slots:
            if s.running and s.engine.step():
                return
        timed_out = [s.time_out() for s in slots if s.running]
        if any(timed_out):
            return
        raise Fault("deadlock", "\n".join(s.describe() for s in slots if s.running))


def _program(module: Module, kernel: Kernel, checks: bool) -> Program:
    cache: dict[bool, Program] = kernel.__dict__.setdefault("_programs", {})
    if checks not in cache:
        cache[checks] = Program(module, kernel, checks)
    return cache[checks]


def run(
    module: Module,
    kernel_name: str,
    grid: Dim,
    block: Dim,
    params: Sequence[Any],
    memory: GlobalMemory,
    **options: Any,
) -> Report:
    """Run a kernel; see ``Machine`` for the options.

    Returns:
        The report of a run without fault.

    Raises:
        Fault: the first violation.
    """
    return Machine(module, kernel_name, grid, block, params, memory, **options).run()
