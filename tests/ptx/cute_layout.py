"""CuTe's layout notation, evaluated directly, as NVIDIA prints it: ``((8,m),(T,2)):((8T,S),(1,T))``.

The layout tests transcribe the tables of the ISA and of CUTLASS in this notation and never import an index
helper of ``lethe``.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def offsets(shape: Any, stride: Any) -> np.ndarray:
    """Offsets of a mode in colexicographic order: int64[size]; nested tuples of integers."""
    if not isinstance(shape, tuple):
        return np.arange(shape, dtype=np.int64) * stride
    total = np.zeros(1, np.int64)
    for inner_shape, inner_stride in zip(shape, stride, strict=True):
        inner = offsets(inner_shape, inner_stride)
        total = (inner[:, None] + total[None, :]).reshape(-1)
    return total


def grid(shape: tuple[Any, Any], stride: tuple[Any, Any]) -> np.ndarray:
    """Offsets of a two-mode layout: int64[size of mode 0, size of mode 1]."""
    return offsets(shape[0], stride[0])[:, None] + offsets(shape[1], stride[1])[None, :]


def swizzled(addresses: np.ndarray, bits: int, base: int, shift: int) -> np.ndarray:
    """CuTe's ``Swizzle<bits, base, shift>`` applied to byte addresses."""
    source = ((1 << bits) - 1) << (base + shift)
    return addresses ^ ((addresses & source) >> shift)


# swizzle mode -> Swizzle<B, M, S>, on byte addresses
SWIZZLE = {
    "none": (0, 4, 3),
    "32B": (1, 4, 3),
    "64B": (2, 4, 3),
    "128B": (3, 4, 3),
    "128B_ATOM_32B": (2, 5, 2),
}
SPAN = {"32B": 2, "64B": 4, "128B": 8, "128B_ATOM_32B": 8}


def canonical(
    mode: str, mn_major: bool, rows: int, k: int, size: int, start: int, leading: int, stride: int
) -> np.ndarray:
    """Byte address of every element [rows, k] of the canonical layouts of ``wgmma`` and ``tcgen05``.

    Transcribed from the PTX ISA section "Canonical layouts" (the same list heads make_umma_desc in CUTLASS);
    T elements of `size` bytes make 16 bytes, L and S count elements here.
    """
    t, lead, far = 16 // size, leading // size, stride // size
    if mn_major and mode == "none":
        shape, strides = ((t, 1, rows // t), (8, k // 8)), ((1, t, far), (t, lead))
    elif mn_major:
        n, columns = SPAN[mode], 4 if mode == "128B_ATOM_32B" else 8
        shape = ((t, n, rows // (n * t)), (columns, k // columns))
        strides = ((1, t, lead), (n * t, far))
        if rows < n * t:
            shape, strides = ((t, rows // t), shape[1]), ((1, t), strides[1])
    elif mode == "none":
        shape, strides = ((8, rows // 8), (t, k // t)), ((t, far), (1, lead))
    else:
        shape, strides = ((8, rows // 8), (t, k // t)), ((SPAN[mode] * t, far), (1, t))
    return swizzled(start + size * grid(shape, strides), *SWIZZLE[mode])
