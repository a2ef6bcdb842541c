"""Floating-point arithmetic as PTX defines it: one rounding, flush to zero, saturation, fp16 and bf16.

PTX ISA 9.7.3 (floating point), 9.7.4 (half precision). All functions take and return numpy arrays and never
warn; NaN payloads are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_TINY = np.float32(2.0**-126)
_HALFWAY = np.uint64(0x10000000)
_LOW29 = np.uint64(0x1FFFFFFF)


def flush(a: Array) -> Array:
    """Subnormal fp32 to zero of the same sign (``.ftz``)."""
    small = np.abs(a) < _TINY
    if not small.any():
        return a
    return np.where(small, np.copysign(np.float32(0), a), a)


def saturate(a: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes +0 (``.sat``)."""
    return np.where(np.isnan(a), a.dtype.type(0), np.clip(a, a.dtype.type(0), a.dtype.type(1)))


def from_bf16(a: Array) -> Array:
    """bf16 bits (uint16) to fp32."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(a: Array) -> Array:
    """fp32 to bf16 bits, ties to even, canonical NaN 0x7fff."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(a), np.uint16(0x7FFF), rounded.astype(np.uint16))


def odd_sum(x: Array, y: Array) -> Array:
    """x + y in fp64 rounded to odd, so that one more rounding to a narrower type is exact."""
    s = x + y
    v = s - x
    error = (x - (s - v)) + (y - v)
    bits = s.view(np.int64)
    inexact = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
    if not inexact.any():
        return s
    away = (error > 0) == (s > 0)
    return np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of fp32 with a single rounding."""
    product = a.astype(np.float64) * b
    total = product + c
    half = (total.view(np.uint64) & _LOW29) == _HALFWAY
    if half.any():
        total = np.where(half, odd_sum(product, c.astype(np.float64)), total)
    tiny = np.abs(total) < _TINY
    if tiny.any():
        total = np.where(tiny, odd_sum(product, c.astype(np.float64)), total)
    return total.astype(np.float32)


def fma32_into(a: Array, b: Array, c: Array, out: Array, where: Array | bool = True) -> None:
    """``fma32`` written to ``out`` under a mask."""
    np.copyto(out, fma32(a, b, c), where=where)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of fp16 with a single rounding."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return odd_sum(product, c.astype(np.float64)).astype(np.float16)


def fma_bf16(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of bf16 bits with a single rounding."""
    product = from_bf16(a).astype(np.float64) * from_bf16(b)
    return bf16_from_double(odd_sum(product, from_bf16(c).astype(np.float64)))


def bf16_from_double(a: Array) -> Array:
    """fp64 to bf16 bits by way of a round-to-odd fp32."""
    single = a.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.int32)
    inexact = (back != a) & np.isfinite(single) & ((bits & 1) == 0)
    grow = np.abs(back) < np.abs(a)
    return to_bf16(np.where(inexact, bits + np.where(grow, 1, -1), bits).astype(np.int32).view(np.float32))


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of fp64 in extended precision (64-bit significand), then rounded."""
    wide = np.longdouble
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(np.float64)


def directed(exact: Array, mode: str) -> Array:
    """Round an fp64 array to fp32 towards zero (rz), minus (rm) or plus infinity (rp)."""
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    down, up = np.float32(-np.inf), np.float32(np.inf)
    if mode == "rz":
        wrong = np.abs(back) > np.abs(exact)
        return np.where(wrong, np.nextafter(near, np.float32(0)), near)
    if mode == "rm":
        return np.where(back > exact, np.nextafter(near, down), near)
    return np.where(back < exact, np.nextafter(near, up), near)


def minimum(a: Array, b: Array) -> Array:
    """The smaller; a NaN loses to a number; -0 < +0."""
    out = np.fmin(a, b)
    return np.where((a == 0) & (b == 0) & (np.signbit(a) | np.signbit(b)), -np.abs(out), out)


def maximum(a: Array, b: Array) -> Array:
    """The larger; a NaN loses to a number; +0 > -0."""
    out = np.fmax(a, b)
    return np.where((a == 0) & (b == 0) & ~(np.signbit(a) & np.signbit(b)), np.abs(out), out)


def via_double(func: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """An fp32 function evaluated in fp64 and rounded once: inside every ``.approx`` bound."""
    return lambda a: func(a.astype(np.float64)).astype(np.float32)


APPROX: dict[str, Callable[[Array], Array]] = {
    "ex2": via_double(np.exp2),
    "lg2": via_double(np.log2),
    "sin": via_double(np.sin),
    "cos": via_double(np.cos),
    "tanh": via_double(np.tanh),
    "rcp": via_double(lambda x: 1.0 / x),
    "sqrt": via_double(np.sqrt),
    "rsqrt": via_double(lambda x: 1.0 / np.sqrt(x)),
}
