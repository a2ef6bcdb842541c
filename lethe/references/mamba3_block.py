"""The fused block, forward (C5) and backward (C6): causal convolution, SiLU, softplus step, scan, skip, gate.

::

    p_t = bias + sum_j w_j x_{t-K+1+j}     u = silu(p)     dt = softplus(dt_raw + dt_bias)
    out = (scan(u, dt, A, B, C) + D u) * silu(z)

The order is that of a Mamba-1 block (Gu and Dao 2023, figure 3) with B, C and the raw step given. Token
loops throughout; the scan and its adjoint are those of `lethe.references.mamba3_scan`.

Shapes: x, dt, z, out [B, L, D]; A [D, N]; B, C [B, L, N]; D, conv_bias, dt_bias [D]; conv_weight [D, K].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lethe.references.double import require_float64, require_shape
from lethe.references.mamba3_scan import backward_selective_scan, forward_chunked_scan


class BlockInputs(NamedTuple):
    """Operands of the fused block, all float64; see the module for the shapes."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    z: Tensor
    conv_weight: Tensor
    conv_bias: Tensor
    dt_bias: Tensor


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise causal convolution [B, L, D] with weight [D, K]; the last tap sees the current token.

    Raises ValueError when x and weight differ in width: one channel is never broadcast to many.
    """
    width, taps = weight.shape
    if x.shape[2] != width:
        raise ValueError(f"x has {x.shape[2]} channels, conv_weight has {width}")
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        out[:, t] = bias
        for j in range(taps):
            source = t - (taps - 1) + j
            if source >= 0:
                out[:, t] += weight[:, j] * x[:, source]
    return out


def _silu(v: Tensor) -> Tensor:
    return v * torch.sigmoid(v)


def _dsilu(v: Tensor) -> Tensor:
    s = torch.sigmoid(v)
    return s * (1 + v * (1 - s))


def _softplus(v: Tensor) -> Tensor:
    return torch.clamp(v, min=0) + torch.log1p(torch.exp(-v.abs()))


def _check(inputs: BlockInputs) -> None:
    require_float64(**inputs._asdict())
    width = inputs.x.shape[2]
    for name in ("D", "conv_bias", "dt_bias"):
        require_shape(name, getattr(inputs, name), (width,))
    require_shape("z", inputs.z, tuple(inputs.x.shape))


def fused_block_forward(inputs: BlockInputs, *, trap: Tensor | None = None) -> Tensor:
    """C5: the block's output [B, L, D]. Raises TypeError unless float64, ValueError on a shape mismatch."""
    _check(inputs)
    u = _silu(causal_conv(inputs.x, inputs.conv_weight, inputs.conv_bias))
    dt = _softplus(inputs.dt + inputs.dt_bias)
    y, _ = forward_chunked_scan(u, dt, inputs.A, inputs.B, inputs.C, inputs.D, trap=trap)
    return y * _silu(inputs.z)


def fused_block_backward(
    dout: Tensor, inputs: BlockInputs, *, trap: Tensor | None = None
) -> dict[str, Tensor]:
    """C6: gradients by field name of `BlockInputs` (and ``trap`` when given) for dout [B, L, D]."""
    _check(inputs)
    require_float64(dout=dout)
    x, weight, z = inputs.x, inputs.conv_weight, inputs.z
    conv = causal_conv(x, weight, inputs.conv_bias)
    u, raw = _silu(conv), inputs.dt + inputs.dt_bias
    dt = _softplus(raw)
    y, _ = forward_chunked_scan(u, dt, inputs.A, inputs.B, inputs.C, inputs.D, trap=trap)
    scan = backward_selective_scan(dout * _silu(z), u, dt, inputs.A, inputs.B, inputs.C, inputs.D, trap=trap)
    dconv = scan.pop("u") * _dsilu(conv)
    g = dict(scan)
    g["z"] = dout * y * _dsilu(z)
    g["dt"] = scan["dt"] * torch.sigmoid(raw)
    g["dt_bias"] = g["dt"].sum((0, 1))
    g["conv_bias"] = dconv.sum((0, 1))
    g["x"], g["conv_weight"] = torch.zeros_like(x), torch.zeros_like(weight)
    taps = weight.shape[1]
    for t in range(x.shape[1]):
        for j in range(taps):
            source = t - (taps - 1) + j
            if source >= 0:
                g["x"][:, source] += weight[:, j] * dconv[:, t]
                g["conv_weight"][:, j] += (dconv[:, t] * x[:, source]).sum(0)
    return g
