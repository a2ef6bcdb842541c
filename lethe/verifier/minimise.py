"""Searches for a smaller failing input: sizes by bisection, elements by delta debugging.

Nothing here knows of tensors or kernels. A search is given a failing start and a test that says whether
a smaller thing still fails; it only ever keeps what the test confirmed. Failure need not be monotone
in the sizes (a missing mask fails off the tile only), so a bisection is a heuristic that picks what to
try; the result has always failed. The order of the trials is fixed, and their number is bounded by a
`Budget`, so that the same test gives the same result.

Delta debugging: A. Zeller and R. Hildebrandt, IEEE Trans. Software Eng. 28 (2002) 183; in the form that
asks least where supersets of a failing set fail too: U. Junker, QUICKXPLAIN, AAAI 2004.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

CLOSE = 8
"""A bisection ends within 1/8 of the smallest failing size: far inside the factor that is asked for."""
MOST_NEEDED = 12
"""An input of which more elements are needed is dense: it is kept as it was drawn."""
ROUNDS = 2
"""Sizes are lowered one after the other, and once more where a lower one made room for another."""


class Exhausted(Exception):
    """The budget of trials or of time is spent; what was found so far stands."""


@dataclass
class Budget:
    """How often a test may be asked. `seconds` is a safety net under load, `trials` the real limit."""

    trials: int
    seconds: float
    spent: int = 0
    started: float = field(default_factory=time.monotonic)
    ended_by: str = ""
    """``"trials"`` or ``"seconds"`` once exhausted."""

    def take(self) -> None:
        """Count one trial. Raises Exhausted where none is left."""
        if self.spent >= self.trials:
            self.ended_by = "trials"
        elif time.monotonic() - self.started > self.seconds:
            self.ended_by = "seconds"
        if self.ended_by:
            raise Exhausted(self.ended_by)
        self.spent += 1


def levels(most: int) -> list[int]:
    """1, 2, 3, 5, 9, 17, ... below `most`: one above each power of two, hence above a tile and odd."""
    found = [1, 2]
    while (1 << (len(found) - 1)) + 1 < most:
        found.append((1 << (len(found) - 1)) + 1)
    return [v for v in found if v < most]


def lower_sizes(
    sizes: Mapping[K, int],
    near: Callable[[K, int], int],
    fails: Callable[[dict[K, int]], bool],
) -> dict[K, int]:
    """The smallest sizes found that fail, no size above the one in `sizes`, which is taken to fail.

    All sizes are first cut off at a common level, then each is bisected alone, the largest first.
    `near` moves a wish to a legal value of that size.
    """
    now = dict(sizes)
    known: dict[tuple[tuple[K, int], ...], bool] = {}

    def smaller(there: dict[K, int]) -> bool:
        key = tuple(there.items())
        if key not in known:
            known[key] = all(there[k] <= now[k] for k in now) and there != now and fails(there)
        return known[key]

    def at(level: int, names: Sequence[K]) -> dict[K, int]:
        return {k: min(v, near(k, level)) if k in names and v > level else v for k, v in now.items()}

    everything = list(now)
    for names in [everything] + ROUNDS * [[k] for k in sorted(now, key=lambda k: -now[k])]:
        top = max((now[k] for k in names), default=1)
        tried = levels(top) if len(names) > 1 else range(1, top)
        level = _bisect(tried, top, lambda v, names=names: smaller(at(v, names)))  # type: ignore[misc]
        if level is not None:
            now = at(level, names)
    return now


def _bisect(values: Sequence[int], top: int, fails: Callable[[int], bool]) -> int | None:
    """A small failing value among the ascending `values`, all below `top`, which fails; None if none of
    those asked does."""
    low, high = 0, len(values)
    while low < high:
        least = values[high] if high < len(values) else top
        if least - values[low] <= least // CLOSE:
            break
        middle = 0 if (low, high) == (0, len(values)) else (low + high) // 2
        if fails(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[high] if high < len(values) else None


def fewest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A small part of `items` that fails, in their order; `items` themselves are taken to fail.

    The shortest failing prefix ends in an item that is needed; with that one kept, the rest of the prefix
    is cut again: about log2(n) trials for each item that is needed, where ddmin takes that for the first
    one only. At most `MOST_NEEDED` items are found in this way; what was not cut by then stays.
    """
    needed: list[T] = []
    pool = list(items)
    while pool and len(needed) < MOST_NEEDED:
        if fails(needed):
            return needed
        low, high = 1, len(pool)
        while low < high:
            middle = (low + high) // 2
            if fails(pool[:middle] + needed):
                high = middle
            else:
                low = middle + 1
        needed.insert(0, pool[high - 1])
        del pool[high - 1 :]
    return pool + needed
