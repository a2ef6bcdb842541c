"""The tensor cores of one CTA: tensor memory, ``tcgen05``, and results still on their way.

PTX ISA 9.7.16 (tcgen05) and 9.7.15 (wgmma). MMA, copy and commit of one warp complete in issue order; loads
and stores of tensor memory complete at their wait. ``pending`` names the registers whose values have not
arrived: touching one before the wait is a fault under every schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx import tcgen05, tmem
from lethe.ptx.descriptors import Reads
from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.fenced import FragmentFence
from lethe.ptx.lanes import active
from lethe.ptx.order import Order
from lethe.ptx.schedule import EARLY, Engine, Operation
from lethe.ptx.sync import Sync
from lethe.ptx.warpgroup_unit import LOAD, WarpgroupUnit
from lethe.ptx.watch import Watch

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA, Rows

GARBAGE = np.uint32(0x7FBADBAD)
"""What a register holds while its load is in flight: a NaN."""


class Tensor(WarpgroupUnit):
    """The tensor unit of a CTA."""

    def __init__(
        self, cta: CTA, sync: Sync, engine: Engine, watch: Watch | None, order: Order | None
    ) -> None:
        self.cta, self.sync, self.engine, self.watch, self.order = cta, sync, engine, watch, order
        self.pending: dict[int, dict[str, Any]] = {}
        self.start()

    def start(self) -> None:
        """Tensor memory unallocated, nothing in flight."""
        self.memory = tmem.TensorMemory()
        self.pending.clear()
        self.loads: dict[int, list[Operation]] = {}
        self.stores: dict[int, list[Operation]] = {}
        self.copies: dict[int, list[tuple[Rows, Any]]] = {}
        self.group_ops: dict[int, list[list[Operation]]] = {}
        self.fragments = FragmentFence(self.cta.warps)

    def where(self, index: int) -> str:
        """Line and text of the issuing instruction."""
        return self.cta.program.places[index]

    def stage(self, index: int, func: Any) -> Any:
        def run() -> None:
            try:
                func()
            except Fault as fault:
                raise fault.at(self.where(index)) from None

        return run

    def submit(self, op: Operation) -> None:
        if self.watch is not None:
            self.watch.begin(op)
        self.engine.issue(op)

    # -- lifetime
    def alloc(self, rows: Rows, dst: Array, columns: Array, mask: Array | None) -> None:
        """tcgen05.alloc: the address goes to shared memory."""
        for r in range(rows[1] - rows[0]):
            lane = 0 if mask is None else int(np.argmax(mask[r]))
            if mask is not None and not mask[r].any():
                continue
            n = int(columns[r, lane])
            address = self.memory.alloc(n)
            if address is None:
                live = ", ".join(map(str, self.memory.leaks()))
                raise Fault("tmem", f"tcgen05.alloc of {n} columns blocks for ever: live are {live}")
            at = np.array([int(dst[r, lane]) & 0xFFFFFFFF], np.int64)
            watch, self.cta.shared.watch = self.cta.shared.watch, None
            self.cta.shared.store(at, None, "u4", 1, [np.array([address], np.uint32)])
            self.cta.shared.watch = watch

    def dealloc(self, rows: Rows, address: Array, columns: Array, mask: Array | None) -> None:
        """tcgen05.dealloc; columns that an operation still writes may not go."""
        for r in range(rows[1] - rows[0]):
            if mask is not None and not mask[r].any():
                continue
            lane = 0 if mask is None else int(np.argmax(mask[r]))
            at, n = int(address[r, lane]), int(columns[r, lane])
            self.in_flight((0, 128, at & 0xFFFF, (at & 0xFFFF) + n), "tcgen05.dealloc")
            self.memory.dealloc(at, n)
            if self.order is not None:
                self.order.freed(rows[0] + r, at & 0xFFFF, (at & 0xFFFF) + n)

    def relinquish(self, rows: Rows, mask: Array | None) -> None:
        """tcgen05.relinquish_alloc_permit."""
        for r in range(rows[1] - rows[0]):
            if mask is None or mask[r].any():
                self.memory.relinquish()

    def at_exit(self) -> None:
        """Allocations left at the end are leaks."""
        leaks = self.memory.leaks()
        if leaks:
            raise Fault("tmem", "allocation not freed at the end of the CTA: " + ", ".join(map(str, leaks)))

    # -- tcgen05.mma, cp, commit
    def in_flight(self, area: tuple[int, int, int, int], what: str) -> None:
        """No pending operation may write a rectangle that is touched now."""
        if not self.engine.queues:
            return
        lane0, lane1, col0, col1 = area
        for op in self.engine.operations():
            t = op.tmem
            if t is not None and t[0] < lane1 and lane0 < t[1] and t[2] < col1 and col0 < t[3]:
                raise Fault(
                    "race",
                    f"{what} touches TMEM columns {col0}..{col1 - 1} that are in flight from {op.where}",
                )

    def mma(
        self,
        index: int,
        rows: Rows,
        kind: str,
        d: Array,
        a: Array,
        b: Array,
        idesc: Array,
        accumulate: Array,
        a_in_tmem: bool,
        scale: int,
        disabled: list[Array],
        mask: Array | None,
    ) -> None:
        """tcgen05.mma by each active thread (one, in every sane kernel)."""
        for r, lane in active(rows, mask):
            lanes = None
            if disabled:
                words = [int(w[r, lane]) for w in disabled]
                if any(words):
                    raw = np.array(words, np.uint32).view(np.uint8)
                    lanes = np.unpackbits(raw, bitorder="little").astype(bool)[:128]
            step = tcgen05.plan(
                kind,
                int(d[r, lane]),
                int(a[r, lane]),
                int(b[r, lane]),
                int(idesc[r, lane]),
                a_in_tmem=a_in_tmem,
            )
            self._mma(index, rows[0] + r, step, bool(accumulate[r, lane]), scale, lanes)

    def _mma(
        self, index: int, warp: int, step: tcgen05.Plan, accumulate: bool, scale: int, lanes: Array | None
    ) -> None:
        reads = step.reads
        self.check_reads(warp, reads, "tcgen05.mma")
        if self.order is not None:
            a_columns = step.a_region[2:] if step.a_region is not None else None
            self.order.mma(warp, reads.granules, step.d_region[2:], a_columns)
        self.memory.check_region(*step.d_region, "tcgen05.mma: D")

        def compute() -> None:
            tcgen05.execute(step, self.cta.shared.data, self.memory, accumulate, scale, lanes)

        op = Operation(
            ("tc", warp), [self.stage(index, compute)], self.where(index), reads.chunks, tmem=step.d_region
        )
        self.submit(op)

    def check_reads(self, warp: int, reads: Reads, what: str) -> None:
        """Operands in shared memory: inside it, waited for, published, written."""
        if reads.end > self.cta.shared.size:
            self.cta.shared.out_of_bounds(reads.granules * 16, 16, what)
        filled = self.order is not None and self.order.check(warp, reads.granules, what)
        if not filled and self.cta.shared.written is not None and not self._arriving(reads.granules):
            self._written(reads.granules, what)

    def _arriving(self, granules: Array) -> bool:
        """Whether a load in flight fills the granules (then ``watch`` reports the race)."""
        return self.watch is not None and bool(self.watch.filling[granules].any())

    def _written(self, granules: Array, what: str) -> None:
        shadow = self.cta.shared.written
        assert shadow is not None
        flags = shadow.view(np.uint64).reshape(-1, 2).take(granules, axis=0)
        if np.bitwise_and.reduce(flags.reshape(-1)) == 0x0101010101010101:
            return
        bad = (flags != 0x0101010101010101).any(axis=1)
        address = int(granules[int(np.argmax(bad))]) * 16
        raise Fault("poison", f"{what} reads shared address {address:#x}, which nobody wrote")

    def copy(
        self,
        index: int,
        rows: Rows,
        shape: str,
        mods: tuple[str, ...],
        taddr: Array,
        desc: Array,
        mask: Array | None,
    ) -> None:
        """tcgen05.cp shared -> TMEM."""
        for r, lane in active(rows, mask):
            step = tcgen05.cp_plan(shape, mods, int(taddr[r, lane]), int(desc[r, lane]))
            self.check_reads(rows[0] + r, step.reads, "tcgen05.cp")
            if self.order is not None:
                self.order.mma(rows[0] + r, step.reads.granules, step.region[2:], None)

            def move(step: tcgen05.CpPlan = step) -> None:
                tcgen05.cp_execute(step, self.cta.shared.data, self.memory)

            stage = self.stage(index, move)
            self.submit(
                Operation(("tc", rows[0] + r), [stage], self.where(index), [step.chunks], tmem=step.region)
            )

    def commit(self, index: int, rows: Rows, bar: Array, mask: Array | None) -> None:
        """tcgen05.commit: an arrival when everything before it in the queue is complete."""
        for r, lane in active(rows, mask):
            address = int(bar[r, lane]) & 0xFFFFFFFF
            self.sync.mbarrier(address)
            history = None if self.order is None else self.order.committed(rows[0] + r)
            stage = self.stage(index, lambda at=address, history=history: self._signal(at, history))
            self.submit(Operation(("tc", rows[0] + r), [stage], self.where(index)))

    def _signal(self, address: int, history: Array | None) -> None:
        if self.order is not None and history is not None:
            self.order.release(address, history)
        self.sync.signal(address)

    def fence(self, rows: Rows, before: bool, mask: Array | None) -> None:
        """tcgen05.fence::before_thread_sync and ::after_thread_sync."""
        if self.order is not None:
            self.order.tensor_fence(rows, mask, before)

    # -- tcgen05.ld, st, wait
    def load(
        self,
        index: int,
        rows: Rows,
        taddr: Array,
        shape: str,
        num: int,
        pack: bool,
        offset: int | None,
        regs: tuple[Array | None, ...],
        names: tuple[str, ...],
        mask: Array | None,
    ) -> None:
        """tcgen05.ld: registers arrive at the latest at wait::ld."""
        for r in range(rows[1] - rows[0]):
            if mask is not None and not mask[r].any():
                continue
            warp, address = rows[0] + r, int(taddr[r, 0])
            if (taddr[r] != taddr[r, 0]).any():
                raise Fault("divergence", "tcgen05.ld: the lanes of a warp give different addresses")
            area = tmem.region(address, shape, num, offset, pack)
            self.in_flight(area, "tcgen05.ld")
            if self.order is not None:
                self.order.tmem(warp, *area[2:], False)

            def fetch(r: int = r, warp: int = warp, address: int = address) -> None:
                values = tmem.load(self.memory, address, shape, num, warp % 4, pack, offset)
                for i, reg in enumerate(regs):
                    if reg is not None:
                        reg[r] = values[:, i]

            stage = self.stage(index, fetch)
            if self.cta.checks:
                self.pending.setdefault(warp, {}).update(dict.fromkeys(names, (LOAD, 0)))
            if self._now():
                stage()
            else:
                for reg in regs:
                    if reg is not None:
                        reg[r] = GARBAGE
                self.loads.setdefault(warp, []).append(Operation(("ld", warp), [stage], self.where(index)))

    def _now(self) -> bool:
        if self.engine.random is not None:
            return bool(self.engine.random.random() < 0.5)
        return self.engine.schedule == EARLY

    def store(
        self,
        index: int,
        rows: Rows,
        taddr: Array,
        shape: str,
        num: int,
        unpack: bool,
        offset: int | None,
        regs: tuple[Array, ...],
        mask: Array | None,
    ) -> None:
        """tcgen05.st: visible at the latest at wait::st."""
        for r in range(rows[1] - rows[0]):
            if mask is not None and not mask[r].any():
                continue
            warp, address = rows[0] + r, int(taddr[r, 0])
            if (taddr[r] != taddr[r, 0]).any():
                raise Fault("divergence", "tcgen05.st: the lanes of a warp give different addresses")
            area = tmem.region(address, shape, num, offset, unpack)
            self.in_flight(area, "tcgen05.st")
            if self.order is not None:
                self.order.tmem(warp, *area[2:], True)
            values = np.stack([reg[r] for reg in regs], axis=1)

            def put(values: Array = values, warp: int = warp, address: int = address) -> None:
                tmem.store(self.memory, address, shape, num, warp % 4, values, unpack, offset)

            op = Operation(("st", warp), [self.stage(index, put)], self.where(index), tmem=area)
            if self.engine.schedule == EARLY:
                op.stages[0]()
            else:
                self.stores.setdefault(warp, []).append(op)
                self.engine.issue(op)

    def wait_load(self, rows: Rows, mask: Array | None) -> None:
        """tcgen05.wait::ld."""
        warps = [w for w in range(*rows) if mask is None or mask[w - rows[0]].any()]
        for warp in warps:
            for op in self.loads.pop(warp, []):
                op.stages[0]()
        for warp in warps:
            for rows_then, again in self.copies.pop(warp, []):
                if rows_then != rows:
                    raise Fault(
                        "missing-wait", "results of tcgen05.ld are used by other warps than those that wait"
                    )
                again()
            left = {k: v for k, v in self.pending.get(warp, {}).items() if v[0] != LOAD}
            self.keep(warp, left)

    def wait_store(self, rows: Rows, mask: Array | None) -> None:
        """tcgen05.wait::st."""
        for warp in range(*rows):
            if mask is None or mask[warp - rows[0]].any():
                for op in self.stores.pop(warp, []):
                    self.engine.finish(op)

    def keep(self, warp: int, left: dict[str, Any]) -> None:
        if left:
            self.pending[warp] = left
        else:
            self.pending.pop(warp, None)

    def touch(self, rows: Rows, names: tuple[str, ...], mask: Array | None) -> None:
        """Registers are used: none of them may be a result still on its way."""
        for warp, waiting in self.pending.items():
            if rows[0] <= warp < rows[1] and (mask is None or mask[warp - rows[0]].any()):
                for name in names:
                    if name in waiting:
                        kind, _ = waiting[name]
                        raise Fault("missing-wait", f"register {name} is used before {kind} (warp {warp})")

    def copied(self, rows: Rows, reads: tuple[str, ...], writes: tuple[str, ...], again: Any) -> None:
        """A computation on registers that may be on their way: its result is on its way too."""
        first = True
        for warp in range(*rows):
            waiting = self.pending.get(warp)
            tags = [waiting[name] for name in reads if name in waiting] if waiting else []
            if not tags:
                continue
            if tags[0][0] != LOAD:
                raise Fault("missing-wait", f"register {reads[0]} is used before {tags[0][0]} (warp {warp})")
            assert waiting is not None
            waiting.update(dict.fromkeys(writes, (LOAD, 0)))
            if first:
                self.copies.setdefault(warp, []).append((rows, again))
                first = False
