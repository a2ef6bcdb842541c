"""The analyzer: accepts a graph, or declines it with rule and reason. Imports no GPU module.

Nothing is repaired silently: a tensor that the kernels cannot read as it lies is a refusal, and it is for
the caller (as `lethe.kernels.ssd.ssd` does) to copy it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lethe.kernels.ssd.graph import (
    ITEM_BYTES,
    OPERATORS,
    OPTIONAL,
    REQUIRED,
    UPSTREAM,
    Graph,
    Node,
    TensorSpec,
    output_shapes,
    sequence_count,
)
from lethe.kernels.ssd.tiles import WIDTH

CHUNKS = (32, 64, 128, 256)
WIDTHS = (WIDTH,)
STATES = (64, 128)
IO = ("bfloat16", "float16")
LEAST_TARGET = 80
MOST_HEADS = 4095
"""Heads that fit on the second axis of a grid (65535), with 16 pieces of a state each."""

Objections = Iterator[str]


@dataclass(frozen=True)
class Rule:
    """A condition of the engine, by the name that a refusal cites."""

    id: str
    text: str
    objections: Callable[[Node], Objections]


@dataclass(frozen=True)
class Finding:
    """Accepted, or declined by `rule` for `reason`."""

    accepted: bool
    rule: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return "accepted" if self.accepted else f"declined by {self.rule}: {self.reason}"


class Declined(ValueError):
    """The engine does not run this graph; `finding` says which rule it breaks."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _operands(node: Node) -> Objections:
    known = REQUIRED + OPTIONAL + (UPSTREAM if node.op == "SSD_BWD" else ())
    needed = REQUIRED + (("dy",) if node.op == "SSD_BWD" else ())
    yield from (f"{name} is missing" for name in needed if name not in node.inputs)
    yield from (f"{name} is no operand of {node.op}" for name in node.inputs if name not in known)


def expected(node: Node) -> dict[str, tuple[int, ...]]:
    """The dims that each operand must have, from those of x and B."""
    batch, length, heads, width = node.inputs["x"].dims
    _, _, groups, n = node.inputs["B"].dims
    sequences = sequence_count(node.inputs)
    whole, state = (batch, length, heads, width), (sequences, heads, width, n)
    D = node.inputs.get("D")
    shapes = output_shapes(node.inputs, node.attributes)
    return {
        "x": whole, "z": whole, "dy": whole, "dt": (batch, length, heads), "A": (heads,),
        "B": (batch, length, groups, n), "C": (batch, length, groups, n),
        "D": (heads, width) if D is not None and len(D.dims) == 2 else (heads,), "dt_bias": (heads,),
        "initial_states": state, "dfinal_states": state, "checkpoints": shapes["checkpoints"][0],
        "cu_seqlens": (sequences + 1,),
    }  # fmt: skip


def _dims(node: Node) -> Objections:
    for name in ("x", "B"):
        if len(node.inputs[name].dims) != 4:
            yield f"{name} has {len(node.inputs[name].dims)} axes, not the four of [batch, tokens, .., ..]"
            return
    if node.attributes.chunk_size < 1:
        return
    for name, dims in expected(node).items():
        t = node.inputs.get(name)
        if t is not None and t.dims != dims:
            yield f"{name} has dims {t.dims}; with x {node.inputs['x'].dims} they must be {dims}"
    if 0 in node.inputs["x"].dims or 0 in node.inputs["B"].dims:
        yield "an axis of x or B is empty"


def _widths(node: Node) -> Objections:
    width, n = node.inputs["x"].dims[3], node.inputs["B"].dims[3]
    if width not in WIDTHS:
        yield f"the head width P is {width}; the kernels are written for 64"
    if n not in STATES:
        yield f"the state size N is {n}; the kernels are written for 64 and 128"


def _groups(node: Node) -> Objections:
    heads, groups = node.inputs["x"].dims[2], node.inputs["B"].dims[2]
    if heads % groups:
        yield f"{heads} heads cannot be shared out to {groups} groups"


def _chunk(node: Node) -> Objections:
    if node.attributes.chunk_size not in CHUNKS:
        yield f"chunk_size is {node.attributes.chunk_size}; choose one of {', '.join(map(str, CHUNKS))}"


def _dtypes(node: Node) -> Objections:
    io = node.inputs["x"].dtype
    if io not in IO:
        yield f"x is {io}; inputs and outputs are bfloat16 or float16"
    for name in ("B", "C", "z", "dy"):
        t = node.inputs.get(name)
        if t is not None and t.dtype != io:
            yield f"{name} is {t.dtype} and x is {io}; they must agree"
    if node.inputs["dt"].dtype not in (io, "float32"):
        yield f"dt is {node.inputs['dt'].dtype}; it may be {io} as x, or float32"


def _parameters(node: Node) -> Objections:
    for name in ("A", "D", "dt_bias", "initial_states", "dfinal_states"):
        t = node.inputs.get(name)
        if t is not None and t.dtype != "float32":
            yield f"{name} is {t.dtype}; parameters and states are float32"
    cuts = node.inputs.get("cu_seqlens")
    if cuts is not None and cuts.dtype != "int32":
        yield f"cu_seqlens is {cuts.dtype}; it must be int32"


def _checkpoints(node: Node) -> Objections:
    wanted, given = node.attributes.checkpoint_dtype, node.inputs.get("checkpoints")
    if wanted not in ("float32", "bfloat16"):
        yield f"checkpoint_dtype is {wanted!r}; choose float32 or bfloat16"
    elif given is not None and given.dtype != wanted:
        yield f"checkpoints are {given.dtype}, but checkpoint_dtype is {wanted}"


def _layout(node: Node) -> Objections:
    for name in ("x", "B", "C", "z", "dy"):
        t = node.inputs.get(name)
        if t is not None:
            yield from _rows(t)
    dt = node.inputs["dt"]
    if dt.strides[2] != 1 and dt.dims[2] != 1:
        yield f"dt has stride {dt.strides[2]} between heads; they must be adjacent"
    for name in ("A", "D", "dt_bias", "initial_states", "dfinal_states", "checkpoints", "cu_seqlens"):
        t = node.inputs.get(name)
        if t is not None and not t.dense:
            yield f"{name} has strides {t.strides}; it must be dense"


def _rows(t: TensorSpec) -> Objections:
    if t.strides[-1] != 1:
        yield f"{t.name} has stride {t.strides[-1]} in its last axis; it must be adjacent"
    for stride, size in zip(t.strides[:-1], t.dims[:-1], strict=True):
        if size > 1 and (stride * ITEM_BYTES[t.dtype] % 16 or stride < 1):
            yield f"{t.name} has strides {t.strides}; rows must begin at multiples of 16 bytes"
            return


def _reach(node: Node) -> Objections:
    for name in ("x", "dt", "B", "C", "z", "dy"):
        t = node.inputs.get(name)
        if t is not None and max(t.strides[1] * 256, t.strides[2] * t.dims[2], *t.dims) >= 2**31:
            yield f"{name} has strides {t.strides}; the kernels address a tile by 32-bit offsets"
    x = node.inputs["x"].dims
    if x[2] > MOST_HEADS:
        yield f"{x[2]} heads are more than the {MOST_HEADS} that a launch can number"
    if x[0] * x[1] * x[2] >= 2**31:
        yield f"{x[0] * x[1] * x[2]} rows of x are more than the {2**31 - 1} that a launch can number"
    if x[0] * x[1] >= 2**31 // 256:
        yield f"{x[0] * x[1]} tokens are more than the {2**31 // 256 - 1} that a launch can number"


def _packed(node: Node) -> Objections:
    if "cu_seqlens" in node.inputs:
        if node.inputs["x"].dims[0] != 1:
            yield f"with cu_seqlens the batch must be 1; x has {node.inputs['x'].dims[0]}"
        if sequence_count(node.inputs) < 1:
            yield "cu_seqlens names no sequence"


def _limits(node: Node) -> Objections:
    low, high = node.attributes.dt_limit
    if math.isnan(low) or math.isnan(high) or low > high:
        yield f"dt_limit is ({low}, {high}); the first must not exceed the second"


RULES = (
    Rule("SSD-01 operands", "every operand that the operator needs, and no other", _operands),
    Rule("SSD-02 dims", "all dims follow from x [B, L, H, P] and B [B, L, G, N]; none is zero", _dims),
    Rule("SSD-03 chunk", "chunk_size is 32, 64, 128 or 256", _chunk),
    Rule("SSD-04 widths", "P is 64; N is 64 or 128", _widths),
    Rule("SSD-05 groups", "G divides H; any number of heads a group", _groups),
    Rule("SSD-06 dtypes", "x, B, C, z, dy all bfloat16 or all float16; dt likewise or float32", _dtypes),
    Rule("SSD-07 parameters", "A, D, dt_bias and states are float32, cu_seqlens int32", _parameters),
    Rule("SSD-08 checkpoints", "checkpoints are float32 or bfloat16, as the attribute says", _checkpoints),
    Rule("SSD-09 layout", "last axis adjacent, rows on 16 bytes; parameters and states dense", _layout),
    Rule("SSD-10 reach", "a tile is addressed by 32-bit offsets, a grid holds all heads", _reach),
    Rule("SSD-11 packed", "cu_seqlens goes with a batch of one", _packed),
    Rule("SSD-12 limits", "dt_limit is an interval", _limits),
)  # fmt: skip

SINGLE = "SSD-00 graph"
TARGET = "SSD-13 target"


def analyze(graph: Graph, target: int | None = None) -> Finding:
    """Whether the engine runs `graph` (on ``sm_<target>``, where one is named); the first rule it breaks."""
    if len(graph.nodes) != 1:
        return Finding(False, SINGLE, f"the graph has {len(graph.nodes)} nodes; the engine runs one")
    node = graph.nodes[0]
    if node.op not in OPERATORS:
        return Finding(False, SINGLE, f"{node.op} is no operator of this engine")
    for rule in RULES:
        for reason in rule.objections(node):
            return Finding(False, rule.id, reason)
    if target is not None and type(target) is not int:
        return Finding(False, TARGET, f"the target is {target!r}; name it by a number, as 90 for sm_90")
    if target is not None and target < LEAST_TARGET:
        return Finding(False, TARGET, f"sm_{target} has no bfloat16 matrix product; sm_80 is the first")
    return Finding(True)
