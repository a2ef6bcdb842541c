"""Forward kernels of the selective scan and of the fused block (C1 and C5).

g_t = exp(dt_t A) g_{t-1} + w_t u_t B_t and y_t = (C_t . g_t + (D + skip_t) u_t) silu(z_t), where w = dt
(exponential-Euler). The exponential-trapezoidal rule has the same form with w and skip given: w is the
token's weight with the half that the next token would have added, skip takes that half back from y_t.

A [N, D] and the states are kept with adjacent channels. A program owns DR * DL channels and all states of
one chunk of tokens; the tile [DR, N, DL] keeps a thread's states in registers, so the sum over n costs no
shuffle when DL fills the warp. The next token is loaded while the present one is computed. No shared
memory, no atomics, no tl.dot. With one chunk this is the serial mode; with several, `chunk_state` and
`combine_chunks` provide what each chunk starts from.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E, silu, softplus


@triton.jit
def bounded(index, size, live):
    """index < size where `live`, a scalar, holds; nowhere else."""
    return index < tl.where(live, size, 0)


@triton.jit
def load_row(ptr, t, stride, channel, mask):
    """Row t of a [L, D] slice whose channels are adjacent, in its own dtype; zero where masked."""
    return tl.load(ptr + t * stride + channel, mask=mask, other=0.0)


@triton.jit
def tile_offsets(channel, state, width):
    """Offsets [DR, N, DL] into an array [N, D]: A, the states and the partial sums are stored so.

    The hint denies the adjacency of channels on purpose. Otherwise the compiler would choose the tile's
    layout for vector loads of these few values and keep it, with shuffles, in the loop over tokens.
    """
    return tl.max_contiguous(state[None, :, None] * width + channel[:, None, :], [1, 1, 1])


@triton.jit
def state_tile(A_ptr, block, width, n, NB: tl.constexpr, DR: tl.constexpr, DL: tl.constexpr):
    """The tile of a program: its channels [DR, DL] and states [N], which of them exist, their offsets into
    arrays [N, D] [DR, N, DL] with the mask, and the rates A in units of log 2."""
    channel = block * (DR * DL) + tl.arange(0, DR)[:, None] * DL + tl.arange(0, DL)[None, :]
    inside = channel < width
    state = tl.arange(0, NB)
    known = state < n
    at = tile_offsets(channel, state, width)
    both = inside[:, None, :] & known[None, :, None]
    A = tl.load(A_ptr + at, mask=both, other=0.0).to(tl.float32) * LOG2E
    return channel, inside, state, known, at, both, A


@triton.jit
def over_states(v, known, PADDED: tl.constexpr):
    """The sum of a tile [DR, N, DL] over its states; padding lanes may hold infinity times zero, a NaN."""
    if PADDED:
        v = tl.where(known[None, :, None], v, 0.0)
    return tl.sum(v, 1)


@triton.jit
def step_size(raw, bias, SOFTPLUS: tl.constexpr):
    dt = raw.to(tl.float32) + bias
    if SOFTPLUS:
        dt = softplus(dt)
    return dt


@triton.jit
def load_taps(weight_ptr, channel, width, taps, LAG: tl.constexpr):
    """The convolution weight [D, taps] that meets the input LAG tokens back; zero beyond the window."""
    return tl.load(
        weight_ptr + channel * taps + (taps - 1 - LAG), mask=bounded(channel, width, taps > LAG), other=0.0
    ).to(tl.float32)


@triton.jit
def chunk_state(
    u_ptr, dt_ptr, weight_ptr, A_ptr, B_ptr, dt_bias_ptr, conv_ptr, conv_bias_ptr, local_ptr, total_ptr,
    u_sb, u_sl, dt_sb, dt_sl, B_sb, B_sl,
    length, chunk, chunks, width, n, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    NB: tl.constexpr, DR: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the state [B, NC, N, D], and the sum of its steps [B, NC, D].

    Grid (B, cdiv(D, DR * DL), NC).
    """
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel, inside, state, known, at, both, A = state_tile(A_ptr, tl.program_id(1), width, n, NB, DR, DL)
    bias = tl.zeros([DR, DL], tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    B_ptr += batch * B_sb
    weight_ptr += batch * length * width
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    x1 = tl.zeros([DR, DL], tl.float32)
    x2 = x1
    x3 = x1
    if HAS_CONV:
        w0 = load_taps(conv_ptr, channel, width, taps, 0)
        w1 = load_taps(conv_ptr, channel, width, taps, 1)
        w2 = load_taps(conv_ptr, channel, width, taps, 2)
        w3 = load_taps(conv_ptr, channel, width, taps, 3)
        wb = tl.load(conv_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        x1 = load_row(u_ptr, begin - 1, u_sl, channel, bounded(channel, width, begin > 0)).to(tl.float32)
        x2 = load_row(u_ptr, begin - 2, u_sl, channel, bounded(channel, width, begin > 1)).to(tl.float32)
        x3 = load_row(u_ptr, begin - 3, u_sl, channel, bounded(channel, width, begin > 2)).to(tl.float32)
    g = tl.zeros([DR, NB, DL], tl.float32)
    total = tl.zeros([DR, DL], tl.float32)
    next_u = load_row(u_ptr, begin, u_sl, channel, inside)
    next_dt = load_row(dt_ptr, begin, dt_sl, channel, inside)
    next_B = load_row(B_ptr, begin, B_sl, state, known)
    for t in range(begin, end):
        u = next_u.to(tl.float32)
        dt = step_size(next_dt, bias, SOFTPLUS)
        B = next_B.to(tl.float32)
        more = t + 1 < end
        next_u = load_row(u_ptr, t + 1, u_sl, channel, bounded(channel, width, more))
        next_dt = load_row(dt_ptr, t + 1, dt_sl, channel, bounded(channel, width, more))
        next_B = load_row(B_ptr, t + 1, B_sl, state, bounded(state, n, more))
        if HAS_CONV:
            x0 = u
            u = silu(w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + wb)
            x3 = x2
            x2 = x1
            x1 = x0
        w = dt
        if HAS_WEIGHT:
            w = load_row(weight_ptr, t, width, channel, inside)
        g = tl.exp2(dt[:, None, :] * A) * g + (w * u)[:, None, :] * B[None, :, None]
        total += dt
    place = batch * chunks + part
    tl.store(local_ptr + place * width * n + at, g, mask=both)
    tl.store(total_ptr + place * width + channel, total, mask=inside)


@triton.jit
def scan_output(
    u_ptr, dt_ptr, weight_ptr, skip_ptr, z_ptr, A_ptr, B_ptr, C_ptr, D_ptr, dt_bias_ptr, conv_ptr,
    conv_bias_ptr, entry_ptr, y_ptr, final_ptr,
    u_sb, u_sl, dt_sb, dt_sl, z_sb, z_sl, B_sb, B_sl, C_sb, C_sl,
    length, chunk, chunks, width, n, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr,
    PADDED: tl.constexpr, NB: tl.constexpr, DR: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """The outputs y [B, L, D] and the final state [B, N, D], from the state that each chunk meets.

    Grid (B, cdiv(D, DR * DL), NC).
    """
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel, inside, state, known, at, both, A = state_tile(A_ptr, tl.program_id(1), width, n, NB, DR, DL)
    bias = tl.zeros([DR, DL], tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    D = tl.zeros([DR, DL], tl.float32)
    if HAS_D:
        D = tl.load(D_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    z_ptr += batch * z_sb
    B_ptr += batch * B_sb
    C_ptr += batch * C_sb
    dense = batch * length * width
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    x1 = tl.zeros([DR, DL], tl.float32)
    x2 = x1
    x3 = x1
    if HAS_CONV:
        w0 = load_taps(conv_ptr, channel, width, taps, 0)
        w1 = load_taps(conv_ptr, channel, width, taps, 1)
        w2 = load_taps(conv_ptr, channel, width, taps, 2)
        w3 = load_taps(conv_ptr, channel, width, taps, 3)
        wb = tl.load(conv_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        x1 = load_row(u_ptr, begin - 1, u_sl, channel, bounded(channel, width, begin > 0)).to(tl.float32)
        x2 = load_row(u_ptr, begin - 2, u_sl, channel, bounded(channel, width, begin > 1)).to(tl.float32)
        x3 = load_row(u_ptr, begin - 3, u_sl, channel, bounded(channel, width, begin > 2)).to(tl.float32)
    g = tl.zeros([DR, NB, DL], tl.float32)
    if HAS_ENTRY:
        g = tl.load(entry_ptr + (batch * chunks + part) * width * n + at, mask=both, other=0.0)
    next_u = load_row(u_ptr, begin, u_sl, channel, inside)
    next_dt = load_row(dt_ptr, begin, dt_sl, channel, inside)
    next_B = load_row(B_ptr, begin, B_sl, state, known)
    next_C = load_row(C_ptr, begin, C_sl, state, known)
    for t in range(begin, end):
        u = next_u.to(tl.float32)
        dt = step_size(next_dt, bias, SOFTPLUS)
        B = next_B.to(tl.float32)
        C = next_C.to(tl.float32)
        more = t + 1 < end
        next_u = load_row(u_ptr, t + 1, u_sl, channel, bounded(channel, width, more))
        next_dt = load_row(dt_ptr, t + 1, dt_sl, channel, bounded(channel, width, more))
        next_B = load_row(B_ptr, t + 1, B_sl, state, bounded(state, n, more))
        next_C = load_row(C_ptr, t + 1, C_sl, state, bounded(state, n, more))
        if HAS_CONV:
            x0 = u
            u = silu(w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + wb)
            x3 = x2
            x2 = x1
            x1 = x0
        w = dt
        skip = D
        if HAS_WEIGHT:
            w = load_row(weight_ptr + dense, t, width, channel, inside)
            skip += load_row(skip_ptr + dense, t, width, channel, inside)
        g = tl.exp2(dt[:, None, :] * A) * g + (w * u)[:, None, :] * B[None, :, None]
        y = over_states(g * C[None, :, None], known, PADDED)
        if HAS_D or HAS_WEIGHT:  # a skip of zero times infinity would be NaN
            y += skip * u
        if HAS_Z:
            y *= silu(load_row(z_ptr, t, z_sl, channel, inside).to(tl.float32))
        tl.store(y_ptr + dense + t * width + channel, y.to(y_ptr.dtype.element_ty), mask=inside)
    if part == chunks - 1:
        tl.store(final_ptr + batch * width * n + at, g, mask=both)
