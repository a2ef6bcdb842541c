"""Integer arithmetic: PTX ISA 9.7.1 (integer) and 9.7.2 (extended precision with the carry flag)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Instruction, Reg

_INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
_DOUBLE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
CARRY = Reg("%cc.cf", "pred")
"""The condition-code register's carry flag, as a hidden predicate."""


def high(view: str) -> Callable[[Array, Array], Array]:
    """Upper half of the product."""
    dtype = np.dtype(VIEWS[view][0])
    if dtype.itemsize < 8:
        wide = np.dtype(VIEWS[_DOUBLE[view]][0])
        shift = wide.type(8 * dtype.itemsize)
        return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> shift).astype(dtype)

    def high64(a: Array, b: Array) -> Array:
        product = (a.astype(object) * b.astype(object)) >> 64
        return (product & 0xFFFFFFFFFFFFFFFF).astype(np.uint64).view(dtype)

    return high64


def divide(a: Array, b: Array) -> Array:
    """Quotient truncated towards zero; division by zero gives all ones (the ISA leaves it unspecified)."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    q = a // safe
    if a.dtype.kind == "i":
        q = q + ((a - q * safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(zero, a.dtype.type(-1) if a.dtype.kind == "i" else ~a.dtype.type(0), q)


def remainder(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; of a division by zero: the dividend."""
    return np.where(b == 0, a, a - divide(a, b) * b)


@instruction("add", "sub", section="9.7.1.1-2")
def add_sub(e: Emit, ins: Instruction) -> None:
    """add, sub: integer, floating and packed forms (floating ones in ``floating``)."""
    from lethe.ptx.isa import floating

    view = e.type()
    if view not in (*_INTS, "s16x2", "u16x2"):
        floating.binary(e, ins, view)
        return
    func = np.add if ins.opcode == "add" else np.subtract
    d, a, b = ins.operands
    if e.flag("cc"):
        carry_chain(e, ins, view, False)
        return
    if e.flag("sat"):
        low, top = np.iinfo(np.int32).min, np.iinfo(np.int32).max

        def saturated(x: Array, y: Array) -> Array:
            return np.clip(func(x.astype(np.int64), y.astype(np.int64)), low, top)

        e.put(d, view, f"{e.obj(saturated)}({e.src(a, view)}, {e.src(b, view)})")
        return
    e.ufunc(func, d, view, e.src(a, view), e.src(b, view))


@instruction("addc", "subc", "madc", section="9.7.2.1-6")
def with_carry(e: Emit, ins: Instruction) -> None:
    """addc, subc, madc: read the carry flag."""
    half = e.choice("lo", "hi", default="") if ins.opcode == "madc" else ""
    view = e.type()
    e.flag("cc")
    carry_chain(e, ins, view, True, half)


def carry_chain(e: Emit, ins: Instruction, view: str, carry_in: bool, half: str = "") -> None:
    """Sum or difference with carry in and out, in exact integers."""
    d, *sources = ins.operands
    plain, bits = "u" + view[1:], int(view[1:])
    names = [e.src(s, view if half == "hi" and k < 2 else plain) for k, s in enumerate(sources)]
    subtract, sets = ins.opcode in ("sub", "subc"), ins.has("cc")

    def chain(flag: Array, mask: Array | None, *args: Array) -> Array:
        exact = [a.astype(object) for a in args]
        if len(exact) == 3:
            product = exact[0] * exact[1]
            exact = [(product >> bits if half == "hi" else product) % (1 << bits), exact[2]]
        carry = flag.astype(object) * 1 if carry_in else 0
        total = exact[0] - exact[1] - carry if subtract else exact[0] + exact[1] + carry
        if sets:
            np.copyto(flag, (total >> bits) != 0, "unsafe", True if mask is None else mask)
        return (total % (1 << bits)).astype(f"u{bits // 8}")

    flag = e.name(("reg", CARRY.name, "pred", "pred"))
    e.put(d, plain, f"{e.obj(chain)}({flag}, {e.m}, {', '.join(names)})")


@instruction("mul", section="9.7.1.3")
def mul(e: Emit, ins: Instruction) -> None:
    """mul.lo, mul.hi, mul.wide and floating mul."""
    from lethe.ptx.isa import floating

    half = e.choice("lo", "hi", "wide", default="")
    view = e.type()
    if not half:
        floating.binary(e, ins, view)
        return
    d, a, b = ins.operands
    if half == "lo":
        e.ufunc(np.multiply, d, view, e.src(a, view), e.src(b, view))
    elif half == "wide":
        e.put(d, _DOUBLE[view], wide_product(e, ins, view))
    else:
        e.put(d, view, f"{e.obj(high(view))}({e.src(a, view)}, {e.src(b, view)})")


def wide_product(e: Emit, ins: Instruction, view: str) -> str:
    """Expression of the full product of two narrow operands."""
    dtype = VIEWS[_DOUBLE[view]][0]
    a, b = (e.src(o, view) for o in ins.operands[1:3])
    return f"{e.obj(np.multiply)}({a}, {b}, dtype={e.obj(np.dtype(dtype))})"


@instruction("mad", section="9.7.1.4")
def mad(e: Emit, ins: Instruction) -> None:
    """mad.lo, mad.hi, mad.wide; floating mad is fma on every modelled target."""
    from lethe.ptx.isa import floating

    half = e.choice("lo", "hi", "wide", default="")
    view = e.type()
    if not half:
        floating.fused(e, ins, view)
        return
    if e.flag("cc"):
        carry_chain(e, ins, view, False, half)
        return
    d, a, b, c = ins.operands
    if half == "lo":
        product = f"{e.obj(np.multiply)}({e.src(a, view)}, {e.src(b, view)})"
        e.ufunc(np.add, d, view, product, e.src(c, view))
    elif half == "wide":
        e.ufunc(np.add, d, _DOUBLE[view], wide_product(e, ins, view), e.src(c, _DOUBLE[view]))
    else:
        product = f"{e.obj(high(view))}({e.src(a, view)}, {e.src(b, view)})"
        e.ufunc(np.add, d, view, product, e.src(c, view))


@instruction("mul24", "mad24", section="9.7.1.5-6")
def mul24(e: Emit, ins: Instruction) -> None:
    """24-bit products; ``lo`` only."""
    e.choice("lo")
    view = e.type()

    def low24(a: Array) -> Array:
        shift = a.dtype.type(8)
        return (a << shift) >> shift

    d, a, b = ins.operands[:3]
    f = e.obj(low24)
    product = f"{f}({e.src(a, view)}) * {f}({e.src(b, view)})"
    if ins.opcode == "mad24":
        product += f" + {e.src(ins.operands[3], view)}"
    e.put(d, view, product)


@instruction("div", "rem", section="9.7.1.8-9")
def div(e: Emit, ins: Instruction) -> None:
    """div, rem on integers; floating div in ``floating``."""
    from lethe.ptx.isa import floating

    view = e.type()
    if view not in _INTS:
        floating.division(e, ins, view)
        return
    d, a, b = ins.operands
    func = divide if ins.opcode == "div" else remainder
    e.put(d, view, f"{e.obj(func)}({e.src(a, view)}, {e.src(b, view)})")


@instruction("sad", section="9.7.1.7")
def sad(e: Emit, ins: Instruction) -> None:
    """d = c + |a - b|."""
    view = e.type()

    def sum_abs(a: Array, b: Array, c: Array) -> Array:
        return c + np.where(a > b, a - b, b - a)

    d, a, b, c = ins.operands
    e.put(d, view, f"{e.obj(sum_abs)}({e.src(a, view)}, {e.src(b, view)}, {e.src(c, view)})")


@instruction("abs", "neg", section="9.7.1.10-11")
def abs_neg(e: Emit, ins: Instruction) -> None:
    """abs, neg on integers; floating ones act on the sign bit."""
    from lethe.ptx.isa import floating

    view = e.type()
    if view not in _INTS:
        floating.sign(e, ins, view)
        return
    d, a = ins.operands
    e.ufunc(np.absolute if ins.opcode == "abs" else np.negative, d, view, e.src(a, view))


@instruction("min", "max", section="9.7.1.12-13")
def min_max(e: Emit, ins: Instruction) -> None:
    """min, max on integers (with relu), and packed 16-bit forms."""
    from lethe.ptx.isa import floating

    view = e.type()
    if view not in (*_INTS, "s16x2", "u16x2"):
        floating.extremum(e, ins, view)
        return
    d, a, b = ins.operands
    e.ufunc(np.minimum if ins.opcode == "min" else np.maximum, d, view, e.src(a, view), e.src(b, view))
    if e.flag("relu"):
        e.ufunc(np.maximum, d, view, e.dst(d, view), e.dst(d, view) + " * 0")


@instruction("dp4a", "dp2a", section="9.7.1.23-24")
def dot_product(e: Emit, ins: Instruction) -> None:
    """Four-way byte dot product with accumulate."""
    if ins.opcode == "dp2a":
        e.refuse("dp2a")
    b_type, a_type = e.type(("u32", "s32")), e.type(("u32", "s32"))
    kinds = [np.dtype("i1" if t == "s32" else "u1") for t in (a_type, b_type)]

    def dp4a(a: Array, b: Array, c: Array) -> Array:
        x = a.view(kinds[0]).astype(np.int64).reshape(*c.shape, 4)
        y = b.view(kinds[1]).astype(np.int64).reshape(*c.shape, 4)
        return ((x * y).sum(-1) + c).astype(np.int32)

    d, a, b, c = ins.operands
    args = f"{e.src(a, 'u8x4')}, {e.src(b, 'u8x4')}, {e.src(c, 's32')}"
    e.put(d, "s32", f"{e.obj(dp4a)}({args})")
