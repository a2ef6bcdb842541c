# mypy: disable-error-code="assignment, misc, var-annotated"
# (a tuple grows in an unrolled loop, which only Triton's compiler sees)
"""Forward kernels of the selective scan and of the fused block (C1 and C5).

g_t = exp(dt_t A) g_{t-1} + w_t u_t B_t and y_t = (C_t . g_t + (D + skip_t) u_t) silu(z_t), where w = dt
(exponential-Euler). The exponential-trapezoidal rule has the same form with w and skip given: w is the
token's weight with the half that the next token would have added, skip takes that half back from y_t.

A [N, D] and the states are kept with adjacent channels; tiles are those of `scan_tiles`. A program walks
through the segments of its chunk, and leaves the states in memory between two of them. With one chunk this is
the serial mode: it visits every token once. With several, `chunk_state` finds what each chunk adds and
`combine_chunks` what each meets, and `scan_output` needs no other chunk. No tl.dot, no atomics. What a
state's turn reads is asked for during the turn before.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E, silu
from lethe.kernels.mamba3.scan_tiles import (
    joined,
    later,
    load_channels,
    load_tile,
    load_window,
    token_input,
    token_tile,
)


@triton.jit
def _rate(A_ptr, state, channel, width):
    return tl.load(A_ptr + state * width + channel, mask=channel < width, other=0.0).to(tl.float32) * LOG2E


@triton.jit
def _column(ptr, state, state_stride, t, stride, length, RAGGED: tl.constexpr, ROWS: tl.constexpr):
    """One state of B or C at the tokens of each lane, a tuple [LANES]; zero beyond the sequence."""
    column = ()
    for j in tl.static_range(ROWS):
        at = ptr + state * state_stride + (t + j) * stride
        if RAGGED:
            value = tl.load(at, mask=t + j < length, other=0.0)
        else:
            value = tl.load(at)
        column = column + (value.to(tl.float32),)  # noqa: RUF005 (a jit function has no unpacking)
    return column


@triton.jit
def chunk_state(
    u_ptr, dt_ptr, weight_ptr, A_ptr, Bs_ptr, dt_bias_ptr, conv_ptr, conv_bias_ptr, local_ptr, total_ptr,
    u_sb, u_sl, dt_sb, dt_sl, B_sb, B_sl, B_sn,
    length, segments, chunks, width, n, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the state [B, NC, N, D], and the sum of its steps [B, NC, D].

    Grid (B, cdiv(D, BLOCK), NC); a chunk has `segments` of ROWS * LANES tokens.
    """
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    row = tl.arange(0, LANES)
    blank = tl.zeros([LANES, BLOCK], tl.int32)
    bias = 0.0
    if HAS_BIAS:
        bias = load_channels(dt_bias_ptr, channel, width, blank)
    window = ()
    if HAS_CONV:
        window = load_window(conv_ptr, conv_bias_ptr, channel, width, taps, blank)
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    Bs_ptr += batch * B_sb
    weight_ptr += batch * length * width
    place = batch * chunks + part
    local_ptr += place * width * n
    passed = tl.zeros([BLOCK], tl.float32)
    for segment in range(segments):
        t0 = (part * segments + segment) * (ROWS * LANES) + row * ROWS
        steps = ()
        inputs = ()
        total = tl.zeros([LANES, BLOCK], tl.float32)
        for j in tl.static_range(ROWS):
            dt, u, w = token_input(
                u_ptr, dt_ptr, weight_ptr, t0 + j, u_sl, dt_sl, channel, length, width, bias, window,
                HAS_WEIGHT, SOFTPLUS, HAS_CONV,
            )  # fmt: skip
            steps = steps + (dt,)  # noqa: RUF005
            inputs = inputs + (w * u,)  # noqa: RUF005
            total += dt
        whole = tl.sum(total, 0)
        after = later(total, blank + row[:, None], LANES)
        passed += whole
        next_A = _rate(A_ptr, 0, channel, width)
        next_B = _column(Bs_ptr, 0, B_sn, t0, B_sl, length, RAGGED, ROWS)
        for state in range(n):
            A = next_A
            B = next_B
            following = tl.minimum(state + 1, n - 1)
            next_A = _rate(A_ptr, following, channel, width)
            next_B = _column(Bs_ptr, following, B_sn, t0, B_sl, length, RAGGED, ROWS)
            at = local_ptr + state * width + channel
            met = tl.load(at, mask=known & (segment > 0), other=0.0)
            if LANES > 1:
                g = inputs[0] * B[0][:, None]
                for j in tl.static_range(1, ROWS):
                    g = tl.exp2(steps[j] * A[None, :]) * g + inputs[j] * B[j][:, None]
                g = tl.exp2(whole * A) * met + tl.sum(g * tl.exp2(after * A[None, :]), 0)
            else:
                g = met[None, :]
                for j in tl.static_range(ROWS):
                    g = tl.exp2(steps[j] * A[None, :]) * g + inputs[j] * B[j][:, None]
                g = tl.sum(g, 0)
            tl.store(at, g, mask=known)
        tl.debug_barrier()
    tl.store(total_ptr + place * width + channel, passed, mask=known)


@triton.jit
def scan_output(
    u_ptr, dt_ptr, weight_ptr, skip_ptr, z_ptr, A_ptr, Bs_ptr, Cs_ptr, D_ptr, dt_bias_ptr, conv_ptr,
    conv_bias_ptr, entry_ptr, carry_ptr, y_ptr, final_ptr,
    u_sb, u_sl, dt_sb, dt_sl, z_sb, z_sl, B_sb, B_sl, B_sn, C_sb, C_sl, C_sn,
    length, segments, chunks, width, n, taps, none,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The outputs y [B, L, D] and the final state [B, N, D], from the state that each chunk meets.

    Grid (B, cdiv(D, BLOCK), NC). Between two segments the states wait in `carry` [B, NC, N, D] or, those of
    the last chunk, in `final`: the program must be one warp where a chunk has several segments. `none` is
    zero, which the compiler does not know: else it keeps the addresses of the first loop for the last one, in
    registers that the loop over states needs.
    """
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, LANES)
    blank = tl.zeros([LANES, BLOCK], tl.int32)
    lane = blank + row[:, None]
    last = lane == LANES - 1
    bias = 0.0
    if HAS_BIAS:
        bias = load_channels(dt_bias_ptr, channel, width, blank)
    window = ()
    if HAS_CONV:
        window = load_window(conv_ptr, conv_bias_ptr, channel, width, taps, blank)
    D = tl.zeros([LANES, BLOCK], tl.float32)
    if HAS_D:
        D = load_channels(D_ptr, channel, width, blank)
    u_ptr += batch * u_sb
    dt_ptr += batch * dt_sb
    z_ptr += batch * z_sb
    Bs_ptr += batch * B_sb
    Cs_ptr += batch * C_sb
    dense = batch * length * width
    weight_ptr += dense
    skip_ptr += dense
    y_ptr += dense
    place = (batch * chunks + part) * width * n
    left_ptr = carry_ptr + place
    if part == chunks - 1:
        left_ptr = final_ptr + batch * width * n
    known = channel < width
    met_ptr = left_ptr
    live = known & False
    if HAS_ENTRY:
        met_ptr = entry_ptr + place
        live = known
    for segment in range(segments):
        t0 = (part * segments + segment) * (ROWS * LANES) + row * ROWS
        steps = ()
        inputs = ()
        ys = ()
        total = tl.zeros([LANES, BLOCK], tl.float32)
        for j in tl.static_range(ROWS):
            dt, u, w = token_input(
                u_ptr, dt_ptr, weight_ptr, t0 + j, u_sl, dt_sl, channel, length, width, bias, window,
                HAS_WEIGHT, SOFTPLUS, HAS_CONV,
            )  # fmt: skip
            y = tl.zeros([LANES, BLOCK], tl.float32)
            if HAS_D or HAS_WEIGHT:  # a skip of zero times infinity would be NaN
                skip = D
                if HAS_WEIGHT:
                    skip += load_tile(skip_ptr, t0 + j, width, channel, length, width)
                y = skip * u
            x = w * u
            if LANES > 1:
                # Moves nothing, but fixes the layout: else the loop over states would convert it.
                dt = tl.gather(dt, lane, 0)
                x = tl.gather(x, lane, 0)
            steps = steps + (dt,)  # noqa: RUF005
            inputs = inputs + (x,)  # noqa: RUF005
            ys = ys + (y,)  # noqa: RUF005
            total += dt
        if LANES > 1:
            previous = tl.maximum(lane - 1, 0)
            before = tl.gather(total, previous, 0)
        next_A = _rate(A_ptr, 0, channel, width)
        next_g = tl.load(met_ptr + channel, mask=live, other=0.0)
        for state in range(n):
            A = next_A[None, :]
            met = next_g[None, :]
            B = _column(Bs_ptr, state, B_sn, t0, B_sl, length, RAGGED, ROWS)
            C = _column(Cs_ptr, state, C_sn, t0, C_sl, length, RAGGED, ROWS)
            following = tl.minimum(state + 1, n - 1)
            next_A = _rate(A_ptr, following, channel, width)
            next_g = tl.load(met_ptr + following * width + channel, mask=live, other=0.0)
            decays = ()
            added = ()
            for j in tl.static_range(ROWS):
                decays = decays + (tl.exp2(steps[j] * A),)  # noqa: RUF005
                added = added + (inputs[j] * B[j][:, None],)  # noqa: RUF005
            g = met + tl.zeros([LANES, BLOCK], tl.float32)
            if LANES > 1:
                # What every lane's own tokens add, then joined over the lanes: what each lane meets.
                own = added[0]
                for j in tl.static_range(1, ROWS):
                    own = decays[j] * own + added[j]
                own = tl.where(lane == 0, g, tl.gather(own, previous, 0))
                g = joined(tl.exp2(before * A), own, lane, LANES, 1)
            grown = ()
            for j in tl.static_range(ROWS):
                g = decays[j] * g + added[j]
                grown = grown + (ys[j] + g * C[j][:, None],)  # noqa: RUF005
            ys = grown
            if segment + 1 < segments or part == chunks - 1:
                at = blank + channel[None, :]
                tl.store(left_ptr + state * width + at, g, mask=last & (at < width))
        t0 += none
        for j in tl.static_range(ROWS):
            y = ys[j]
            if HAS_Z:
                y *= silu(load_tile(z_ptr, t0 + j, z_sl, channel, length, width).to(tl.float32))
            at, mask = token_tile(t0 + j, width, channel, length, width)
            tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)
        met_ptr = left_ptr
        live = known
        tl.debug_barrier()
