"""What happens before what: vector clocks that find missing waits and fences under every schedule.

PTX ISA 8.9.5 (causality order) and 8.6 (proxies).  Every warp has a row of the clock; its
columns are the warps, the tensor-core queue of each warp, and the mbarrier objects (phases known complete).
Barriers, mbarrier arrivals and waits join rows.  Shared granules, shared words and TMEM columns remember who
touched them last and when; an access that does not come after what it depends on is a fault even when the
values happen to be right.

``tcgen05.fence`` (PTX ISA 9.7.16.6.4, canonical patterns) is needed on top of that between asynchronous
tcgen05 work on two sides of a synchronisation. Triton and CuTe DSL emit none, and ptxas accepts that; so only
a kernel that uses the fence at all is held to it.
"""

from __future__ import annotations

import numpy as np

from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault

_EPOCH_BITS = 24
_EPOCH = np.uint32((1 << _EPOCH_BITS) - 1)
MOST_MBARRIERS = 256
"""mbarrier addresses that one CTA may use while ordering is checked."""
_COLUMN_BITS = 9
_COLUMN = (1 << _COLUMN_BITS) - 1
_QUEUE_BITS = 5
_QUEUE = (1 << _QUEUE_BITS) - 1

Rows = tuple[int, int]


class Order:
    """Clocks of the warps of one CTA, and the history of its shared and tensor memory.

    Args:
        warps: number of warps.
        size: bytes of shared memory.
        fences: whether the kernel uses ``tcgen05.fence``, and is then held to it everywhere.
    """

    def __init__(self, warps: int, size: int, fences: bool = False) -> None:
        self.warps, self.fences = warps, fences
        granules = size // 16 + 1
        self.owner = np.zeros(granules * 4, np.uint32)
        self.fill = np.zeros(granules, np.int64)
        self.used = np.zeros(granules, np.int64)
        self.reads = np.zeros((granules, warps), np.int64)
        self.tmem_used = np.zeros(512, np.int64)
        self.tmem_reads = np.zeros((512, warps), np.int64)
        self.tmem_writes = np.zeros((512, warps), np.int64)
        self.start()

    def start(self) -> None:
        """Nothing touched, nothing ordered."""
        self.clock = np.zeros((self.warps, 2 * self.warps + MOST_MBARRIERS), np.int64)
        np.fill_diagonal(self.clock[:, : self.warps], 1)
        for array in (self.owner, self.fill, self.used, self.reads, self.tmem_used):
            array[:] = 0
        self.tmem_reads[:] = 0
        self.tmem_writes[:] = 0
        self.tmem_settled: set[tuple[int, ...]] = set()
        self.seen = np.zeros_like(self.clock)
        self.published = np.zeros(self.warps, np.int64)
        self.issued = np.zeros(self.warps, np.int64)
        self.issuers: set[int] = set()
        self.low, self.high = self.owner.size, 0
        self.read_low, self.read_high = len(self.reads), 0
        self.barriers: dict[int, Array] = {}
        self.columns: dict[int, int] = {}

    # -- causality
    def join(self, warps: list[int]) -> None:
        """A named barrier completed: its warps know what each of them knew."""
        index = np.array(warps)
        self.clock[index] = self.clock[index].max(axis=0)
        self.clock[index, index] += 1

    def arrive(self, rows: Rows, mask: Array | None, addresses: set[int]) -> None:
        """Warps released their history to mbarrier objects."""
        if rows[1] - rows[0] == 1:
            history = self.clock[rows[0]].copy()
            self.clock[rows[0], rows[0]] += 1
        else:
            active = self.active(rows, mask)
            history = self.clock[active].max(axis=0)
            self.clock[active, active] += 1
        for address in addresses:
            self.release(address, history)

    def release(self, address: int, history: Array) -> None:
        """Add a history to what a wait on an mbarrier learns."""
        old = self.barriers.get(address)
        self.barriers[address] = history if old is None else np.maximum(old, history)

    def acquire(self, rows: Rows, mask: Array | None, address: int, phases: int = 0) -> None:
        """Warps saw ``phases`` phases of an mbarrier complete."""
        history = self.barriers.get(address)
        if rows[1] - rows[0] == 1:
            known = self.clock[rows[0]]
            if history is not None:
                np.maximum(known, history, out=known)
            column = self.column(address)
            if known[column] < phases:
                known[column] = phases
            return
        active = self.active(rows, mask)
        if history is not None:
            self.clock[active] = np.maximum(self.clock[active], history)
        column = self.column(address)
        self.clock[active, column] = np.maximum(self.clock[active, column], phases)

    def column(self, address: int) -> int:
        """Clock column of an mbarrier."""
        found = self.columns.get(address)
        if found is None:
            found = self.columns[address] = 2 * self.warps + len(self.columns)
            if len(self.columns) > MOST_MBARRIERS:
                raise Fault("unsupported", f"more than {MOST_MBARRIERS} mbarrier addresses in one CTA")
        return found

    def forget(self, address: int) -> None:
        """An mbarrier was initialised anew: its phases count from zero again, in a fresh column."""
        self.barriers.pop(address, None)
        if address in self.columns:
            column = self.columns[address]
            self.fill[(self.fill & _COLUMN) == column] = 0
            self.clock[:, column] = 0

    @staticmethod
    def active(rows: Rows, mask: Array | None) -> Array:
        """Warps with an active lane."""
        index = np.arange(*rows)
        return index if mask is None else index[mask.any(axis=1)]

    # -- generic proxy
    def wrote(self, warps: Array, off: Array, nbytes: int) -> None:
        """Generic writes by ``warps`` (same shape as ``off``); none where no lane was active."""
        if not off.size:
            return
        stamp = (warps.astype(np.uint32) + np.uint32(1)) << np.uint32(_EPOCH_BITS)
        stamp = stamp | self.clock[warps, warps].astype(np.uint32)
        word = off >> 2
        for k in range(max(1, nbytes // 4)):
            self.owner[word + k] = stamp
        self.fill[off >> 4] = 0
        self.low = min(self.low, int(word.min()))
        self.high = max(self.high, int(word.max()) + max(1, nbytes // 4))

    def read(self, warps: Array, off: Array) -> None:
        """Generic reads by ``warps`` must come after the bulk loads that filled the granules."""
        granule = off >> 4
        self.after_fill(warps, granule, "load from shared memory")
        self.reads[granule, warps] = self.clock[warps, warps]
        self.read_low = min(self.read_low, int(granule.min()))
        self.read_high = max(self.read_high, int(granule.max()) + 1)

    def fence(self, rows: Rows, mask: Array | None) -> None:
        """Publish every generic write that happens before this proxy fence."""
        warps = self.active(rows, mask)
        if self.low >= self.high or not warps.size:
            return
        part = self.owner[self.low : self.high]
        at = np.flatnonzero(part)
        if not at.size:
            self.low, self.high = self.owner.size, 0
            return
        stamps = part[at]
        writer = (stamps >> np.uint32(_EPOCH_BITS)).astype(np.int64) - 1
        epoch = (stamps & _EPOCH).astype(np.int64)
        known = self.clock[warps].max(axis=0)
        part[at[epoch <= known[writer]]] = 0

    # -- bulk loads
    def after_fill(self, warps: Array | int, granule: Array, what: str) -> bool:
        """Reads must come after the mbarrier phase on which the bulk load of the granule completes.

        Returns:
            Whether every granule was filled by a bulk load.
        """
        stamps = self.fill.take(granule)
        flat = stamps.reshape(-1)
        low, high = int(np.minimum.reduce(flat)), int(np.maximum.reduce(flat))
        if not high:
            return False
        if low == high and isinstance(warps, int) and low >> _COLUMN_BITS <= self.clock[warps, low & _COLUMN]:
            return True
        need, column = stamps >> _COLUMN_BITS, stamps & _COLUMN
        bad = need > (self.clock[warps].take(column) if isinstance(warps, int) else self.clock[warps, column])
        if np.logical_or.reduce(bad.reshape(-1)):
            where = int(np.argmax(bad.reshape(-1)))
            address = int(granule.reshape(-1)[where]) * 16
            number = int(column.reshape(-1)[where])
            barrier = next(a for a, c in self.columns.items() if c == number)
            raise Fault(
                "race",
                f"{what} at shared address {address:#x} before a wait for phase "
                f"{int(need.reshape(-1)[where]) - 1} of mbarrier {barrier:#x}, which completes its bulk load",
            )
        return low > 0

    def filled(self, granule: Array, barrier: int, phase: int) -> None:
        """A bulk load of granules [n] landed; it counts towards ``phase`` of an mbarrier."""
        self.fill[granule] = (phase + 1) << _COLUMN_BITS | self.column(barrier)
        if self.low < self.high:
            self.owner.reshape(-1, 4)[granule] = 0

    def refill(self, warp: int, granule: Array) -> None:
        """A bulk load into granules [n] is issued: their earlier readers must be known to be done."""
        stamps = self.used.take(granule)
        newest = int(np.maximum.reduce(stamps))
        issuer = newest & _QUEUE
        if newest and not (
            len(self.issuers) == 1 and newest >> _QUEUE_BITS <= self.clock[warp, self.warps + issuer]
        ):
            number = stamps >> _QUEUE_BITS
            late = number > self.clock[warp].take(self.warps + (stamps & _QUEUE))
            if np.logical_or.reduce(late):
                address = int(granule[int(np.argmax(late))]) * 16
                raise Fault(
                    "race",
                    f"bulk load refills shared address {address:#x} before the MMA that reads it is known "
                    "complete",
                )
        if self.read_low >= self.read_high:
            return
        if int(granule.max()) < self.read_low or int(granule.min()) >= self.read_high:
            return
        behind = self.reads[granule] > self.clock[warp, : self.warps]
        behind[:, warp] = False
        if behind.any():
            row, reader = (int(x[0]) for x in np.nonzero(behind))
            raise Fault(
                "race",
                f"bulk load refills shared address {int(granule[row]) * 16:#x}, whose read by warp {reader} "
                "is not ordered before it",
            )

    # -- asynchronous reads
    def check(self, warp: int, granule: Array, what: str) -> bool:
        """An asynchronous read of granules [n] issued by a warp: fills waited for, generic writes published.

        Returns:
            Whether bulk loads filled every granule (so that all of it is written).
        """
        filled = self.after_fill(warp, granule, what)
        if filled or self.low >= self.high:
            return filled
        found = self.owner.reshape(-1, 4)[granule]
        if found.any():
            row = int(np.argmax(found.any(axis=1)))
            stamp = int(found[row][np.argmax(found[row] != 0)])
            raise Fault(
                "missing-fence",
                f"{what} reads shared address {int(granule[row]) * 16:#x}, written by warp "
                f"{(stamp >> _EPOCH_BITS) - 1} through the generic proxy, and no fence.proxy.async published "
                "that write",
            )
        return False

    # -- tensor cores
    def mma(self, warp: int, reads: Array, written: tuple[int, int], read: tuple[int, int] | None) -> None:
        """An operation that reads granules [n] enters the tensor-core queue of a warp.

        Column ranges are half open. What was found in order stays so until someone touches the columns.
        """
        key = (warp, *written, *(read or ()))
        if key not in self.tmem_settled:
            known = self.clock[warp, : self.warps]
            low, high = written
            touched = np.maximum(self.tmem_reads[low:high], self.tmem_writes[low:high])
            self._columns_ordered(touched, known, warp, low, "the tensor core overwrites")
            self._columns_fenced(touched, warp, low)
            if read is not None:
                touched = self.tmem_writes[read[0] : read[1]]
                self._columns_ordered(touched, known, warp, read[0], "the tensor core reads")
                self._columns_fenced(touched, warp, read[0])
            self.tmem_settled.add(key)
        self.issued[warp] += 1
        self.issuers.add(warp)
        stamp = int(self.issued[warp]) << _QUEUE_BITS | warp
        self.used[reads] = stamp
        self.tmem_used[written[0] : written[1]] = stamp

    def _columns_ordered(self, touched: Array, known: Array, warp: int, low: int, verb: str) -> None:
        bad = touched > known
        bad[:, warp] = False
        if bad.any():
            column, other = (int(x[0]) for x in np.nonzero(bad))
            raise Fault(
                "race",
                f"{verb} TMEM column {low + column}, whose use by warp {other} is not ordered before it",
            )

    # -- tcgen05.fence
    def tensor_fence(self, rows: Rows, mask: Array | None, before: bool) -> None:
        """tcgen05.fence: publish own tcgen05 work (before), or take over what is known by now (after)."""
        for warp in self.active(rows, mask).tolist():
            if before:
                self.published[warp] = self.clock[warp, warp]
            else:
                self.seen[warp] = self.clock[warp]

    def _columns_fenced(self, touched: Array, warp: int, low: int) -> None:
        """Other warps' loads and stores of columns [n] need a fence on both sides of the synchronisation."""
        if not self.fences:
            return
        for name, known in (("before", self.published), ("after", self.seen[warp, : self.warps])):
            bad = touched > known
            bad[:, warp] = False
            if bad.any():
                column, other = (int(x[0]) for x in np.nonzero(bad))
                who = f"warp {other} after its" if name == "before" else f"warp {warp} since the"
                raise Fault(
                    "missing-fence",
                    f"no tcgen05.fence::{name}_thread_sync of {who} use of TMEM column {low + column} by "
                    f"warp {other}, which the tensor core now touches",
                )

    def freed(self, warp: int, low: int, high: int) -> None:
        """A warp deallocates columns: every use of them comes before."""
        stamps = self.tmem_used[low:high]
        if (stamps >> _QUEUE_BITS > self.clock[warp, self.warps + (stamps & _QUEUE)]).any():
            raise Fault(
                "race",
                f"tcgen05.dealloc of TMEM columns {low}..{high - 1} before a wait for the commit of the "
                "tensor-core operation that writes them",
            )
        touched = np.maximum(self.tmem_reads[low:high], self.tmem_writes[low:high])
        self._columns_ordered(touched, self.clock[warp, : self.warps], warp, low, "tcgen05.dealloc frees")

    def committed(self, warp: int) -> Array:
        """History that a commit hands to its mbarrier: the queue of the warp up to here."""
        history = self.clock[warp].copy()
        history[self.warps + warp] = self.issued[warp]
        return history

    def tmem(self, warp: int, low: int, high: int, write: bool) -> None:
        """A warp loads or stores TMEM columns: operations that wrote them must be known complete."""
        stamps = self.tmem_used[low:high]
        late = stamps >> _QUEUE_BITS > self.clock[warp, self.warps + (stamps & _QUEUE)]
        if late.any():
            column = low + int(np.argmax(late))
            raise Fault(
                "race",
                f"tcgen05.{'st' if write else 'ld'} of TMEM column {column} before a wait for the commit of "
                "the tensor-core operation that writes it",
            )
        if self.fences and (stamps >> _QUEUE_BITS > self.seen[warp, self.warps + (stamps & _QUEUE)]).any():
            raise Fault(
                "missing-fence",
                f"tcgen05.{'st' if write else 'ld'} of TMEM columns from {low}: no tcgen05.fence::"
                f"after_thread_sync of warp {warp} follows its wait for the operation that writes them",
            )
        self.tmem_settled.clear()
        target = self.tmem_writes if write else self.tmem_reads
        target[low:high, warp] = self.clock[warp, warp]
