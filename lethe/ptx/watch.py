"""Shared memory in flight: which granules an asynchronous operation still fills or still reads.

A granule is 16 bytes. Touching one that is being filled, or refilling one that is still read, is a race
whatever value comes out; the fault names the operation that was in flight. PTX ISA 9.7.9.25 (asynchronous
copies) and 8.9 (memory consistency of the asynchronous proxy).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.order import Order
from lethe.ptx.schedule import EARLY, Engine, Operation

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA


class Watch:
    """Observer of the shared window of one CTA.

    Args:
        cta: whose shared memory.
        engine: the operations in flight.
        order: proxy ordering, or None when checks are off.
    """

    def __init__(self, cta: CTA, engine: Engine, order: Order | None) -> None:
        self.engine, self.order, self.checks = engine, order, cta.checks
        self.window = cta.shared
        granules = cta.shared.size // 16 + 1
        self.filling = np.zeros(granules, np.int32)
        self.reading_ = np.zeros(granules, np.int32)
        self.warp_of = cta.thread >> 5
        self.rows = (0, cta.warps)
        engine.retired = self._retired

    def start(self) -> None:
        """Nothing in flight."""
        self.filling[:] = 0
        self.reading_[:] = 0

    # -- generic accesses
    def reading(self, off: Array, mask: Array | None, warps: Array | None) -> None:
        """A load of checked offsets, by ``warps`` or by the active lanes of the running group."""
        if self.engine.queues and self.filling[off >> 4].any():
            self._report(off, self.filling, "load from shared memory that is still being filled")
        if self.order is not None:
            if warps is None:
                warps = self.warp_of[self.rows[0] : self.rows[1]]
                warps = warps if mask is None else warps[mask]
            self.order.read(np.broadcast_to(warps, off.shape), off)

    def writing(self, off: Array, nbytes: int, mask: Array | None) -> None:
        """A store to checked offsets."""
        if self.engine.queues:
            granule = off >> 4
            if self.filling[granule].any():
                self._report(off, self.filling, "store to shared memory that is being filled")
            if self.reading_[granule].any():
                self._report(off, self.reading_, "store to shared memory that is still read")
        if self.order is not None:
            warps = self.warp_of[self.rows[0] : self.rows[1]]
            self.order.wrote(warps if mask is None else warps[mask], off, nbytes)

    def _report(self, off: Array, counts: Array, what: str) -> None:
        flat = off.reshape(-1)
        address = int(flat[int(np.argmax(counts[flat >> 4] != 0))])
        raise Fault("race", f"{what}: shared address {address:#x}, in flight from {self._culprit(address)}")

    def _culprit(self, address: int) -> str:
        for op in self.engine.operations():
            for chunks in (*op.reads, *op.writes):
                if (chunks >> 4 == address >> 4).any():
                    return op.where
        return "an asynchronous operation"

    # -- asynchronous operations
    def begin(self, op: Operation) -> None:
        """Check an operation against those in flight, then count it in."""
        if self.engine.schedule == EARLY or not self.checks:
            return
        for chunks in (*op.reads, *op.writes):
            self.inside(chunks, op)
        for chunks in op.reads:
            if self.filling[chunks >> 4].any():
                self._report(
                    chunks, self.filling, "asynchronous read of shared memory that is still being filled"
                )
        for chunks in op.writes:
            if self.filling[chunks >> 4].any():
                self._report(
                    chunks, self.filling, "asynchronous refill of shared memory that is being filled"
                )
            if self.reading_[chunks >> 4].any():
                self._report(chunks, self.reading_, "asynchronous refill of shared memory that is still read")
        self._count(op, 1)

    def inside(self, chunks: Array, op: Operation) -> None:
        """Granules of an operation must lie in shared memory."""
        flat = chunks.reshape(-1)
        if int(flat.min()) < self.window.first or int(flat.max()) + 16 > self.window.size:
            try:
                self.window.out_of_bounds(flat, 16, "asynchronous access")
            except Fault as fault:
                raise fault.at(op.where) from None

    def _count(self, op: Operation, by: int) -> None:
        for chunks in op.reads:
            np.add.at(self.reading_, chunks.reshape(-1) >> 4, by)
        for chunks in op.writes:
            np.add.at(self.filling, chunks.reshape(-1) >> 4, by)

    def _retired(self, op: Operation, finished: bool) -> None:
        if op.done == 1 and self.engine.schedule != EARLY and self.checks:
            self._count(op, -1)
