"""Every gradient of a tile in one kernel, from the state that enters it and the adjoint of the leaving one.

With ``S_ij = (dy_i x_j) e^(G_i - G_j)`` for i >= j, ``w_j = e^(G_T - G_j)``, the entering state h and the
adjoint D of the leaving one (SPEC section 3 with M = 0, T = I; sums over the heads of a group where marked):

    u_j   = sum_{i>=j} (C_i B_j) e^(G_i - G_j) dy_i + w_j D B_j        dx_j = dt_j u_j + D_skip dy_j
    dB_j  = sum_heads [ w_j dt_j D^T x_j ] + sum_i (sum_heads S_ij dt_j) C_i
    dC_i  = sum_heads [ e^G_i h^T dy_i ]   + sum_j (sum_heads S_ij dt_j) B_j
    q_ij  = S_ij (C_i B_j);   r_i = e^G_i C_i (h^T dy_i);   c_j = w_j B_j (D^T x_j)
    f_t   = sum_{j<t} q_tj dt_j - dt_t sum_{i>t} q_it + r_t - dt_t c_t
    da_t  = sum_{i>=t} f_i + sum_j dt_j c_j + e^G_T <h, D>
    ddt_t = sum_{i>=t} q_it + c_t + A da_t,  through clamp and softplus;   dA = sum_t dt_t da_t

x meets u only through products that are there anyway, so that neither x nor dy passes through registers.
Where there is a gate, dy is what `gate` made of it. Products are laid out ``[j, i]``; S is summed over the
heads before it meets B and C, two products a tile instead of two a head. The diagonal of q is left out of f,
where it would cancel. Sums over heads or tiles leave as partial sums; nothing is atomic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lethe.kernels.ssd.tokens import last_of, sequence_at, sequence_of, step_slope


@triton.jit
def gradient(
    x_ptr, dt_ptr, A_ptr, bias_ptr, B_ptr, C_ptr, D_ptr, dy_ptr, cu_ptr,
    states_ptr, adjoints_ptr, step_ptr, decay_ptr,
    dx_ptr, ddt_ptr, dB_ptr, dC_ptr, dA_ptr, dbias_ptr, dD_ptr,
    sequences, length, tiles, heads, per_group, block_heads, tokens_all, low, high,
    x_sb, x_sl, x_sh, dt_sb, dt_sl, B_sb, B_sl, B_sg, C_sb, C_sl, C_sg, dy_sb, dy_sl, dy_sh, D_sh,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, VARLEN: tl.constexpr,
    SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr, D_WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: slots, groups * blocks of `block_heads` heads. dx, ddt are dense; dB, dC are
    [blocks, tokens_all, groups, N] float32; dA, dbias [slots, heads]; dD [slots, heads(, P)]."""
    slot = tl.program_id(0)
    blocks = tl.cdiv(per_group, block_heads)
    group = tl.program_id(1) // blocks
    block = tl.program_id(1) % blocks
    within = block * block_heads
    count = tl.minimum(block_heads, per_group - within)
    sequence = sequence_of(slot, cu_ptr, sequences, tiles, T, VARLEN)
    batch, start, tokens, base = sequence_at(sequence, cu_ptr, length, tiles, T, VARLEN)
    token = (slot - base) * T
    t = tl.arange(0, T)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    live = token + t < tokens
    b64 = batch.to(tl.int64)
    at = (start + token).to(tl.int64)
    if token >= tokens:
        for i in range(count):
            row = slot.to(tl.int64) * heads + group * per_group + within + i
            tl.store(dA_ptr + row, 0.0)
            if HAS_BIAS:
                tl.store(dbias_ptr + row, 0.0)
            if HAS_D:
                if D_WIDE:
                    tl.store(dD_ptr + row * P + p, tl.zeros((P,), tl.float32))
                else:
                    tl.store(dD_ptr + row, 0.0)
    else:
        bs = B_ptr + b64 * B_sb + at * B_sl + group * B_sg
        cs = C_ptr + b64 * C_sb + at * C_sl + group * C_sg
        b = tl.load(bs + t[:, None] * B_sl + n[None, :], mask=live[:, None], other=0.0)
        c = tl.load(cs + t[:, None] * C_sl + n[None, :], mask=live[:, None], other=0.0)
        dB = tl.zeros((T, N), tl.float32)
        dC = tl.zeros((T, N), tl.float32)
        shared = tl.zeros((T, T), tl.float32)
        for i in tl.range(0, count, num_stages=STAGES):
            head = group * per_group + within + i
            row = slot.to(tl.int64) * heads + head
            step = tl.load(step_ptr + row * T + t)
            decay = tl.load(decay_ptr + row * T + t)
            xs = x_ptr + b64 * x_sb + at * x_sl + head * x_sh
            ys = dy_ptr + b64 * dy_sb + at * dy_sl + head * dy_sh
            x = tl.load(xs + t[:, None] * x_sl + p[None, :], mask=live[:, None], other=0.0)
            dy = tl.load(ys + t[:, None] * dy_sl + p[None, :], mask=live[:, None], other=0.0)
            here = row * (P * N) + p[:, None] * N + n[None, :]
            state = tl.load(states_ptr + here)
            adjoint = tl.load(adjoints_ptr + here)
            product = tl.sum(tl.sum(state.to(tl.float32) * adjoint.to(tl.float32), 1), 0)
            h = state.to(x.dtype)
            d = adjoint.to(x.dtype)
            total = last_of(decay, T)
            late = tl.exp2(total - decay)
            early = tl.exp2(decay)
            dense = (b64 * length + at) * heads + head
            out = dense * P + t[:, None] * (heads * P) + p[None, :]
            fall = tl.exp2(tl.where(t[None, :] >= t[:, None], decay[None, :] - decay[:, None], float("-inf")))
            bc = tl.dot(b, tl.trans(c))
            pairs = tl.dot(x, tl.trans(dy))
            if HAS_D and not D_WIDE:
                trace = tl.where(t[None, :] == t[:, None], pairs, 0.0)
                tl.store(dD_ptr + row, tl.sum(tl.sum(trace, 1), 0))
            pairs = pairs * fall
            shared += pairs * step[:, None]
            pairs = pairs * bc
            own = tl.sum(tl.where(t[None, :] == t[:, None], pairs, 0.0), 1)
            pairs = tl.where(t[None, :] > t[:, None], pairs, 0.0)
            direct = tl.sum(pairs, 1)
            flow = tl.sum(pairs * step[:, None], 0) - direct * step
            mixed = bc * fall
            u = tl.dot(mixed.to(x.dtype), dy)
            u += tl.dot(b, tl.trans(d)) * late[:, None]
            dx = u * step[:, None]
            if HAS_D:
                skip = tl.load(D_ptr + head * D_sh)
                if D_WIDE:
                    skip = tl.load(D_ptr + head * D_sh + p)[None, :]
                    tl.store(dD_ptr + row * P + p, tl.sum(dy.to(tl.float32) * x.to(tl.float32), 0))
                dx += skip * dy.to(tl.float32)
            tl.store(dx_ptr + out, dx.to(x.dtype), mask=live[:, None])
            part = tl.dot(x, d)
            cross = tl.where(live, late * tl.sum(part * b.to(tl.float32), 1), 0.0)
            dB += part * (late * step)[:, None]
            part = tl.dot(dy, h)
            rows = tl.where(live, early * tl.sum(part * c.to(tl.float32), 1), 0.0)
            dC += part * early[:, None]
            columns = step * cross
            kept = tl.sum(columns, 0) + tl.exp2(total) * product
            da = tl.cumsum(flow + rows - columns, 0, reverse=True) + kept
            bias = 0.0
            if HAS_BIAS:
                bias = tl.load(bias_ptr + head)
            raw = tl.load(dt_ptr + b64 * dt_sb + (at + t) * dt_sl + head, mask=live, other=0.0).to(tl.float32)
            slope = step_slope(raw, bias, low, high, SOFTPLUS)
            ddt = tl.where(live, (direct + own + cross + tl.load(A_ptr + head) * da) * slope, 0.0)
            tl.store(ddt_ptr + dense + t * heads, ddt.to(ddt_ptr.dtype.element_ty), mask=live)
            tl.store(dA_ptr + row, tl.sum(step * da, 0))
            if HAS_BIAS:
                tl.store(dbias_ptr + row, tl.sum(ddt, 0))
        summed = shared.to(b.dtype)
        dB = tl.dot(summed, c, dB)
        dC = tl.dot(tl.trans(summed), b, dC)
        groups = heads // per_group
        place = ((block.to(tl.int64) * tokens_all + b64 * length + at) * groups + group) * N
        out = place + t[:, None] * (groups * N) + n[None, :]
        tl.store(dB_ptr + out, dB, mask=live[:, None])
        tl.store(dC_ptr + out, dC, mask=live[:, None])
