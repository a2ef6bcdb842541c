"""Asynchronous copies: ``cp.async``, bulk copies, tensor copies through tensor maps, and their groups.

PTX ISA 9.7.9.25 (data movement and conversion: asynchronous copy). A copy is queued with its stages (read
the source; write the destination and signal); the engine decides when they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx import tma
from lethe.ptx.copy_linear import LinearCopies
from lethe.ptx.copy_thread import ThreadCopies
from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.lanes import active
from lethe.ptx.memory import SHARED_FIRST
from lethe.ptx.order import Order
from lethe.ptx.schedule import BulkGroups, Engine, Operation
from lethe.ptx.sync import Sync
from lethe.ptx.watch import Watch

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA, Rows

_WRITTEN = np.full(16, 1, np.uint8).view(np.complex128)[0]


class Copies(ThreadCopies, LinearCopies):
    """The copy unit of a CTA."""

    def __init__(
        self, cta: CTA, sync: Sync, engine: Engine, watch: Watch | None, order: Order | None
    ) -> None:
        self.cta, self.sync, self.engine, self.watch, self.order = cta, sync, engine, watch, order
        self.chunks = cta.shared.data.view(np.complex128)
        written = cta.shared.written
        self.shadow = None if written is None else written.view(np.complex128)
        self.maps: dict[bytes, Any] = {}
        self.tiles: dict[tuple[int, int], tuple[Array, Array]] = {}
        self.start()

    def start(self) -> None:
        """No groups."""
        self.groups: dict[tuple[str, int, int], BulkGroups] = {}
        self.serial = 0
        self.poisonable = False
        self.shadowed = any(w.written is not None for w in self.cta.globals.windows)

    def where(self, index: int) -> str:
        """Line and text of the issuing instruction."""
        return self.cta.program.places[index]

    def submit(self, op: Operation) -> None:
        """Hand an operation to the engine, watched."""
        if self.watch is not None:
            self.watch.begin(op)
        self.engine.issue(op)

    def unique(self) -> tuple[str, int]:
        """A queue of its own: bulk copies are not ordered among themselves."""
        self.serial += 1
        return ("bulk", self.serial)

    # -- shared memory in granules
    def check_chunks(self, chunks: Array, verb: str) -> None:
        """Bounds of granule addresses."""
        if int(chunks.min()) < SHARED_FIRST or int(chunks.max()) + 16 > self.cta.shared.size:
            self.cta.shared.out_of_bounds(chunks, 16, verb)

    def read_chunks(self, chunks: Array, what: str) -> Array:
        """Bytes of granules, poison checked."""
        at = chunks >> 4
        if self.shadow is not None and not (self.shadow[at].view(np.uint64) == 0x0101010101010101).all():
            shadow = self.cta.shared.written
            assert shadow is not None
            bad = ~(shadow.reshape(-1, 16)[at] == 1).all(axis=-1)
            address = int(chunks[bad].flat[0])
            raise Fault("poison", f"{what} reads shared address {address:#x}, which nobody wrote")
        return self.chunks[at].view(np.uint8)

    def write_chunks(self, at: Array, data: Array) -> None:
        """Fill granules (indices) through the asynchronous proxy."""
        self.chunks[at] = np.ascontiguousarray(data).view(np.complex128)
        if self.shadow is not None:
            self.shadow[at] = _WRITTEN

    def arrived(self, granules: Array, data: Array, bar: int) -> None:
        """A bulk load lands in granules (indices) and completes its bytes on an mbarrier."""
        self.write_chunks(granules, data)
        if self.order is not None:
            self.order.filled(granules, bar, self.sync.mbarrier(bar).phase)
        self.sync.complete_tx(bar, data.size)

    # -- global memory
    def fetch(self, address: int, nbytes: int) -> Array:
        """Bytes of device memory."""
        window = self.cta.globals.window(address, nbytes, "bulk access")
        self.poisonable = window.written is not None
        return window.view(address, nbytes)

    def fetch_writable(self, address: int, nbytes: int) -> Array:
        """Bytes of device memory for writing."""
        window = self.cta.globals.window(address, nbytes, "bulk store")
        if not window.writable:
            raise Fault("bounds", f"bulk store to read-only {window.name}")
        return window.view(address, nbytes)

    def fetch_shadow(self, address: int, nbytes: int) -> Array:
        """Written flags of device memory."""
        return self.cta.globals.window(address, nbytes, "bulk access").shadow(address, nbytes)

    # -- tensor copies
    def map_at(self, address: int) -> Any:
        """The tensor map at a generic address."""
        if address % 64:
            raise Fault("alignment", f"tensor map at {address:#x} is not 64-byte aligned")
        raw = self.cta.generic_view(address, 128)
        key = raw.tobytes()
        found = self.maps.get(key)
        if found is None:
            found = self.maps[key] = tma.decode(raw)
        return found

    def tensor_load(
        self,
        index: int,
        rows: Rows,
        dst: Array,
        tmap: Array,
        coords: list[Array],
        bar: Array,
        mask: Array | None,
    ) -> None:
        """cp.async.bulk.tensor global -> shared, completing bytes on an mbarrier."""
        for r, lane in active(rows, mask):
            self._tensor_load(
                index,
                int(dst[r, lane]) & 0xFFFFFFFF,
                self.map_at(int(tmap[r, lane])),
                tuple(int(c[r, lane]) for c in coords),
                int(bar[r, lane]) & 0xFFFFFFFF,
                rows[0] + r,
            )

    def _tensor_load(
        self, index: int, dst: int, tmap: Any, coords: tuple[int, ...], bar: int, warp: int
    ) -> None:
        chunks, granules = self._tile(tmap, dst)
        self.sync.mbarrier(bar)
        if self.order is not None:
            self.order.refill(warp, granules)

        def land() -> None:
            tile = tma.load_tile(tmap, coords, self.fetch)
            if self.poisonable and not tma.load_tile(tmap, coords, self.fetch_shadow, outside=1).all():
                raise Fault("poison", f"bulk tensor load at {coords} reads global bytes that nobody wrote")
            self.arrived(granules, tile, bar)

        self.submit(Operation(self.unique(), [self.located(land, index)], self.where(index), writes=[chunks]))

    def _tile(self, tmap: Any, dst: int) -> tuple[Array, Array]:
        """Granule addresses and indices of a tile in shared memory, inside it."""
        found = self.tiles.get((id(tmap), dst))
        if found is None:
            chunks = tma.shared_chunks(tmap, dst)
            self.check_chunks(chunks, "bulk tensor load")
            found = self.tiles[id(tmap), dst] = (chunks, chunks >> 4)
        return found

    def located(self, stage: Any, index: int) -> Any:
        def run() -> None:
            try:
                stage()
            except Fault as fault:
                raise fault.at(self.where(index)) from None

        return run

    def tensor_store(
        self,
        index: int,
        rows: Rows,
        tmap: Array,
        coords: list[Array],
        src: Array,
        reduce: str | None,
        mask: Array | None,
    ) -> None:
        """cp.async.bulk.tensor / cp.reduce shared -> global, in the thread's bulk group."""
        for r, lane in active(rows, mask):
            found = self.map_at(int(tmap[r, lane]))
            at = tuple(int(c[r, lane]) for c in coords)
            chunks = tma.shared_chunks(found, int(src[r, lane]) & 0xFFFFFFFF)
            self.store_chunks(index, (rows[0] + r, lane), chunks, self._tile_writer(found, at, reduce))

    def _tile_writer(self, tmap: Any, coords: tuple[int, ...], reduce: str | None) -> Any:
        def write(tile: Array) -> None:
            tma.store_tile(tmap, coords, tile, self.fetch_writable, reduce)
            if self.shadowed:
                tma.store_tile(tmap, coords, np.ones_like(tile), self.fetch_shadow)

        return write

    def store_chunks(self, index: int, thread: tuple[int, int], chunks: Array, write: Any) -> None:
        what = self.where(index)
        self.check_chunks(chunks, "bulk store")
        if self.order is not None:
            self.order.check(thread[0], chunks.reshape(-1) >> 4, "bulk store")
        held: list[Array] = []
        op = Operation(
            self.unique(),
            [
                self.located(lambda: held.append(self.read_chunks(chunks, "bulk store").copy()), index),
                self.located(lambda: write(held[0]), index),
            ],
            what,
            reads=[chunks],
        )
        self.group("bulk", *thread).add(op)
        self.submit(op)

    def replace(
        self,
        rows: Rows,
        space: str,
        addr: Array,
        field: str,
        ordinal: int | None,
        value: Array,
        mask: Array | None,
    ) -> None:
        """tensormap.replace on the map at an address."""
        for r, lane in active(rows, mask):
            raw = self._map_bytes(space, int(addr[r, lane]))
            tma.replace(raw, field, ordinal, int(value[r, lane]))

    def _map_bytes(self, space: str, address: int) -> Array:
        if space == "shared":
            return self.cta.shared.view(address & 0xFFFFFFFF, 128, "tensormap access")
        return self.fetch_writable(address, 128)

    def copy_map(self, rows: Rows, dst: Array, src: Array, size: int, mask: Array | None) -> None:
        """tensormap.cp_fenceproxy: one copy per warp."""
        for r in range(rows[1] - rows[0]):
            if mask is None or mask[r].any():
                lane = 0 if mask is None else int(np.argmax(mask[r]))
                raw = self.cta.shared.view(int(src[r, lane]) & 0xFFFFFFFF, size, "tensormap copy")
                self.fetch_writable(int(dst[r, lane]), size)[:] = raw
                self.fetch_shadow(int(dst[r, lane]), size)[:] = 1

    # -- groups
    def group(self, kind: str, warp: int, lane: int) -> BulkGroups:
        """Groups of a thread (bulk) or a warp (cp.async)."""
        return self.groups.setdefault((kind, warp, lane), BulkGroups())

    def commit(self, rows: Rows, kind: str, mask: Array | None) -> None:
        """commit_group by the active threads."""
        for (k, warp, lane), g in self.groups.items():
            if k == kind and rows[0] <= warp < rows[1] and (mask is None or mask[warp - rows[0], lane]):
                g.commit()

    def wait(self, rows: Rows, kind: str, n: int, read: bool, mask: Array | None) -> None:
        """wait_group: complete all but the newest n groups (``read``: only their source reads)."""
        for (k, warp, lane), g in self.groups.items():
            if (
                k != kind
                or not rows[0] <= warp < rows[1]
                or (mask is not None and not mask[warp - rows[0], lane])
            ):
                continue
            for op in g.peek(n) if read else g.wait(n):
                op.waited = True
                self.engine.finish(op, 1 if read else None)

    def at_exit(self) -> None:
        """Every bulk store must have been waited for, at least for its read of shared memory."""
        if not self.cta.checks:
            return
        for (kind, warp, lane), g in self.groups.items():
            left = [o for o in [*g.open, *(o for group in g.closed for o in group)] if not o.waited]
            if kind == "bulk" and left:
                raise Fault(
                    "missing-wait",
                    f"thread {warp * 32 + lane} exits with {len(left)} bulk stores whose reads of shared "
                    "memory no cp.async.bulk.wait_group covers",
                ).at(left[0].where)
        for op in self.engine.operations():
            if op.writes and op.queue[0] == "bulk":  # type: ignore[index]
                raise Fault("race", "the CTA exits while a bulk load still fills its shared memory").at(
                    op.where
                )
