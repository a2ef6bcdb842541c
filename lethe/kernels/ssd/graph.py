"""The graph layer: tensors by their metadata, and one SSD or SSD_BWD node on them. Imports no GPU module.

    graph = Graph()
    tensors = {"x": graph.tensor("x", (2, 2048, 64, 64), "bfloat16"), ...}
    graph.ssd(tensors, chunk_size=64, dt_softplus=True)
    plan = lethe.kernels.ssd.build(graph, target=90)

A tensor has dims, strides (elements) and a dtype, never memory. Outputs are declared by the node: dense, of
the dtype that the operator defines. What the engine then makes of a graph is the analyzer's business.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}

REQUIRED = ("x", "dt", "A", "B", "C")
OPTIONAL = ("D", "z", "dt_bias", "initial_states", "cu_seqlens")
UPSTREAM = ("dy", "dfinal_states", "checkpoints")
"""What SSD_BWD takes beside the forward pass's inputs; only dy must be there."""

OPERATORS = ("SSD", "SSD_BWD")


@dataclass(frozen=True)
class TensorSpec:
    """Metadata of a tensor: its role in the node, dims, strides in elements, dtype by name."""

    name: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def dense(self) -> bool:
        """Row-major without gaps; an axis of size one may have any stride."""
        return all(
            d == 1 or s == want
            for d, s, want in zip(self.dims, self.strides, row_major(self.dims), strict=True)
        )

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.dims:
            return 0
        last = sum((d - 1) * s for d, s in zip(self.dims, self.strides, strict=True))
        return (last + 1) * ITEM_BYTES[self.dtype]


def row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    return tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))


@dataclass(frozen=True)
class Attributes:
    """What the node computes, beside its tensors.

    chunk_size: tokens between two checkpoints. dt_limit: the clamp of the step, applied always (so that the
    default removes negative steps). checkpoint_dtype: of the states that the backward pass may reuse.
    ValueError where a chunk size is no int, or a limit no pair of numbers.
    """

    chunk_size: int = 64
    dt_softplus: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)
    checkpoint_dtype: str = "float32"

    def __post_init__(self) -> None:
        if type(self.chunk_size) is not int:
            raise ValueError(f"chunk_size is {self.chunk_size!r}; it must be an int")
        try:
            low, high = map(float, self.dt_limit)
        except (TypeError, ValueError):
            raise ValueError(f"dt_limit is {self.dt_limit!r}; it must be two numbers") from None
        object.__setattr__(self, "dt_limit", (low, high))
        object.__setattr__(self, "dt_softplus", bool(self.dt_softplus))


@dataclass(frozen=True)
class Node:
    """An operator with its tensors by role."""

    op: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    attributes: Attributes

    def key(self) -> tuple[Any, ...]:
        """Everything that a plan depends on, hashable."""
        tensors = (
            tuple((name, t.dims, t.strides, t.dtype) for name, t in sorted(side.items()))
            for side in (self.inputs, self.outputs)
        )
        a = self.attributes
        return (self.op, *tensors, a.chunk_size, a.dt_softplus, *map(str, a.dt_limit), a.checkpoint_dtype)


@dataclass
class Graph:
    """Tensors and nodes in the order of their declaration."""

    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def tensor(
        self, name: str, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None
    ) -> TensorSpec:
        """Declare a tensor; dense without `strides`. ValueError for a name taken, a dtype unknown to the
        graph, dims or strides that are no integers, a negative dim, or strides of another rank."""
        if name in self.tensors:
            raise ValueError(f"the graph already has a tensor {name!r}")
        if dtype not in ITEM_BYTES:
            raise ValueError(f"{name} has dtype {dtype!r}; the graph knows {', '.join(ITEM_BYTES)}")
        dims = _integers(name, "dims", dims)
        strides = row_major(dims) if strides is None else _integers(name, "strides", strides)
        if min(dims, default=0) < 0:
            raise ValueError(f"{name} has dims {dims}; none may be negative")
        if len(strides) != len(dims):
            raise ValueError(f"{name} has {len(dims)} dims and {len(strides)} strides")
        spec = TensorSpec(name, dims, strides, dtype)
        self.tensors[name] = spec
        return spec

    def ssd(
        self,
        inputs: Mapping[str, TensorSpec],
        *,
        final_states: bool = False,
        checkpoints: bool = False,
        **attributes: Any,
    ) -> Node:
        """The forward node. Outputs: ``y`` as x; ``final_states`` [sequences, H, P, N] float32;
        ``checkpoints``, the state that enters each chunk, for an SSD_BWD node to reuse."""
        a = Attributes(**attributes)
        wanted = [("y", True), ("final_states", final_states), ("checkpoints", checkpoints)]
        return self._add("SSD", inputs, [name for name, on in wanted if on], a)

    def ssd_bwd(self, inputs: Mapping[str, TensorSpec], **attributes: Any) -> Node:
        """The backward node: gradients of every input that is there (``dx`` .. ``dinitial_states``), from
        ``dy``, optionally ``dfinal_states``, and optionally ``checkpoints`` of the same attributes."""
        wanted = ["dx", "ddt", "dA", "dB", "dC"]
        wanted += [f"d{name}" for name in OPTIONAL[:-1] if name in inputs]
        return self._add("SSD_BWD", inputs, wanted, Attributes(**attributes))

    def _add(
        self, op: str, inputs: Mapping[str, TensorSpec], outputs: list[str], attributes: Attributes
    ) -> Node:
        declared: dict[str, TensorSpec] = {}
        if all(name in inputs for name in REQUIRED):
            shapes = output_shapes(inputs, attributes)
            declared = {name: self.tensor(name, *shapes[name]) for name in outputs if name in shapes}
        node = Node(op, dict(inputs), declared, attributes)
        self.nodes.append(node)
        return node


def _integers(name: str, what: str, given: Iterable[Any]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(number) for number in given)
    except TypeError:
        raise ValueError(f"{name} has {what} {given!r}; they must be integers") from None


def slots(length: int, sequences: int, step: int, varlen: bool) -> int:
    """Places for tiles or chunks of `step` tokens: an upper bound that depends on sizes alone."""
    return length // step + sequences if varlen else sequences * -(-length // step)


def sequence_count(inputs: Mapping[str, TensorSpec]) -> int:
    """Sequences: the batch, or one fewer than the entries of cu_seqlens."""
    cuts = inputs.get("cu_seqlens")
    return (inputs["x"].dims or (0,))[0] if cuts is None else max(0, (cuts.dims or (0,))[0] - 1)


def output_shapes(
    inputs: Mapping[str, TensorSpec], attributes: Attributes
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Dims and dtype of every output by name; empty where x or B has the wrong rank."""
    x, B = inputs["x"], inputs["B"]
    if len(x.dims) != 4 or len(B.dims) != 4 or attributes.chunk_size < 1:
        return {}
    _, length, heads, width = x.dims
    sequences = sequence_count(inputs)
    state = (heads, width, B.dims[3])
    places = slots(length, sequences, attributes.chunk_size, "cu_seqlens" in inputs)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "y": (x.dims, x.dtype),
        "final_states": ((sequences, *state), "float32"),
        "checkpoints": ((places, *state), attributes.checkpoint_dtype),
    }
    for name in (*REQUIRED, *OPTIONAL[:-1]):
        if name in inputs:
            shapes[f"d{name}"] = (inputs[name].dims, inputs[name].dtype)
    return shapes
