"""Data-dependent angles of Mamba-3: theta_t = theta_{t-1} + pi tanh(angle_t) dt_t, its cosine and sine.

One program owns a head; a tile of tokens is summed by an associative scan and the carried angle is taken
modulo a full turn, so float32 keeps its digits over any length. The adjoint is the reverse sum.
"""

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)


@triton.jit
def _tanh(v):
    e = tl.exp(-2.0 * tl.abs(v))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(v < 0, -t, t)


@triton.jit
def angle_forward(
    angle_ptr, dt_ptr, begin_ptr, cos_ptr, sin_ptr, end_ptr,
    angle_sb, angle_sl, angle_sh, dt_sb, dt_sh, dt_sl, length, heads, angles,
    HAS_BEGIN: tl.constexpr, T: tl.constexpr, SB: tl.constexpr,
):  # fmt: skip
    """cos, sin [B, L, H, S] and the last angle [B, H, S], all float32. Grid (B, H)."""
    batch = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, SB)
    known = s < angles
    row = (batch * heads + head) * angles + s
    theta = tl.zeros([SB], tl.float32)
    if HAS_BEGIN:
        theta = tl.load(begin_ptr + row, mask=known, other=0.0).to(tl.float32)
    angle_ptr += batch * angle_sb + head * angle_sh
    dt_ptr += batch * dt_sb + head * dt_sh
    for first in range(0, length, T):
        t = first + tl.arange(0, T)
        live = (t < length)[:, None] & known[None, :]
        a = tl.load(angle_ptr + t[:, None] * angle_sl + s[None, :], mask=live, other=0.0).to(tl.float32)
        dt = tl.load(dt_ptr + t * dt_sl, mask=t < length, other=0.0).to(tl.float32)
        turn = PI * _tanh(a) * dt[:, None]
        here = theta[None, :] + tl.cumsum(turn, 0)
        at = ((batch * length + t)[:, None] * heads + head) * angles + s[None, :]
        tl.store(cos_ptr + at, tl.cos(here), mask=live)
        tl.store(sin_ptr + at, tl.sin(here), mask=live)
        theta += tl.sum(turn, 0)
        theta -= 2.0 * PI * tl.floor(theta / (2.0 * PI))
    tl.store(end_ptr + row, theta, mask=known)


@triton.jit
def angle_backward(
    angle_ptr, dt_ptr, cos_ptr, sin_ptr, dcos_ptr, dsin_ptr, dangle_ptr, ddt_ptr, dbegin_ptr,
    angle_sb, angle_sl, angle_sh, dt_sb, dt_sh, dt_sl, length, heads, angles,
    T: tl.constexpr, SB: tl.constexpr,
):  # fmt: skip
    """dangle [B, L, H, S], ddt [B, H, L], dbegin [B, H, S] float32, from dcos and dsin. Grid (B, H)."""
    batch = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, SB)
    known = s < angles
    angle_ptr += batch * angle_sb + head * angle_sh
    dt_ptr += batch * dt_sb + head * dt_sh
    later = tl.zeros([SB], tl.float32)
    tiles = tl.cdiv(length, T)
    for back in range(tiles):
        t = (tiles - 1 - back) * T + tl.arange(0, T)
        live = (t < length)[:, None] & known[None, :]
        at = ((batch * length + t)[:, None] * heads + head) * angles + s[None, :]
        cos = tl.load(cos_ptr + at, mask=live, other=0.0)
        sin = tl.load(sin_ptr + at, mask=live, other=0.0)
        dcos = tl.load(dcos_ptr + at, mask=live, other=0.0)
        dsin = tl.load(dsin_ptr + at, mask=live, other=0.0)
        dtheta = cos * dsin - sin * dcos
        total = later[None, :] + tl.cumsum(dtheta, 0, reverse=True)
        later += tl.sum(dtheta, 0)
        a = tl.load(angle_ptr + t[:, None] * angle_sl + s[None, :], mask=live, other=0.0).to(tl.float32)
        dt = tl.load(dt_ptr + t * dt_sl, mask=t < length, other=0.0).to(tl.float32)
        tangent = _tanh(a)
        dangle = total * PI * dt[:, None] * (1.0 - tangent * tangent)
        tl.store(dangle_ptr + at, dangle.to(dangle_ptr.dtype.element_ty), mask=live)
        ddt = tl.sum(tl.where(live, total * PI * tangent, 0.0), 1)
        place = (batch * heads + head) * length + t
        tl.store(ddt_ptr + place, ddt.to(ddt_ptr.dtype.element_ty), mask=t < length)
    tl.store(dbegin_ptr + (batch * heads + head) * angles + s, later, mask=known)
