"""State-space duality (Mamba-2), forward and backward, one token at a time.

Per head h of group g(h) = h // (H / G), with a scalar decay (Dao and Gu 2024, equations 1 and 2)::

    d_t = clamp(softplus(dt_t + dt_bias), dt_limit)
    S_t = exp(d_t A) S_{t-1} + d_t x_t B_t^T              S [P, N]
    y_t = (S_t C_t + D x_t) * silu(z_t)

Softplus, bias, D, z and the initial state S_0 are options; the clamp always holds, to [0, inf) unless said
otherwise. Softplus is the identity above 20, as torch and mamba-ssm have it (off by 2e-9 there). The clamp's
subgradient is 1 on its closed interval and 0 outside, as in torch and mamba-ssm. The skip comes before the
gate. `ssd_reference` can be differentiated by autograd; `ssd_backward` is its adjoint, derived by hand.

Shapes: x, z, y [B, L, H, P]; dt [B, L, H]; A, dt_bias [H]; B, C [B, L, G, N]; D [H] or [H, P]; states
[B, H, P, N], or one for each sequence where ``cu_seqlens`` cuts the tokens of a single batch entry.
Everything is float64 but ``cu_seqlens``.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.references.double import require_float64, require_shape

SOFTPLUS_IS_IDENTITY_ABOVE = 20.0


def ssd_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """y, or (y, final states) with `return_final_states`; see the module for shapes.

    Raises TypeError naming an argument that is not float64, ValueError for a shape, for cuts that do not rise
    from 0 to the number of tokens, or for cuts in a batch of several entries.
    """
    check_ssd(x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states)
    spans = sequences(x, cu_seqlens, initial_states)
    step = step_of(dt, dt_bias, dt_softplus, dt_limit)
    rows, finals = [], []
    for index, (start, stop) in enumerate(spans):
        S = _first(x, B, initial_states, index, cu_seqlens)
        for t in range(start, stop):
            d = step[:, t, :, None, None]
            drive = x[:, t, :, :, None] * _by_head(B[:, t], x)[:, :, None, :]
            S = torch.exp(d * A[:, None, None]) * S + d * drive
            rows.append((S * _by_head(C[:, t], x)[:, :, None, :]).sum(-1))
        finals.append(S)
    y = torch.stack(rows, 1) if rows else torch.zeros_like(x)
    if D is not None:
        y = y + _skip(D) * x
    if z is not None:
        y = y * F.silu(z)
    return (y, torch.cat(finals)) if return_final_states else y


def ssd_backward(
    dy: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dfinal: Tensor | None = None,
) -> dict[str, Tensor]:
    """Gradients by argument name, given dy [B, L, H, P] and optionally dfinal, the final states' gradient.

    Names whose argument is None are left out. Raises as `ssd_reference` does.
    """
    check_ssd(x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states)
    require_float64(dy=dy, dfinal=dfinal)
    require_shape("dy", dy, tuple(x.shape))
    spans = sequences(x, cu_seqlens, initial_states)
    step = step_of(dt, dt_bias, dt_softplus, dt_limit)
    opened = dy
    if z is not None:
        gate = torch.sigmoid(z)
        opened = dy * z * gate
    tensors = (("x", x), ("A", A), ("B", B), ("C", C))
    g = {name: torch.zeros_like(value) for name, value in tensors}
    dstep, core = torch.zeros_like(step), torch.zeros_like(x)
    entries = []
    for index, span in enumerate(spans):
        S = _first(x, B, initial_states, index, cu_seqlens)
        last = torch.zeros_like(S)
        if dfinal is not None:
            last = dfinal if cu_seqlens is None else dfinal[index : index + 1]
        entries.append(_walk_back(span, S, last, opened, (x, step, A, B, C), g, dstep, core))
    if D is not None:
        core += _skip(D) * x
        g["x"] += _skip(D) * opened
        per_channel = (opened * x).sum((0, 1))
        g["D"] = per_channel if D.dim() == 2 else per_channel.sum(-1)
    if z is not None:
        g["z"] = dy * core * gate * (1 + z * (1 - gate))
    g["dt"] = dstep * _slope(dt, dt_bias, dt_softplus, dt_limit)
    if dt_bias is not None:
        g["dt_bias"] = g["dt"].sum((0, 1))
    if initial_states is not None:
        g["initial_states"] = torch.cat(entries)
    return g


def _walk_back(
    span: tuple[int, int],
    S: Tensor,
    dS: Tensor,
    dy: Tensor,
    operands: tuple[Tensor, ...],
    g: dict[str, Tensor],
    dstep: Tensor,
    core: Tensor,
) -> Tensor:
    """One sequence: walk forward keeping every state, then back; returns the gradient of its first state.

    Adds to the gradients `g` of x, A, B, C, writes `dstep` and `core` (the output before skip and gate).
    """
    x, step, A, B, C = operands
    start, stop = span
    states = [S]
    for t in range(start, stop):
        d = step[:, t]
        drive = torch.einsum("bh,bhp,bhn->bhpn", d, x[:, t], _by_head(B[:, t], x))
        states.append(torch.exp(d * A)[..., None, None] * states[-1] + drive)
        core[:, t] = torch.einsum("bhpn,bhn->bhp", states[-1], _by_head(C[:, t], x))
    groups = B.shape[2]
    for t in reversed(range(start, stop)):
        d, before, after = step[:, t], states[t - start], states[t - start + 1]
        keys = _by_head(B[:, t], x)
        decay = torch.exp(d * A)
        dS = dS + torch.einsum("bhp,bhn->bhpn", dy[:, t], _by_head(C[:, t], x))
        g["C"][:, t] = _by_group(torch.einsum("bhpn,bhp->bhn", after, dy[:, t]), groups)
        along = torch.einsum("bhpn,bhn->bhp", dS, keys)
        g["x"][:, t] = d[..., None] * along
        g["B"][:, t] = _by_group(d[..., None] * torch.einsum("bhpn,bhp->bhn", dS, x[:, t]), groups)
        dlog = decay * (dS * before).sum((-1, -2))
        g["A"] += (d * dlog).sum(0)
        dstep[:, t] = A * dlog + (along * x[:, t]).sum(-1)
        dS = decay[..., None, None] * dS
    return dS


# --- the parts ----------------------------------------------------------------------------------


def step_of(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Tensor:
    """The step d [B, L, H] that decay and input take."""
    raw = dt if dt_bias is None else dt + dt_bias
    soft = F.softplus(raw, threshold=SOFTPLUS_IS_IDENTITY_ABOVE) if dt_softplus else raw
    return soft.clamp(dt_limit[0], dt_limit[1])


def _slope(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Tensor:
    """The step's derivative by dt: 0 outside the closed interval of the clamp."""
    raw = dt if dt_bias is None else dt + dt_bias
    slope, soft = torch.ones_like(raw), raw
    if dt_softplus:
        beyond = raw > SOFTPLUS_IS_IDENTITY_ABOVE
        soft = torch.where(beyond, raw, torch.log1p(torch.exp(raw.clamp(max=SOFTPLUS_IS_IDENTITY_ABOVE))))
        slope = torch.where(beyond, 1.0, torch.sigmoid(raw))
    return slope * ((soft >= dt_limit[0]) & (soft <= dt_limit[1]))


def _by_head(t: Tensor, x: Tensor) -> Tensor:
    """[B, G, N] -> [B, H, N]: neighbouring heads share a group."""
    return t.repeat_interleave(x.shape[2] // t.shape[1], 1)


def _by_group(t: Tensor, groups: int) -> Tensor:
    """The adjoint of `_by_head`: [B, H, N] -> [B, G, N], the heads of a group added up."""
    return t.unflatten(1, (groups, -1)).sum(2)


def _skip(D: Tensor) -> Tensor:
    return D if D.dim() == 2 else D[:, None]


def _first(x: Tensor, B: Tensor, initial: Tensor | None, index: int, cu_seqlens: Tensor | None) -> Tensor:
    if initial is None:
        return x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1])
    return initial if cu_seqlens is None else initial[index : index + 1]


def sequences(x: Tensor, cu_seqlens: Tensor | None, initial: Tensor | None = None) -> list[tuple[int, int]]:
    """The spans of tokens whose states are chained; raises ValueError as `ssd_reference` says."""
    batch, length = x.shape[:2]
    count = batch if cu_seqlens is None else cu_seqlens.numel() - 1
    if initial is not None and initial.shape[0] != count:
        raise ValueError(f"initial_states holds {initial.shape[0]} states for {count} sequences")
    if cu_seqlens is None:
        return [(0, length)]
    if batch != 1:
        raise ValueError(f"cu_seqlens cuts the tokens of one batch entry, but the batch is {batch}")
    cuts = [int(c) for c in cu_seqlens.tolist()]
    pairs = list(pairwise(cuts))
    if not pairs or cuts[0] != 0 or cuts[-1] != length or any(a > b for a, b in pairs):
        raise ValueError(f"cu_seqlens must rise from 0 to {length}, not {cuts}")
    return pairs


def check_ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_states: Tensor | None,
) -> None:
    """Raise TypeError or ValueError naming the argument that is not float64 or has the wrong shape."""
    require_float64(x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states)
    batch, length, heads, width = x.shape
    groups, n = B.shape[-2:]
    require_shape("dt", dt, (batch, length, heads))
    require_shape("A", A, (heads,))
    require_shape("B", B, (batch, length, groups, n))
    require_shape("C", C, (batch, length, groups, n))
    require_shape("z", z, (batch, length, heads, width))
    require_shape("dt_bias", dt_bias, (heads,))
    if D is not None:
        require_shape("D", D, (heads, width) if D.dim() == 2 else (heads,))
    if initial_states is not None:
        require_shape("initial_states", initial_states, (initial_states.shape[0], heads, width, n))
    if heads % groups:
        raise ValueError(f"there are {heads} heads, which the {groups} groups of B do not divide")
