"""Runs of warps that execute together, and the paths into which control flow divides them.

A ``Group`` is a contiguous run of warps. While all its threads share a program counter it is one ``Path``
without a mask; a branch that whole warps disagree on splits the group, a branch inside warps adds a path.
The path with the lowest program counter runs first, so paths meet again at the earliest common instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from lethe.ptx.emit import Array


class Path:
    """Threads of a group at one program counter (``pc``); ``mask`` None means all of them."""

    __slots__ = ("_count", "_of", "mask", "pc", "wait")

    def __init__(self, pc: int, mask: Array | None = None, wait: Any = None) -> None:
        self.pc, self.mask, self.wait = pc, mask, wait
        self._of: Array | None = None
        self._count = 0

    def warps(self, size: int) -> int:
        """Warps with a thread in the path, of a group of ``size``."""
        if self.mask is None or size == 1:
            return size
        if self._of is not self.mask:
            self._of, self._count = self.mask, int(self.mask.any(axis=1).sum())
        return self._count

    def part(self, low: int, high: int) -> Path | None:
        """The path restricted to some rows (a waiting one polls again), or None when no thread is left."""
        if self.mask is None:
            return Path(self.pc)
        mask = self.mask[low:high]
        if not mask.any():
            return None
        return Path(self.pc, None if mask.all() else mask.copy())


class Group:
    """A run of warps ``rows`` = [low, high) and its paths."""

    __slots__ = ("paths", "rows")

    def __init__(self, rows: tuple[int, int], paths: list[Path]) -> None:
        self.rows, self.paths = rows, paths

    @property
    def size(self) -> int:
        """Number of warps."""
        return self.rows[1] - self.rows[0]

    def current(self) -> Path:
        """The path to run next."""
        if len(self.paths) == 1:
            return self.paths[0]
        lowest = self.paths[0]
        for path in self.paths:
            if path.pc < lowest.pc:
                lowest = path
        return lowest

    def alive(self) -> Array:
        """Threads that have not exited, bool[warps, 32]."""
        out = np.zeros((self.size, 32), bool)
        for path in self.paths:
            if path.mask is None:
                out[:] = True
            else:
                out |= path.mask
        return out

    def settle(self, path: Path) -> None:
        """After ``path`` moved: join it with paths at the same program counter."""
        for other in self.paths:
            if other is not path and other.pc == path.pc and other.wait is None and path.wait is None:
                assert path.mask is not None and other.mask is not None
                mask = path.mask | other.mask
                path.mask = None if mask.all() else mask
                self.paths.remove(other)
                return

    def branch(self, path: Path, taken: Array, target: int, fall: int) -> list[Group]:
        """Divide ``path`` by the lanes that take a branch; the groups that replace this one.

        ``taken`` is neither empty nor the whole path.
        """
        other = ~taken if path.mask is None else path.mask & ~taken
        whole = path.mask is None
        self.paths.remove(path)
        self.paths.append(Path(target, taken.copy()))
        self.paths.append(Path(fall, other))
        if self.size == 1:
            if not whole:
                self._normalise()
            return [self]
        kinds: Array = np.asarray(taken.any(axis=1) + 2 * other.any(axis=1))
        if (kinds == kinds[0]).all():
            self._normalise()
            return [self]
        return list(self.split(kinds))

    def _normalise(self) -> None:
        kept = []
        for path in self.paths:
            if path.mask is not None:
                if not path.mask.any():
                    continue
                if path.mask.all():
                    path.mask = None
            kept.append(path)
        self.paths = kept
        for path in list(self.paths):
            if path in self.paths and path.mask is not None:
                self.settle(path)

    def split(self, kinds: Array) -> Iterator[Group]:
        """Divide by runs of equal ``kinds`` per row."""
        cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), self.size]
        for low, high in pairwise(cuts):
            paths = [p for p in (path.part(low, high) for path in self.paths) if p is not None]
            if paths:
                group = Group((self.rows[0] + low, self.rows[0] + high), paths)
                group._normalise()
                yield group


def merge(groups: list[Group]) -> list[Group]:
    """Join neighbouring whole groups that stand at the same program counter."""
    out: list[Group] = []
    for group in sorted(groups, key=lambda g: g.rows[0]):
        last = out[-1] if out else None
        if (
            last is not None
            and last.rows[1] == group.rows[0]
            and len(last.paths) == len(group.paths) == 1
            and last.paths[0].pc == group.paths[0].pc
            and last.paths[0].mask is None
            and group.paths[0].mask is None
            and last.paths[0].wait is None
            and group.paths[0].wait is None
        ):
            out[-1] = Group((last.rows[0], group.rows[1]), [Path(last.paths[0].pc)])
        else:
            out.append(group)
    return out
