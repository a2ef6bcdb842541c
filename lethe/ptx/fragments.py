"""Register fragments of warp-level matrices: ``mma.sync``, ``ldmatrix`` and ``stmatrix`` (PTX ISA 9.7.14.5).

A fragment register holds one 32-bit element or two adjacent 16-bit ones.  With thread t, group g = t / 4 and
q = t mod 4, element i of a thread's fragment sits at

======================  =========================================  ==========================================
matrix                  row                                        column
======================  =========================================  ==========================================
A 16 x 16, 16-bit       g + 8 (i / 2 mod 2)                        2 q + i mod 2 + 8 (i / 4)
A 16 x 8, 16-bit        g + 8 (i / 2)                              2 q + i mod 2
A 16 x 8, tf32          g + 8 (i mod 2)                            q + 4 (i / 2)
A 16 x 4, tf32          g + 8 i                                    q
B K x 8, 16-bit         2 q + i mod 2 + 8 (i / 2)                  g
B K x 8, tf32           q + 4 i                                    g
C, D 16 x 8             g + 8 (i / 2)                              2 q + i mod 2
======================  =========================================  ==========================================

Arrays lead with the warp: uint32[W, 32, registers].  Arithmetic: :mod:`lethe.ptx.numeric`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx import numeric
from lethe.ptx.faults import Fault

Words = NDArray[np.uint32]
Index = tuple[NDArray[np.int64], NDArray[np.int64]]

# shape -> {A and B type: K}
_SHAPES: Final = {
    "m16n8k16": ("f16", "bf16"),
    "m16n8k8": ("f16", "bf16", "tf32"),
    "m16n8k4": ("tf32",),
}


def _freeze(row: NDArray[np.int64], column: NDArray[np.int64]) -> Index:
    rows, columns = np.broadcast_arrays(row, column)
    rows, columns = rows.copy(), columns.copy()
    rows.setflags(write=False)
    columns.setflags(write=False)
    return rows, columns


def _threads(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    t = np.arange(32, dtype=np.int64)[:, None]
    return t // 4, t % 4, np.arange(count, dtype=np.int64)[None, :]


@lru_cache(maxsize=32)
def a_index(k: int, bits: int) -> Index:
    """(rows, columns) of A [16, k]: int64[32, elements of a thread]."""
    g, q, i = _threads(k // 2)
    if bits == 16:
        return _freeze(g + 8 * (i // 2 % 2), 2 * q + i % 2 + 8 * (i // 4))
    return _freeze(g + 8 * (i % 2), q + 4 * (i // 2))


@lru_cache(maxsize=32)
def b_index(k: int, bits: int) -> Index:
    """(rows, columns) of B [k, 8]: int64[32, elements of a thread]."""
    g, q, i = _threads(k // 4)
    if bits == 16:
        return _freeze(2 * q + i % 2 + 8 * (i // 2), g + 0 * i)
    return _freeze(q + 4 * i, g + 0 * i)


def d_to_matrix(values: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """C or D [W, 16, n], n a multiple of 8, from fragments fp32[W, 32, n / 2]; tiles of 8 columns follow."""
    split = values.reshape(-1, 8, 4, n // 8, 2, 2)  # warp, g, q, tile, i / 2, i mod 2
    return split.transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, n)


def matrix_to_d(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inverse of :func:`d_to_matrix`: [W, 16, n] -> fp32[W, 32, n / 2]."""
    n = matrix.shape[-1]
    split = matrix.reshape(-1, 2, 8, n // 8, 4, 2)  # warp, i / 2, g, tile, q, i mod 2
    return split.transpose(0, 2, 4, 3, 1, 5).reshape(-1, 32, n // 2)


def unpack(registers: Words, dtype: str) -> NDArray[np.float32]:
    """Values of a thread's elements in order: uint32[..., r] -> fp32[..., r or 2r]."""
    halves = dtype in ("f16", "bf16")
    return numeric.decode(numeric.split_halves(registers) if halves else registers, dtype)


def pack(values: NDArray[np.float32], dtype: str) -> Words:
    """Inverse of :func:`unpack` for "f32" and "f16"."""
    if dtype == "f16":
        return numeric.join_halves(numeric.encode_f16(values))
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def to_matrix(values: NDArray[np.float32], index: Index, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Assemble fp32[W, *shape] from fragments fp32[W, 32, elements]."""
    matrix = np.empty((values.shape[0], *shape), np.float32)
    matrix[:, index[0], index[1]] = values
    return matrix


def _check_count(name: str, registers: Words, expected: int) -> None:
    if registers.shape[-2:] != (32, expected):
        raise Fault(
            "unsupported", f"mma.sync: {name} has {registers.shape[-1]} registers, expected {expected}"
        )


def mma_sync(shape: str, dtypes: tuple[str, str, str, str], a: Words, b: Words, c: Words) -> Words:
    """``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype``: D = A B + C.

    Args:
        shape: "m16n8k16", "m16n8k8" or "m16n8k4".
        dtypes: types of (D, A, B, C): A and B one of f16, bf16, tf32; C and D f32, or f16 with f16 inputs.
        a, b, c: fragments uint32[W, 32, registers].

    Returns:
        D, uint32[W, 32, registers].

    Raises:
        Fault: ``unsupported`` for a combination outside the table of the ISA or with wrong register counts.
    """
    d_type, a_type, b_type, c_type = dtypes
    legal = shape in _SHAPES and a_type in _SHAPES[shape] and a_type == b_type
    halves = a_type == "f16" and d_type in ("f16", "f32") and c_type in ("f16", "f32")
    if not legal or not (halves or d_type == c_type == "f32"):
        raise Fault("unsupported", f"mma.sync.{shape}.{'.'.join(dtypes)} is not modelled")
    k, bits = int(shape.removeprefix("m16n8k")), numeric.ELEMENT_BITS[a_type]
    _check_count("A", a, 16 * k * bits // 1024)
    _check_count("B", b, 8 * k * bits // 1024)
    _check_count("C", c, 2 if c_type == "f16" else 4)
    left = to_matrix(unpack(a, a_type), a_index(k, bits), (16, k))
    right = to_matrix(unpack(b, b_type), b_index(k, bits), (k, 8))
    start = d_to_matrix(unpack(c, c_type), 8)
    return pack(matrix_to_d(numeric.multiply_accumulate(left, right, start)), d_type)


@lru_cache(maxsize=2)
def _eight_by_eight(trans: bool) -> Index:
    """(row, column) of the two 16-bit elements of a thread in an 8 x 8 matrix: int64[32, 2]."""
    g, q, i = _threads(2)
    row, column = g + 0 * i, 2 * q + i
    return _freeze(column, row) if trans else _freeze(row, column)


def ldmatrix(rows: NDArray[np.uint8], trans: bool) -> Words:
    """``ldmatrix.m8n8.x{num}{.trans}.b16``: registers uint32[W, 32, num] from rows uint8[W, num, 8, 16].

    Row i of matrix m is the 16 bytes at the address that lane 8 m + i supplies.
    """
    i, j = _eight_by_eight(trans)
    halves = np.ascontiguousarray(rows).view(np.uint16)[:, :, i, j]
    return np.ascontiguousarray(numeric.join_halves(halves)[..., 0].transpose(0, 2, 1))


def stmatrix(values: Words, trans: bool) -> NDArray[np.uint8]:
    """``stmatrix``, the inverse of :func:`ldmatrix`: uint32[W, 32, num] -> rows uint8[W, num, 8, 16]."""
    i, j = _eight_by_eight(trans)
    warps, _, num = values.shape
    rows = np.empty((warps, num, 8, 8), np.uint16)
    rows[:, :, i, j] = numeric.split_halves(values.transpose(0, 2, 1)[..., None])
    return rows.view(np.uint8)
