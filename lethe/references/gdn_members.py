"""The seven members of the family, each from its own definition and by its own route.

=============  ==================================================================  ======================
function       definition                                                          how it is computed
=============  ==================================================================  ======================
linear         S = S + k v^T (Katharopoulos et al. 2020)                           masked Q K^T
gla            S = Diag(a) S + k v^T (Yang et al. 2023)                            cumulative products
ssd            h = e^{dt A} h + dt B x^T, y = C h + D x (Dao and Gu 2024)          semiseparable matrix
deltanet       S = (I - beta k k^T) S + beta k v^T (Schlag et al. 2021)            write what was not there
gdn            S = S a (I - beta k k^T) + beta v k^T, S [dv, dk] (Yang 2024)       transposed, explicit
kda            S = (I - beta k k^T) Diag(a) S + beta k v^T (Kimi Linear 2025)      explicit [dk, dk] matrix
gdn2           S = (I - k (b*k)^T) Diag(a) S + k (w*v)^T                           one product of matrices
=============  ==================================================================  ======================

None of them calls the general recurrence or another member. They are differentiable by autograd, so a
member's gradients come from its own definition as well. Shapes [B, L, H, d], states [B, H, dk, dv], float64;
log decays and beta are [B, L, H] where the member has one number a head. Returns (o, final state).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lethe.references.double import require_float64


def _causal(x: Tensor) -> Tensor:
    """Zero where the column is later than the row, for x [..., L, L]."""
    return torch.where(torch.ones(x.shape[-2:], dtype=torch.bool).tril(), x, 0.0)


def _ratios(c: Tensor) -> Tensor:
    """e^{c_i - c_j} for i >= j, else 0; c [B, L, H, ...] gives [B, L, L, H, ...]."""
    later = torch.ones(c.shape[1], c.shape[1], dtype=torch.bool).triu(1)
    shape = (1, *later.shape, *(1,) * (c.dim() - 2))
    return (c[:, :, None] - c[:, None]).masked_fill(later.reshape(shape), float("-inf")).exp()


def linear(q: Tensor, k: Tensor, v: Tensor, S0: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """LA: ``o = scale (tril(Q K^T) V + Q S0)``."""
    require_float64(q=q, k=k, v=v, S0=S0)
    scores = _causal(torch.einsum("bihd,bjhd->bhij", q, k))
    o = torch.einsum("bhij,bjhv->bihv", scores, v) + torch.einsum("bihd,bhdv->bihv", q, S0)
    return scale * o, S0 + torch.einsum("bjhd,bjhv->bhdv", k, v)


def gla(q: Tensor, k: Tensor, v: Tensor, a: Tensor, S0: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """GLA: a [B, L, H, dk] in (0, 1] decays each channel; the quadratic form with products of a."""
    require_float64(q=q, k=k, v=v, a=a, S0=S0)
    c = a.log().cumsum(1)
    scores = torch.einsum("bihd,bjhd,bijhd->bhij", q, k, _ratios(c))
    o = torch.einsum("bhij,bjhv->bihv", scores, v) + torch.einsum("bihd,bhdv->bihv", q * c.exp(), S0)
    late = k * (c[:, -1:] - c).exp()
    return scale * o, c[:, -1].exp()[..., None] * S0 + torch.einsum("bjhd,bjhv->bhdv", late, v)


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, S0: Tensor
) -> tuple[Tensor, Tensor]:
    """SSD: x [B, L, H, P], dt [B, L, H], rates A [H], B and C [B, L, H, N], skip D [H], S0 [B, H, N, P]."""
    require_float64(x=x, dt=dt, A=A, B=B, C=C, D=D, S0=S0)
    c = (dt * A).cumsum(1)
    matrix = torch.einsum("bihn,bjhn,bijh,bjh->bhij", C, B, _ratios(c), dt)
    y = torch.einsum("bhij,bjhp->bihp", matrix, x) + D[:, None] * x
    y = y + torch.einsum("bihn,bhnp->bihp", C * c.exp()[..., None], S0)
    weight = (c[:, -1:] - c).exp() * dt
    final = c[:, -1].exp()[..., None, None] * S0 + torch.einsum("bjh,bjhn,bjhp->bhnp", weight, B, x)
    return y, final


def deltanet(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, S0: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """DeltaNet: write beta times the difference between the value and what the key already reads."""
    require_float64(q=q, k=k, v=v, beta=beta, S0=S0)
    S, outputs = S0, []
    for t in range(q.shape[1]):
        held = torch.einsum("bhdv,bhd->bhv", S, k[:, t])
        correction = beta[:, t, :, None] * (v[:, t] - held)
        S = S + torch.einsum("bhd,bhv->bhdv", k[:, t], correction)
        outputs.append(scale * torch.einsum("bhdv,bhd->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def gdn(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, S0: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """GDN: the state as [dv, dk], multiplied from the right by ``a (I - beta k k^T)``; a [B, L, H]."""
    require_float64(q=q, k=k, v=v, a=a, beta=beta, S0=S0)
    S, outputs, identity = S0.mT, [], torch.eye(q.shape[-1], dtype=q.dtype)
    for t in range(q.shape[1]):
        step, rate = a[:, t, :, None, None], beta[:, t, :, None, None]
        key, value = k[:, t, :, :, None], v[:, t, :, :, None]
        S = S @ (step * (identity - rate * key @ key.mT)) + rate * value @ key.mT
        outputs.append(scale * (S @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), S.mT


def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S0: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """KDA: the explicit transition ``(I - beta k k^T) Diag(e^g)``; g [B, L, H, dk], beta [B, L, H]."""
    require_float64(q=q, k=k, v=v, g=g, beta=beta, S0=S0)
    S, outputs, identity = S0, [], torch.eye(q.shape[-1], dtype=q.dtype)
    for t in range(q.shape[1]):
        rate, key = beta[:, t, :, None, None], k[:, t, :, :, None]
        transition = (identity - rate * (key @ key.mT)) @ torch.diag_embed(g[:, t].exp())
        S = transition @ S + rate * (key @ v[:, t, :, None, :])
        outputs.append(scale * (S.mT @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), S


def gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, S0: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """GDN-2: erase gate b [B, L, H, dk] and write gate w [B, L, H, dv], each per channel.

    The affine step ``[S; 1] <- [[E, k (w*v)^T], [0, 1]] [S; 1]`` has S on the left of nothing else, so the
    states are unrolled as an explicit sum over writes, each carried by the product of the transitions E
    that follow it: no recurrence in S is evaluated.
    """
    require_float64(q=q, k=k, v=v, g=g, b=b, w=w, S0=S0)
    identity = torch.eye(q.shape[-1], dtype=q.dtype)
    erase = identity - k[..., :, None] * (b * k)[..., None, :]
    transitions = erase * g.exp()[..., None, :]
    writes = k[..., :, None] * (w * v)[..., None, :]
    outputs, S = [], S0
    for t in range(q.shape[1]):
        carried, S = identity, torch.zeros_like(S0)
        for j in reversed(range(t + 1)):
            S = S + carried @ writes[:, j]
            carried = carried @ transitions[:, j]
        S = S + carried @ S0
        outputs.append(scale * torch.einsum("bhdv,bhd->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S
