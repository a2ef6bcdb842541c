"""``wgmma.mma_async`` of sm_90a (PTX ISA 9.7.15.5): m64nNk16 of fp16 and bf16, m64nNk8 of tf32.

The four warps of a warpgroup hold 16 rows each; within a warp the fragments are those of ``mma.sync``
(:mod:`lethe.ptx.fragments`), D being N / 8 of its 16 x 8 tiles side by side.  A comes from shared memory (a
matrix descriptor) or from registers, B always from shared memory.  Arithmetic: :mod:`lethe.ptx.numeric`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx import fragments, numeric
from lethe.ptx.descriptors import Operand, Reads, granules, wgmma_matrix
from lethe.ptx.faults import Fault

_SHAPE: Final = re.compile(r"m64n(\d+)k(\d+)")
_DEPTH: Final = {"f16": 16, "bf16": 16, "tf32": 8}


@dataclass(frozen=True, eq=False)
class Plan:
    """A decoded ``wgmma.mma_async``: granules read from shared memory, types and extents."""

    n: int
    k: int
    d_type: str
    ab_type: str
    a_chunks: NDArray[np.int64] | None
    b_chunks: NDArray[np.int64]
    a_mn: bool
    b_mn: bool

    @cached_property
    def a_operand(self) -> Operand | None:
        """A in shared memory."""
        size = numeric.ELEMENT_BITS[self.ab_type] // 8
        return None if self.a_chunks is None else Operand(self.a_chunks, size, self.a_mn)

    @cached_property
    def b_operand(self) -> Operand:
        """B."""
        return Operand(self.b_chunks, numeric.ELEMENT_BITS[self.ab_type] // 8, self.b_mn)

    @cached_property
    def reads(self) -> Reads:
        """What is read from shared memory."""
        return Reads([o for o in (self.a_operand, self.b_operand) if o is not None])

    @property
    def d_registers(self) -> int:
        """Registers of D per thread."""
        return self.n // 2 if self.d_type == "f32" else self.n // 4


@lru_cache(maxsize=4096)
def plan(
    shape: str,
    d_type: str,
    a_type: str,
    b_type: str,
    a: int | None,
    b_desc: int,
    tnsp_a: int = 0,
    tnsp_b: int = 0,
) -> Plan:
    """Decode ``wgmma.mma_async.sync.aligned.shape.dtype.atype.btype``.

    Args:
        shape: "m64n128k16" and the like.
        a: matrix descriptor, or None when A is in registers.
        b_desc: matrix descriptor of B.
        tnsp_a, tnsp_b: the transpose immediates; 1 is MN-major.

    Raises:
        Fault: ``unsupported`` for types that are not modelled, ``descriptor`` for illegal shapes, transposes
            and descriptor bits.
    """
    match = _SHAPE.fullmatch(shape)
    if match is None or a_type not in _DEPTH or a_type != b_type:
        raise Fault("unsupported", f"wgmma.mma_async {shape} {d_type} {a_type} {b_type} is not modelled")
    n, k = int(match[1]), int(match[2])
    if n % 8 or not 8 <= n <= 256 or k != _DEPTH[a_type]:
        raise Fault("descriptor", f"wgmma.mma_async: shape {shape} of {a_type}")
    if d_type not in ("f32", "f16") or (d_type == "f16" and a_type != "f16"):
        raise Fault("descriptor", f"wgmma.mma_async: no {d_type} = {a_type} x {b_type}")
    if (tnsp_a or tnsp_b) and a_type == "tf32":
        raise Fault("descriptor", "wgmma.mma_async: tf32 matrices are K-major")
    if tnsp_a and a is None:
        raise Fault("descriptor", "wgmma.mma_async: A in registers cannot be transposed")
    size = numeric.ELEMENT_BITS[a_type] // 8
    a_chunks = None if a is None else granules(wgmma_matrix(a), 64, 32, size, bool(tnsp_a))
    b_chunks = granules(wgmma_matrix(b_desc), n, 32, size, bool(tnsp_b))
    return Plan(n, k, d_type, a_type, a_chunks, b_chunks, bool(tnsp_a), bool(tnsp_b))


def execute(
    step: Plan,
    shared: NDArray[np.uint8],
    a_regs: NDArray[np.uint32] | None,
    d: NDArray[np.uint32],
    scale_d: bool,
    scale_a: int = 1,
    scale_b: int = 1,
) -> None:
    """Compute D = scale_a A * scale_b B (+ D) in place.

    Args:
        shared: uint8[:], indexed by shared address.
        a_regs: uint32[4, 32, 4] when the plan has no A descriptor.
        d: uint32[4, 32, registers]; read only when `scale_d`.
        scale_a, scale_b: 1 or -1.

    Raises:
        Fault: ``descriptor`` for scales other than 1 and -1, ``bounds`` outside shared memory.
    """
    if scale_a not in (1, -1) or scale_b not in (1, -1):
        raise Fault("descriptor", f"wgmma.mma_async: imm-scale {scale_a}, {scale_b}; expected 1 or -1")
    for name, registers, expected in (("D", d, step.d_registers), ("A", a_regs, 4)):
        if registers is not None and registers.shape[-1] != expected:
            raise Fault(
                "unsupported",
                f"wgmma.mma_async: {registers.shape[-1]} registers of {name}, expected {expected}",
            )
    a: NDArray[np.float32] | NDArray[np.float64]
    if step.a_operand is not None:
        a = numeric.widen(step.a_operand.read(shared), step.ab_type).reshape(4, 16, step.k)
    else:
        assert a_regs is not None
        index = fragments.a_index(step.k, numeric.ELEMENT_BITS[step.ab_type])
        a = fragments.to_matrix(fragments.unpack(a_regs, step.ab_type), index, (16, step.k))
    b = numeric.widen(step.b_operand.read(shared), step.ab_type)
    if scale_a != scale_b:
        a = -a
    c = fragments.d_to_matrix(fragments.unpack(d, step.d_type), step.n) if scale_d else None
    result = numeric.multiply_accumulate(a.reshape(64, step.k), b.T, None if c is None else c.reshape(64, -1))
    d[...] = fragments.pack(fragments.matrix_to_d(result), step.d_type)
