"""Comparison and selection: PTX ISA 9.7.6 (set, setp, selp, slct) and 9.7.7 (half precision)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lethe.ptx import arith
from lethe.ptx.emit import Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Instruction, Pair, Sink

_ORDERED: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMPARISONS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_TRUE: dict[str, np.generic] = {
    "f32": np.float32(1),
    "u32": np.uint32(0xFFFFFFFF),
    "s32": np.int32(-1),
    "f16": np.float16(1),
    "f16x2": np.float16(1),
    "bf16": np.uint16(0x3F80),
    "bf16x2": np.uint16(0x3F80),
    "u16": np.uint16(0xFFFF),
    "s16": np.int16(-1),
}
"""What ``set`` writes for true."""
_BOOLEAN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(name: str, floating: bool) -> Callable[..., Array]:
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if floating and name == "ne":
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    if name.endswith("u") and name[:-1] in _ORDERED:
        base = _ORDERED[name[:-1]]
        return lambda a, b: base(a, b) | np.isnan(a) | np.isnan(b)
    return _ORDERED[name]


def _setup(e: Emit) -> tuple[str, Callable[..., Array], str, str]:
    """Comparison function on register views, boolean combiner and view of the operands."""
    name = e.choice(*_COMPARISONS)
    combine = e.choice("and", "or", "xor", default="")
    ftz = e.flag("ftz")
    kind = e.type()
    floating = kind[0] == "f" or kind.startswith("bf")
    view = "u" + kind[1:] if kind[0] == "b" and not floating else kind
    func = _comparison(name, floating)
    plain = func
    if kind.startswith("bf16"):
        func = lambda a, b: plain(arith.from_bf16(a), arith.from_bf16(b))  # noqa: E731
    elif ftz and kind == "f32":
        func = lambda a, b: plain(arith.flush(a), arith.flush(b))  # noqa: E731
    return name, func, combine, view


@instruction("setp", section="9.7.6.2")
def setp(e: Emit, ins: Instruction) -> None:
    """setp p|q, a, b {, c}: q is the complement; packed types set one predicate per half."""
    _, func, combine, view = _setup(e)
    d, a, b, *rest = ins.operands
    packed = view.endswith("x2")
    names = f"{e.src(a, view)}, {e.src(b, view)}"
    if not isinstance(d, Pair) and not combine and not packed and isinstance(func, np.ufunc):
        e.ufunc(func, d, view, names, out="pred")
        return
    result = e.let(f"{e.obj(func)}({names})")
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    halves = (f"{result}[:, 0::2]", f"{result}[:, 1::2]") if packed else (result, f"~{result}")
    for dest, value in zip((first, second), halves, strict=True):
        if dest is None or isinstance(dest, Sink):
            continue
        if combine:
            value = f"{e.obj(_BOOLEAN[combine])}({value}, {e.src(rest[0], 'pred')})"
        e.put(dest, "pred", value)


@instruction("set", section="9.7.6.1")
def set_(e: Emit, ins: Instruction) -> None:
    """set.cmp.dtype.stype: all ones or zero for integers, 1.0 or 0.0 for floats."""
    _, func, combine, view = _setup(e)
    out = e.type()
    d, a, b, *rest = ins.operands
    value = f"{e.obj(func)}({e.src(a, view)}, {e.src(b, view)})"
    if combine:
        value = f"{e.obj(_BOOLEAN[combine])}({value}, {e.src(rest[0], 'pred')})"
    if out not in _TRUE or out.endswith("x2") != view.endswith("x2"):
        e.refuse(f"set.{out}")
    one = _TRUE[out]
    e.put(d, out, f"{e.obj(np.where)}({value}, {e.obj(one)}, {e.obj(one.dtype.type(0))})")


@instruction("selp", section="9.7.6.3", copies=True)
def selp(e: Emit, ins: Instruction) -> None:
    """d = p ? a : b."""
    kind = e.type()
    view = "u" + kind[1:] if kind[0] in "bs" and not kind.startswith("bf") else kind
    d, a, b, p = ins.operands
    e.put(d, view, f"{e.obj(np.where)}({e.src(p, 'pred')}, {e.src(a, view)}, {e.src(b, view)})")


@instruction("slct", section="9.7.6.4")
def slct(e: Emit, ins: Instruction) -> None:
    """d = c >= 0 ? a : b."""
    e.flag("ftz")
    ctype = e.type(("s32", "f32"))
    kind = e.type()
    view = "u" + kind[1:] if kind[0] in "bs" else kind
    d, a, b, c = ins.operands
    test = f"{e.src(c, ctype)} >= 0"
    e.put(d, view, f"{e.obj(np.where)}({test}, {e.src(a, view)}, {e.src(b, view)})")
