"""Descriptors of the tensor-core instructions: matrices in shared memory, and the operation itself.

* shared-memory matrix descriptors, 64 bits: PTX ISA "Shared Memory Descriptor" of ``tcgen05`` (9.7.16.4.1)
  and "Matrix descriptor" of ``wgmma`` (9.7.15.5.1.2.2);
* the instruction descriptor of ``tcgen05.mma``, 32 bits: "Instruction Descriptor" (9.7.16.4.2), for
  ``kind::f16`` and ``kind::tf32``.

A matrix is read in granules of 16 bytes.  With W the swizzle width in bytes (16 for none), n = W / 16, and L
and S the leading and stride byte offsets, the logical address of a granule is, before the swizzle,

* K-major, row r, granule g along K: ``S (r / 8) + W (r mod 8) + 16 g``, or ``L g`` when not swizzled;
* MN-major, granule j along MN, column k: ``16 (j mod n) + L (j / n) + W (k mod 8) + S (k / 8)``;
  not swizzled, L and S change places; with the 32-byte atom, eight columns become four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx import swizzle
from lethe.ptx.faults import Fault

_TCGEN05_LAYOUT: Final = {0: "none", 1: "128B_ATOM_32B", 2: "128B", 4: "64B", 6: "32B"}
_WGMMA_LAYOUT: Final = {0: "none", 1: "128B", 2: "64B", 3: "32B"}
_WIDTH: Final = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_ATOM_32B": 128}
_TCGEN05_FIXED: Final = 0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0xFF << 53
_WGMMA_RESERVED: Final = 0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3FF << 52


@dataclass(frozen=True)
class SharedMatrix:
    """A decoded shared-memory matrix descriptor; offsets in bytes.

    Attributes:
        start: shared address of the matrix, 18 bits, 16-byte aligned.
        leading, stride: byte offsets L and S of the module's formulas.
        mode: swizzle mode, a key of :mod:`lethe.ptx.swizzle`.
        base_offset: row of the swizzle pattern at which the matrix's pattern starts, 0..7.
    """

    start: int
    leading: int
    stride: int
    mode: str
    base_offset: int = 0


def _fields(bits: int) -> tuple[int, int, int, int]:
    return (bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, bits >> 49 & 7


def tcgen05_matrix(bits: int) -> SharedMatrix:
    """Decode a matrix descriptor of ``tcgen05``.

    Raises:
        Fault: ``descriptor`` for reserved bits, the fixed constant 0b001 in bits 46-48, or layouts 3, 5, 7;
            ``unsupported`` for the absolute-address mode of the leading dimension (bit 52).
    """
    bits = int(bits) & 0xFFFFFFFFFFFFFFFF
    if bits & _TCGEN05_FIXED != 1 << 46:
        raise Fault(
            "descriptor",
            f"tcgen05 matrix descriptor {bits:#018x}: bits 14-15, 30-31, 53-60 must be 0, bits 46-48 0b001",
        )
    layout = bits >> 61
    if layout not in _TCGEN05_LAYOUT:
        raise Fault("descriptor", f"tcgen05 matrix descriptor {bits:#018x}: layout type {layout} is invalid")
    if bits >> 52 & 1:
        raise Fault("unsupported", f"tcgen05 matrix descriptor {bits:#018x}: absolute leading dimension")
    start, leading, stride, base_offset = _fields(bits)
    return SharedMatrix(start, leading, stride, _TCGEN05_LAYOUT[layout], base_offset)


def wgmma_matrix(bits: int) -> SharedMatrix:
    """Decode a matrix descriptor of ``wgmma``; ``Fault('descriptor')`` for reserved bits."""
    bits = int(bits) & 0xFFFFFFFFFFFFFFFF
    if bits & _WGMMA_RESERVED:
        raise Fault(
            "descriptor",
            f"wgmma matrix descriptor {bits:#018x}: bits 14-15, 30-31, 46-48 and 52-61 must be 0",
        )
    start, leading, stride, base_offset = _fields(bits)
    return SharedMatrix(start, leading, stride, _WGMMA_LAYOUT[bits >> 62], base_offset)


def _packed(matrix: SharedMatrix) -> int:
    for name, value in (("start", matrix.start), ("leading", matrix.leading), ("stride", matrix.stride)):
        if value % 16 or not 0 <= value < 1 << 18:
            raise Fault(
                "alignment", f"matrix descriptor: {name} {value:#x} is not 16-byte aligned in 18 bits"
            )
    offsets = matrix.start >> 4 | matrix.leading >> 4 << 16 | matrix.stride >> 4 << 32
    return offsets | matrix.base_offset << 49


def encode_tcgen05(matrix: SharedMatrix) -> int:
    """Inverse of :func:`tcgen05_matrix`."""
    layout = next(code for code, mode in _TCGEN05_LAYOUT.items() if mode == matrix.mode)
    return _packed(matrix) | 1 << 46 | layout << 61


def encode_wgmma(matrix: SharedMatrix) -> int:
    """Inverse of :func:`wgmma_matrix`."""
    layout = next(code for code, mode in _WGMMA_LAYOUT.items() if mode == matrix.mode)
    return _packed(matrix) | layout << 62


@lru_cache(maxsize=4096)
def granules(
    matrix: SharedMatrix, rows: int, k_bytes: int, element_bytes: int, mn_major: bool
) -> NDArray[np.int64]:
    """Shared addresses of the granules of a matrix, swizzled.

    Args:
        rows: extent along M or N, a multiple of 8.
        k_bytes: bytes along K for a K-major matrix (16 or 32).
        element_bytes: 2 or 4.
        mn_major: consecutive elements of memory run along M or N instead of K.

    Returns:
        int64[rows, k_bytes / 16] for K-major, int64[K, rows * element_bytes / 16] for MN-major, read-only.

    Raises:
        Fault: ``descriptor`` for the 32-byte atom in a K-major matrix or with 16-bit elements.
    """
    width = _WIDTH[matrix.mode]
    if matrix.mode == "128B_ATOM_32B" and not (mn_major and element_bytes == 4):
        raise Fault("descriptor", "the 32-byte swizzle atom is for MN-major matrices of 32-bit elements")
    if mn_major:
        k = np.arange(k_bytes // element_bytes, dtype=np.int64)[:, None]
        j = np.arange(rows * element_bytes // 16, dtype=np.int64)[None, :]
        columns = 4 if matrix.mode == "128B_ATOM_32B" else 8
        far_mn, far_k = matrix.leading, matrix.stride
        if matrix.mode == "none":
            far_mn, far_k = far_k, far_mn
        per_row = width // 16
        offset = 16 * (j % per_row) + far_mn * (j // per_row) + width * (k % columns) + far_k * (k // columns)
    else:
        r = np.arange(rows, dtype=np.int64)[:, None]
        g = np.arange(k_bytes // 16, dtype=np.int64)[None, :]
        along_k = matrix.leading if matrix.mode == "none" else 16
        offset = matrix.stride * (r // 8) + width * (r % 8) + along_k * g
    addresses = swizzle.apply(matrix.start + offset, matrix.mode, matrix.base_offset)
    addresses.setflags(write=False)
    return addresses


def gather(shared: NDArray[np.uint8], addresses: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Bytes of granules: uint8[..., 16 * addresses.shape[-1]]; ``Fault('bounds')`` past shared memory."""
    last = int(addresses.max())
    if last + 16 > shared.size:
        raise Fault("bounds", f"matrix granule at shared address {last:#x} of {shared.size:#x} bytes")
    whole = shared[: shared.size & ~15].view(np.complex128)
    return whole[addresses >> 4].view(np.uint8)


class Operand:
    """A matrix in shared memory, ready to be read again and again.

    Args:
        chunks: granule addresses as :func:`granules` gives them.
        element_bytes, mn_major: of the elements.

    Attributes:
        chunks: the addresses.
        at: granule indices, the addresses over 16, in the shape of `chunks`.
        end: shared address just past the last granule.
    """

    __slots__ = ("at", "chunks", "element_bytes", "end", "mn_major")

    def __init__(self, chunks: NDArray[np.int64], element_bytes: int, mn_major: bool) -> None:
        self.chunks, self.element_bytes, self.mn_major = chunks, element_bytes, mn_major
        self.at = chunks >> 4
        self.end = int(chunks.max()) + 16

    def read(self, shared: NDArray[np.uint8]) -> NDArray[np.uint16] | NDArray[np.uint32]:
        """As :func:`read_matrix`."""
        if self.end > shared.size:
            return read_matrix(shared, self.chunks, self.element_bytes, self.mn_major)
        raw = shared[: shared.size & ~15].view(np.complex128).take(self.at)
        elements = raw.view(np.uint16) if self.element_bytes == 2 else raw.view(np.uint32)
        return elements.T if self.mn_major else elements


class Reads:
    """Everything that one tensor-core operation reads from shared memory.

    Attributes:
        chunks: granule addresses of each operand.
        granules: int64[n], the granule indices of all of them.
        end: shared address just past the last granule.
    """

    __slots__ = ("chunks", "end", "granules")

    def __init__(self, operands: Sequence[Operand]) -> None:
        self.chunks = [o.chunks for o in operands]
        self.granules = np.concatenate([o.at.reshape(-1) for o in operands])
        self.end = max(o.end for o in operands)


def read_matrix(
    shared: NDArray[np.uint8], addresses: NDArray[np.int64], element_bytes: int, mn_major: bool
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """The matrix [rows, K] of element bit patterns (uint16 or uint32) behind :func:`granules`."""
    raw = gather(shared, addresses)
    elements = raw.view(np.uint16) if element_bytes == 2 else raw.view(np.uint32)
    return elements.T if mn_major else elements


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction descriptor of ``tcgen05.mma``: D[m, n] (+)= A[m, k] B[k, n].

    Types are "f16", "bf16", "tf32" for A and B, "f16" or "f32" for D; `a_mn`, `b_mn` are the transpose bits
    (MN-major in shared memory).  N goes in steps of 8 for both M, as the table of shapes (9.7.16.2.1) has
    it; CUTLASS asks for steps of 16 when M is 128.
    """

    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    negate_a: bool
    negate_b: bool
    a_mn: bool
    b_mn: bool


_INPUTS: Final = {"f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}}
_OUTPUTS: Final = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}}


def instruction(bits: int, kind: str) -> Instruction:
    """Decode an instruction descriptor of ``kind::f16`` or ``kind::tf32`` (``cta_group::1``, dense).

    Raises:
        Fault: ``unsupported`` for other kinds, sparsity and M = 32 or 256; ``descriptor`` for every
            combination that the tables do not list.
    """
    bits = int(bits) & 0xFFFFFFFF
    where = f"instruction descriptor {bits:#010x} of kind::{kind}"
    if kind not in _INPUTS:
        raise Fault("unsupported", f"tcgen05.mma kind::{kind} is not modelled")
    if bits & 0b111:
        if bits & 0b100:
            raise Fault("unsupported", f"{where}: sparse matrices are not modelled")
        raise Fault("descriptor", f"{where}: sparsity selector without sparsity")
    if bits & (1 << 3 | 1 << 6 | 1 << 23 | 1 << 29):
        raise Fault("descriptor", f"{where}: bits 3, 6, 23 and 29 must be 0")
    if bits >> 30:
        raise Fault("descriptor", f"{where}: a maximum shift belongs to tcgen05.mma.ws")
    d_code, a_code, b_code = bits >> 4 & 3, bits >> 7 & 7, bits >> 10 & 7
    inputs, outputs = _INPUTS[kind], _OUTPUTS[kind]
    if d_code not in outputs or a_code not in inputs or b_code not in inputs:
        raise Fault(
            "descriptor", f"{where}: type codes D {d_code}, A {a_code}, B {b_code} are not of this kind"
        )
    d_type, a_type, b_type = outputs[d_code], inputs[a_code], inputs[b_code]
    if a_type != b_type or (d_type == "f16" and a_type != "f16"):
        raise Fault("descriptor", f"{where}: no {d_type} = {a_type} x {b_type}")
    m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
    if m in (32, 256):
        raise Fault("unsupported", f"{where}: M = {m} needs .ws or cta_group::2")
    if m not in (64, 128) or not 8 <= n <= 256:
        raise Fault("descriptor", f"{where}: M = {m}, N = {n}; expected M 64 or 128, N 8..256 in steps of 8")
    flag = [bool(bits >> position & 1) for position in (13, 14, 15, 16)]
    return Instruction(m, n, 16 if kind == "f16" else 8, d_type, a_type, b_type, *flag)


def encode_instruction(kind: str, op: Instruction) -> int:
    """Inverse of :func:`instruction`."""
    code = {name: value for value, name in _INPUTS[kind].items()}
    flags = (op.negate_a, op.negate_b, op.a_mn, op.b_mn)
    return (
        (1 if op.d_type == "f32" else 0) << 4
        | code[op.a_type] << 7
        | code[op.b_type] << 10
        | sum(int(f) << position for f, position in zip(flags, (13, 14, 15, 16), strict=True))
        | op.n >> 3 << 17
        | op.m >> 4 << 24
    )
