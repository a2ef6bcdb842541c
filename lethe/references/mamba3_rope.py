"""Mamba-3's head: data-dependent rotation, trapezoidal scan, gate; forward (C4) and its adjoint (C3).

Source: Mamba-3 as published in state-spaces/mamba (module ``Mamba3``), written out per token::

    theta_t = theta_{t-1} + pi tanh(angle_t) dt_t  (mod 2 pi)
    q^i = R(theta_t)(Q^i + q_bias^i)      k^r = R(theta_t)(K^r + k_bias^r)
    x^r = V * mimo_x^r                    z^i = Z * mimo_z^i
    S_t = a_t S_{t-1} + (1 - lam_t) dt_t a_t sum_r x^r_{t-1} k^r_{t-1}' + lam_t dt_t sum_r x^r_t k^r_t'
    y^i = S_t q^i + D x^i              out = sum_i mimo_o^i * y^i * silu(z^i)

with ``a = exp(adt)`` and ``lam = sigmoid(trap)``, or ``lam = 1`` (exponential-Euler) without `trap`. SISO is
rank R = 1 with unit projections. R rotates the pairs (2i, 2i+1), or (i, i + N/2) with ``pairwise=False``;
what the angles do not cover passes unrotated.

Shapes: q, k [B, L, R, G, N], head h reading group h // (H / G); v, z, out [B, L, H, P]; adt, dt, trap
[B, H, L]; q_bias, k_bias [H, R, N]; angle [B, L, H, S]; D [H]; mimo_x, mimo_z, mimo_o [H, R, P].
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lethe.references.double import require_float64


@dataclass(frozen=True)
class HeadState:
    """What one segment hands to the next."""

    theta: Tensor
    """Angles [B, H, S]."""
    S: Tensor
    """State [B, H, P, N]."""
    k: Tensor
    """Last rotated key, bias included [B, H, R, N]."""
    x: Tensor
    """Last projected value [B, H, R, P]."""


@dataclass(frozen=True)
class HeadInputs:
    """Operands of one head scan, float64; see the module for the shapes. None leaves an option out."""

    q: Tensor
    k: Tensor
    v: Tensor
    adt: Tensor
    dt: Tensor
    q_bias: Tensor
    k_bias: Tensor
    angle: Tensor
    trap: Tensor | None = None
    D: Tensor | None = None
    z: Tensor | None = None
    mimo_x: Tensor | None = None
    mimo_z: Tensor | None = None
    mimo_o: Tensor | None = None
    pairwise: bool = True

    def tensors(self) -> dict[str, Tensor]:
        """The operands that are present, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "pairwise"}
        return {name: value for name, value in fields.items() if value is not None}


def rotate(t: Tensor, theta: Tensor, pairwise: bool) -> Tensor:
    """R(theta) t for t [..., N] and theta [..., S] with S <= N/2."""
    half, angles = t.shape[-1] // 2, theta.shape[-1]
    first = torch.arange(angles) * 2 if pairwise else torch.arange(angles)
    second = first + 1 if pairwise else first + half
    a, b = t[..., first], t[..., second]
    out = t.clone()
    out[..., first] = a * theta.cos() - b * theta.sin()
    out[..., second] = a * theta.sin() + b * theta.cos()
    return out


@dataclass
class _Token:
    """Everything about one token that both directions need; tensors are [B, H, ...]."""

    q: Tensor
    k: Tensor
    x: Tensor
    z: Tensor | None
    decay: Tensor
    beta: Tensor
    """``(1 - lam) dt``, before the decay."""
    gamma: Tensor
    lam: Tensor


def _per_head(t: Tensor, heads: int) -> Tensor:
    """[B, R, G, N] -> [B, H, R, N]."""
    return t.repeat_interleave(heads // t.shape[2], 2).transpose(1, 2)


def _token(inputs: HeadInputs, t: int, theta: Tensor) -> _Token:
    heads = inputs.v.shape[2]
    at = theta[:, :, None]
    q = rotate(_per_head(inputs.q[:, t], heads) + inputs.q_bias, at, inputs.pairwise)
    k = rotate(_per_head(inputs.k[:, t], heads) + inputs.k_bias, at, inputs.pairwise)
    x = inputs.v[:, t, :, None]
    x = x if inputs.mimo_x is None else x * inputs.mimo_x
    z = None if inputs.z is None else inputs.z[:, t, :, None]
    z = z if z is None or inputs.mimo_z is None else z * inputs.mimo_z
    dt = inputs.dt[:, :, t]
    lam = torch.ones_like(dt) if inputs.trap is None else torch.sigmoid(inputs.trap[:, :, t])
    return _Token(q, k, x, z, inputs.adt[:, :, t].exp(), (1 - lam) * dt, lam * dt, lam)


def _outer(k: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bhrp,bhrn->bhpn", x, k)


def _start(inputs: HeadInputs, state: HeadState | None) -> HeadState:
    if state is not None:
        return state
    batch, _, rank, _, n = inputs.q.shape
    heads, p = inputs.v.shape[2:]
    zeros = inputs.v.new_zeros
    theta = zeros(batch, heads, inputs.angle.shape[-1])
    return HeadState(
        theta, zeros(batch, heads, p, n), zeros(batch, heads, rank, n), zeros(batch, heads, rank, p)
    )


def _check(inputs: HeadInputs) -> None:
    require_float64(**inputs.tensors())
    heads, groups = inputs.v.shape[2], inputs.q.shape[3]
    if heads % groups:
        raise ValueError(f"v has {heads} heads, which q's {groups} groups do not divide")


@dataclass
class _Trace:
    tokens: list[_Token]
    states: list[Tensor]
    outputs: list[Tensor]
    """y^i before the gate, [B, H, R, P]."""
    final: HeadState


def _run(inputs: HeadInputs, state: HeadState | None) -> _Trace:
    now = _start(inputs, state)
    trace = _Trace([], [now.S], [], now)
    for t in range(inputs.v.shape[1]):
        turn = math.pi * torch.tanh(inputs.angle[:, t]) * inputs.dt[:, :, t, None]
        theta = torch.remainder(now.theta + turn, 2 * math.pi)
        token = _token(inputs, t, theta)
        decay, beta, gamma = (v[..., None, None] for v in (token.decay, token.beta, token.gamma))
        S = decay * now.S + beta * decay * _outer(now.k, now.x) + gamma * _outer(token.k, token.x)
        y = torch.einsum("bhpn,bhrn->bhrp", S, token.q)
        if inputs.D is not None:
            y = y + inputs.D[:, None, None] * token.x
        now = HeadState(theta, S, token.k, token.x)
        trace.tokens.append(token)
        trace.states.append(S)
        trace.outputs.append(y)
    trace.final = now
    return trace


def complex_scan_rope(inputs: HeadInputs, state: HeadState | None = None) -> tuple[Tensor, HeadState]:
    """C4: out [B, L, H, P] and the final state. SISO and MIMO. Raises TypeError unless float64."""
    _check(inputs)
    trace = _run(inputs, state)
    rows = []
    for token, y in zip(trace.tokens, trace.outputs, strict=True):
        gated = y if token.z is None else y * token.z * torch.sigmoid(token.z)
        rows.append((gated if inputs.mimo_o is None else gated * inputs.mimo_o).sum(2))
    return torch.stack(rows, 1), trace.final


def mimo_backward(
    dout: Tensor, inputs: HeadInputs, state: HeadState | None = None, dfinal: Tensor | None = None
) -> dict[str, Tensor]:
    """C3: gradients by name for dout [B, L, H, P] and dfinal, the gradient of the final S [B, H, P, N].

    Covers every present operand of `HeadInputs` and, when `state` is given, ``theta0``, ``S0``, ``k0``,
    ``x0``. For several ranks the outputs' adjoints are summed before any input rank is contracted.
    """
    _check(inputs)
    require_float64(dout=dout, dfinal=dfinal)
    trace, start = _run(inputs, state), _start(inputs, state)
    g = {name: torch.zeros_like(value) for name, value in inputs.tensors().items()}
    groups = inputs.q.shape[3]
    dS = torch.zeros_like(start.S) if dfinal is None else dfinal
    dk_next, dx_next, dtheta = (
        torch.zeros_like(start.k),
        torch.zeros_like(start.x),
        torch.zeros_like(start.theta),
    )
    for t in reversed(range(inputs.v.shape[1])):
        token, S = trace.tokens[t], trace.states[t + 1]
        k_before, x_before = (start.k, start.x) if t == 0 else (trace.tokens[t - 1].k, trace.tokens[t - 1].x)
        dy = _gate_adjoint(g, inputs, dout[:, t], token, trace.outputs[t], t)
        dq = torch.einsum("bhrp,bhpn->bhrn", dy, S)
        dS = dS + torch.einsum("bhrp,bhrn->bhpn", dy, token.q)
        decay, beta, gamma = (v[..., None, None] for v in (token.decay, token.beta, token.gamma))
        before = _outer(k_before, x_before)
        carried = decay * dS
        g["adt"][:, :, t] = (carried * (trace.states[t] + beta * before)).sum((-1, -2))
        dgamma, dbeta = (dS * _outer(token.k, token.x)).sum((-1, -2)), (carried * before).sum((-1, -2))
        g["dt"][:, :, t] += token.lam * dgamma + (1 - token.lam) * dbeta
        if inputs.trap is not None:
            slope = token.lam * (1 - token.lam)
            g["trap"][:, :, t] = inputs.dt[:, :, t] * (dgamma - dbeta) * slope
        dk = dk_next + gamma * torch.einsum("bhpn,bhrp->bhrn", dS, token.x)
        dx = dx_next + gamma * torch.einsum("bhpn,bhrn->bhrp", dS, token.k)
        if inputs.D is not None:
            dx = dx + inputs.D[:, None, None] * dy
            g["D"] += (dy * token.x).sum((0, 2, 3))
        dk_next = beta * torch.einsum("bhpn,bhrp->bhrn", carried, x_before)
        dx_next = beta * torch.einsum("bhpn,bhrn->bhrp", carried, k_before)
        dS = carried
        dtheta = dtheta + _pair_torque(token.q, dq, inputs) + _pair_torque(token.k, dk, inputs)
        _angle_adjoint(g, inputs, dtheta, t)
        _operand_adjoint(g, inputs, dq, dk, dx, trace, t, groups)
    if state is not None:
        g |= {"theta0": dtheta, "S0": dS, "k0": dk_next, "x0": dx_next}
    return g


def _gate_adjoint(
    g: dict[str, Tensor], inputs: HeadInputs, dout: Tensor, token: _Token, y: Tensor, t: int
) -> Tensor:
    """The adjoint of y^i [B, H, R, P]; adds the gradients of z, mimo_z and mimo_o."""
    d = dout[:, :, None]
    gate = None if token.z is None else token.z * torch.sigmoid(token.z)
    if inputs.mimo_o is not None:
        g["mimo_o"] += (d * (y if gate is None else y * gate)).sum(0)
        d = d * inputs.mimo_o
    if gate is None or token.z is None or inputs.z is None:
        return d.expand_as(y)
    s = torch.sigmoid(token.z)
    dz = d * y * s * (1 + token.z * (1 - s))
    g["z"][:, t] = (dz if inputs.mimo_z is None else dz * inputs.mimo_z).sum(2)
    if inputs.mimo_z is not None:
        g["mimo_z"] += (dz * inputs.z[:, t, :, None]).sum(0)
    return d * gate


def _pair_torque(t: Tensor, dt: Tensor, inputs: HeadInputs) -> Tensor:
    """d/dtheta of <R(theta) t0, dt>, summed over ranks: first times d(second) minus second times d(first)."""
    angles, half = inputs.angle.shape[-1], t.shape[-1] // 2
    first = torch.arange(angles) * 2 if inputs.pairwise else torch.arange(angles)
    second = first + 1 if inputs.pairwise else first + half
    return (t[..., first] * dt[..., second] - t[..., second] * dt[..., first]).sum(2)


def _angle_adjoint(g: dict[str, Tensor], inputs: HeadInputs, dtheta: Tensor, t: int) -> None:
    tangent = torch.tanh(inputs.angle[:, t])
    g["angle"][:, t] = dtheta * math.pi * inputs.dt[:, :, t, None] * (1 - tangent * tangent)
    g["dt"][:, :, t] += (dtheta * math.pi * tangent).sum(-1)


def _operand_adjoint(
    g: dict[str, Tensor],
    inputs: HeadInputs,
    dq: Tensor,
    dk: Tensor,
    dx: Tensor,
    trace: _Trace,
    t: int,
    groups: int,
) -> None:
    """Undo the rotation, the bias, the sharing of groups and the value projection."""
    turned = -_theta_at(inputs, trace, t)[:, :, None]
    for name, d in (("q", dq), ("k", dk)):
        d = rotate(d, turned, inputs.pairwise)
        g[f"{name}_bias"] += d.sum(0)
        batch, heads, rank, n = d.shape
        g[name][:, t] = d.reshape(batch, groups, heads // groups, rank, n).sum(2).transpose(1, 2)
    g["v"][:, t] = (dx if inputs.mimo_x is None else dx * inputs.mimo_x).sum(2)
    if inputs.mimo_x is not None:
        g["mimo_x"] += (dx * inputs.v[:, t, :, None]).sum(0)


def _theta_at(inputs: HeadInputs, trace: _Trace, t: int) -> Tensor:
    """theta_t, from the final angle back: the sum is associative and taken modulo a full turn."""
    later = (
        math.pi * torch.tanh(inputs.angle[:, t + 1 :]) * inputs.dt[:, :, t + 1 :].transpose(1, 2)[..., None]
    )
    return trace.final.theta - later.sum(1)
