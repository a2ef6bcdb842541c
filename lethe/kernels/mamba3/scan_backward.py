# mypy: disable-error-code="assignment"
# (a tuple grows in an unrolled loop, which only Triton's compiler sees)
"""Backward kernels of the selective scan and of the fused block (C2 and C6).

With G_t the adjoint of g_t (see `scan_forward`): G_t = C_t dy_t + exp(dt_{t+1} A) G_{t+1}, and with
p_t = exp(dt_t A) g_{t-1} every gradient is a product of G_t, p_t and the token's own operands.

`chunk_adjoint` gives what a chunk adds to the adjoint of the state it met; `combine_chunks` in reverse
joins the chunks. `scan_gradient` then replays its chunk forward once, leaving a checkpoint every SPAN
tokens, and sweeps it backward: SPAN tokens are recomputed from their checkpoint, their p_t stay in
registers. The tile [DR, N, DL] splits the channels over registers (DR) and lanes (DL), so the sums over
channels (dB, dC) need only log2(DL) shuffles; each program writes its own partial sums, which are added
afterwards in a fixed order. No atomics: the same input gives the same bits.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E, sigmoid, silu, silu_slope
from lethe.kernels.mamba3.scan_forward import (
    bounded,
    load_row,
    load_taps,
    over_states,
    state_tile,
    step_size,
)


@triton.jit
def chunk_adjoint(
    dy_ptr, dt_ptr, z_ptr, A_ptr, C_ptr, dt_bias_ptr, local_ptr, total_ptr,
    dy_sb, dy_sl, dt_sb, dt_sl, z_sb, z_sl, C_sb, C_sl,
    length, chunk, chunks, width, n,
    SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr,
    NB: tl.constexpr, DR: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the adjoint of the state it met [B, NC, N, D]; its summed steps [B, NC, D].

    Grid (B, cdiv(D, DR * DL), NC).
    """
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel, inside, state, known, at, both, A = state_tile(A_ptr, tl.program_id(1), width, n, NB, DR, DL)
    bias = tl.zeros([DR, DL], tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    dy_ptr += batch * dy_sb
    dt_ptr += batch * dt_sb
    z_ptr += batch * z_sb
    C_ptr += batch * C_sb
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    G = tl.zeros([DR, NB, DL], tl.float32)
    total = tl.zeros([DR, DL], tl.float32)
    next_dy = load_row(dy_ptr, end - 1, dy_sl, channel, inside)
    next_dt = load_row(dt_ptr, end - 1, dt_sl, channel, inside)
    next_C = load_row(C_ptr, end - 1, C_sl, state, known)
    for back in range(end - begin):
        t = end - 1 - back
        dy = next_dy.to(tl.float32)
        dt = step_size(next_dt, bias, SOFTPLUS)
        C = next_C.to(tl.float32)
        more = t > begin
        next_dy = load_row(dy_ptr, t - 1, dy_sl, channel, bounded(channel, width, more))
        next_dt = load_row(dt_ptr, t - 1, dt_sl, channel, bounded(channel, width, more))
        next_C = load_row(C_ptr, t - 1, C_sl, state, bounded(state, n, more))
        if HAS_Z:
            dy *= silu(load_row(z_ptr, t, z_sl, channel, inside).to(tl.float32))
        G = tl.exp2(dt[:, None, :] * A) * (G + dy[:, None, :] * C[None, :, None])
        total += dt
    place = batch * chunks + part
    tl.store(local_ptr + place * width * n + at, G, mask=both)
    tl.store(total_ptr + place * width + channel, total, mask=inside)


@triton.jit
def _convolved(u_ptr, t, stride, channel, width, live, w0, w1, w2, w3, wb):
    """The inputs of tokens t, t-1, t-2, t-3 and the convolution's output at t, before SiLU."""
    x0 = load_row(u_ptr, t, stride, channel, bounded(channel, width, live)).to(tl.float32)
    x1 = load_row(u_ptr, t - 1, stride, channel, bounded(channel, width, live & (t > 0))).to(tl.float32)
    x2 = load_row(u_ptr, t - 2, stride, channel, bounded(channel, width, live & (t > 1))).to(tl.float32)
    x3 = load_row(u_ptr, t - 3, stride, channel, bounded(channel, width, live & (t > 2))).to(tl.float32)
    return x0, x1, x2, x3, w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + wb


@triton.jit
def scan_gradient(
    dy_ptr, u_ptr, dt_ptr, weight_ptr, skip_ptr, z_ptr, A_ptr, B_ptr, C_ptr, D_ptr, dt_bias_ptr, conv_ptr,
    conv_bias_ptr, entry_ptr, exit_ptr, scratch_ptr,
    du_ptr, ddt_ptr, dweight_ptr, dskip_ptr, dz_ptr, dA_ptr, dB_ptr, dC_ptr, dD_ptr, dbias_ptr, dconv_ptr,
    dbegin_ptr,
    dy_sb, dy_sl, u_sb, u_sl, dt_sb, dt_sl, z_sb, z_sl, B_sb, B_sl, C_sb, C_sl,
    length, chunk, chunks, spans, width, n, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr, HAS_EXIT: tl.constexpr,
    PADDED: tl.constexpr, NB: tl.constexpr, DR: tl.constexpr, DL: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """All gradients of one chunk. Grid (B, cdiv(D, DR * DL), NC).

    Outputs: du, ddt, dz [B, L, D] in io dtype (du is float32, and the adjoint of the convolution's output,
    with HAS_CONV); dweight, dskip [B, L, D] float32. Partial sums, float32: dA [B * NC, N, D]; dB, dC
    [grid 1, B, L, N]; dD, dbias [B * NC, D]; dconv [5, B * NC, D] (four lags, then the bias). dbegin
    [B, N, D] is the adjoint of the state that the first chunk met. Scratch: [B, NC, spans, N, D] float32.
    """
    batch = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    part = tl.program_id(2)
    channel, inside, state, known, at, both, A = state_tile(A_ptr, block, width, n, NB, DR, DL)
    bias = tl.zeros([DR, DL], tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    D = tl.zeros([DR, DL], tl.float32)
    if HAS_D:
        D = tl.load(D_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    if HAS_CONV:
        w0 = load_taps(conv_ptr, channel, width, taps, 0)
        w1 = load_taps(conv_ptr, channel, width, taps, 1)
        w2 = load_taps(conv_ptr, channel, width, taps, 2)
        w3 = load_taps(conv_ptr, channel, width, taps, 3)
        wb = tl.load(conv_bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    dense = batch * length * width
    dy_ptr += batch * dy_sb
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    z_ptr += batch * z_sb
    B_ptr += batch * B_sb
    C_ptr += batch * C_sb
    weight_ptr += dense
    skip_ptr += dense
    shared = (block * tl.num_programs(0).to(tl.int64) + batch) * length * n
    place = batch * chunks + part
    scratch_ptr += place * spans * width * n
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    used = tl.cdiv(end - begin, SPAN)

    g = tl.zeros([DR, NB, DL], tl.float32)
    if HAS_ENTRY:
        g = tl.load(entry_ptr + place * width * n + at, mask=both, other=0.0)
    for span in range(used):
        tl.store(scratch_ptr + span * (width * n) + at, g, mask=both)
        for j in tl.static_range(SPAN):
            t = begin + span * SPAN + j
            live = t < end
            dt = step_size(load_row(dt_ptr, t, dt_sl, channel, bounded(channel, width, live)), bias, SOFTPLUS)
            dt = tl.where(live, dt, 0.0)
            if HAS_CONV:
                _, _, _, _, conv = _convolved(u_ptr, t, u_sl, channel, width, live, w0, w1, w2, w3, wb)
                u = tl.where(live, silu(conv), 0.0)
            else:
                u = load_row(u_ptr, t, u_sl, channel, bounded(channel, width, live)).to(tl.float32)
            B = load_row(B_ptr, t, B_sl, state, bounded(state, n, live)).to(tl.float32)
            w = dt
            if HAS_WEIGHT:
                w = load_row(weight_ptr, t, width, channel, bounded(channel, width, live))
            g = tl.exp2(dt[:, None, :] * A) * g + (w * u)[:, None, :] * B[None, :, None]
    tl.debug_barrier()  # the checkpoints are read back by the program that wrote them

    G = tl.zeros([DR, NB, DL], tl.float32)
    if HAS_EXIT:
        G = tl.load(exit_ptr + place * width * n + at, mask=both, other=0.0)
    dA = tl.zeros([DR, NB, DL], tl.float32)
    dD = tl.zeros([DR, DL], tl.float32)
    dbias = dD
    dw0 = dD
    dw1 = dD
    dw2 = dD
    dw3 = dD
    dwb = dD
    for back in range(used):
        first = begin + (used - 1 - back) * SPAN
        g = tl.load(scratch_ptr + (used - 1 - back) * (width * n) + at, mask=both, other=0.0)
        carried = ()
        for j in tl.static_range(SPAN):
            t = first + j
            live = t < end
            dt = step_size(load_row(dt_ptr, t, dt_sl, channel, bounded(channel, width, live)), bias, SOFTPLUS)
            dt = tl.where(live, dt, 0.0)
            if HAS_CONV:
                _, _, _, _, conv = _convolved(u_ptr, t, u_sl, channel, width, live, w0, w1, w2, w3, wb)
                u = tl.where(live, silu(conv), 0.0)
            else:
                u = load_row(u_ptr, t, u_sl, channel, bounded(channel, width, live)).to(tl.float32)
            B = load_row(B_ptr, t, B_sl, state, bounded(state, n, live)).to(tl.float32)
            w = dt
            if HAS_WEIGHT:
                w = load_row(weight_ptr, t, width, channel, bounded(channel, width, live))
            p = tl.exp2(dt[:, None, :] * A) * g
            carried = carried + (p,)  # noqa: RUF005 (a jit function has no unpacking)
            g = p + (w * u)[:, None, :] * B[None, :, None]
        for j in tl.static_range(SPAN):
            t = first + SPAN - 1 - j
            live = t < end
            mask = bounded(channel, width, live)
            raw = load_row(dt_ptr, t, dt_sl, channel, mask)
            dt = tl.where(live, step_size(raw, bias, SOFTPLUS), 0.0)
            B = load_row(B_ptr, t, B_sl, state, bounded(state, n, live)).to(tl.float32)
            C = load_row(C_ptr, t, C_sl, state, bounded(state, n, live)).to(tl.float32)
            dy = load_row(dy_ptr, t, dy_sl, channel, mask).to(tl.float32)
            if HAS_CONV:
                x0, x1, x2, x3, conv = _convolved(u_ptr, t, u_sl, channel, width, live, w0, w1, w2, w3, wb)
                u = tl.where(live, silu(conv), 0.0)
            else:
                u = load_row(u_ptr, t, u_sl, channel, mask).to(tl.float32)
            w = dt
            skip = D
            if HAS_WEIGHT:
                w = load_row(weight_ptr, t, width, channel, mask)
                skip += load_row(skip_ptr, t, width, channel, mask)
            p = carried[SPAN - 1 - j]
            g = p + (w * u)[:, None, :] * B[None, :, None]
            if HAS_Z:
                z = load_row(z_ptr, t, z_sl, channel, mask).to(tl.float32)
                y = over_states(g * C[None, :, None], known, PADDED)
                if HAS_D or HAS_WEIGHT:
                    y += skip * u
                dz = dy * y * silu_slope(z)
                tl.store(dz_ptr + dense + t * width + channel, dz.to(dz_ptr.dtype.element_ty), mask=mask)
                dy *= silu(z)
            G += dy[:, None, :] * C[None, :, None]
            dC = tl.sum(tl.sum(g * dy[:, None, :], 0), 1)
            dB = tl.sum(tl.sum(G * (w * u)[:, None, :], 0), 1)
            tl.store(dC_ptr + shared + t * n + state, dC, mask=bounded(state, n, live))
            tl.store(dB_ptr + shared + t * n + state, dB, mask=bounded(state, n, live))
            dinput = over_states(G * B[None, :, None], known, PADDED)
            # Past the chunk's end G is zero and p the last state: zero times its NaN is no gradient.
            dlog = tl.where(live, G * p, 0.0)
            dA += dlog * dt[:, None, :]
            ddt = over_states(dlog * A, known, PADDED) * (1.0 / LOG2E)
            du = w * dinput
            if HAS_D or HAS_WEIGHT:
                du += skip * dy
            if HAS_D:
                dD += dy * u
            if HAS_WEIGHT:
                tl.store(dweight_ptr + dense + t * width + channel, dinput * u, mask=mask)
                tl.store(dskip_ptr + dense + t * width + channel, dy * u, mask=mask)
            else:
                ddt += dinput * u
            if SOFTPLUS:
                ddt *= sigmoid(raw.to(tl.float32) + bias)
            ddt = tl.where(mask, ddt, 0.0)
            if HAS_BIAS:
                dbias += ddt
            if HAS_CONV:
                du = tl.where(mask, du * silu_slope(conv), 0.0)
                dw0 += du * x0
                dw1 += du * x1
                dw2 += du * x2
                dw3 += du * x3
                dwb += du
            tl.store(du_ptr + dense + t * width + channel, du.to(du_ptr.dtype.element_ty), mask=mask)
            tl.store(ddt_ptr + dense + t * width + channel, ddt.to(ddt_ptr.dtype.element_ty), mask=mask)
            G *= tl.exp2(dt[:, None, :] * A)
    tl.store(dA_ptr + place * width * n + at, dA, mask=both)
    if part == 0:
        tl.store(dbegin_ptr + batch * width * n + at, G, mask=both)
    lane = place * width + channel
    if HAS_D:
        tl.store(dD_ptr + lane, dD, mask=inside)
    if HAS_BIAS:
        tl.store(dbias_ptr + lane, dbias, mask=inside)
    if HAS_CONV:
        plane = tl.num_programs(0).to(tl.int64) * chunks * width
        tl.store(dconv_ptr + lane, dw0, mask=inside)
        tl.store(dconv_ptr + plane + lane, dw1, mask=inside)
        tl.store(dconv_ptr + 2 * plane + lane, dw2, mask=inside)
        tl.store(dconv_ptr + 3 * plane + lane, dw3, mask=inside)
        tl.store(dconv_ptr + 4 * plane + lane, dwb, mask=inside)


@triton.jit
def conv_gradient(
    dconv_ptr,  # [B, L, D] float32, dense
    weight_ptr,  # [D, taps]
    dx_ptr,  # out [B, L, D], dense
    length,
    width,
    taps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx_t = sum over lags of w_lag * dconv_{t+lag}. Grid (B, cdiv(L, ROWS), cdiv(D, BLOCK))."""
    batch = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < width
    dx = tl.zeros([ROWS, BLOCK], tl.float32)
    for lag in tl.static_range(4):
        w = load_taps(weight_ptr, channel, width, taps, lag)
        mask = (t + lag < length)[:, None] & inside[None, :]
        at = (batch * length + t + lag)[:, None] * width + channel[None, :]
        dx += tl.load(dconv_ptr + at, mask=mask, other=0.0) * w[None, :]
    at = (batch * length + t)[:, None] * width + channel[None, :]
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=(t < length)[:, None] & inside[None, :])
