"""The parallel part of the forward pass: the output of a tile from the state that enters it.

``y_i = e^G_i C_i h + sum_{j<=i} (C_i B_j) e^(G_i - G_j) dt_j x_j + D x_i``, then the gate. A program owns a
tile and some heads of one group; ``C B^T`` is computed once for all of them.

The backward pass launches it too where there is a gate: instead of ``y silu(z)`` it then leaves the gate's
gradient ``dz = y dy silu'(z)``, for which y is computed again, which is cheaper than keeping it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lethe.kernels.ssd.tokens import sequence_at, sequence_of, sigmoid, silu


@triton.jit
def output(
    x_ptr, B_ptr, C_ptr, D_ptr, z_ptr, dy_ptr, cu_ptr, states_ptr, step_ptr, decay_ptr, y_ptr,
    sequences, length, tiles, heads, per_group, block_heads,
    x_sb, x_sl, x_sh, B_sb, B_sl, B_sg, C_sb, C_sl, C_sg, z_sb, z_sl, z_sh, dy_sb, dy_sl, dy_sh,
    y_sb, y_sl, y_sh, D_sh,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, VARLEN: tl.constexpr,
    HAS_D: tl.constexpr, D_WIDE: tl.constexpr, HAS_Z: tl.constexpr, HAS_DY: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: slots, groups * blocks of `block_heads` heads. With `HAS_DY` ``y`` is dz."""
    slot = tl.program_id(0)
    blocks = tl.cdiv(per_group, block_heads)
    group = tl.program_id(1) // blocks
    within = (tl.program_id(1) % blocks) * block_heads
    sequence = sequence_of(slot, cu_ptr, sequences, tiles, T, VARLEN)
    batch, start, tokens, base = sequence_at(sequence, cu_ptr, length, tiles, T, VARLEN)
    token = (slot - base) * T
    t = tl.arange(0, T)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    live = token + t < tokens
    b64 = batch.to(tl.int64)
    at = (start + token).to(tl.int64)
    if token < tokens:
        bs = B_ptr + b64 * B_sb + at * B_sl + group * B_sg
        cs = C_ptr + b64 * C_sb + at * C_sl + group * C_sg
        b = tl.load(bs + t[:, None] * B_sl + n[None, :], mask=live[:, None], other=0.0)
        c = tl.load(cs + t[:, None] * C_sl + n[None, :], mask=live[:, None], other=0.0)
        cb = tl.dot(c, tl.trans(b))
        for i in tl.range(0, tl.minimum(block_heads, per_group - within), num_stages=STAGES):
            head = group * per_group + within + i
            row = slot.to(tl.int64) * heads + head
            step = tl.load(step_ptr + row * T + t)
            decay = tl.load(decay_ptr + row * T + t)
            xs = x_ptr + b64 * x_sb + at * x_sl + head * x_sh
            x = tl.load(xs + t[:, None] * x_sl + p[None, :], mask=live[:, None], other=0.0)
            h = tl.load(states_ptr + row * (P * N) + p[:, None] * N + n[None, :]).to(x.dtype)
            fall = tl.where(t[:, None] >= t[None, :], decay[:, None] - decay[None, :], float("-inf"))
            mixed = (cb * tl.exp2(fall) * step[None, :]).to(x.dtype)
            y = tl.dot(c, tl.trans(h)) * tl.exp2(decay)[:, None]
            y = tl.dot(mixed, x, y)
            if HAS_D:
                if D_WIDE:
                    y += x.to(tl.float32) * tl.load(D_ptr + head * D_sh + p)[None, :]
                else:
                    y += x.to(tl.float32) * tl.load(D_ptr + head * D_sh)
            if HAS_Z:
                zs = z_ptr + b64 * z_sb + at * z_sl + head * z_sh
                z = tl.load(zs + t[:, None] * z_sl + p[None, :], mask=live[:, None], other=0.0).to(tl.float32)
                if HAS_DY:
                    ys = dy_ptr + b64 * dy_sb + at * dy_sl + head * dy_sh
                    dy = tl.load(ys + t[:, None] * dy_sl + p[None, :], mask=live[:, None], other=0.0)
                    s = sigmoid(z)
                    y = y * dy.to(tl.float32) * (s * (1.0 + z * (1.0 - s)))
                else:
                    y = y * silu(z)
            out = y_ptr + b64 * y_sb + at * y_sl + head * y_sh
            tl.store(out + t[:, None] * y_sl + p[None, :], y.to(x.dtype), mask=live[:, None])
