"""Bulk copies of contiguous bytes, with and without reduction (PTX ISA 9.7.9.25.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.lanes import active
from lethe.ptx.order import Order
from lethe.ptx.schedule import Operation
from lethe.ptx.sync import Sync

if TYPE_CHECKING:
    from lethe.ptx.cta import Rows


class LinearCopies:
    """The part of the copy unit that moves contiguous bytes."""

    sync: Sync
    submit: Any
    where: Any
    located: Any
    unique: Any
    store_chunks: Any
    check_chunks: Any
    arrived: Any
    order: Order | None
    fetch: Any
    fetch_shadow: Any
    fetch_writable: Any
    poisonable: bool

    def bulk_load(
        self, index: int, rows: Rows, dst: Array, src: Array, size: Array, bar: Array, mask: Array | None
    ) -> None:
        """cp.async.bulk global -> shared."""
        for r, lane in active(rows, mask):
            to, start, n = int(dst[r, lane]) & 0xFFFFFFFF, int(src[r, lane]), int(size[r, lane])
            self._check_linear(to, start, n)
            self._bulk_load(index, to, start, n, int(bar[r, lane]) & 0xFFFFFFFF, rows[0] + r)

    def _bulk_load(self, index: int, to: int, start: int, n: int, bar: int, warp: int) -> None:
        chunks = np.arange(to, to + n, 16, dtype=np.int64)
        self.check_chunks(chunks, "bulk copy")
        self.sync.mbarrier(bar)
        if self.order is not None:
            self.order.refill(warp, chunks >> 4)

        def land() -> None:
            line = self.fetch(start, n).copy()
            if self.poisonable and not self.fetch_shadow(start, n).all():
                raise Fault("poison", "bulk copy reads global bytes that nobody wrote")
            self.arrived(chunks >> 4, line, bar)

        self.submit(Operation(self.unique(), [self.located(land, index)], self.where(index), writes=[chunks]))

    def bulk_store(
        self, index: int, rows: Rows, dst: Array, src: Array, size: Array, combine: Any, mask: Array | None
    ) -> None:
        """cp.async.bulk and cp.reduce.async.bulk shared -> global."""
        for r, lane in active(rows, mask):
            to, start, n = int(dst[r, lane]), int(src[r, lane]) & 0xFFFFFFFF, int(size[r, lane])
            self._check_linear(start, to, n)
            self.store_chunks(
                index,
                (rows[0] + r, lane),
                np.arange(start, start + n, 16, dtype=np.int64),
                self._line_writer(to, n, combine),
            )

    def _line_writer(self, to: int, n: int, combine: Any) -> Any:
        def write(line: Array) -> None:
            target = self.fetch_writable(to, n)
            target[:] = line if combine is None else combine(target.copy(), line)
            self.fetch_shadow(to, n)[:] = 1

        return write

    @staticmethod
    def _check_linear(shared: int, remote: int, n: int) -> None:
        if n % 16 or n == 0:
            raise Fault("alignment", f"bulk copy of {n} bytes: the size must be a multiple of 16")
        if shared % 16 or remote % 16:
            raise Fault("alignment", f"bulk copy between {shared:#x} and {remote:#x}: not 16-byte aligned")
