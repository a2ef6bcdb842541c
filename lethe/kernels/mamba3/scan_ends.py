# mypy: disable-error-code="assignment, misc, var-annotated"
# (a tuple grows in an unrolled loop, which only Triton's compiler sees)
"""First part of the scan's backward pass (C2 and C6): what a chunk adds to its two ends, by `scan_tiles`."""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import LOG2E, silu
from lethe.kernels.mamba3.scan_tiles import earlier, later, load_channels, load_tile, load_window, token_input


@triton.jit
def token_operands(
    dy_ptr, u_ptr, dt_ptr, weight_ptr, z_ptr, dt_bias_ptr, conv_ptr, conv_bias_ptr,
    dy_sl, u_sl, dt_sl, z_sl, t0, channel, length, width, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_Z: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dt, w u and the adjoint of y before the gate, a tuple of tiles each; zero beyond the sequence."""
    blank = tl.zeros([t0.shape[0], channel.shape[0]], tl.int32)
    bias = 0.0
    if HAS_BIAS:
        bias = load_channels(dt_bias_ptr, channel, width, blank)
    window = ()
    if HAS_CONV:
        window = load_window(conv_ptr, conv_bias_ptr, channel, width, taps, blank)
    steps = ()
    inputs = ()
    adjoints = ()
    for j in tl.static_range(ROWS):
        t = t0 + j
        dt, u, w = token_input(
            u_ptr, dt_ptr, weight_ptr, t, u_sl, dt_sl, channel, length, width, bias, window,
            HAS_WEIGHT, SOFTPLUS, HAS_CONV,
        )  # fmt: skip
        dy = load_tile(dy_ptr, t, dy_sl, channel, length, width).to(tl.float32)
        if HAS_Z:
            dy *= silu(load_tile(z_ptr, t, z_sl, channel, length, width).to(tl.float32))
        steps = steps + (dt,)  # noqa: RUF005 (a jit function has no unpacking)
        inputs = inputs + (w * u,)  # noqa: RUF005
        adjoints = adjoints + (dy,)  # noqa: RUF005
    return steps, inputs, adjoints


@triton.jit
def chunk_ends(
    dy_ptr, u_ptr, dt_ptr, weight_ptr, z_ptr, A_ptr, Bs_ptr, Cs_ptr, dt_bias_ptr, conv_ptr, conv_bias_ptr,
    local_ptr, back_ptr, total_ptr,
    dy_sb, dy_sl, u_sb, u_sl, dt_sb, dt_sl, z_sb, z_sl,
    length, chunks, width, n, taps,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CONV: tl.constexpr,
    HAS_Z: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the state it leaves and to the adjoint of the state it met [B, NC, N, D]; its
    summed steps [B, NC, D]. Grid (B, cdiv(D, BLOCK), NC); a chunk has ROWS * LANES tokens."""
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, LANES)
    t0 = part * (ROWS * LANES) + row * ROWS
    steps, inputs, adjoints = token_operands(
        dy_ptr + batch * dy_sb, u_ptr + batch * u_sb, dt_ptr + batch * dt_sb,
        weight_ptr + batch * length * width, z_ptr + batch * z_sb, dt_bias_ptr, conv_ptr, conv_bias_ptr,
        dy_sl, u_sl, dt_sl, z_sl, t0, channel, length, width, taps,
        HAS_WEIGHT, SOFTPLUS, HAS_BIAS, HAS_CONV, HAS_Z, ROWS,
    )  # fmt: skip
    padded = chunks * (ROWS * LANES)
    B_row = Bs_ptr + batch * n * padded + t0
    C_row = Cs_ptr + batch * n * padded + t0
    place = batch * chunks + part
    local_ptr += place * width * n
    back_ptr += place * width * n
    known = channel < width
    total = steps[0]
    for j in tl.static_range(1, ROWS):
        total += steps[j]
    lane = tl.zeros([LANES, BLOCK], tl.int32) + row[:, None]
    before = earlier(total, lane, LANES)
    after = later(total, lane, LANES)
    whole = tl.sum(total, 0)
    tl.store(total_ptr + place * width + channel, whole, mask=known)
    for state in range(n):
        A = tl.load(A_ptr + state * width + channel, mask=known, other=0.0).to(tl.float32)[None, :] * LOG2E
        g = tl.zeros([LANES, BLOCK], tl.float32)
        G = g
        through = tl.exp2(before * A)
        for j in tl.static_range(ROWS):
            a = tl.exp2(steps[j] * A)
            g = a * g + inputs[j] * tl.load(B_row + state * padded + j)[:, None]
            through *= a
            G += through * (adjoints[j] * tl.load(C_row + state * padded + j)[:, None])
        g = tl.sum(g * tl.exp2(after * A), 0)
        tl.store(local_ptr + state * width + channel, g, mask=known)
        tl.store(back_ptr + state * width + channel, tl.sum(G, 0), mask=known)
