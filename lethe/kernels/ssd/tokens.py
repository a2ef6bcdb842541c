"""What every kernel of the engine does with a tile of tokens: find it, and turn its raw steps into decays.

A tile is `T` tokens of one sequence. Sequences are the batch, or the segments of ``cu_seqlens``. Each
sequence owns consecutive *slots*, one a tile; in a packed batch sequence ``s`` begins at slot
``cu[s] // T + s``, which leaves room for every partial tile without a table (``ceil((b - a) / T) <=
b // T - a // T + 1``), so a grid depends on sizes alone and a captured launch stays valid for other lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sequence_at(sequence, cu_ptr, length, tiles, T: tl.constexpr, VARLEN: tl.constexpr):
    """Batch index, first token, number of tokens and first slot of a sequence."""
    batch = sequence
    start = sequence * 0
    tokens = length
    slot = sequence * tiles
    if VARLEN:
        start = tl.load(cu_ptr + sequence)
        tokens = tl.load(cu_ptr + sequence + 1) - start
        slot = start // T + sequence
        batch = sequence * 0
    return batch, start, tokens, slot


@triton.jit
def sequence_of(slot, cu_ptr, sequences, tiles, T: tl.constexpr, VARLEN: tl.constexpr):
    """The sequence that owns `slot`: the last whose first slot is not behind it."""
    found = slot // tiles
    if VARLEN:
        found = slot * 0
        for first in range(1, sequences, 64):
            s = first + tl.arange(0, 64)
            begins = tl.load(cu_ptr + s, mask=s < sequences, other=0) // T + s
            found += tl.sum(((s < sequences) & (begins <= slot)).to(tl.int32), 0)
    return found


@triton.jit
def softplus(v):
    """``log(1 + e^v)`` to a few units in the last place for every v, the negative tail included.

    ``max(v, 0) + log1p(e)`` with ``e = exp(-|v|)``; log1p(e) = 2 artanh(e / (2 + e)), whose argument is at
    most 1/3: eight terms of the series leave a relative error of 3e-9.
    """
    e = tl.exp(-tl.abs(v))
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 / 15.0
    series = series * q + 1.0 / 13.0
    series = series * q + 1.0 / 11.0
    series = series * q + 1.0 / 9.0
    series = series * q + 1.0 / 7.0
    series = series * q + 1.0 / 5.0
    series = series * q + 1.0 / 3.0
    series = series * q + 1.0
    return tl.where(v > 0, v, 0.0) + 2.0 * s * series


@triton.jit
def sigmoid(v):
    """Without overflow at either end."""
    e = tl.exp(-tl.abs(v))
    return tl.where(v > 0, 1.0, e) / (1.0 + e)


@triton.jit
def silu(v):
    return v * sigmoid(v)


@triton.jit
def step_size(raw, bias, low, high, SOFTPLUS: tl.constexpr):
    """The step of a raw one: bias, softplus, clamp. A NaN stays one (minimum and maximum would drop it)."""
    step = raw + bias
    if SOFTPLUS:
        step = softplus(step)
    step = tl.where(step < low, low, step)
    return tl.where(step > high, high, step)


@triton.jit
def step_slope(raw, bias, low, high, SOFTPLUS: tl.constexpr):
    """d step / d raw; a step on a limit still moves, as ``torch.clamp`` has it."""
    v = raw + bias
    slope = tl.full(raw.shape, 1.0, tl.float32)
    step = v
    if SOFTPLUS:
        slope = sigmoid(v)
        step = softplus(v)
    return tl.where((step < low) | (step > high), 0.0, slope)


@triton.jit
def last_of(values, T: tl.constexpr):
    """The last entry of a vector of `T`, to the bit; a second sum would not be."""
    return tl.sum(tl.where(tl.arange(0, T) == T - 1, values, 0.0), 0)
