"""The last launch of the backward pass: partial sums become gradients, always added in the same order.

dB and dC are summed over the blocks of heads that `gradient` formed; dA, ddt_bias and dD over the slots.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_rows(from_ptr, to_ptr, first, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum a [rows, columns] float32 matrix over its rows, for the columns from `first` on."""
    j = first + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for r in range(0, rows, ROWS):
        i = r + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (j < columns)[None, :]
        at = i.to(tl.int64)[:, None] * columns + j[None, :]
        total += tl.sum(tl.load(from_ptr + at, mask=inside, other=0.0), 0)
    tl.store(to_ptr + j, total.to(to_ptr.dtype.element_ty), mask=j < columns)


@triton.jit
def finish(
    dB_part, dC_part, dA_part, dbias_part, dD_part, dB_ptr, dC_ptr, dA_ptr, dbias_ptr, dD_ptr,
    blocks, size, slots, heads, skips, wide_programs, head_programs,
    HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: programs for dB and dC (`wide_programs`), for dA and ddt_bias (`head_programs`), then for dD."""
    program = tl.program_id(0)
    if program < wide_programs:
        i = program.to(tl.int64) * WIDE + tl.arange(0, WIDE)
        dB = tl.zeros((WIDE,), tl.float32)
        dC = tl.zeros((WIDE,), tl.float32)
        at = i
        for _ in range(blocks):
            dB += tl.load(dB_part + at, mask=i < size, other=0.0)
            dC += tl.load(dC_part + at, mask=i < size, other=0.0)
            at += size
        tl.store(dB_ptr + i, dB.to(dB_ptr.dtype.element_ty), mask=i < size)
        tl.store(dC_ptr + i, dC.to(dC_ptr.dtype.element_ty), mask=i < size)
    elif program < wide_programs + head_programs:
        first = (program - wide_programs) * COLUMNS
        sum_rows(dA_part, dA_ptr, first, slots, heads, ROWS, COLUMNS)
        if HAS_BIAS:
            sum_rows(dbias_part, dbias_ptr, first, slots, heads, ROWS, COLUMNS)
    else:
        if HAS_D:
            first = (program - wide_programs - head_programs) * COLUMNS
            sum_rows(dD_part, dD_ptr, first, slots, skips, ROWS, COLUMNS)
