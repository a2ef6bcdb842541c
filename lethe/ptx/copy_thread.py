"""``cp.async``: copies by threads, in commit groups per warp (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx.emit import Array
from lethe.ptx.lanes import active
from lethe.ptx.schedule import EARLY, BulkGroups, Engine, Operation
from lethe.ptx.sync import Sync

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA, Rows


class ThreadCopies:
    """The part of the copy unit that serves ``cp.async``."""

    cta: CTA
    sync: Sync
    engine: Engine
    groups: dict[tuple[str, int, int], BulkGroups]
    submit: Any
    where: Any
    located: Any
    group: Any

    def copy(
        self,
        index: int,
        rows: Rows,
        dst: Array,
        src: Array,
        size: int,
        source_size: Array | None,
        mask: Array | None,
    ) -> None:
        """cp.async of 4, 8 or 16 bytes per lane; bytes past ``source_size`` are zero."""
        if self.engine.schedule == EARLY:
            self._copy(rows, dst, src, size, source_size, mask)
            return
        for r in range(rows[1] - rows[0]):
            part = np.ones((1, 32), bool) if mask is None else mask[r : r + 1].copy()
            if part.any():
                args = (dst[r : r + 1].copy(), src[r : r + 1].copy(), size)
                sizes = None if source_size is None else source_size[r : r + 1].copy()
                self._queue_copy(index, rows[0] + r, *args, sizes, part)

    def _queue_copy(
        self, index: int, warp: int, dst: Array, src: Array, size: int, sizes: Array | None, mask: Array
    ) -> None:
        granules = np.unique(dst[mask].astype(np.int64) >> 4) << 4
        self.cta.shared.offsets(dst[mask].astype(np.int64), size, "cp.async")
        op = Operation(
            ("cp", warp),
            [self.located(lambda: self._copy((warp, warp + 1), dst, src, size, sizes, mask), index)],
            self.where(index),
            writes=[granules],
        )
        self.group("cp", warp, 0).add(op)
        self.submit(op)

    def _copy(
        self, rows: Rows, dst: Array, src: Array, size: int, sizes: Array | None, mask: Array | None
    ) -> None:
        words = size // 4
        values = [np.zeros(dst.shape, np.uint32) for _ in range(words)]
        if sizes is None:
            self.cta.globals.load(src, mask, "u4", words, values)
        else:
            for k in range(words):
                want = sizes >= 4 * (k + 1)
                part = want if mask is None else want & mask
                self.cta.globals.load(src + np.uint64(4 * k), part, "u4", 1, [values[k]])
        watch, self.cta.shared.watch = self.cta.shared.watch, None
        try:
            self.cta.shared.store(dst, mask, "u4", words, values)
        finally:
            self.cta.shared.watch = watch
        if watch is not None and watch.order is not None:
            off = dst.astype(np.int64)
            warps = watch.warp_of[rows[0] : rows[1]]
            watch.order.wrote(
                warps if mask is None else warps[mask], off if mask is None else off[mask], size
            )

    def copy_commit(self, rows: Rows, mask: Array | None) -> None:
        """cp.async.commit_group per warp."""
        for warp in range(*rows):
            if mask is None or mask[warp - rows[0]].any():
                self.group("cp", warp, 0).commit()

    def copy_wait(self, rows: Rows, n: int | None, mask: Array | None) -> None:
        """cp.async.wait_group n; n None is wait_all, uncommitted copies included."""
        for warp in range(*rows):
            g = self.groups.get(("cp", warp, 0))
            if g is None or (mask is not None and not mask[warp - rows[0]].any()):
                continue
            if n is None:
                g.commit()
            for op in g.wait(n or 0):
                self.engine.finish(op)

    def copy_signal(self, index: int, rows: Rows, bar: Array, counted: bool, mask: Array | None) -> None:
        """cp.async.mbarrier.arrive: an arrival per thread once its earlier copies are complete."""
        for r, lane in active(rows, mask):
            address = int(bar[r, lane]) & 0xFFFFFFFF
            barrier = self.sync.mbarrier(address)
            if not counted:
                barrier.pending += 1
            stage = self.located(lambda address=address: self.sync.signal(address), index)
            self.submit(Operation(("cp", rows[0] + r), [stage], self.where(index)))
