# mypy: disable-error-code="assignment, misc, var-annotated"
# (a tuple grows in an unrolled loop, which only Triton's compiler sees)
"""Backward kernels of the selective scan and of the fused block (C2 and C6).

With G_t the adjoint of g_t (see `scan_forward`): G_t = C_t dy_t + exp(dt_{t+1} A) G_{t+1}, and with
p_t = exp(dt_t A) g_{t-1} every gradient is a product of G_t, p_t and the token's own operands.

`scan_ends.chunk_ends` gives what a chunk adds to the state it leaves and to the adjoint of the state it met;
`combine_chunks` joins the chunks, forward and in reverse; `scan_gradient` then needs no other chunk. Its
tiles are those of `scan_tiles`. Sums over channels (dB, dC) are partial sums of a program's BLOCK channels,
added afterwards in a fixed order. No atomics: the same input gives the same bits.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E, sigmoid, silu, silu_slope
from lethe.kernels.mamba3.scan_ends import token_operands
from lethe.kernels.mamba3.scan_tiles import (
    convolved,
    joined,
    load_channels,
    load_taps,
    load_tile,
    load_window,
    token_tile,
)


@triton.jit
def scan_gradient(
    dy_ptr, u_ptr, dt_ptr, weight_ptr, skip_ptr, z_ptr, A_ptr, Bs_ptr, Cs_ptr, D_ptr, dt_bias_ptr, conv_ptr,
    conv_bias_ptr, entry_ptr, exit_ptr,
    du_ptr, ddt_ptr, dweight_ptr, dskip_ptr, dz_ptr, dA_ptr, dB_ptr, dC_ptr, dD_ptr, dbias_ptr, dconv_ptr,
    dbegin_ptr,
    dy_sb, dy_sl, u_sb, u_sl, dt_sb, dt_sl, z_sb, z_sl,
    length, chunks, width, n, taps, none,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr, HAS_EXIT: tl.constexpr,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All gradients of one chunk of ROWS * LANES tokens. Grid (B, cdiv(D, BLOCK), NC).

    Outputs: du, ddt, dz [B, L, D] in io dtype (du is float32, and the adjoint of the convolution's output,
    with HAS_CONV); dweight, dskip [B, L, D] float32. Partial sums, float32: dA [B * NC, N, D]; dB, dC
    [grid 1, B, N, NC * ROWS * LANES]; dD, dbias [B * NC, D]; dconv [5, B * NC, D] (four lags, then the
    bias). dbegin [B, N, D] is the adjoint of the state that the first chunk met. `none` is zero, which the
    compiler does not know: else it keeps the addresses of the first loop's operands for the last one, in
    registers that the loop over states needs.
    """
    batch = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    part = tl.program_id(2)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, LANES)
    t0 = part * (ROWS * LANES) + row * ROWS
    dy_ptr += batch * dy_sb
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    z_ptr += batch * z_sb
    dense = batch * length * width
    weight_ptr += dense
    skip_ptr += dense
    steps, inputs, adjoints = token_operands(
        dy_ptr, u_ptr, dt_ptr, weight_ptr, z_ptr, dt_bias_ptr, conv_ptr, conv_bias_ptr,
        dy_sl, u_sl, dt_sl, z_sl, t0, channel, length, width, taps,
        HAS_WEIGHT, SOFTPLUS, HAS_BIAS, HAS_CONV, HAS_Z, ROWS,
    )  # fmt: skip
    place = batch * chunks + part
    entry_ptr += place * width * n
    exit_ptr += place * width * n
    dA_ptr += place * width * n
    padded = chunks * (ROWS * LANES)
    Bs_ptr += batch * n * padded
    Cs_ptr += batch * n * padded
    sums = (block * tl.num_programs(0).to(tl.int64) + batch) * n * padded
    dB_ptr += sums
    dC_ptr += sums
    zero = tl.zeros([LANES, BLOCK], tl.float32)
    blank = tl.zeros([LANES, BLOCK], tl.int32)
    at = blank + channel[None, :]
    lane = blank + row[:, None]
    inside = at < width
    known = channel < width
    first = lane == 0
    last = lane == LANES - 1
    if LANES > 1:
        previous = tl.maximum(lane - 1, 0)
        following = tl.minimum(lane + 1, LANES - 1)
        total = steps[0]
        for j in tl.static_range(1, ROWS):
            total += steps[j]
        before = tl.gather(total, previous, 0)
        behind = tl.gather(total, following, 0)

    ys = ()
    dinputs = ()
    dlogs = ()
    for _ in tl.static_range(ROWS):
        ys = ys + (zero,)  # noqa: RUF005
        dinputs = dinputs + (zero,)  # noqa: RUF005
        dlogs = dlogs + (zero,)  # noqa: RUF005
    for state in range(n):
        A = tl.load(A_ptr + state * width + channel, mask=known, other=0.0).to(tl.float32)[None, :] * LOG2E
        g = zero
        if HAS_ENTRY:
            g += tl.load(entry_ptr + state * width + channel, mask=known, other=0.0)[None, :]
        G = zero
        if HAS_EXIT:
            G += tl.load(exit_ptr + state * width + channel, mask=known, other=0.0)[None, :]
        B_row = Bs_ptr + state * padded + t0
        C_row = Cs_ptr + state * padded + t0
        dB_row = dB_ptr + state * padded + t0
        dC_row = dC_ptr + state * padded + t0
        decays = ()
        Bs = ()
        Cs = ()
        for j in tl.static_range(ROWS):
            decays = decays + (tl.exp2(steps[j] * A),)  # noqa: RUF005
            Bs = Bs + (tl.load(B_row + j)[:, None],)  # noqa: RUF005
            Cs = Cs + (tl.load(C_row + j)[:, None],)  # noqa: RUF005
        if LANES > 1:
            # What every lane's own tokens add, then joined over the lanes: what each lane meets.
            own = inputs[0] * Bs[0]
            for j in tl.static_range(1, ROWS):
                own = tl.fma(inputs[j], Bs[j], decays[j] * own)
            own = tl.where(first, g, tl.gather(own, previous, 0))
            g = joined(tl.exp2(before * A), own, lane, LANES, 1)
            own = zero
            for j in tl.static_range(ROWS):
                own = decays[ROWS - 1 - j] * tl.fma(adjoints[ROWS - 1 - j], Cs[ROWS - 1 - j], own)
            own = tl.where(last, G, tl.gather(own, following, 0))
            G = joined(tl.exp2(behind * A), own, lane, LANES, -1)
        carried = ()
        grown = ()
        for j in tl.static_range(ROWS):
            p = decays[j] * g
            g = tl.fma(inputs[j], Bs[j], p)
            carried = carried + (p,)  # noqa: RUF005
            dC = tl.sum(g * adjoints[j], 1)
            tl.store(dC_row + j, dC)
            grown = grown + ((ys[j] + g * Cs[j]) if HAS_Z else zero,)  # noqa: RUF005
        ys = grown
        dA = zero
        swept_inputs = ()
        swept_logs = ()
        for i in tl.static_range(ROWS):
            G = tl.fma(adjoints[ROWS - 1 - i], Cs[ROWS - 1 - i], G)
            dB = tl.sum(G * inputs[ROWS - 1 - i], 1)
            tl.store(dB_row + (ROWS - 1 - i), dB)
            dlog = G * carried[ROWS - 1 - i]
            if RAGGED:
                # Past the end G is zero and p the last state: zero times its NaN is no gradient.
                dlog = tl.where((t0 + (ROWS - 1 - i) < length)[:, None], dlog, 0.0)
            dA += dlog * steps[ROWS - 1 - i]
            swept_inputs = (dinputs[ROWS - 1 - i] + G * Bs[ROWS - 1 - i],) + swept_inputs  # noqa: RUF005
            swept_logs = (dlogs[ROWS - 1 - i] + dlog * A,) + swept_logs  # noqa: RUF005
            G *= decays[ROWS - 1 - i]
        dinputs = swept_inputs
        dlogs = swept_logs
        tl.store(dA_ptr + state * width + channel, tl.sum(dA, 0), mask=known)
        if part == 0:
            tl.store(dbegin_ptr + (batch * n + state) * width + at, G, mask=inside & first)

    t0 += none
    channel += none
    bias = zero
    if HAS_BIAS:
        bias = load_channels(dt_bias_ptr, channel, width, blank)
    D = zero
    if HAS_D:
        D = load_channels(D_ptr, channel, width, blank)
    if HAS_CONV:
        w0, w1, w2, w3, wb = load_window(conv_ptr, conv_bias_ptr, channel, width, taps, blank)
    dD = zero
    dbias = zero
    dw0 = zero
    dw1 = zero
    dw2 = zero
    dw3 = zero
    dwb = zero
    for j in tl.static_range(ROWS):
        t = t0 + j
        io, mask = token_tile(t, width, channel, length, width)
        if HAS_CONV:
            x0, x1, x2, x3, conv = convolved(u_ptr, t, u_sl, channel, length, width, w0, w1, w2, w3, wb)
            u = tl.where(mask, silu(conv), 0.0)
        else:
            u = load_tile(u_ptr, t, u_sl, channel, length, width).to(tl.float32)
        dy = load_tile(dy_ptr, t, dy_sl, channel, length, width).to(tl.float32)
        w = steps[j]
        skip = D
        if HAS_WEIGHT:
            w = tl.load(weight_ptr + io, mask=mask, other=0.0)
            skip += tl.load(skip_ptr + io, mask=mask, other=0.0)
        if HAS_Z:
            y = ys[j]
            if HAS_D or HAS_WEIGHT:
                y += skip * u
            z = load_tile(z_ptr, t, z_sl, channel, length, width).to(tl.float32)
            dz = dy * y * silu_slope(z)
            tl.store(dz_ptr + dense + io, dz.to(dz_ptr.dtype.element_ty), mask=mask)
            dy *= silu(z)
        du = w * dinputs[j]
        if HAS_D or HAS_WEIGHT:
            du += skip * dy
        if HAS_D:
            dD += dy * u
        ddt = dlogs[j] * (1.0 / LOG2E)
        if HAS_WEIGHT:
            tl.store(dweight_ptr + dense + io, dinputs[j] * u, mask=mask)
            tl.store(dskip_ptr + dense + io, dy * u, mask=mask)
        else:
            ddt += dinputs[j] * u
        if SOFTPLUS:
            ddt *= sigmoid(load_tile(dt_ptr, t, dt_sl, channel, length, width).to(tl.float32) + bias)
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
        tl.store(du_ptr + dense + io, du.to(du_ptr.dtype.element_ty), mask=mask)
        tl.store(ddt_ptr + dense + io, ddt.to(ddt_ptr.dtype.element_ty), mask=mask)
    lane = place * width + channel
    known = channel < width
    if HAS_D:
        tl.store(dD_ptr + lane, tl.sum(dD, 0), mask=known)
    if HAS_BIAS:
        tl.store(dbias_ptr + lane, tl.sum(dbias, 0), mask=known)
    if HAS_CONV:
        plane = tl.num_programs(0).to(tl.int64) * chunks * width
        tl.store(dconv_ptr + lane, tl.sum(dw0, 0), mask=known)
        tl.store(dconv_ptr + plane + lane, tl.sum(dw1, 0), mask=known)
        tl.store(dconv_ptr + 2 * plane + lane, tl.sum(dw2, 0), mask=known)
        tl.store(dconv_ptr + 3 * plane + lane, tl.sum(dw3, 0), mask=known)
        tl.store(dconv_ptr + 4 * plane + lane, tl.sum(dwb, 0), mask=known)


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
