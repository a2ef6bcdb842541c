"""``tcgen05.mma`` and ``tcgen05.cp`` (PTX ISA 9.7.16): what they read, and what they compute.

``plan`` decodes the operands of an MMA once (it is cached) and names every granule of shared memory and every
rectangle of tensor memory that the instruction touches, so that the machine can watch them while the
operation is in flight; ``execute`` then computes D = A B (+ D).  Modelled: ``kind::f16`` and ``kind::tf32``,
dense, A in shared or tensor memory, M = 64 and 128, ``cta_group::1``.  :func:`refuse` names what is not.

Where D lives (PTX ISA "Data Path Layout Organization"): M = 128, row i in lane i (Layout D); M = 64, row i in
lane ``base + 32 (i / 16) + i mod 16`` with base 0 or 16 (Layout F).  Column j of D is TMEM column ``d + j``;
fp16 results sit in the low half of their cell.  A in tensor memory uses the lanes of D, two 16-bit elements a
column.

Arithmetic: :mod:`lethe.ptx.numeric`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx import numeric
from lethe.ptx.descriptors import (
    Instruction,
    Operand,
    Reads,
    gather,
    granules,
    instruction,
    tcgen05_matrix,
)
from lethe.ptx.faults import Fault
from lethe.ptx.tmem import Region, TensorMemory

_REFUSED: Final = {
    "cta_group::2": "pairs of CTAs",
    "ws": "weight-stationary MMA",
    "sp": "sparse MMA",
    "block_scale": "block scaling",
    "shift": "tcgen05.shift",
    "ashift": "shifted A",
    "multicast::cluster": "multicast to several CTAs",
    "b8x16": "decompressing copies",
    "b6x16_p32": "decompressing copies",
    "b4x16_p64": "decompressing copies",
}


def refuse(modifiers: Sequence[str]) -> None:
    """Raise ``Fault('unsupported')`` for modifiers of ``tcgen05`` that are not modelled.

    Collector modifiers (``collector::a::fill`` and the like) only steer a cache and pass.
    """
    for modifier in modifiers:
        if modifier in _REFUSED:
            raise Fault("unsupported", f"tcgen05: {_REFUSED[modifier]} (.{modifier}) not modelled")


@dataclass(frozen=True, eq=False)
class Plan:
    """A decoded ``tcgen05.mma``.

    Attributes:
        op: the instruction descriptor.
        a_chunks: int64 granule addresses of A in shared memory, None when A is in tensor memory.
        b_chunks: int64 granule addresses of B.
        a_region: rectangle of A in tensor memory, None for shared memory.
        d_region: rectangle of D; for M = 64 only the lanes in `lanes` of it are touched.
        lanes: int64[M], lane of each row of D (and of A in tensor memory).
    """

    op: Instruction
    a_chunks: NDArray[np.int64] | None
    b_chunks: NDArray[np.int64]
    a_region: Region | None
    d_region: Region
    lanes: NDArray[np.int64]

    @cached_property
    def a_operand(self) -> Operand | None:
        """A in shared memory."""
        if self.a_chunks is None:
            return None
        return Operand(self.a_chunks, _element_bytes(self.op.a_type), self.op.a_mn)

    @cached_property
    def b_operand(self) -> Operand:
        """B."""
        return Operand(self.b_chunks, _element_bytes(self.op.b_type), self.op.b_mn)

    @cached_property
    def reads(self) -> Reads:
        """What is read from shared memory."""
        return Reads([o for o in (self.a_operand, self.b_operand) if o is not None])


def _element_bytes(dtype: str) -> int:
    return numeric.ELEMENT_BITS[dtype] // 8


def _lanes(m: int, address: int, what: str) -> NDArray[np.int64]:
    base = address >> 16
    if base not in ((0,) if m == 128 else (0, 16)):
        raise Fault(
            "alignment", f"tcgen05.mma: {what} at lane {base}; M = {m} needs {'0' if m == 128 else '0 or 16'}"
        )
    row = np.arange(m, dtype=np.int64)
    lanes = row if m == 128 else base + 32 * (row // 16) + row % 16
    lanes.setflags(write=False)
    return lanes


def _region(lanes: NDArray[np.int64], column: int, columns: int) -> Region:
    return int(lanes[0]), int(lanes[-1]) + 1, column, column + columns


@lru_cache(maxsize=4096)
def plan(kind: str, d_tmem: int, a: int, b_desc: int, idesc: int, *, a_in_tmem: bool) -> Plan:
    """Decode ``tcgen05.mma [d], a, b, idesc``.

    Args:
        kind: "f16" or "tf32".
        d_tmem, a: tensor-memory addresses; `a` is a matrix descriptor unless `a_in_tmem`.
        b_desc, idesc: matrix and instruction descriptors.

    Raises:
        Fault: ``descriptor``, ``unsupported`` or ``alignment`` as decoding finds them.
    """
    op = instruction(idesc, kind)
    lanes = _lanes(op.m, d_tmem, "D")
    k_bytes = 32
    b_matrix = tcgen05_matrix(b_desc)
    b_chunks = granules(b_matrix, op.n, k_bytes, _element_bytes(op.b_type), op.b_mn)
    a_chunks, a_region = None, None
    if a_in_tmem:
        if op.a_mn:
            raise Fault("descriptor", "tcgen05.mma: A in tensor memory cannot be transposed")
        if a >> 16 != d_tmem >> 16:
            raise Fault("alignment", f"tcgen05.mma: A at lane {a >> 16} but D at lane {d_tmem >> 16}")
        a_region = _region(lanes, a & 0xFFFF, k_bytes // 4)
    else:
        a_chunks = granules(tcgen05_matrix(a), op.m, k_bytes, _element_bytes(op.a_type), op.a_mn)
    return Plan(op, a_chunks, b_chunks, a_region, _region(lanes, d_tmem & 0xFFFF, op.n), lanes)


def _read_a(step: Plan, shared: NDArray[np.uint8], tmem: TensorMemory) -> NDArray[np.float64]:
    op = step.op
    if step.a_operand is not None:
        return numeric.widen(step.a_operand.read(shared), op.a_type)
    assert step.a_region is not None
    tmem.check_region(*step.a_region, "tcgen05.mma: A")
    cells, cols = step.lanes[:, None], np.arange(*step.a_region[2:], dtype=np.int64)[None, :]
    tmem.check_written(cells, cols, "tcgen05.mma: A")
    words = tmem.data[cells, cols]
    return numeric.widen(words if op.a_type == "tf32" else numeric.split_halves(words), op.a_type)


def execute(
    step: Plan,
    shared: NDArray[np.uint8],
    tmem: TensorMemory,
    accumulate: bool,
    scale_d: int = 0,
    disabled: NDArray[np.bool_] | None = None,
) -> None:
    """Compute D = A B, plus D * 2**-scale_d when `accumulate`.

    Args:
        shared: uint8[:], indexed by shared address.
        scale_d: the ``scale-input-d`` immediate, 0..15.
        disabled: bool[128] lanes that the ``disable-output-lane`` vector masks off, or None.

    Raises:
        Fault: ``tmem`` when D or A leave the live columns, ``poison`` for cells that nobody wrote, ``bounds``
            for granules outside shared memory, ``descriptor`` for a scale outside 0..15.
    """
    op = step.op
    if not 0 <= scale_d <= 15:
        raise Fault("descriptor", f"tcgen05.mma: scale-input-d {scale_d} is not 0..15")
    tmem.check_region(*step.d_region, "tcgen05.mma: D")
    a = _read_a(step, shared, tmem)
    b = numeric.widen(step.b_operand.read(shared), op.b_type)
    rows = step.lanes
    if disabled is not None:
        rows, a = rows[~disabled[rows]], a[~disabled[rows]]
    target = _cells(rows, *step.d_region[2:])
    if accumulate and step.d_region not in tmem.whole:
        tmem.check_written(*_grid(rows, *step.d_region[2:]), "tcgen05.mma accumulates into D")
        if disabled is None:
            tmem.whole.add(step.d_region)
    if op.negate_a != op.negate_b:
        a = -a
    if op.d_type == "f32" and rows.size == 128 and not (accumulate and scale_d):
        cells = tmem.data.view(np.float32)[target]
        numeric.multiply_accumulate(a, b.T, cells if accumulate else None, out=cells)
    else:
        c = _accumulator(tmem.data[target], op.d_type, scale_d) if accumulate else None
        total = numeric.multiply_accumulate(a, b.T, c)
        tmem.data[target] = total.view(np.uint32) if op.d_type == "f32" else numeric.encode_f16(total)
    if not accumulate:
        tmem.written[target] = True


def _grid(rows: NDArray[np.int64], col0: int, col1: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return rows[:, None], np.arange(col0, col1, dtype=np.int64)[None, :]


def _cells(
    rows: NDArray[np.int64], col0: int, col1: int
) -> tuple[slice | NDArray[np.int64], slice | NDArray[np.int64]]:
    """Index of cells of tensor memory; slices, which give a view, when all lanes are wanted."""
    return (slice(None), slice(col0, col1)) if rows.size == 128 else _grid(rows, col0, col1)


def _accumulator(words: NDArray[np.uint32], dtype: str, scale_d: int) -> NDArray[np.float32]:
    values = numeric.decode(words if dtype == "f32" else (words & 0xFFFF).astype(np.uint16), dtype)
    return values * np.float32(2.0**-scale_d)


# shape and multicast of tcgen05.cp -> (rows read, bytes of a row, copies as (first row, last row, lane))
_COPIES: Final[dict[tuple[str, str], tuple[int, int, tuple[tuple[int, int, int], ...]]]] = {
    ("128x256b", ""): (128, 32, ((0, 128, 0),)),
    ("128x128b", ""): (128, 16, ((0, 128, 0),)),
    ("4x256b", ""): (4, 32, ((0, 1, 0), (1, 2, 32), (2, 3, 64), (3, 4, 96))),
    ("64x128b", "warpx2::02_13"): (64, 16, ((0, 64, 0), (0, 64, 64))),
    ("64x128b", "warpx2::01_23"): (64, 16, ((0, 32, 0), (0, 32, 32), (32, 64, 64), (32, 64, 96))),
    ("32x128b", "warpx4"): (32, 16, ((0, 32, 0), (0, 32, 32), (0, 32, 64), (0, 32, 96))),
}


@dataclass(frozen=True, eq=False)
class CpPlan:
    """A decoded ``tcgen05.cp``: granules int64[rows, n], TMEM rectangle, copies (row0, row1, lane)."""

    chunks: NDArray[np.int64]
    region: Region
    copies: tuple[tuple[int, int, int], ...]

    @cached_property
    def reads(self) -> Reads:
        """What is read from shared memory."""
        return Reads([Operand(self.chunks, 2, False)])


@lru_cache(maxsize=1024)
def cp_plan(shape: str, mods: tuple[str, ...], taddr: int, s_desc: int) -> CpPlan:
    """Decode ``tcgen05.cp.shape{.multicast} [taddr], s_desc``.

    Args:
        mods: the modifiers; the multicast one among them is looked at, refused ones raise.

    Raises:
        Fault: ``unsupported`` for a pair of shape and multicast that does not exist or is not modelled,
            ``alignment`` for a start lane other than 0 (0..31 for .4x256b).
    """
    refuse(mods)
    multicast = next((m for m in mods if m.startswith("warpx")), "")
    if (shape, multicast) not in _COPIES:
        raise Fault("unsupported", f"tcgen05.cp.{shape}{'.' if multicast else ''}{multicast} is not modelled")
    rows, nbytes, copies = _COPIES[shape, multicast]
    lane, col = taddr >> 16, taddr & 0xFFFF
    if lane and not (shape == "4x256b" and lane < 32):
        raise Fault("alignment", f"tcgen05.cp.{shape}: start lane {lane}")
    chunks = granules(tcgen05_matrix(s_desc), max(rows, 8), nbytes, 2, False)[:rows]
    copies = tuple((first, last, to + lane) for first, last, to in copies)
    top = max(to + last - first for first, last, to in copies)
    return CpPlan(chunks, (lane, top, col, col + nbytes // 4), copies)


def cp_execute(step: CpPlan, shared: NDArray[np.uint8], tmem: TensorMemory) -> None:
    """Copy the rows of a ``tcgen05.cp`` plan to their lanes."""
    tmem.check_region(*step.region, "tcgen05.cp")
    words = gather(shared, step.chunks).view(np.uint32)
    columns = slice(step.region[2], step.region[3])
    for first, last, lane in step.copies:
        tmem.data[lane : lane + last - first, columns] = words[first:last]
        tmem.written[lane : lane + last - first, columns] = True
