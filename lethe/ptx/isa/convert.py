"""Conversions: PTX ISA 9.7.9.21-22 (cvt, cvt.pack) and 9.7.9.20 (cvta).

Integer <-> floating with every rounding mode that compilers emit; narrowing to fp16, bf16, tf32 with ties
to even, towards zero, or ties away (tf32); saturation and relu. fp8, fp6 and fp4 are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lethe.ptx import arith
from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Imm, Instruction

_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _decode(view: str, ftz: bool) -> Callable[[Array], Array]:
    if view == "bf16":
        return arith.from_bf16
    if view == "f32" and ftz:
        return arith.flush
    return lambda a: a


def to_integer(view: str, integral: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Float to integer with clamping; NaN gives 0 (0x8000.. for 64-bit results)."""
    dtype = np.dtype(VIEWS[view][0])
    info = np.iinfo(dtype)

    def run(a: Array) -> Array:
        x = integral(a.astype(np.float64))
        low, high = x <= float(info.min), x >= float(info.max)
        body = np.where(low | high | np.isnan(x), 0.0, x).astype(dtype)
        out = np.where(low, dtype.type(info.min), np.where(high, dtype.type(info.max), body))
        nan_value = dtype.type(0) if dtype.itemsize < 8 else np.uint64(1 << 63).astype(dtype)
        return np.where(np.isnan(a), nan_value, out)

    return run


def _towards_zero16(a: Array) -> Array:
    near = a.astype(np.float16)
    over = np.abs(near.astype(np.float64)) > np.abs(a.astype(np.float64))
    return np.where(over & ~np.isnan(a), np.nextafter(near, np.float16(0)), near)


def narrow(view: str, mode: str) -> Callable[[Array], Array]:
    """fp32 or fp64 to a floating view with a rounding mode."""
    if view == "bf16":
        if mode == "rz":
            return lambda a: (np.ascontiguousarray(a, np.float32).view(np.uint32) >> np.uint32(16)).astype(
                np.uint16
            )
        return lambda a: (
            arith.bf16_from_double(a) if a.dtype == np.float64 else arith.to_bf16(a.astype(np.float32))
        )
    if view == "f16":
        return _towards_zero16 if mode == "rz" else (lambda a: a.astype(np.float16))
    if view == "f32" and mode in ("rz", "rm", "rp"):
        return lambda a: arith.directed(a.astype(np.float64), mode)
    dtype = np.dtype(VIEWS[view][0])
    return lambda a: a.astype(dtype)


def tf32(a: Array, mode: str) -> Array:
    """fp32 to tf32: 10 stored fraction bits, low 13 bits zero."""
    bits = a.view(np.uint32)
    low = np.uint32(0x1FFF)
    if mode == "rna":
        out = bits + np.uint32(0x1000)
    elif mode == "rn":
        out = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        out = bits
    return np.where(np.isfinite(a), out & ~low, bits).astype(np.uint32)


@instruction("cvt", section="9.7.9.21")
def cvt(e: Emit, ins: Instruction) -> None:
    """cvt{.rnd}{.ftz}{.sat}{.relu}.dtype.atype."""
    mode = e.choice("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", default="")
    ftz, sat, relu = e.flag("ftz"), e.flag("sat", "satfinite"), e.flag("relu")
    source, dest = e.type(), e.type()
    if source.endswith("x2") or source == "b16":
        e.refuse(f"conversion from {source}")
    if dest in ("f16x2", "bf16x2"):
        pack(e, ins, dest, mode, relu)
        return
    d, a = ins.operands
    if dest == "tf32":
        e.put(d, "u32", f"{e.obj(tf32)}({e.src(a, 'f32')}, {mode!r})")
        return
    if source in _FLOATS or dest in _FLOATS:
        run = _floating(source, dest, mode, ftz, sat, relu)
        if run is None:
            e.refuse("conversion")
        e.put(d, dest, f"{e.obj(run)}({e.src(a, source)})", wide=True)
        return
    if sat:
        info = np.iinfo(np.dtype(VIEWS[dest][0]))
        e.put(d, dest, f"{e.obj(_clamp(info.min, info.max, dest))}({e.src(a, source)})", wide=True)
        return
    if VIEWS[dest][0][1:] < VIEWS[source][0][1:] and not isinstance(a, Imm):
        e.put(d, dest, f"{e.src(a, source)}.astype({e.obj(np.dtype(VIEWS[dest][0]))})", wide=True)
        return
    e.put(d, dest, e.src(a, source), wide=True)


def _clamp(low: int, high: int, dest: str) -> Callable[[Array], Array]:
    dtype = np.dtype(VIEWS[dest][0])

    def run(a: Array) -> Array:
        info = np.iinfo(a.dtype)
        return np.clip(a, max(low, info.min), min(high, info.max)).astype(dtype)

    return run


def _floating(
    source: str, dest: str, mode: str, ftz: bool, sat: bool, relu: bool
) -> Callable[[Array], Array] | None:
    decode = _decode(source, ftz)
    if dest not in _FLOATS:
        convert = to_integer(dest, _TO_INTEGRAL[mode or "rzi"]) if mode in _TO_INTEGRAL else None
        return None if convert is None else (lambda a: convert(decode(a)))
    if source not in _FLOATS:
        wide = np.float64 if dest in ("f64", "bf16", "f16") or mode in ("rz", "rm", "rp") else None
        last = narrow(dest, mode or "rn")
        return lambda a: last(a.astype(wide)) if wide else last(a)
    integral = _TO_INTEGRAL.get(mode)
    last = narrow(dest, "rn" if integral else mode or "rn")

    def run(a: Array) -> Array:
        x = decode(a)
        if integral is not None:
            x = integral(x)
        if relu:
            x = np.where(np.isnan(x), x, np.maximum(x, x.dtype.type(0)))
        if sat:
            x = arith.saturate(x)
        out = last(x)
        return arith.flush(out) if ftz and dest == "f32" else out

    return run


def pack(e: Emit, ins: Instruction, dest: str, mode: str, relu: bool) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half, b the lower."""
    last = narrow(dest[:-2], mode or "rn")

    def run(a: Array, b: Array) -> Array:
        out = np.empty((*a.shape, 2), np.float16 if dest == "f16x2" else np.uint16)
        for i, x in ((0, b), (1, a)):
            out[..., i] = last(np.where(np.isnan(x), x, np.maximum(x, np.float32(0))) if relu else x)
        return out.reshape(a.shape[0], -1)

    d, a, b = ins.operands
    e.put(d, dest, f"{e.obj(run)}({e.src(a, 'f32')}, {e.src(b, 'f32')})")


@instruction("cvta", section="9.7.9.20", copies=True)
def cvta(e: Emit, ins: Instruction) -> None:
    """State space address to generic and back."""
    back = e.flag("to")
    space = e.prefixed("shared", "global", "local", "param", "const")[0].split("::")[0]
    kind = "u" + e.type()[1:]
    d, a = ins.operands
    base = e.name(("window", space, kind))
    e.ufunc(np.subtract if back else np.add, d, kind, e.src(a, kind), base)
