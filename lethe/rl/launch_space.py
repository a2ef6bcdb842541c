"""The launch parameters that a policy chooses: spaces, shapes, and what a choice means for the kernels.

A configuration is one choice for each knob; its index counts them in the order of the knobs, the last one
fastest. C1 is the forward pass of the selective scan, C2 its backward pass, C6 the backward pass of the
fused block. Channels of a program follow from its threads: every thread holds `EACH` channels of one lane.
The number of pipeline stages is no knob: without `tl.dot` Triton pipelines nothing, and the PTX is the same
for every number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.kernels.mamba3.cases import Case
    from lethe.kernels.mamba3.tune import Candidate

EACH = 2
WARP = 32
SERIAL = 0
"""The choice of `chunk` that runs through the whole sequence."""

Config = dict[str, int]


@dataclass(frozen=True)
class Space:
    """The knobs of one kernel."""

    op: str
    suite: str
    """``scan`` or ``block``; see `lethe.kernels.mamba3.cases`."""
    knobs: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of choices of each knob."""
        return tuple(len(choices) for _, choices in self.knobs)

    def __len__(self) -> int:
        return math.prod(self.sizes)

    def configs(self) -> Iterator[Config]:
        """All configurations in the order of their index."""
        names = [name for name, _ in self.knobs]
        for values in product(*(choices for _, choices in self.knobs)):
            yield dict(zip(names, values, strict=True))

    def index(self, picks: tuple[int, ...]) -> int:
        """Index of the configuration that picks the i-th choice of each knob."""
        at = 0
        for pick, size in zip(picks, self.sizes, strict=True):
            if not 0 <= pick < size:
                raise ValueError(f"{pick} is no choice of {size}")
            at = at * size + pick
        return at

    def picks(self, index: int) -> tuple[int, ...]:
        """Inverse of `index`."""
        found = []
        for size in reversed(self.sizes):
            index, pick = divmod(index, size)
            found.append(pick)
        return tuple(reversed(found))

    def facts(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "suite": self.suite,
            "knobs": [[name, list(choices)] for name, choices in self.knobs],
        }

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Space:
        """Inverse of `facts`."""
        knobs = tuple((name, tuple(choices)) for name, choices in facts["knobs"])
        return cls(facts["op"], facts["suite"], knobs)


UNLIMITED = 0
"""The choice of `registers` that leaves them to the compiler."""

_BACKWARD = (("rows", (4, 8)), ("lanes", (2, 4, 8)), ("warps", (1, 2)), ("registers", (UNLIMITED, 128)))

SPACES = {
    space.op: space
    for space in (
        Space(
            "C1",
            "scan",
            (
                ("chunk", (SERIAL, 32, 64, 128, 256)),
                ("rows", (4, 8)),
                ("lanes", (1, 2, 4)),
                ("warps", (1, 2)),
                ("by_state", (0, 1)),
            ),
        ),
        Space("C2", "scan", _BACKWARD),
        Space("C6", "block", _BACKWARD),
    )
}

STATES = 16

SHAPES = (
    (1, 2048, 2048), (8, 2048, 1024), (1, 512, 256), (2, 4096, 1024), (1, 16384, 256), (8, 512, 2048),
    (1, 8192, 2048), (4, 1024, 512), (2, 512, 4096), (1, 4096, 512), (4, 2048, 4096), (8, 4096, 256),
)  # fmt: skip
"""Batch, length, width: those that a policy is trained on, the most telling first."""

HELD_OUT = (
    (2, 2048, 2048), (1, 1024, 4096), (4, 8192, 512), (8, 1024, 256), (1, 32768, 512), (16, 512, 512),
)  # fmt: skip
"""Shapes that it never sees; the last two lie outside the range of the others."""


def case_of(space: Space, shape: tuple[int, int, int], states: int = STATES) -> Case:
    """The case of `lethe.kernels.mamba3` of that shape."""
    from lethe.kernels.mamba3.cases import Case

    batch, length, width = shape
    return Case(space.suite, batch, length, width, states=states)


def candidate_of(space: Space, config: Config) -> Candidate:
    """What `config` launches."""
    from lethe.kernels.mamba3.scan_launch import Tile
    from lethe.kernels.mamba3.tune import Candidate

    channels = WARP * config["warps"] * EACH // config["lanes"]
    registers = config.get("registers", UNLIMITED) or None
    tile = Tile(config["rows"], config["lanes"], channels, config["warps"], registers)
    if "chunk" not in config:
        return Candidate(tile)
    return Candidate(tile, config["chunk"] or None, bool(config["by_state"]))


def selected(space: Space, shape: tuple[int, int, int], multiprocessors: int) -> Candidate:
    """What the kernels' own selector launches for `shape` on a device of so many multiprocessors."""
    from lethe.kernels.mamba3 import scan_launch
    from lethe.kernels.mamba3.plan import choose_plan
    from lethe.kernels.mamba3.tune import Candidate

    if space.op != "C1":
        return Candidate(scan_launch.BACKWARD_TILE)
    batch, length, width = shape
    plan = choose_plan(scan_launch.serial_tiles(batch, width), length, multiprocessors)
    tile = scan_launch.forward_tile(batch, width, plan.chunks)
    return Candidate(tile, None if plan.mode == "serial" else plan.chunk, tile.lanes == 1)
