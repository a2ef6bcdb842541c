"""Arithmetic that numpy lacks, vectorised: bfloat16, single-rounding fma, and a GPU's casts and minima.

Bfloat16 values travel as uint16 bit patterns, as Triton's interpreter stores them. Arithmetic on them is
done in float32 and rounded once: with 24 bits of significand against 8 the second rounding is innocuous
for +, -, *, / and sqrt (24 >= 2 * 8 + 2; Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BF16_NAN = np.uint16(0x7FFF)
"""The NaN that ``cvt.rn.bf16.f32`` returns (PTX ISA, cvt)."""
_SMALLEST_NORMAL = np.float32(2.0**-126)


def bf16_to_f32(bits: Array) -> Array:
    """Exact float32 value of bfloat16 bit patterns (uint16)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array, *, toward_zero: bool = False) -> Array:
    """Bfloat16 bit patterns of float32 values, to nearest even or toward zero; NaN stays NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    if not toward_zero:
        bits = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    rounded = (bits >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        rounded = np.where(nan, _BF16_NAN, rounded)
    return rounded


def f32_to_f16(values: Array, *, toward_zero: bool = False) -> Array:
    """Float16 of float32 or float64 values, to nearest even or toward zero."""
    rounded = values.astype(np.float16)
    if not toward_zero:
        return rounded
    away = (np.abs(rounded.astype(values.dtype)) > np.abs(values)).astype(np.uint16)
    return (np.atleast_1d(rounded).view(np.uint16) - away).view(np.float16).reshape(rounded.shape)


def _odd_step(total: Array, error: Array) -> Array:
    """Float64 `total` (rounded to nearest) turned into round-to-odd, given the rounding `error`.

    A value rounded to odd with at least two spare bits can be rounded again without harm
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & even
    return np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` in float64 and its exact rounding error (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def f64_to_bf16(values: Array) -> Array:
    """Bfloat16 bit patterns of float64 values with a single rounding to nearest even."""
    near = values.astype(np.float32)
    odd = (near.view(np.uint32) & np.uint32(1)) == 1
    error = values - near.astype(np.float64)
    step = (error != 0) & ~odd & np.isfinite(near)
    toward = np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))
    return f32_to_bf16(np.where(step, np.nextafter(near, toward), near))


def fma_narrow(x: Array, y: Array, z: Array) -> Array:
    """``x * y + z`` of float32 or narrower values as float64 rounded to odd.

    The product of two 24-bit significands is exact in float64; converting the result to float32,
    float16 or bfloat16 gives the fused, once-rounded value.
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    total, error = _two_sum(product, np.broadcast_to(z, product.shape).astype(np.float64))
    return _odd_step(total, error)


_SPLITTER = 2.0**27 + 1.0
"""Veltkamp's constant for a 53-bit significand."""


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """``a * b`` in float64 and its exact rounding error (Dekker), barring overflow and underflow."""

    def split(v: Array) -> tuple[Array, Array]:
        scaled = _SPLITTER * v
        high = scaled - (scaled - v)
        return high, v - high

    product = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def fma_f64(x: Array, y: Array, z: Array) -> Array:
    """Fused float64 ``x * y + z`` (Boldo and Melquiond), barring overflow or underflow on the way."""
    x, y, z = np.broadcast_arrays(x, y, z)
    product_high, product_low = _two_product(x, y)
    sum_high, sum_low = _two_sum(z, product_low)
    high, low = _two_sum(product_high, sum_high)
    fused = high + _odd_step(*_two_sum(sum_low, low))
    return np.where(np.isfinite(fused), fused, x * y + z)


def max_number(a: Array, b: Array, *, propagate_nan: bool) -> Array:
    """PTX ``max``: a NaN operand is dropped (or kept with `propagate_nan`) and +0 is above -0."""
    chosen = np.maximum(a, b) if propagate_nan else np.fmax(a, b)
    zeros = (chosen == 0) & (a == b)
    return np.where(zeros, np.where(np.signbit(a), b, a), chosen) if zeros.any() else chosen


def min_number(a: Array, b: Array, *, propagate_nan: bool) -> Array:
    """PTX ``min``: a NaN operand is dropped (or kept with `propagate_nan`) and -0 is below +0."""
    chosen = np.minimum(a, b) if propagate_nan else np.fmin(a, b)
    zeros = (chosen == 0) & (a == b)
    return np.where(zeros, np.where(np.signbit(a), a, b), chosen) if zeros.any() else chosen


def flush(values: Array) -> Array:
    """Float32 values with subnormals replaced by a zero of their sign (PTX ``.ftz``)."""
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)


def float_to_int(values: Array, target: np.dtype[Any]) -> Array:
    """PTX ``cvt.rzi``: toward zero, saturating; 8-bit targets convert to 16 bits and wrap.

    NaN becomes 0, or the pattern with only the top bit set when the source is float64 or the target
    has 64 bits (PTX ISA, cvt).
    """
    through = np.dtype(f"{target.kind}2") if target.itemsize == 1 else target
    limits = np.iinfo(through)
    low, high = float(limits.min), float(limits.max) + 1.0
    whole = np.trunc(values.astype(np.float64))
    inside = (whole >= low) & (whole < high)
    if inside.all():
        return whole.astype(through).astype(target)
    converted = np.where(inside, whole, 0.0).astype(through)
    converted = np.where(whole >= high, through.type(limits.max), converted)
    converted = np.where(whole < low, through.type(limits.min), converted)
    if values.dtype == np.float64 or through.itemsize == 8:
        top_bit = np.array(1 << (8 * through.itemsize - 1), dtype=f"u{through.itemsize}").view(through)
        converted = np.where(np.isnan(values), top_bit, converted)
    return converted.astype(target)


def multiply_high(a: Array, b: Array) -> Array:
    """High half of the product of the operands' bits as unsigned integers, in their own dtype."""
    dtype, bits = a.dtype, 8 * a.dtype.itemsize
    unsigned = np.dtype(f"u{dtype.itemsize}")
    a, b = (np.ascontiguousarray(v).view(unsigned).astype(np.uint64) for v in (a, b))
    if bits < 64:
        return (a * b >> np.uint64(bits)).astype(unsigned).view(dtype)
    low_half, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & low_half, a >> half, b & low_half, b >> half
    middle = a_high * b_low + (a_low * b_low >> half)
    crossed = a_low * b_high + (middle & low_half)
    return (a_high * b_high + (middle >> half) + (crossed >> half)).view(dtype)


def truncate_tf32(values: Array) -> Array:
    """Float32 values as a tensor core reads them for TF32: the low 13 bits are ignored."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def on_bf16(operation: Callable[..., Array]) -> Callable[..., Array]:
    """`operation` on float32, lifted to bfloat16 bit patterns; boolean results stay boolean."""

    def lifted(*operands: Array) -> Array:
        result = operation(*map(bf16_to_f32, operands))
        return result if result.dtype == np.bool_ else f32_to_bf16(result)

    return lifted
