"""Selective scan, forward (C1) and backward (C2), one token at a time.

Per channel d and state n, with the step ``dt`` and the decay ``a_t = exp(dt_t A)``::

    h_t = a_t h_{t-1} + (1 - lam_t) dt_t a_t u_{t-1} B_{t-1} + lam_t dt_t u_t B_t
    y_t = C_t . h_t + D u_t

``lam = 1`` is the exponential-Euler rule of Mamba-1 (Gu and Dao 2023, section 3); ``lam = sigmoid(trap)``
is the exponential-trapezoidal rule of Mamba-3. The backward pass is the adjoint of exactly this line,
derived by hand, so it is independent of autograd and of the regrouped form that the kernels use.

Shapes: u, dt, trap, y [B, L, D]; A [D, N]; B, C [B, L, N]; D [D]; states [B, D, N]; all float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lethe.references.double import require_float64, require_shape


def check_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    trap: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    """Raise TypeError or ValueError naming the argument that is not float64 or has the wrong shape."""
    require_float64(u=u, dt=dt, A=A, B=B, C=C, D=D, trap=trap, initial_state=initial_state)
    batch, length, width = u.shape
    n = A.shape[1]
    require_shape("dt", dt, (batch, length, width))
    require_shape("A", A, (width, n))
    require_shape("B", B, (batch, length, n))
    require_shape("C", C, (batch, length, n))
    require_shape("D", D, (width,))
    require_shape("trap", trap, (batch, length, width))
    require_shape("initial_state", initial_state, (batch, width, n))


def _gate(dt: Tensor, trap: Tensor | None) -> Tensor:
    return torch.ones_like(dt) if trap is None else torch.sigmoid(trap)


def _outer(u: Tensor, B: Tensor, t: int) -> Tensor:
    """``u_t B_t`` [B, D, N]; zero before the first token."""
    if t < 0:
        return torch.zeros(u.shape[0], u.shape[2], B.shape[2], dtype=u.dtype)
    return u[:, t, :, None] * B[:, t, None, :]


def forward_chunked_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    trap: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """C1: the outputs y [B, L, D] and the final state [B, D, N].

    `trap` holds logits; None means exponential-Euler. Raises TypeError unless everything is float64.
    """
    check_scan(u, dt, A, B, C, D, trap, initial_state)
    y, states = _states(u, dt, A, B, C, trap, initial_state)
    return (y if D is None else y + D * u), states[-1]


def _states(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, trap: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    lam = _gate(dt, trap)
    h = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype) if initial_state is None else initial_state
    states, outputs = [h], []
    for t in range(u.shape[1]):
        step, gate = dt[:, t, :, None], lam[:, t, :, None]
        decay = torch.exp(step * A)
        h = decay * h + (1 - gate) * step * decay * _outer(u, B, t - 1) + gate * step * _outer(u, B, t)
        states.append(h)
        outputs.append((h * C[:, t, None, :]).sum(-1))
    return torch.stack(outputs, 1), states


def backward_selective_scan(
    dy: Tensor,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    trap: Tensor | None = None,
    initial_state: Tensor | None = None,
    dfinal: Tensor | None = None,
) -> dict[str, Tensor]:
    """C2: gradients by name (u, dt, A, B, C, D, trap, initial_state) given dy [B, L, D] and dfinal [B, D, N].

    Names whose argument is None are left out. Raises TypeError unless everything is float64.
    """
    check_scan(u, dt, A, B, C, D, trap, initial_state)
    require_float64(dy=dy, dfinal=dfinal)
    _, states = _states(u, dt, A, B, C, trap, initial_state)
    lam = _gate(dt, trap)
    g = {
        name: torch.zeros_like(value) for name, value in (("u", u), ("dt", dt), ("A", A), ("B", B), ("C", C))
    }
    dlam = torch.zeros_like(dt)
    dh = torch.zeros_like(states[0]) if dfinal is None else dfinal
    for t in reversed(range(u.shape[1])):
        step, gate = dt[:, t, :, None], lam[:, t, :, None]
        decay = torch.exp(step * A)
        before, now = _outer(u, B, t - 1), _outer(u, B, t)
        g["C"][:, t] = torch.einsum("bd,bdn->bn", dy[:, t], states[t + 1])
        dh = dh + dy[:, t, :, None] * C[:, t, None, :]
        carried = states[t] + (1 - gate) * step * before
        dlog = dh * carried * decay
        dcarried = dh * decay
        g["A"] += (dlog * step).sum(0)
        dbeta, dgamma = (dcarried * before).sum(-1), (dh * now).sum(-1)
        g["dt"][:, t] = (dlog * A).sum(-1) + lam[:, t] * dgamma + (1 - lam[:, t]) * dbeta
        dlam[:, t] = dt[:, t] * (dgamma - dbeta)
        _accumulate(g, u, B, t, gate * step * dh)
        if t:
            _accumulate(g, u, B, t - 1, (1 - gate) * step * dcarried)
        dh = dcarried
    if D is not None:
        g["u"] += D * dy
        g["D"] = (dy * u).sum((0, 1))
    if trap is not None:
        g["trap"] = dlam * lam * (1 - lam)
    if initial_state is not None:
        g["initial_state"] = dh
    return g


def _accumulate(g: dict[str, Tensor], u: Tensor, B: Tensor, t: int, douter: Tensor) -> None:
    """Add the adjoint of ``u_t B_t`` to the gradients of u and B."""
    g["u"][:, t] += torch.einsum("bdn,bn->bd", douter, B[:, t])
    g["B"][:, t] += torch.einsum("bdn,bd->bn", douter, u[:, t])
