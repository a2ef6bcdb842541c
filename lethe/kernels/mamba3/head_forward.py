"""Forward kernels of the rotated head scan (C4), SISO and MIMO.

With U_t = sum_r k^r x^r' (k rotated): h_t = a_t g_{t-1} + gamma_t U_t, y^i = q^i . h_t + D x^i, and
g_t = h_t + late_t U_t, where late_t = dt_{t+1} (1 - lam_{t+1}) is the half that the next token adds in the
exponential-trapezoidal rule (zero for exponential-Euler, and for the last token).

The state is kept as two tiles [N/2, P block], one for each member of the rotated pairs, so that a rotation
never moves data between threads; STEP and OFFSET say which dimensions pair. Programs own (head, P block,
chunk); one chunk is the serial mode. No tl.dot, no atomics.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import silu


@triton.jit
def rotated(ptr, bias_ptr, first, second, known, cos, sin):
    """R (row + bias) as its two halves, float32; ptr points at the row, first and second index it."""
    a = tl.load(ptr + first, mask=known, other=0.0).to(tl.float32)
    b = tl.load(ptr + second, mask=known, other=0.0).to(tl.float32)
    a += tl.load(bias_ptr + first, mask=known, other=0.0).to(tl.float32)
    b += tl.load(bias_ptr + second, mask=known, other=0.0).to(tl.float32)
    return a * cos - b * sin, a * sin + b * cos


@triton.jit
def projected(v, ptr, channel, inside, MIMO: tl.constexpr):
    """v times one rank's projection row, or v itself."""
    if MIMO:
        v = v * tl.load(ptr + channel, mask=inside, other=0.0).to(tl.float32)
    return v


@triton.jit
def head_chunk(
    k_ptr, v_ptr, decay_ptr, gamma_ptr, late_ptr, bias_ptr, cos_ptr, sin_ptr, mimo_x_ptr, local_ptr,
    total_ptr,
    k_sb, k_sl, k_sr, k_sg, v_sb, v_sl, v_sh,
    length, chunk, chunks, heads, per_group, n, width, angles,
    MIMO: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr, OFFSET: tl.constexpr,
    NB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the state [B, NC, H, N, P]; its log-decay [B, NC, H]. Grid (B * NC, H, P
    blocks)."""
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    part = tl.program_id(0) % chunks
    head = tl.program_id(1)
    channel = tl.program_id(2) * PB + tl.arange(0, PB)
    inside = channel < width
    pair = tl.arange(0, NB)
    known = pair < n // 2
    first = pair * STEP
    second = first + OFFSET
    k_ptr += batch * k_sb + (head // per_group) * k_sg
    v_ptr += batch * v_sb + head * v_sh
    scalar = (batch * heads + head) * length
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    ga = tl.zeros([NB, PB], tl.float32)
    gb = ga
    total = 0.0
    for t in range(begin, end):
        log = tl.load(decay_ptr + scalar + t)
        weight = tl.load(gamma_ptr + scalar + t) + tl.load(late_ptr + scalar + t)
        turn = ((batch * length + t) * heads + head) * angles + pair
        cos = tl.load(cos_ptr + turn, mask=pair < angles, other=1.0)
        sin = tl.load(sin_ptr + turn, mask=pair < angles, other=0.0)
        v = tl.load(v_ptr + t * v_sl + channel, mask=inside, other=0.0).to(tl.float32) * weight
        ga *= tl.exp(log)
        gb *= tl.exp(log)
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            ka, kb = rotated(k_ptr + t * k_sl + r * k_sr, bias_ptr + rank * n, first, second, known, cos, sin)
            x = projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
            ga += ka[:, None] * x[None, :]
            gb += kb[:, None] * x[None, :]
        total += log
    place = (batch * chunks + part) * heads + head
    both = known[:, None] & inside[None, :]
    tl.store(local_ptr + (place * n + first)[:, None] * width + channel[None, :], ga, mask=both)
    tl.store(local_ptr + (place * n + second)[:, None] * width + channel[None, :], gb, mask=both)
    tl.store(total_ptr + place, total)


@triton.jit
def head_output(
    q_ptr, k_ptr, v_ptr, z_ptr, decay_ptr, gamma_ptr, late_ptr, q_bias_ptr, k_bias_ptr, cos_ptr, sin_ptr,
    D_ptr,
    mimo_x_ptr, mimo_z_ptr, mimo_o_ptr, entry_ptr, out_ptr, final_ptr,
    q_sb, q_sl, q_sr, q_sg, k_sb, k_sl, k_sr, k_sg, v_sb, v_sl, v_sh, z_sb, z_sl, z_sh,
    length, chunk, chunks, heads, per_group, n, width, angles,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr,
    MIMO: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr, OFFSET: tl.constexpr,
    NB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """out [B, L, H, P] and the final state [B, H, N, P]. Grid (B * NC, H, P blocks)."""
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    part = tl.program_id(0) % chunks
    head = tl.program_id(1)
    channel = tl.program_id(2) * PB + tl.arange(0, PB)
    inside = channel < width
    pair = tl.arange(0, NB)
    known = pair < n // 2
    both = known[:, None] & inside[None, :]
    first = pair * STEP
    second = first + OFFSET
    q_ptr += batch * q_sb + (head // per_group) * q_sg
    k_ptr += batch * k_sb + (head // per_group) * k_sg
    v_ptr += batch * v_sb + head * v_sh
    z_ptr += batch * z_sb + head * z_sh
    scalar = (batch * heads + head) * length
    at_a = first[:, None] * width + channel[None, :]
    at_b = second[:, None] * width + channel[None, :]
    place = ((batch * chunks + part) * heads + head) * n * width
    ga = tl.zeros([NB, PB], tl.float32)
    gb = ga
    if HAS_ENTRY:
        ga = tl.load(entry_ptr + place + at_a, mask=both, other=0.0)
        gb = tl.load(entry_ptr + place + at_b, mask=both, other=0.0)
    skip = 0.0
    if HAS_D:
        skip = tl.load(D_ptr + head).to(tl.float32)
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    for t in range(begin, end):
        decay = tl.exp(tl.load(decay_ptr + scalar + t))
        gamma = tl.load(gamma_ptr + scalar + t)
        late = tl.load(late_ptr + scalar + t)
        token = (batch * length + t) * heads + head
        cos = tl.load(cos_ptr + token * angles + pair, mask=pair < angles, other=1.0)
        sin = tl.load(sin_ptr + token * angles + pair, mask=pair < angles, other=0.0)
        v = tl.load(v_ptr + t * v_sl + channel, mask=inside, other=0.0).to(tl.float32)
        Ua = tl.zeros([NB, PB], tl.float32)
        Ub = Ua
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            ka, kb = rotated(
                k_ptr + t * k_sl + r * k_sr, k_bias_ptr + rank * n, first, second, known, cos, sin
            )
            x = projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
            Ua += ka[:, None] * x[None, :]
            Ub += kb[:, None] * x[None, :]
        ha = decay * ga + gamma * Ua
        hb = decay * gb + gamma * Ub
        ga = ha + late * Ua
        gb = hb + late * Ub
        out = tl.zeros([PB], tl.float32)
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            qa, qb = rotated(
                q_ptr + t * q_sl + r * q_sr, q_bias_ptr + rank * n, first, second, known, cos, sin
            )
            y = tl.sum(ha * qa[:, None] + hb * qb[:, None], 0)
            y += skip * projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
            if HAS_Z:
                z = tl.load(z_ptr + t * z_sl + channel, mask=inside, other=0.0).to(tl.float32)
                y *= silu(projected(z, mimo_z_ptr + rank * width, channel, inside, MIMO))
            out += projected(y, mimo_o_ptr + rank * width, channel, inside, MIMO)
        tl.store(out_ptr + token * width + channel, out.to(out_ptr.dtype.element_ty), mask=inside)
    if part == chunks - 1:
        end_place = (batch * heads + head) * n * width
        tl.store(final_ptr + end_place + at_a, ga, mask=both)
        tl.store(final_ptr + end_place + at_b, gb, mask=both)
