"""Atomics and reductions: PTX ISA 9.7.13.5-6 (atom, red). Lanes act one after the other, in lane order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lethe.ptx import arith
from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.loadstore import _SCOPES, _SPACES
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Instruction, Sink

_OPS = ("add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas")
Combine = Callable[..., Any]


def _half(
    func: Callable[[Array, Array], Array], decode: Callable[[Array], Array], encode: Combine
) -> Combine:
    return lambda old, b: encode(func(decode(old), decode(b)))


def combiner(op: str, kind: str) -> Combine:
    """Function (old, operand...) -> new on arrays of one element type."""
    basic: dict[str, Combine] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, b: b,
        "cas": lambda old, b, c: np.where(old == b, c, old),
        "inc": lambda old, b: np.where(old >= b, old * 0, old + old.dtype.type(1)),
        "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
    }
    func = basic[op]
    if kind in ("bf16", "bf16x2"):
        return _half(func, arith.from_bf16, arith.to_bf16)
    if kind == "f32" and op == "add":
        return lambda old, b: arith.flush(np.add(arith.flush(old), arith.flush(b)))
    return func


def _parse(e: Emit, ins: Instruction) -> tuple[str, str, str, int]:
    """Consume modifiers: (space, op, type, vector length)."""
    e.flag("relaxed", "acquire", "release", "acq_rel", "noftz")
    e.flag(*_SCOPES)
    e.prefixed("L2::")
    if ins.has("async"):
        e.refuse("asynchronous reduction")
    space = e.choice(*_SPACES, default="generic").split("::")[0]
    op = e.choice(*_OPS)
    count = int(e.choice("v2", "v4", "v8", default="v1")[1:])
    kind = e.type()
    if kind == "b128":
        e.refuse("128-bit atomic")
    return space, op, kind, count


def _view(kind: str) -> str:
    return "u" + kind[1:] if kind[0] == "b" and not kind.startswith("bf") else kind


@instruction("atom", section="9.7.13.5")
def atom(e: Emit, ins: Instruction) -> None:
    """atom.op d, [a], b {, c}: d receives the old value."""
    space, op, kind, count = _parse(e, ins)
    view = _view(kind)
    d, a, *sources = ins.operands
    func = e.obj(combiner(op, kind))
    args = "(" + "".join(e.srclist(s, view) + ", " for s in sources[: 2 if op == "cas" else 1]) + ")"
    dest = "(None,)" if isinstance(d, Sink) else e.reglist(d, view)
    dtype, lanes = VIEWS[view]
    e.line(
        f"{e.cta('atomic')}({e.rows}, {space!r}, {e.address(a)}, {e.m}, "
        f"{dtype!r}, {lanes}, {count}, {func}, {args}, {dest})"
    )


@instruction("red", section="9.7.13.6", dests=0)
def red(e: Emit, ins: Instruction) -> None:
    """red.op [a], b: an atomic without result."""
    space, op, kind, count = _parse(e, ins)
    view = _view(kind)
    a, b = ins.operands[:2]
    dtype, lanes = VIEWS[view]
    e.line(
        f"{e.cta('atomic')}({e.rows}, {space!r}, {e.address(a)}, {e.m}, {dtype!r}, {lanes}, {count}, "
        f"{e.obj(combiner(op, kind))}, ({e.srclist(b, view)},), None)"
    )
