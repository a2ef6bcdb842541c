"""Floating-point arithmetic: PTX ISA 9.7.3 (fp32, fp64, f32x2), 9.7.4 (fp16, bf16), 9.7.5 (mixed).

fp32 add, sub and mul without ``.ftz`` are one numpy call; everything else is composed from ``arith``. The
``.approx`` functions are evaluated in fp64 and rounded once, which lies inside the ISA's error bounds but
is not bit-equal to the hardware's tables.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lethe.ptx import arith
from lethe.ptx.emit import Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import WIDTHS, Instruction

_BINARY: dict[str, Callable[..., Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_BF16 = ("bf16", "bf16x2")
_F16 = ("f16", "f16x2")


def _finish(e: Emit, view: str) -> tuple[bool, bool, bool]:
    """Consume .ftz, .sat and .relu; tell which of them change the result."""
    ftz, sat, relu = e.flag("ftz"), e.flag("sat"), e.flag("relu")
    return ftz and view in ("f32", "f32x2"), sat, relu


def _wrap(func: Callable[..., Array], view: str, ftz: bool, sat: bool, relu: bool) -> Callable[..., Array]:
    """A function of the register views: decode, flush, compute, flush, saturate, encode."""

    def run(*args: Array) -> Array:
        if view in _BF16:
            args = tuple(arith.from_bf16(a) for a in args)
        elif ftz:
            args = tuple(arith.flush(a) for a in args)
        out = func(*args)
        if ftz:
            out = arith.flush(out)
        if sat:
            out = arith.saturate(out)
        if relu:
            out = np.where(np.isnan(out), out, arith.maximum(out, out.dtype.type(0)))
        return arith.to_bf16(out) if view in _BF16 else out

    return run


def _apply(e: Emit, ins: Instruction, view: str, func: Callable[..., Array]) -> None:
    d, *args = ins.operands
    run = _wrap(func, view, *_finish(e, view))
    e.put(d, view, f"{e.obj(run)}({', '.join(e.src(a, view) for a in args)})")


def binary(e: Emit, ins: Instruction, view: str) -> None:
    """add, sub, mul in any floating type; fp32 with directed rounding too."""
    mode = e.choice(*_ROUNDINGS, default="rn")
    func = _BINARY[ins.opcode]
    d, a, b = ins.operands
    special = any(ins.has(m) for m in ("ftz", "sat", "relu"))
    if "f32" in ins.modifiers and view in ("f16", "bf16"):
        mixed_add(e, ins, view)
        return
    if mode == "rn" and not special and view not in _BF16:
        e.ufunc(func, d, view, e.src(a, view), e.src(b, view))
        return
    if mode != "rn":
        if view not in ("f32", "f32x2"):
            e.refuse(f"rounding .{mode} of .{view}")
        func = _directed(lambda x, y: _exact(ins.opcode, x, y), mode)
    _apply(e, ins, view, func)


def mixed_add(e: Emit, ins: Instruction, narrow: str) -> None:
    """add/sub.f32.bf16: the first input is narrow, the second and the result fp32."""
    e.type(("f32",))
    ftz, sat, relu = _finish(e, "f32")
    func = _BINARY[ins.opcode]
    widen = arith.from_bf16 if narrow == "bf16" else (lambda x: x.astype(np.float32))
    run = _wrap(lambda x, y: func(widen(x), y), "f32", ftz and False, sat, relu)
    d, a, b = ins.operands
    e.put(d, "f32", f"{e.obj(run)}({e.src(a, narrow)}, {e.src(b, 'f32')})")


def _exact(op: str, x: Array, y: Array) -> Array:
    a, b = x.astype(np.float64), y.astype(np.float64)
    if op == "mul":
        return a * b
    return arith.odd_sum(a, b if op == "add" else -b)


def _directed(exact: Callable[..., Array], mode: str) -> Callable[..., Array]:
    return lambda *args: arith.directed(exact(*args), mode)


@instruction("fma", section="9.7.3.6")
def fma(e: Emit, ins: Instruction) -> None:
    """Fused multiply-add with one rounding, all types."""
    fused(e, ins, e.type())


def fused(e: Emit, ins: Instruction, view: str) -> None:
    """fma (and floating mad)."""
    mode = e.choice(*_ROUNDINGS, default="rn")
    if "f32" in ins.modifiers and view in ("f16", "bf16"):
        mixed_fma(e, ins, view)
        return
    if mode != "rn":
        if view != "f32":
            e.refuse(f"rounding .{mode} of .{view}")

        def exact(a: Array, b: Array, c: Array) -> Array:
            return arith.odd_sum(a.astype(np.float64) * b, c.astype(np.float64))

        _apply(e, ins, view, _directed(exact, mode))
        return
    d, *args = ins.operands
    names = ", ".join(e.src(a, view) for a in args)
    special = any(ins.has(m) for m in ("ftz", "sat", "relu"))
    if view in _BF16:
        if special:
            e.refuse("bf16 fma with saturation")
        e.put(d, view, f"{e.obj(arith.fma_bf16)}({names})")
        return
    func = arith.fma64 if view == "f64" else arith.fma16 if view in _F16 else arith.fma32
    if special:
        _apply(e, ins, view, func)
    else:
        e.put(d, view, f"{e.obj(func)}({names})")


def mixed_fma(e: Emit, ins: Instruction, narrow: str) -> None:
    """fma.f32.bf16: narrow factors, fp32 addend and result."""
    e.type(("f32",))
    _, sat, relu = _finish(e, "f32")
    widen = arith.from_bf16 if narrow == "bf16" else (lambda x: x.astype(np.float32))
    run = _wrap(lambda a, b, c: arith.fma32(widen(a), widen(b), c), "f32", False, sat, relu)
    d, a, b, c = ins.operands
    e.put(d, "f32", f"{e.obj(run)}({e.src(a, narrow)}, {e.src(b, narrow)}, {e.src(c, 'f32')})")


def division(e: Emit, ins: Instruction, view: str) -> None:
    """div.rn, div.full, div.approx: all evaluated with correct rounding (directed modes refused)."""
    mode = e.choice("rn", "full", "approx", "rz", "rm", "rp")
    if mode in ("rz", "rm", "rp"):
        e.refuse(f"division .{mode}")
    _apply(e, ins, view, np.divide)


@instruction("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt", section="9.7.3.13-22")
def transcendental(e: Emit, ins: Instruction) -> None:
    """The special functions; f16/bf16 forms go through fp32."""
    view = e.type()
    e.choice("approx", "rn", default="approx")
    func = arith.APPROX[ins.opcode]
    if view in _F16:
        single = func
        _apply(e, ins, view, lambda a: single(a.astype(np.float32)).astype(np.float16))
    elif view == "f64":
        exact: dict[str, Callable[..., Array]] = {
            "rcp": lambda a: 1.0 / a,
            "sqrt": np.sqrt,
            "rsqrt": lambda a: 1.0 / np.sqrt(a),
        }
        if ins.opcode not in exact:
            e.refuse("double precision")
        _apply(e, ins, view, exact[ins.opcode])
    else:
        _apply(e, ins, view, func)


def sign(e: Emit, ins: Instruction, view: str) -> None:
    """abs, neg: on the sign bit alone, so NaN keeps its payload."""
    d, a = ins.operands
    width = WIDTHS["f16" if view in _F16 else "bf16" if view in _BF16 else view]
    packed = view.endswith("x2")
    ftz = e.flag("ftz") and view == "f32"
    bits = f"u{8 * width}" + ("x2" if packed else "")
    dtype = np.dtype(f"u{width}")
    top = dtype.type(1 << (8 * width - 1))
    func = np.bitwise_and if ins.opcode == "abs" else np.bitwise_xor
    mask = e.obj(np.full((1, 1), ~top if ins.opcode == "abs" else top, dtype))
    source = e.src(a, bits)
    if ftz:
        source = f"{e.obj(arith.flush)}({e.src(a, 'f32')}).view({e.obj(dtype)})"
    e.ufunc(func, d, bits, source, mask)


@instruction("copysign", section="9.7.3.2")
def copysign(e: Emit, ins: Instruction) -> None:
    """copysign d, a, b: magnitude of b with the sign of a."""
    view = e.type(("f32", "f64"))
    d, a, b = ins.operands
    e.put(d, view, f"{e.obj(np.copysign)}({e.src(b, view)}, {e.src(a, view)})")


def extremum(e: Emit, ins: Instruction, view: str) -> None:
    """min, max (three inputs too), with .NaN and .xorsign.abs."""
    quiet = e.flag("NaN")
    xorsign = e.flag("xorsign")
    e.flag("abs")
    base = arith.minimum if ins.opcode == "min" else arith.maximum

    def pick(*args: Array) -> Array:
        if xorsign:
            flip = np.signbit(args[0]) ^ np.signbit(args[1])
            out = base(np.abs(args[0]), np.abs(args[1]))
            out = np.where(flip, -out, out)
        else:
            out = base(args[0], args[1])
            for extra in args[2:]:
                out = base(out, extra)
        if quiet:
            bad = np.logical_or.reduce([np.isnan(a) for a in args])
            out = np.where(bad, out.dtype.type(np.nan), out)
        return out

    _apply(e, ins, view, pick)


@instruction("testp", section="9.7.3.1")
def testp(e: Emit, ins: Instruction) -> None:
    """testp.{finite,infinite,number,notanumber,normal,subnormal}."""
    view = e.type(("f32", "f64"))
    kind = e.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    d, a = ins.operands
    e.put(d, "pred", f"{e.obj(tests[kind])}({e.src(a, view)})")
