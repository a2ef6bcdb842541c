"""The sequential part: the state that enters each tile, and the adjoint of the state that leaves it.

A program walks through a sequence with one piece ``[BP, BN]`` of one head's state in registers; what it
adds for a tile is one matrix product that does not wait for the state. Forward,
``h <- e^G h + (x)^T (w B)`` with ``w_j = dt_j e^(G - G_j)``; backward, ``D <- e^G D + dy^T (e^G_i C)``,
where ``G`` is the inclusive sum of ``dt A`` in the tile, kept in units of log2 (SPEC section 2 with M = 0).
The raw steps of the next tile are fetched a tile ahead by hand: as two-byte numbers they have no
asynchronous copy.
Every exponent is a difference that decays, never ``e^-G``. Both directions fit in one launch, because
neither needs the other; the adjoints' programs come first, since theirs are the longer walks. Where there is
a gate, dy is what `gate` made of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lethe.kernels.ssd.tokens import last_of, sequence_at, sequence_of, step_size

LOG2E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-152.0)
"""Of what decays by more in a step nothing is left: below 2^-150 an exponential is zero in float32. The sums
of a tile of 128 stay below 2^15, so that rounding moves a difference by 128 halves of 2^-9 at most."""


@triton.jit
def tile_steps(raw, live, rate, bias, low, high, SOFTPLUS: tl.constexpr):
    """Steps and cumulated decay (log2) of a tile; tokens beyond the end have step 0 and change nothing.

    A step that lets nothing through counts as `LEAST`: behind a running sum of 1e6 a difference has units
    of 1/8, and lanes that add in another order differ by one. An infinite one stays: its differences are NaN.
    """
    step = tl.where(live, step_size(raw.to(tl.float32), bias, low, high, SOFTPLUS), 0.0)
    decay = step * rate
    return step, tl.cumsum(tl.where((decay < LEAST) & (decay > float("-inf")), LEAST, decay), 0)


@triton.jit
def scan(
    x_ptr, dt_ptr, A_ptr, bias_ptr, B_ptr, C_ptr, dy_ptr, cu_ptr,
    begin_ptr, resume_ptr, dfinal_ptr,
    states_ptr, checkpoint_ptr, adjoints_ptr, step_ptr, decay_ptr, final_ptr, dbegin_ptr,
    sequences, length, tiles, chunks, heads, per_group, low, high,
    x_sb, x_sl, x_sh, dt_sb, dt_sl, B_sb, B_sl, B_sg, C_sb, C_sl, C_sg, dy_sb, dy_sl, dy_sh,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
    RATIO: tl.constexpr, FORWARD: tl.constexpr, REVERSE: tl.constexpr, RESUME: tl.constexpr,
    VARLEN: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_BEGIN: tl.constexpr, HAS_DFINAL: tl.constexpr, HAS_FINAL: tl.constexpr, HAS_DBEGIN: tl.constexpr,
    SAVE: tl.constexpr, STATES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: sequences (or chunk slots, to resume), heads * pieces, directions. `RATIO` tiles are a chunk.

    With both directions axis 2 = 0 goes backward, and axis 2 = 1 forward; a program beyond its direction's
    share of axis 0 ends at once.
    """
    pieces: tl.constexpr = (P // BP) * (N // BN)
    head = tl.program_id(1) // pieces
    piece = tl.program_id(1) % pieces
    p = (piece // (N // BN)) * BP + tl.arange(0, BP)
    n = (piece % (N // BN)) * BN + tl.arange(0, BN)
    which = tl.program_id(0)
    rate = tl.load(A_ptr + head) * LOG2E
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + head)
    group = head // per_group
    here = p[:, None] * N + n[None, :]
    if FORWARD and ((not REVERSE) or tl.program_id(2) == 1):
        sequence = which
        if RESUME:
            sequence = sequence_of(which, cu_ptr, sequences, chunks, T * RATIO, VARLEN)
        batch, start, tokens, slot = sequence_at(sequence, cu_ptr, length, tiles, T, VARLEN)
        first = 0
        count = tl.cdiv(tokens, T)
        chunk = 0
        if RESUME:
            _, _, _, chunk = sequence_at(sequence, cu_ptr, length, chunks, T * RATIO, VARLEN)
            first = (which - chunk) * RATIO
            count = tl.minimum(count, first + RATIO)
        if SAVE:
            _, _, _, chunk = sequence_at(sequence, cu_ptr, length, chunks, T * RATIO, VARLEN)
        b64 = batch.to(tl.int64)
        xs = x_ptr + b64 * x_sb + head * x_sh
        ds = dt_ptr + b64 * dt_sb + head
        bs = B_ptr + b64 * B_sb + group * B_sg
        carry = tl.zeros((BP, BN), tl.float32)
        if RESUME:
            if first < count:
                kept = (which.to(tl.int64) * heads + head) * (P * N)
                carry = tl.load(resume_ptr + kept + here).to(tl.float32)
        elif HAS_BEGIN:
            carry = tl.load(begin_ptr + (sequence.to(tl.int64) * heads + head) * (P * N) + here)
        t = tl.arange(0, T)
        at = (start + first * T).to(tl.int64)
        raw = tl.load(ds + at * dt_sl + t * dt_sl, mask=first * T + t < tokens, other=0.0)
        for k in tl.range(first, count, num_stages=STAGES):
            live = k * T + t < tokens
            at = (start + k * T).to(tl.int64)
            ahead = tl.load(ds + (at + T) * dt_sl + t * dt_sl, mask=(k + 1) * T + t < tokens, other=0.0)
            step, decay = tile_steps(raw, live, rate, bias, low, high, SOFTPLUS)
            raw = ahead
            total = last_of(decay, T)
            row = (slot + k).to(tl.int64) * heads + head
            if not REVERSE:  # noqa: SIM102 (one of the two is known at compile time)
                if piece == 0:
                    tl.store(step_ptr + row * T + t, step)
                    tl.store(decay_ptr + row * T + t, decay)
            if STATES:
                tl.store(states_ptr + row * (P * N) + here, carry.to(states_ptr.dtype.element_ty))
            if SAVE:  # noqa: SIM102
                if k % RATIO == 0:
                    saved = (chunk + k // RATIO).to(tl.int64) * heads + head
                    tl.store(
                        checkpoint_ptr + saved * (P * N) + here, carry.to(checkpoint_ptr.dtype.element_ty)
                    )
            x = tl.load(xs + at * x_sl + t[:, None] * x_sl + p[None, :], mask=live[:, None], other=0.0)
            b = tl.load(bs + at * B_sl + t[:, None] * B_sl + n[None, :], mask=live[:, None], other=0.0)
            late = step * tl.exp2(total - decay)
            weighted = (b.to(tl.float32) * late[:, None]).to(x.dtype)
            carry = tl.dot(tl.trans(x), weighted, carry * tl.exp2(total))
        if HAS_FINAL:
            tl.store(final_ptr + (sequence.to(tl.int64) * heads + head) * (P * N) + here, carry)
    if REVERSE and ((not FORWARD) or tl.program_id(2) == 0):  # noqa: SIM102
        if which < sequences:
            batch, start, tokens, slot = sequence_at(which, cu_ptr, length, tiles, T, VARLEN)
            count = tl.cdiv(tokens, T)
            b64 = batch.to(tl.int64)
            ds = dt_ptr + b64 * dt_sb + head
            cs = C_ptr + b64 * C_sb + group * C_sg
            ys = dy_ptr + b64 * dy_sb + head * dy_sh
            carry = tl.zeros((BP, BN), tl.float32)
            if HAS_DFINAL:
                carry = tl.load(dfinal_ptr + (which.to(tl.int64) * heads + head) * (P * N) + here)
            t = tl.arange(0, T)
            at = (start + (count - 1) * T).to(tl.int64)
            inside = t < tl.minimum(tokens - (count - 1) * T, tokens)
            raw = tl.load(ds + at * dt_sl + t * dt_sl, mask=inside, other=0.0)
            for i in tl.range(0, count, num_stages=STAGES):
                k = count - 1 - i
                live = k * T + t < tokens
                at = (start + k * T).to(tl.int64)
                before = tl.load(ds + (at - T) * dt_sl + t * dt_sl, mask=t < k * T, other=0.0)
                step, decay = tile_steps(raw, live, rate, bias, low, high, SOFTPLUS)
                raw = before
                total = last_of(decay, T)
                row = (slot + k).to(tl.int64) * heads + head
                if piece == 0:
                    tl.store(step_ptr + row * T + t, step)
                    tl.store(decay_ptr + row * T + t, decay)
                tl.store(adjoints_ptr + row * (P * N) + here, carry.to(adjoints_ptr.dtype.element_ty))
                place = t[:, None] * dy_sl + p[None, :]
                dy = tl.load(ys + at * dy_sl + place, mask=live[:, None], other=0.0)
                c = tl.load(cs + at * C_sl + t[:, None] * C_sl + n[None, :], mask=live[:, None], other=0.0)
                weighted = (c.to(tl.float32) * tl.exp2(decay)[:, None]).to(dy.dtype)
                carry = tl.dot(tl.trans(dy), weighted, carry * tl.exp2(total))
            if HAS_DBEGIN:
                tl.store(dbegin_ptr + (which.to(tl.int64) * heads + head) * (P * N) + here, carry)
