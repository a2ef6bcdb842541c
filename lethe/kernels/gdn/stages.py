"""The three stages of the backward pass, in torch: what the native kernels compute, product by product.

*prep* (every chunk by itself)::

    G = cumsum(g)     Qh = q e^G    Ph = b k e^G    Kt = k e^{Gam - G}     Gam: last row of G
    a = s rowsum(q * k)     A = s stril(q k^T e^{G_i - G_j})     M = stril(b k k^T e^{G_i - G_j})
    T = (I + M)^{-1}
    W = T Ph     U = T (w v)     P = s Qh^T dO - W^T (A^T dO + a dO)

*scan* (one sequence and head after the other; only states go in and out, so two products a step)::

    forward    S' = e^Gam S + Kt^T (U - W S)        S: state that enters the chunk
    reverse    D' = e^Gam D + P - W^T (Kt D)        D: adjoint of the state that leaves it

*out* (every chunk by itself)::

    N = T (w v - Ph S)     dN = A^T dO + a dO + Kt D     R = T^T dN
    d(w v) = R     dPh = -R S^T     dM = -stril(R N^T)      (three products where the WY form has seven)
    da = s rowsum(dO * N)  dA = s stril(dO N^T)   dQh = s dO S^T     dKt = N D^T
    dq = e^G dQh + dA (k ..)     dp = e^G dPh + dM (k ..)    dkc = e^{Gam-G} dKt + dA^T (q ..) + dM^T (p ..)
    dG = q dq + p dp - k dkc;    dG_last += e^Gam rowsum(S * D) + sum_j Kt_j * dKt_j;    dg = reverse cumsum
    dq += da k     dk = dkc + da q + b dp     db = k dp     dv = w R     dw = v R

The diagonal a of the causal matrix has no decay. Its terms in q dq and k dk are equal, so they are left out
of dG, where their rounding would drown a strong decay's gradient; being the largest, they stay in float32.
The last term of dG is the *consistent* form: what it adds at the end of the chunk is what ``-k dkc``
subtracts token by token, from the same dKt, so that their rounding cancels in the sum. (``rowsum(S' * D)``
is equal in exact arithmetic and several times worse in 16 bits.)

T is kept without its unit diagonal, and ``T x = x + (T - I) x``: the first term needs no product, so it is
not rounded.

Tensors are [slots, H, 64, d] and states [slots, H, dk, dv] (`chunks`), float32 or float64. ``b=None`` means
b = 0: T is the identity, and M, W, Ph, dM are never formed. ``w=None`` means w = 1, ``g=None`` no decay. A
gate with a last axis of 1 is one number a head. `rounding` rounds the operand ``"product.operand"`` of each
matrix product and what is stored between stages (``"store.name"``); by default nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lethe.kernels.gdn.chunks import Chunks
from lethe.kernels.gdn.decay import Rounding, decayed, decayed_adjoint, exact
from lethe.kernels.gdn.triangle import inverse_minus_identity


@dataclass(frozen=True)
class Operands:
    """Inputs in chunks; g is zero where there is no decay."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    b: Tensor | None
    w: Tensor | None
    scale: float


@dataclass(frozen=True)
class Local:
    """What a chunk knows by itself. Recomputed by prep and by out, but A and T, which are stored."""

    x: Operands
    G: Tensor
    a: Tensor
    """Diagonal of the causal matrix [slots, H, 64, 1], not rounded."""
    A: Tensor
    """The causal matrix below its diagonal."""
    T: Tensor | None
    """T - I, strictly lower triangular; None is T = I (b = 0)."""

    @property
    def p(self) -> Tensor:
        assert self.x.b is not None
        return self.x.b * self.x.k

    @property
    def wv(self) -> Tensor:
        return self.x.v if self.x.w is None else self.x.w * self.x.v

    @property
    def decay(self) -> Tensor:
        """e^Gam [slots, H, dk or 1, 1], as it scales a state."""
        return self.G[..., -1, :].exp()[..., None]

    @property
    def Qh(self) -> Tensor:
        return self.x.q * self.G.exp()

    @property
    def Ph(self) -> Tensor:
        return self.p * self.G.exp()

    @property
    def late(self) -> Tensor:
        """e^{Gam - G}."""
        return (self.G[..., -1:, :] - self.G).exp()

    @property
    def Kt(self) -> Tensor:
        return self.x.k * self.late


@dataclass(frozen=True)
class Prepared:
    """What prep hands to scan; W is None when T is the identity and nothing is erased."""

    Kt: Tensor
    U: Tensor
    W: Tensor | None
    decay: Tensor


def within(rounding: Rounding, product: str) -> Rounding:
    """The hook of `decay`, for the operands of one product."""
    return lambda operand, x: rounding(f"{product}.{operand}", x)


def diagonal(x: Operands) -> Tensor:
    """a [slots, H, 64, 1]."""
    return x.scale * (x.q * x.k).sum(-1, keepdim=True)


def local(x: Operands, rounding: Rounding = exact, block: int = 1) -> Local:
    """G, A and T of every chunk."""
    G = x.g.cumsum(-2)
    a = diagonal(x)
    A = x.scale * decayed(x.q, x.k, G, strict=True, block=block, scaled=within(rounding, "A"))
    if x.b is None:
        return Local(x, G, a, rounding("store.A", A), None)
    M = decayed(x.b * x.k, x.k, G, strict=True, block=block, scaled=within(rounding, "M"))
    T = inverse_minus_identity(M, within(rounding, "inverse"))
    return Local(x, G, a, rounding("store.A", A), rounding("store.T", T))


def prepare(c: Local, rounding: Rounding = exact) -> Prepared:
    """Operands of the scan."""
    r, Kt = rounding, rounding("store.Kt", c.Kt)
    if c.T is None:
        return Prepared(Kt, r("store.U", c.wv), None, c.decay)
    U = r("store.U", c.wv + r("U.T", c.T) @ r("U.wv", c.wv))
    W = r("store.W", c.Ph + r("W.T", c.T) @ r("W.Ph", c.Ph))
    return Prepared(Kt, U, W, c.decay)


def prepare_adjoint(c: Local, prepared: Prepared, do: Tensor, rounding: Rounding = exact) -> Tensor:
    """P [slots, H, dk, dv], what a chunk adds to the adjoint of the state by itself."""
    r = rounding
    P = c.x.scale * (r("P.Qh", c.Qh).mT @ r("P.do", do))
    if prepared.W is not None:
        dNloc = c.a * do + r("dNloc.A", c.A).mT @ r("dNloc.do", do)
        P = P - r("P.W", prepared.W).mT @ r("P.dNloc", dNloc)
    return r("store.P", P)


def scan_forward(
    at: Chunks, prepared: Prepared, S0: Tensor, rounding: Rounding = exact
) -> tuple[Tensor, Tensor]:
    """States that enter the chunks [slots, H, dk, dv], and the final states [N, H, dk, dv]."""
    r, final = rounding, S0.clone()
    states = S0.new_zeros(at.tokens.shape[0], *S0.shape[1:])
    for step in range(at.steps):
        n, slot = at.at(step)
        S = final[n]
        states[slot] = r("store.S", S)
        N = prepared.U[slot]
        if prepared.W is not None:
            N = N - r("WS.W", prepared.W[slot]) @ r("WS.S", S)
        final[n] = prepared.decay[slot] * S + r("KtN.Kt", prepared.Kt[slot]).mT @ r("KtN.N", N)
    return states, final


def scan_reverse(
    at: Chunks, prepared: Prepared, P: Tensor, dfinal: Tensor, rounding: Rounding = exact
) -> tuple[Tensor, Tensor]:
    """Adjoints of the states that leave the chunks, and of the initial states."""
    r, carried = rounding, dfinal.clone()
    adjoints = torch.zeros_like(P)
    for step in reversed(range(at.steps)):
        n, slot = at.at(step)
        D = carried[n]
        adjoints[slot] = r("store.D", D)
        before = prepared.decay[slot] * D + P[slot]
        if prepared.W is not None:
            Y = r("KtD.Kt", prepared.Kt[slot]) @ r("KtD.D", D)
            before = before - r("WY.W", prepared.W[slot]).mT @ r("WY.Y", Y)
        carried[n] = before
    return adjoints, carried


def written(c: Local, S: Tensor, rounding: Rounding = exact) -> Tensor:
    """N [slots, H, 64, dv]: what each token writes to the state along its key."""
    r = rounding
    if c.T is None:
        return c.wv
    E = c.wv - r("PhS.Ph", c.Ph) @ r("PhS.S", S)
    return E + r("N.T", c.T) @ r("N.E", E)


def outputs(c: Local, S: Tensor, rounding: Rounding = exact) -> Tensor:
    """o [slots, H, 64, dv]."""
    r = rounding
    N = written(c, S, rounding)
    inside = c.a * N + r("AN.A", c.A) @ r("AN.N", N)
    return c.x.scale * (r("QhS.Qh", c.Qh) @ r("QhS.S", S)) + inside


def gradients(
    c: Local, S: Tensor, D: Tensor, do: Tensor, rounding: Rounding = exact, block: int = 1
) -> dict[str, Tensor | None]:
    """dq, dk, dv, dg, db, dw by the names of the inputs; None for a gate that is not there.

    A gate's gradient has its gate's last axis: 1 for one number a head.
    """
    r, x = rounding, c.x
    N = written(c, S, rounding)
    dN = c.a * do + r("dN.A", c.A).mT @ r("dN.do", do) + r("dN.Kt", c.Kt) @ r("dN.D", D)
    R = dN if c.T is None else dN + r("R.T", c.T).mT @ r("R.dN", dN)

    dA = x.scale * (r("dA.do", do) @ r("dA.N", N).mT)
    da = dA.diagonal(dim1=-2, dim2=-1)[..., None]
    dA = dA.tril(-1)
    dq, dkc = decayed_adjoint(dA, x.q, x.k, c.G, block=block, scaled=within(r, "dq"))
    dq = dq + x.scale * (r("dQh.do", do) @ r("dQh.S", S).mT) * c.G.exp()
    dKt = r("dKt.N", N) @ r("dKt.D", D).mT
    dkc = dkc + dKt * c.late
    dG = x.q * dq
    db, erased = None, torch.zeros_like(dkc)
    if x.b is not None:
        dM = -(r("dM.R", R) @ r("dM.N", N).mT).tril(-1)
        dp, dk_erased = decayed_adjoint(dM, c.p, x.k, c.G, block=block, scaled=within(r, "dp"))
        dp = dp - (r("dPh.R", R) @ r("dPh.S", S).mT) * c.G.exp()
        dkc = dkc + dk_erased
        dG = dG + c.p * dp
        erased, db = x.b * dp, _as_gate(x.k * dp, x.b)
    dG = dG - x.k * dkc
    dG[..., -1, :] += (c.decay * S * D).sum(-1) + (c.Kt * dKt).sum(-2)
    dg = dG.flip(-2).cumsum(-2).flip(-2)
    dv, dw = (R, None) if x.w is None else (x.w * R, _as_gate(x.v * R, x.w))
    dq, dk = dq + da * x.k, dkc + da * x.q + erased
    return {"q": dq, "k": dk, "v": dv, "g": _as_gate(dg, x.g), "b": db, "w": dw}


def _as_gate(grad: Tensor, gate: Tensor) -> Tensor:
    return grad.sum(-1, keepdim=True) if gate.shape[-1] == 1 else grad
