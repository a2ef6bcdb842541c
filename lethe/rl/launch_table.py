"""The measured table as an environment: a measurement is a look-up, and is counted.

Only shapes of which every configuration was tried are in it; a configuration that failed takes for ever.
The best time of a shape is the least median; a regret is a time over that, less one.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lethe.provenance import Measurement
from lethe.rl.launch_space import Space

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Table:
    """Microseconds of one kernel by shape and configuration."""

    space: Space
    samples: dict[Shape, list[list[float]]]
    """By shape, then by configuration; empty where it failed."""
    train: tuple[Shape, ...]
    held_out: tuple[Shape, ...]
    selector: dict[Shape, float] = field(default_factory=dict)
    """Median of what the kernels' own selector chose."""
    autotune: dict[Shape, list[float | None]] = field(default_factory=dict)
    """What Triton's benchmark said of each configuration."""

    def time(self, shape: Shape, index: int) -> float:
        """Median in microseconds; infinite for a configuration that failed."""
        found = self.samples[shape][index]
        return statistics.median(found) if found else math.inf

    def best(self, shape: Shape) -> float:
        return min(self.time(shape, i) for i in range(len(self.space)))

    def regret(self, shape: Shape, index: int) -> float:
        """How much longer than the best a configuration takes, as a share of the best."""
        return self.time(shape, index) / self.best(shape) - 1

    def ranked(self, shape: Shape) -> list[int]:
        """Configurations from fastest to slowest."""
        return sorted(range(len(self.space)), key=lambda i: self.time(shape, i))

    def scatter(self) -> float:
        """Median, over every cell with more than one sample, of (largest - least) / median: the clock's
        noise."""
        found = [
            (max(s) - min(s)) / statistics.median(s)
            for cells in self.samples.values()
            for s in cells
            if len(s) > 1
        ]
        return statistics.median(found) if found else 0.0


class Bench:
    """Counts the measurements that a method spends: a cell that it has measured before costs nothing again.

    A measurement returns one raw sample, not the median that the method is judged by.
    """

    def __init__(self, table: Table, seed: int = 0) -> None:
        self.table = table
        self._draw = random.Random(seed)
        self.known: dict[tuple[Shape, int], float] = {}

    @property
    def spent(self) -> int:
        return len(self.known)

    def measure(self, shape: Shape, index: int) -> float:
        """Microseconds; infinite where the configuration fails."""
        key = (shape, index)
        if key not in self.known:
            found = self.table.samples[shape][index]
            self.known[key] = self._draw.choice(found) if found else math.inf
        return self.known[key]

    def fastest(self, shape: Shape) -> int | None:
        """The configuration that was fastest of those measured at `shape`."""
        measured = [(t, i) for (at, i), t in self.known.items() if at == shape]
        return min(measured)[1] if measured else None


def tables(record: Measurement) -> dict[str, Table]:
    """The tables of a record of ``lethe.rl.launch_gpu``, by kernel; those without a complete shape are left
    out."""
    told = record.parameters
    train, held_out = ([_shape(s) for s in told[key]] for key in ("shapes", "held_out"))
    found = {}
    for facts in told["spaces"]:
        space = Space.of(facts)
        lines = [r for r in record.samples if r["op"] == space.op and "shape" in r]
        complete = {_shape(r["shape"]): r for r in lines if _complete(r, space)}
        if not complete:
            continue
        found[space.op] = Table(
            space,
            {shape: [list(s) if s else [] for s in r["us"]] for shape, r in complete.items()},
            tuple(s for s in train if s in complete),
            tuple(s for s in held_out if s in complete),
            {s: statistics.median(r["selector"]["us"]) for s, r in complete.items()},
            {_shape(r["shape"]): r["autotune_us"] for r in lines if "autotune_us" in r},
        )
    return found


def _complete(row: dict[str, Any], space: Space) -> bool:
    """Whether every configuration was tried, and one of them ran."""
    return "us" in row and len(row["us"]) == len(space) and any(row["us"])


def _shape(given: Sequence[int]) -> Shape:
    batch, length, width = given
    return batch, length, width
