"""The first launch of a gated backward pass: the gradient of the output before the gate, ``dy silu(z)``.

What follows takes it for dy and knows nothing of a gate, but for the launch of `output` that forms dz. A
product of an operand with the gate inside those kernels would lead both through registers, which they do not
have (`gradient` spills), and the scan would wait for them once a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lethe.kernels.ssd.tokens import silu


@triton.jit
def gate(
    z_ptr, dy_ptr, gated_ptr, length, tiles, heads, z_sb, z_sl, z_sh, dy_sb, dy_sl, dy_sh,
    T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Grid: batch * tiles * heads, heads innermost. Tiles of the batch, whatever its sequences; ``gated`` is
    dense, as x."""
    head = tl.program_id(0) % heads
    tile = tl.program_id(0) // heads
    batch = (tile // tiles).to(tl.int64)
    token = (tile % tiles) * T
    t = tl.arange(0, T)
    p = tl.arange(0, P)
    live = (token + t < length)[:, None]
    at = token.to(tl.int64)
    zs = z_ptr + batch * z_sb + at * z_sl + head * z_sh
    ys = dy_ptr + batch * dy_sb + at * dy_sl + head * dy_sh
    z = tl.load(zs + t[:, None] * z_sl + p[None, :], mask=live, other=0.0)
    dy = tl.load(ys + t[:, None] * dy_sl + p[None, :], mask=live, other=0.0)
    out = gated_ptr + ((batch * length + at) * heads + head) * P
    gated = dy.to(tl.float32) * silu(z.to(tl.float32))
    tl.store(out + (t[:, None] * (heads * P) + p[None, :]), gated.to(dy.dtype), mask=live)
