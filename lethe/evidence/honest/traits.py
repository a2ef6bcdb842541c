"""What was measured about a reference: which of its axes a rewriting may cut, turn round or add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Place = tuple[int, int]
"""(position of an argument or output, dimension)."""


@dataclass(frozen=True)
class Axis:
    """One named size of a reference: where it lies, and what may be done along it."""

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...] = ()
    adds: bool = False
    """Whether the results of two parts along it add up to the whole (a sum of products)."""


@dataclass(frozen=True)
class Traits:
    """What the rewritings of one reference rest on."""

    problem: str = ""
    """Name of the reference; empty where nothing was measured."""
    arguments: int = 0
    """Number of inputs, all of them tensors; 0 where nothing was measured."""
    images: tuple[int, ...] = ()
    """Arguments of four dimensions."""
    rows: tuple[int, ...] = ()
    """Arguments whose first dimension holds independent samples; empty if there are none."""
    axes: Mapping[str, Axis] = field(default_factory=dict)
    """By size name: axes along which the order of elements does not matter (reversed in, reversed out)."""
    state: bool = False
    """Whether it holds parameters or buffers."""
    init: bool = False
    """Whether it is constructed with arguments."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Rewriting -> why it does not apply, in a sentence."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Traits:
        """From JSON. Raises KeyError or TypeError where it is incomplete."""
        axes = {
            name: Axis(_places(a["inputs"]), _places(a["outputs"]), a["adds"])
            for name, a in entry["axes"].items()
        }
        return cls(
            problem=entry["problem"],
            arguments=entry["arguments"],
            images=tuple(entry["images"]),
            rows=tuple(entry["rows"]),
            axes=axes,
            state=entry["state"],
            init=entry["init"],
            left_out=dict(entry["left_out"]),
        )


def _places(listed: list[list[int]]) -> tuple[Place, ...]:
    return tuple((int(i), int(d)) for i, d in listed)
