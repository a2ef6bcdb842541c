"""Hand states from chunk to chunk: e_{c+1} = exp(rate * total_c) e_c + local_c, forward or in reverse.

The chunks' own contributions are computed in parallel; this small scan (one associative scan over all
chunks) joins them. It serves the states, the adjoints, and both blocks: with a rate for each column
(Mamba-1) or a total that is already a log-decay (Mamba-3, ``HAS_RATE=False``).
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E


@triton.jit
def _join(decay_first, state_first, decay_second, state_second):
    return decay_first * decay_second, decay_second * state_first + state_second


@triton.jit
def combine_chunks(
    local_ptr,  # [B, NC, size] float32: what each chunk adds
    total_ptr,  # [B, NC, rows] float32
    rate_ptr,  # [size]
    begin_ptr,  # [B, size] float32: the state at the outer end
    entry_ptr,  # out [B, NC, size] float32: the state that each chunk meets
    end_ptr,  # out [B, size] float32: the state after all chunks
    chunks,
    rows,
    cols,
    size,
    HAS_RATE: tl.constexpr,
    HAS_BEGIN: tl.constexpr,
    REVERSE: tl.constexpr,
    BY_ROW: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (B, cdiv(size, BLOCK)); GROUP chunks are scanned at a time.

    A state is [rows, cols] with BY_ROW, else [cols, rows]; element e reads the total of its row.
    """
    batch = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    row = column % rows
    if BY_ROW:
        row = column // cols
    state = tl.zeros([BLOCK], tl.float32)
    if HAS_BEGIN:
        state = tl.load(begin_ptr + batch * size + column, mask=inside, other=0.0)
    rate = tl.full([BLOCK], 1.0, tl.float32)
    if HAS_RATE:
        rate = tl.load(rate_ptr + column, mask=inside, other=0.0).to(tl.float32)
    lane = tl.arange(0, GROUP)
    for group in range(tl.cdiv(chunks, GROUP)):
        order = group * GROUP + lane
        chunk = order
        if REVERSE:
            chunk = chunks - 1 - order
        mask = (order < chunks)[:, None] & inside[None, :]
        place = batch * chunks + chunk
        at = place[:, None] * size + column[None, :]
        total = tl.load(total_ptr + place[:, None] * rows + row[None, :], mask=mask, other=0.0)
        decay = tl.exp2(total * rate[None, :] * LOG2E)
        local = tl.load(local_ptr + at, mask=mask, other=0.0)
        decays, sums = tl.associative_scan((decay, local), 0, _join)
        after = decays * state[None, :] + sums
        # The first chunk of the group meets the carried state, every other one what its predecessor left.
        following = place[:, None] + (-1 if REVERSE else 1)
        has_next = mask & (lane < GROUP - 1)[:, None] & (order < chunks - 1)[:, None]
        tl.store(entry_ptr + following * size + column[None, :], after, mask=has_next)
        first = batch * chunks + group * GROUP
        if REVERSE:
            first = batch * chunks + chunks - 1 - group * GROUP
        tl.store(entry_ptr + first * size + column, state, mask=inside)
        # Absent chunks have decay one and add nothing, so the last row is the carried state.
        state = tl.sum(tl.where((lane == GROUP - 1)[:, None], after, 0.0), 0)
    tl.store(end_ptr + batch * size + column, state, mask=inside)
