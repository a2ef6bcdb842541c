"""Bit patterns of the tensor cores' number formats, and the one accumulation rule of this package.

Formats: fp16 and bf16 occupy 16 bits, tf32 is an fp32 pattern whose low 13 bits the tensor core ignores
(PTX ISA section "Alternate Floating-Point Data Formats" 5.2.3).

Accumulation (PTX ISA, ``mma``, ``wgmma`` and ``tcgen05.mma``): products are exact and additions are at least
single precision; their order, and what happens to bits below the kept ones, is not specified.  Here the
products of one instruction and the accumulator are added in fp64 and the sum is rounded once to fp32, to
nearest even; instructions follow program order.  Silicon is free to align the K products and the accumulator
to the largest of them, to drop what falls below fp32, and to truncate the sum.  Each of the K + 1 addends
then loses less than ``2**-23`` of the largest, and each side rounds once, so that for one instruction

    |silicon - emulated| <= (K + 3) * 2**-23 * (sum_k |a_k b_k| + |c|),

which also covers sums in any order with truncation after every step.  :func:`accumulation_bound` returns it.
"""

from __future__ import annotations

from threading import local
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx.faults import Fault

ELEMENT_BITS: Final = {"f16": 16, "bf16": 16, "tf32": 32}
_TF32_MASK: Final = np.uint32(0xFFFFE000)


def decode(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> NDArray[np.float32]:
    """Values of bit patterns: uint16 for "f16", "bf16"; uint32 for "f32", "tf32" (low 13 bits ignored)."""
    if dtype == "f16":
        return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)
    if dtype == "bf16":
        return (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "tf32":
        return (np.asarray(bits, np.uint32) & _TF32_MASK).view(np.float32)
    if dtype == "f32":
        return np.ascontiguousarray(bits, np.uint32).view(np.float32)
    raise Fault("unsupported", f"operand type {dtype} is not modelled")


def widen(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> NDArray[np.float64]:
    """As :func:`decode`, to fp64 (exact) in one pass."""
    if dtype == "f16" and bits.dtype == np.uint16:
        return bits.view(np.float16).astype(np.float64)
    return decode(bits, dtype).astype(np.float64)


def encode_f16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to fp16, ties to even; overflow gives infinity."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16).view(np.uint16)


def encode_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bf16, ties to even; NaN stays NaN (quieted)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return (np.where(nan, bits | np.uint32(0x400000), rounded) >> np.uint32(16)).astype(np.uint16)


def split_halves(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """uint32[..., n] -> uint16[..., 2n], low half first, as registers pack two 16-bit elements."""
    return np.ascontiguousarray(words, np.uint32).view(np.uint16)


def join_halves(halves: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """uint16[..., 2n] -> uint32[..., n], the inverse of :func:`split_halves`."""
    return np.ascontiguousarray(halves, np.uint16).view(np.uint32)


_LOCAL: Final = local()
_ONE_THREAD: Final = 1 << 18
"""Multiplications up to which OpenBLAS keeps a product on the calling thread; its helpers spin."""


def _scratch(shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two fp64 buffers a shape and thread: fresh pages for every product would cost more than the product."""
    buffers: dict[tuple[int, ...], Any] = _LOCAL.__dict__.setdefault("buffers", {})
    found = buffers.get(shape)
    if found is None:
        found = buffers[shape] = (np.empty(shape, np.float64), np.empty(shape, np.float64))
    return found


def _product(a: NDArray[np.float64], b: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """``out = a @ b``, in bands of rows that are small enough for one thread."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if m * n * k <= _ONE_THREAD:
        np.matmul(a, b, out=out)
        return
    bands = 2
    while m * n * k > bands * _ONE_THREAD and m % (2 * bands) == 0:
        bands *= 2
    for low in range(0, m, m // bands):
        rows = slice(low, low + m // bands)
        np.matmul(a[..., rows, :], b, out=out[..., rows, :])


def multiply_accumulate(
    a: NDArray[np.float32] | NDArray[np.float64],
    b: NDArray[np.float32] | NDArray[np.float64],
    c: NDArray[np.float32] | None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """``a @ b + c`` by the rule above: fp32[..., m, k], fp32[..., k, n], fp32[..., m, n] or None -> fp32.

    `a` and `b` may come as fp64 that holds fp32 values. `out` receives the result if given; it may be `c`.
    """
    total, addend = _scratch((*a.shape[:-1], b.shape[-1]))
    with np.errstate(invalid="ignore", over="ignore"):
        _product(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False), total)
        if c is not None:
            np.copyto(addend, c)
            np.add(total, addend, out=total)
        if out is None:
            return total.astype(np.float32)
        out[...] = total
    return out


def accumulation_bound(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """Largest legal difference between silicon and :func:`multiply_accumulate`, fp64[..., m, n]."""
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    if c is not None:
        size = size + np.abs(c)
    return (a.shape[-1] + 3) * 2.0**-23 * size
