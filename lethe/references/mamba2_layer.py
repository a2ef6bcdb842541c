"""Mamba-2's layer in float64, from a state_dict with the official layer's names (Dao and Gu 2024, section 7).

::

    z, xBC, dt = split(u W_in^T)              widths E, E + 2 G N, H;  E = H P
    x, B, C = split(silu(conv(xBC)))          causal and depthwise, one filter for each channel
    y = ssd(x, dt, -exp(A_log), B, C; D, dt_bias, softplus, dt_limit)
    out = norm(y, z) W_out^T

The norm is an RMS norm over the E / G channels of each group, of ``y silu(z)``, or of ``y`` and then gated
where it comes before the gate. A layer without norm gates ``y`` alone.

`shapes` says which parameters the official layer holds, for its usual options: one process, the SSM on all
channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.references.double import require_float64, require_shape
from lethe.references.mamba3_block import causal_conv
from lethe.references.ssd import ssd_reference

EPSILON = 1e-5
"""Of the official layer's norm."""


def shapes(
    d_model: int,
    *,
    d_state: int = 128,
    d_conv: int = 4,
    expand: int = 2,
    headdim: int = 64,
    ngroups: int = 1,
    D_has_hdim: bool = False,
    rmsnorm: bool = True,
    bias: bool = False,
    conv_bias: bool = True,
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every entry of the official layer's state_dict, in its order."""
    inner = expand * d_model
    heads = inner // headdim
    conv = inner + 2 * ngroups * d_state
    found: dict[str, tuple[int, ...]] = {
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (inner if D_has_hdim else heads,),
        "in_proj.weight": (inner + conv + heads, d_model),
    }
    if bias:
        found["in_proj.bias"] = (inner + conv + heads,)
    found["conv1d.weight"] = (conv, 1, d_conv)
    if conv_bias:
        found["conv1d.bias"] = (conv,)
    if rmsnorm:
        found["norm.weight"] = (inner,)
    found["out_proj.weight"] = (d_model, inner)
    if bias:
        found["out_proj.bias"] = (d_model,)
    return found


def mamba2_layer(
    u: Tensor,
    state: Mapping[str, Tensor],
    *,
    headdim: int = 64,
    ngroups: int = 1,
    norm_before_gate: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> Tensor:
    """The layer's output [B, L, d_model] for u [B, L, d_model]; sizes follow from the shapes in `state`.

    Raises TypeError naming an entry that is not float64, ValueError for a shape that does not fit the others.
    """
    require_float64(u=u, **{name.replace(".", "_"): t for name, t in state.items()})
    heads = state["A_log"].shape[0]
    inner = heads * headdim
    conv = state["conv1d.weight"].shape[0]
    states = (conv - inner) // (2 * ngroups)
    require_shape("in_proj.weight", state["in_proj.weight"], (inner + conv + heads, u.shape[-1]))
    require_shape("dt_bias", state["dt_bias"], (heads,))
    require_shape("out_proj.weight", state["out_proj.weight"], (u.shape[-1], inner))
    projected = F.linear(u, state["in_proj.weight"], state.get("in_proj.bias"))
    z, mixed, dt = projected.split([inner, conv, heads], -1)
    silent = torch.zeros(conv, dtype=u.dtype, device=u.device)
    mixed = F.silu(causal_conv(mixed, state["conv1d.weight"][:, 0], state.get("conv1d.bias", silent)))
    x, B, C = mixed.split([inner, ngroups * states, ngroups * states], -1)
    D = state["D"]
    y = ssd_reference(
        x.unflatten(-1, (heads, headdim)), dt, -torch.exp(state["A_log"]),
        B.unflatten(-1, (ngroups, states)), C.unflatten(-1, (ngroups, states)),
        D=D.unflatten(0, (heads, headdim)) if D.shape[0] == inner else D,
        dt_bias=state["dt_bias"], dt_softplus=True, dt_limit=dt_limit,
    )  # fmt: skip
    assert isinstance(y, Tensor)
    gate, y = F.silu(z), y.flatten(2)
    if "norm.weight" not in state:
        y = y * gate
    elif norm_before_gate:
        y = _grouped_norm(y, state["norm.weight"], ngroups) * gate
    else:
        y = _grouped_norm(y * gate, state["norm.weight"], ngroups)
    return F.linear(y, state["out_proj.weight"], state.get("out_proj.bias"))


def _grouped_norm(y: Tensor, weight: Tensor, groups: int) -> Tensor:
    """RMS norm over the channels of each group."""
    by_group = y.unflatten(-1, (groups, -1))
    scale = torch.rsqrt(by_group.square().mean(-1, keepdim=True) + EPSILON)
    return (by_group * scale).flatten(-2) * weight
