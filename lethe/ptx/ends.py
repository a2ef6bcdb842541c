"""How a basic block ends: branch, exit, mbarrier wait, named barrier.

PTX ISA 9.7.12 (control flow), 9.7.13.1 (barriers count whole warps) and 9.7.13.15 (test_wait, try_wait).
Each method moves a path on, divides its group, or leaves it waiting; it returns False when the group must
give way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lethe.ptx.barriers import NamedBarrier
from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.lanes import lanes_of
from lethe.ptx.program import Block
from lethe.ptx.sync import Sync
from lethe.ptx.warps import Group, Path


class BlockEnds:
    """The part of a residency that carries out what ends a block."""

    sync: Sync
    groups: list[Group]
    mergeable: bool
    random: np.random.Generator | None

    def _branch(
        self, group: Group, path: Path, taken: Array | None, end: tuple[Any, ...], block: Block
    ) -> bool:
        target, guarded = end[1], end[2]
        if not guarded or taken is None or target == block.stop:
            path.pc = target
        else:
            n = np.count_nonzero(taken)
            total = group.size * 32 if path.mask is None else np.count_nonzero(path.mask)
            if n == 0:
                path.pc = block.stop
            elif n == total:
                path.pc = target
            else:
                groups = group.branch(path, taken, target, block.stop)
                if groups[0] is not group:
                    self._replace(group, groups)
                    return False
                return True
        if len(group.paths) > 1:
            group.settle(path)
        return True

    def _replace(self, group: Group, groups: list[Group]) -> None:
        at = self.groups.index(group)
        self.groups[at : at + 1] = groups
        self.mergeable = True

    def _exit(self, group: Group, path: Path, leaving: Array | None, block: Block) -> bool:
        if leaving is None or (path.mask is not None and (leaving == path.mask).all()) or leaving.all():
            group.paths.remove(path)
        else:
            stay = ~leaving if path.mask is None else path.mask & ~leaving
            path.mask = stay
            path.pc = block.stop
            if len(group.paths) > 1:
                group.settle(path)
            kinds: Array = np.asarray(stay.any(axis=1), np.int64)
            if group.size > 1 and len(group.paths) == 1 and (kinds != kinds[0]).any():
                self._replace(group, list(group.split(kinds)))
                self._recheck_barriers()
                return False
        if not group.paths:
            self.groups.remove(group)
            self._recheck_barriers()
            return False
        return True

    def _recheck_barriers(self) -> None:
        """Exited warps no longer count for barriers over the whole CTA."""
        expected = 32 * sum(g.size for g in self.groups)
        for barrier in list(self.sync.named.values()):
            if barrier.default and barrier.arrived and barrier.arrived >= expected:
                self._complete(barrier)

    def _wait(
        self, group: Group, path: Path, out: tuple[Any, ...], end: tuple[Any, ...], block: Block
    ) -> bool:
        """mbarrier.test_wait / try_wait."""
        addr, value, dest, mask = out
        parity = end[2]
        active = lanes_of(mask, addr)
        if not active.size:
            path.pc = block.stop
            return True
        keys = set(zip(active.tolist(), lanes_of(mask, value).tolist(), strict=True))
        state = {k: self.sync.mbarrier(int(k[0])).done(int(k[1]), parity) for k in keys}
        ready = all(state.values())
        if not ready and not any(state.values()) and not self._refuses(path):
            path.wait = ("mbarrier", [(self.sync.mbarrier(int(a)), int(v)) for a, v in keys], block, parity)
            for barrier, _ in path.wait[1]:
                barrier.waiters.append(path)
            return False
        path.wait = None
        done: Any = ready
        if not ready and any(state.values()):
            flags = np.zeros(addr.shape, bool)
            for (a, v), finished in state.items():
                if finished:
                    flags |= (addr == a) & (value == v)
            rows: Array = np.asarray(flags.any(axis=1), np.int64)
            if group.size > 1 and len(group.paths) == 1 and (rows != rows[0]).any() and mask is None:
                self._replace(group, list(group.split(rows)))
                return False
            done = flags
        if dest is not None:
            np.copyto(dest, done, where=True if mask is None else mask)
        if self.sync.order is not None:
            for (a, _), finished in state.items():
                if finished:
                    phases = self.sync.mbarrier(int(a)).phase
                    self.sync.order.acquire(group.rows, mask, int(a) & 0xFFFFFFFF, phases)
        path.pc = block.stop
        if len(group.paths) > 1:
            group.settle(path)
        return True

    def _cluster(self, group: Group, path: Path, end: tuple[Any, ...], block: Block) -> bool:
        """barrier.cluster.arrive and wait."""
        if end[1] == "arrive":
            self.sync.cluster_arrive(group.rows, sum(g.size for g in self.groups))
        elif not self.sync.cluster_done(group.rows):
            path.wait = ("cluster", block)
            self.sync.cluster_waiters.append(path)
            return False
        path.pc = block.stop
        return True

    def _refuses(self, path: Path) -> bool:
        """Whether an unsatisfied wait returns false now instead of suspending the warp."""
        if path.wait == "timed out":
            return True
        random = self.random
        return random is not None and random.random() < 0.1

    def _barrier(
        self, group: Group, path: Path, out: tuple[Any, ...], end: tuple[Any, ...], block: Block
    ) -> bool:
        """bar.sync, bar.arrive, bar.red."""
        ident, count, mask, *red = out
        op = end[1]
        alive = group.alive()
        mine = np.ones(alive.shape, bool) if mask is None else mask
        part = mine.any(axis=1) & (mine != alive).any(axis=1)
        if part.any():
            row = int(np.argmax(part))
            raise Fault(
                "divergence",
                f"{int(mine[row].sum())} of the {int(alive[row].sum())} live lanes of warp "
                f"{group.rows[0] + row} arrive at the barrier",
            )
        rows = np.flatnonzero(mine.any(axis=1))
        if not rows.size:
            path.pc = block.stop
            return True
        ids = ident[rows, 0]
        counts = None if count is None else count[rows, 0]
        if (ids != ids[0]).any() or (counts is not None and (counts != counts[0]).any()):
            kinds = ident[:, 0].astype(np.int64) * 4096 + (
                0 if count is None else count[:, 0].astype(np.int64)
            )
            self._replace(group, list(group.split(kinds)))
            return False
        number = int(ids[0])
        if number > 15:
            raise Fault("barrier", f"barrier {number}: a CTA has 16")
        live = 32 * sum(g.size for g in self.groups)
        expected = live if counts is None else int(counts[0])
        if counts is not None and (expected % 32 or expected == 0):
            raise Fault("barrier", f"barrier {number}: thread count {expected} is not a multiple of 32")
        barrier = self.sync.named.setdefault(number, NamedBarrier(number))
        complete = barrier.arrive(32 * rows.size, expected, counts is None)
        self.sync.version += 1
        barrier.warps += [group.rows[0] + int(r) for r in rows]
        if red:
            barrier.preds.append((op, mine, *red))
        path.pc = block.stop
        if op != "arrive":
            path.wait = ("barrier", barrier, block)
            barrier.waiters.append(path)
        if complete:
            self._complete(barrier)
        return path.wait is None

    def _complete(self, barrier: NamedBarrier) -> None:
        if self.sync.order is not None:
            self.sync.order.join(barrier.warps)
        if barrier.preds:
            total = sum(int((value & mine).sum()) for _, mine, value, _ in barrier.preds)
            lanes = sum(int(mine.sum()) for _, mine, _, _ in barrier.preds)
            for op, mine, _, dest in barrier.preds:
                result = {"popc": total, "and": total == lanes, "or": total > 0}[op]
                np.copyto(dest, result, "unsafe", mine)
        for path in barrier.waiters:
            path.wait = None
        barrier.reset()
        self.mergeable = True
        self.sync.version += 1
