"""The same recurrence chunk by chunk (WY form), forward and backward in float64: the ladder's second rung.

Per chunk of C tokens, with S the state that enters it, G the cumulative log decay and Gam its last row::

    Qh = q e^G    Ph = b k e^G    Kt = k e^{Gam - G}
    M_ij = [i > j] sum_d b_i k_i k_j e^{G_i - G_j}        T = (I + M)^{-1}
    A_ij = [i >= j] s sum_d q_i k_j e^{G_i - G_j}
    N = T (w v - Ph S)        o = s Qh S + A N        S' = e^Gam S + Kt^T N

The backward pass is the plain one: the reverse scan in dN with W = T Ph, the adjoint of the WY form in seven
products (dU, dW, dT, dM), and the decay's gradient by the short identity ``rowsum(S' * D)`` at a chunk's end.
It deliberately takes none of the shortcuts of `lethe.kernels.gdn` (three products instead of seven, R instead
of dN, blocked exponents, the consistent form of dg), which are thereby checked. Decays are exponentiated
pairwise with the mask inside the exponent, [C, C, dk] at a time: exact for every decay, and slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lethe.references.gdn import check_general, spans

CHUNK = 64


@dataclass(frozen=True)
class Chunk:
    """Everything about one chunk [H, C, d] that the backward pass reads."""

    q: Tensor
    k: Tensor
    v: Tensor
    b: Tensor
    w: Tensor
    G: Tensor
    A: Tensor
    T: Tensor
    N: Tensor
    entry: Tensor
    """State that enters [H, dk, dv]."""
    leave: Tensor

    @property
    def Gam(self) -> Tensor:
        return self.G[:, -1]

    @property
    def Ph(self) -> Tensor:
        return self.b * self.k * self.G.exp()

    @property
    def Kt(self) -> Tensor:
        return self.k * (self.Gam[:, None] - self.G).exp()


def _ratios(G: Tensor, strict: bool) -> Tensor:
    """e^{G_i - G_j} [H, C, C, dk] below the diagonal (and on it unless `strict`), else 0."""
    size = G.shape[1]
    keep = torch.ones(size, size, dtype=torch.bool).tril(-1 if strict else 0)
    return (G[:, :, None] - G[:, None]).masked_fill(~keep[None, :, :, None], float("-inf")).exp()


def _decayed(x: Tensor, y: Tensor, G: Tensor, strict: bool) -> Tensor:
    return torch.einsum("hid,hjd,hijd->hij", x, y, _ratios(G, strict))


def _decayed_adjoint(dX: Tensor, x: Tensor, y: Tensor, G: Tensor, strict: bool) -> tuple[Tensor, Tensor]:
    E = _ratios(G, strict)
    return torch.einsum("hij,hjd,hijd->hid", dX, y, E), torch.einsum("hij,hid,hijd->hjd", dX, x, E)


def _chunk(x: tuple[Tensor, ...], S: Tensor, scale: float) -> Chunk:
    q, k, v, g, b, w = (t.transpose(0, 1) for t in x)
    G = g.cumsum(1)
    p = b * k
    identity = torch.eye(G.shape[1], dtype=q.dtype)
    M = _decayed(p, k, G, strict=True)
    T = torch.linalg.solve_triangular(identity + M, identity.expand_as(M), upper=False, unitriangular=True)
    A = scale * _decayed(q, k, G, strict=False)
    N = T @ (w * v - p * G.exp() @ S)
    late = k * (G[:, -1:] - G).exp()
    return Chunk(q, k, v, b, w, G, A, T, N, S, G[:, -1].exp()[..., None] * S + late.mT @ N)


def _sequence(x: tuple[Tensor, ...], S: Tensor, scale: float, size: int) -> list[Chunk]:
    chunks = []
    for first in range(0, x[0].shape[0], size):
        chunks.append(_chunk(tuple(t[first : first + size] for t in x), S, scale))
        S = chunks[-1].leave
    return chunks


def chunk_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    *,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    size: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """As `lethe.references.gdn.gated_delta_rule_forward`, in chunks of `size` tokens."""
    shape = check_general(q, k, v, g, b, w, initial_state, cu_seqlens)
    states = torch.zeros(shape, dtype=q.dtype) if initial_state is None else initial_state.clone()
    o = torch.zeros_like(v)
    for n, (row, first, last) in enumerate(spans(q.shape[0], q.shape[1], cu_seqlens)):
        for c in _sequence(tuple(x[row, first:last] for x in (q, k, v, g, b, w)), states[n], scale, size):
            out = scale * (c.q * c.G.exp()) @ c.entry + c.A @ c.N
            o[row, first : first + size][: out.shape[1]] = out.transpose(0, 1)
            first += size
            states[n] = c.leave
    return o, states


def chunk_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    *,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    dfinal: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    size: int = CHUNK,
) -> dict[str, Tensor]:
    """As `lethe.references.gdn.gated_delta_rule_backward`, in chunks of `size` tokens."""
    shape = check_general(q, k, v, g, b, w, initial_state, cu_seqlens)
    S0 = torch.zeros(shape, dtype=q.dtype) if initial_state is None else initial_state
    D = torch.zeros_like(S0) if dfinal is None else dfinal.clone()
    named = {"q": q, "k": k, "v": v, "g": g, "b": b, "w": w}
    grads = {name: torch.zeros_like(value) for name, value in named.items()}
    for n, (row, first, last) in enumerate(spans(q.shape[0], q.shape[1], cu_seqlens)):
        chunks = _sequence(tuple(x[row, first:last] for x in named.values()), S0[n], scale, size)
        for i, c in reversed(list(enumerate(chunks))):
            rows = slice(first + i * size, min(first + (i + 1) * size, last))
            found, D[n] = _chunk_adjoint(c, do[row, rows].transpose(0, 1), D[n].clone(), scale)
            for name, value in found.items():
                grads[name][row, rows] = value.transpose(0, 1)
    return {**grads, "initial_state": D}


def _chunk_adjoint(c: Chunk, do: Tensor, D: Tensor, scale: float) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of one chunk [H, C, d], and the adjoint of the state it started from."""
    W = c.T @ c.Ph
    dN = c.A.mT @ do + c.Kt @ D
    before = c.Gam.exp()[..., None] * D + scale * (c.q * c.G.exp()).mT @ do - W.mT @ dN

    dW = -dN @ c.entry.mT
    dT = dN @ (c.w * c.v).mT + dW @ c.Ph.mT
    dM = -(c.T.mT @ dT @ c.T.mT).tril(-1)
    dwv, dPh = c.T.mT @ dN, c.T.mT @ dW

    dA = scale * (do @ c.N.mT).tril()
    p = c.b * c.k
    dq, dk = _decayed_adjoint(dA, c.q, c.k, c.G, strict=False)
    dp, dk_erase = _decayed_adjoint(dM, p, c.k, c.G, strict=True)
    dq = dq + scale * (do @ c.entry.mT) * c.G.exp()
    dp = dp + dPh * c.G.exp()
    dk = dk + dk_erase + (c.N @ D.mT) * (c.Gam[:, None] - c.G).exp()
    dG = c.q * dq + p * dp - c.k * dk
    dG[:, -1] += (c.leave * D).sum(-1)
    dg = dG.flip(1).cumsum(1).flip(1)
    grads = {"q": dq, "k": dk + c.b * dp, "v": c.w * dwv, "g": dg, "b": c.k * dp, "w": c.v * dwv}
    return grads, before
