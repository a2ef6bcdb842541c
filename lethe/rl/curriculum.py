"""A curriculum: tasks in levels, the next of which opens once enough of the attempts at this one are right.

A policy that is never right learns nothing from groups of equal rewards; easy tasks first gives it
something to tell apart. Levels that were opened stay open, so that what was learned is not forgotten.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from lethe.rl.outcomes import Outcome

T = TypeVar("T")

RIGHT = frozenset({Outcome.UNTIMED, Outcome.NOT_FASTER, Outcome.FASTER})


class Curriculum(Generic[T]):
    """Draws tasks of the open levels.

    Args:
        levels: tasks, easiest level first; none may be empty.
        share: of the latest attempts at the newest level that must be right before the next level opens.
        window: how many attempts that is.
    """

    def __init__(
        self, levels: Sequence[Sequence[T]], share: float = 0.25, window: int = 32, seed: int = 0
    ) -> None:
        if not levels or not all(levels):
            raise ValueError("a curriculum needs levels with at least one task each")
        self._levels = [list(level) for level in levels]
        self._share, self._draw = share, random.Random(seed)
        self._latest: deque[bool] = deque(maxlen=window)
        self.open = 1
        """How many levels are open."""

    def draw(self, count: int) -> list[T]:
        """`count` tasks, half of them (rounded up) of the newest level, different ones as long as there
        are."""
        newest = self._levels[self.open - 1]
        earlier = [task for level in self._levels[: self.open - 1] for task in level]
        new = count if not earlier else (count + 1) // 2
        return self._some(newest, new) + self._some(earlier, count - new)

    def report(self, task: T, outcome: Outcome) -> None:
        """How an attempt at a task ended; one that nobody could judge does not count."""
        if outcome is Outcome.UNDECIDED or task not in self._levels[self.open - 1]:
            return
        self._latest.append(outcome in RIGHT)
        full = len(self._latest) == self._latest.maxlen
        if full and sum(self._latest) >= self._share * len(self._latest) and self.open < len(self._levels):
            self.open += 1
            self._latest.clear()

    def _some(self, tasks: list[T], count: int) -> list[T]:
        found: list[T] = []
        while tasks and len(found) < count:
            found += self._draw.sample(tasks, min(len(tasks), count - len(found)))
        return found
