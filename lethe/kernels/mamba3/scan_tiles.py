"""Tiles of tokens, which every scan kernel shares (C1, C2, C5, C6).

A program owns segments of ROWS * LANES tokens of BLOCK channels. A tile is [LANES, BLOCK]: lane l holds the
tokens l * ROWS .. l * ROWS + ROWS - 1 as ROWS tiles (a tuple, unrolled), so a thread runs through its tokens
in registers and only the ends of the lanes' segments are joined by shuffles. What depends on a token and a
channel alone is computed once; the loop runs over the states, one at a time.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import silu, softplus


@triton.jit
def bounded(index, size, live):
    """index < size where `live`, a scalar, holds; nowhere else."""
    return index < tl.where(live, size, 0)


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
def token_tile(t, stride, channel, length, width):
    """Offsets and mask of one token a lane [LANES, BLOCK]; tokens before the first are masked too."""
    mask = ((t >= 0) & (t < length))[:, None] & (channel < width)[None, :]
    return t[:, None] * stride + channel[None, :], mask


@triton.jit
def load_tile(ptr, t, stride, channel, length, width):
    at, mask = token_tile(t, stride, channel, length, width)
    return tl.load(ptr + at, mask=mask, other=0.0)


@triton.jit
def load_channels(ptr, channel, width, like):
    """A row over the channels [D], float32, as a tile: every lane the same."""
    at = tl.zeros_like(like) + channel[None, :]
    return tl.load(ptr + at, mask=at < width, other=0.0).to(tl.float32)


@triton.jit
def convolved(u_ptr, t, stride, channel, length, width, w0, w1, w2, w3, wb):
    """The inputs of tokens t, t-1, t-2, t-3 and the convolution's output at t, before SiLU."""
    x0 = load_tile(u_ptr, t, stride, channel, length, width).to(tl.float32)
    x1 = load_tile(u_ptr, t - 1, stride, channel, length, width).to(tl.float32)
    x2 = load_tile(u_ptr, t - 2, stride, channel, length, width).to(tl.float32)
    x3 = load_tile(u_ptr, t - 3, stride, channel, length, width).to(tl.float32)
    return x0, x1, x2, x3, w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + wb


@triton.jit
def load_window(conv_ptr, conv_bias_ptr, channel, width, taps, blank):
    """The four taps of the convolution and its bias, as tiles."""
    at = blank + channel[None, :]
    w0 = load_taps(conv_ptr, at, width, taps, 0)
    w1 = load_taps(conv_ptr, at, width, taps, 1)
    w2 = load_taps(conv_ptr, at, width, taps, 2)
    w3 = load_taps(conv_ptr, at, width, taps, 3)
    return w0, w1, w2, w3, load_channels(conv_bias_ptr, channel, width, blank)


@triton.jit
def token_input(
    u_ptr, dt_ptr, weight_ptr, t, u_sl, dt_sl, channel, length, width, bias, window,
    HAS_WEIGHT: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_CONV: tl.constexpr,
):  # fmt: skip
    """dt, u and the weight of u at one token a lane; zero beyond the sequence."""
    live = (t < length)[:, None]
    dt = step_size(load_tile(dt_ptr, t, dt_sl, channel, length, width), bias, SOFTPLUS)
    dt = tl.where(live, dt, 0.0)
    if HAS_CONV:
        _, _, _, _, conv = convolved(
            u_ptr, t, u_sl, channel, length, width, window[0], window[1], window[2], window[3], window[4]
        )
        u = tl.where(live, silu(conv), 0.0)
    else:
        u = load_tile(u_ptr, t, u_sl, channel, length, width).to(tl.float32)
    w = dt
    if HAS_WEIGHT:
        w = load_tile(weight_ptr, t, width, channel, length, width)
    return dt, u, w


@triton.jit
def earlier(total, lane, LANES: tl.constexpr):
    """The sum over the lanes before each. Nothing is subtracted: a difference of running sums loses the small
    steps that lie behind a large one, and is NaN behind an infinite one."""
    if LANES == 1:
        return tl.zeros_like(total)
    moved = tl.where(lane == 0, 0.0, tl.gather(total, tl.maximum(lane - 1, 0), 0))
    return tl.cumsum(moved, 0)


@triton.jit
def later(total, lane, LANES: tl.constexpr):
    """The sum over the lanes after each; see `earlier`."""
    if LANES == 1:
        return tl.zeros_like(total)
    moved = tl.where(lane == LANES - 1, 0.0, tl.gather(total, tl.minimum(lane + 1, LANES - 1), 0))
    return tl.cumsum(moved, 0, reverse=True)


@triton.jit
def joined(decay, value, lane, LANES: tl.constexpr, SHIFT: tl.constexpr):
    """x_l = decay_l x_{l-1} + value_l over the lanes (from the last one back if SHIFT is -1).

    The outermost lane's decay has no meaning and is not read into any value.
    """
    order = lane if SHIFT > 0 else LANES - 1 - lane
    for k in tl.static_range(5):
        if (1 << k) < LANES:
            at = tl.minimum(tl.maximum(lane - SHIFT * (1 << k), 0), LANES - 1)
            value = tl.where(order >= (1 << k), decay * tl.gather(value, at, 0) + value, value)
            if (2 << k) < LANES:
                decay = decay * tl.gather(decay, at, 0)
    return value
