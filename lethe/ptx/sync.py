"""Synchronisation of one CTA: mbarrier objects, named barriers, the cluster barrier, proxy fences.

PTX ISA 9.7.13. ``version`` counts every state change, which is how the machine tells a spin from a
deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lethe.ptx.barriers import Mbarrier, NamedBarrier
from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.lanes import lanes_of
from lethe.ptx.memory import SHARED_FIRST
from lethe.ptx.order import Order

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA, Rows
    from lethe.ptx.warps import Path


class Sync:
    """The synchronisation unit of a CTA."""

    def __init__(self, cta: CTA, order: Order | None) -> None:
        self.cta = cta
        self.order = order
        self.start()

    def start(self) -> None:
        """Nothing initialised."""
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.cluster_generation = 0
        self.cluster_arrived = np.zeros(self.cta.warps, bool)
        self.cluster_seen = np.full(self.cta.warps, -1, np.int64)
        self.cluster_waiters: list[Path] = []
        self.version = 0

    # -- mbarrier
    def check_address(self, address: int) -> int:
        """A shared address fit for an mbarrier object."""
        address &= 0xFFFFFFFF
        if address % 8:
            raise Fault("alignment", f"mbarrier at {address:#x} is not 8-byte aligned")
        if not SHARED_FIRST <= address <= self.cta.shared.size - 8:
            raise Fault("bounds", f"mbarrier at {address:#x} outside shared memory")
        return address

    def mbarrier(self, address: int) -> Mbarrier:
        """The live object at an address.

        Raises:
            Fault: kind ``mbarrier`` when none was initialised there.
        """
        found = self.mbarriers.get(address & 0xFFFFFFFF)
        if found is None:
            self.check_address(address)
            raise Fault("mbarrier", f"no mbarrier was initialised at {address & 0xFFFFFFFF:#x}")
        return found

    def init(self, rows: Rows, addr: Array, count: Array | None, mask: Array | None) -> None:
        """mbarrier.init, or mbarrier.inval when ``count`` is None."""
        addresses = lanes_of(mask, addr).tolist()
        counts = lanes_of(mask, count).tolist() if count is not None else [None] * len(addresses)
        for raw, n in zip(addresses, counts, strict=True):
            address = self.check_address(int(raw))
            self.version += 1
            old = self.mbarriers.get(address)
            if old is not None and old.waiters:
                raise Fault("mbarrier", f"mbarrier at {address:#x} is reinitialised while warps wait on it")
            if old is not None and old.tx > 0:
                raise Fault(
                    "mbarrier", f"mbarrier at {address:#x} is reinitialised with {old.tx} bytes in flight"
                )
            if self.order is not None:
                self.order.forget(address)
            if n is None:
                self.mbarrier(address)
                del self.mbarriers[address]
            else:
                self.mbarriers[address] = Mbarrier(address, int(n))

    def arrive(
        self,
        rows: Rows,
        addr: Array,
        count: Array,
        expect: bool,
        drop: bool,
        state: Array | None,
        mask: Array | None,
    ) -> None:
        """mbarrier.arrive and its expect_tx and drop forms, lane by lane."""
        addresses = lanes_of(mask, addr).tolist()
        if not addresses:
            return
        values = lanes_of(mask, count).tolist()
        if self.order is not None:
            self.order.arrive(rows, mask, {int(a) & 0xFFFFFFFF for a in addresses})
        tokens = []
        for raw, n in zip(addresses, values, strict=True):
            barrier = self.mbarrier(int(raw))
            tokens.append(barrier.phase << 20 | barrier.pending)
            self.version += 1
            if expect:
                barrier.expect(int(n))
            if barrier.arrive(1 if expect else int(n), drop):
                self.release(barrier)
        if state is not None:
            if mask is None:
                state[...] = np.array(tokens, np.uint64).reshape(state.shape)
            else:
                state[mask] = tokens

    def transactions(self, rows: Rows, addr: Array, count: Array, expect: bool, mask: Array | None) -> None:
        """mbarrier.expect_tx and complete_tx."""
        for raw, n in zip(lanes_of(mask, addr).tolist(), lanes_of(mask, count).tolist(), strict=True):
            barrier = self.mbarrier(int(raw))
            self.version += 1
            if barrier.expect(int(n)) if expect else barrier.complete(int(n)):
                self.release(barrier)

    def complete_tx(self, address: int, nbytes: int) -> None:
        """Bytes of an asynchronous copy arrived."""
        barrier = self.mbarrier(address)
        self.version += 1
        if barrier.complete(nbytes):
            self.release(barrier)

    def signal(self, address: int) -> None:
        """One arrival by an asynchronous unit (tcgen05.commit, cp.async)."""
        barrier = self.mbarrier(address)
        self.version += 1
        if barrier.arrive(1):
            self.release(barrier)

    def at_exit(self) -> None:
        """No phase may end the CTA with bytes announced but missing, or arrived but never announced."""
        for barrier in self.mbarriers.values():
            if barrier.tx:
                raise Fault(
                    "mbarrier", f"the CTA ends with mbarrier {barrier.address:#x} in {barrier.describe()}"
                )

    def release(self, barrier: Mbarrier) -> None:
        """A phase completed: wake everyone who waits on the object."""
        for path in barrier.waiters:
            path.wait = None
        barrier.waiters = []

    # -- cluster of one CTA
    def cluster_arrive(self, rows: Rows, live: int) -> None:
        """barrier.cluster.arrive by whole warps; ``live`` warps of the CTA have to arrive."""
        part = slice(*rows)
        if (self.cluster_seen[part] >= 0).any():
            raise Fault("barrier", "barrier.cluster: a second arrive without wait")
        self.cluster_arrived[part] = True
        self.cluster_seen[part] = self.cluster_generation
        self.version += 1
        if int(self.cluster_arrived.sum()) == live:
            if self.order is not None:
                self.order.join(np.flatnonzero(self.cluster_arrived).tolist())
            self.cluster_arrived[:] = False
            self.cluster_generation += 1
            for path in self.cluster_waiters:
                path.wait = None
            self.cluster_waiters = []

    def cluster_done(self, rows: Rows) -> bool:
        """Whether the phase that the warps arrived at has completed."""
        seen = self.cluster_seen[rows[0] : rows[1]]
        if (seen < 0).any():
            raise Fault("barrier", "barrier.cluster: wait without arrive")
        done = bool((seen < self.cluster_generation).all())
        if done:
            seen[:] = -1
        return done

    def only_rank_zero(self, rank: Array, mask: Array | None) -> None:
        """mapa to another CTA of the cluster is not modelled."""
        if lanes_of(mask, rank).any():
            raise Fault("unsupported", "mapa to a CTA of rank other than 0: clusters of one CTA are modelled")

    # -- proxies
    def proxy_fence(self, rows: Rows, mask: Array | None) -> None:
        """fence.proxy.async: generic writes that happen before it are published."""
        if self.order is not None:
            self.order.fence(rows, mask)
