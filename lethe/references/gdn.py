"""Gated linear recurrence in its general form, forward and adjoint, one token at a time.

For each head, with the state S [dk, dv]::

    S_t = (I - k_t (b_t * k_t)^T) Diag(e^{g_t}) S_{t-1} + k_t (w_t * v_t)^T
    o_t = s S_t^T q_t

LA, GLA, SSD, DeltaNet, GDN, KDA and GDN-2 are this line with some of g, b, w fixed
(`lethe.references.gdn_reductions`); each is written from its own definition in
`lethe.references.gdn_members`. With the decayed state Z = Diag(e^{g_t}) S_{t-1} and p = b * k the line reads
``n = w * v - Z^T p;  S_t = Z + k n^T``, and its adjoint, derived by hand, with D the adjoint of S_t, is::

    D += s q do^T          dq = s S_t do         dn = D^T k            dp = -Z dn
    dk = D n + b * dp      db = k * dp           dv = w * dn           dw = v * dn
    dZ = D - p dn^T        dg = rowsum(dZ * Z)   D <- Diag(e^g) dZ

Shapes: q, k, g, b [B, L, H, dk]; v, w, o [B, L, H, dv]; states [N, H, dk, dv]; all float64. N = B, or with
``cu_seqlens`` [N + 1] (B = 1) sequence n owns the tokens ``cu_seqlens[n]:cu_seqlens[n + 1]``, perhaps none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lethe.references.double import require_float64, require_shape

GRADIENTS = ("q", "k", "v", "g", "b", "w", "initial_state")
"""Names of the gradients, in the order of the arguments."""


@dataclass(frozen=True)
class _Tape:
    """What a pass over one sequence [T, H, d] reads: operands by name and the states S_0 .. S_T."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    b: Tensor
    w: Tensor
    states: list[Tensor]


def spans(batch: int, length: int, cu_seqlens: Tensor | None) -> Iterator[tuple[int, int, int]]:
    """(row of the batch, first token, one past the last) of every sequence.

    Raises ValueError when `cu_seqlens` does not cut one row of `length` tokens in order.
    """
    if cu_seqlens is None:
        yield from ((n, 0, length) for n in range(batch))
        return
    cuts = [int(c) for c in cu_seqlens.tolist()]
    if batch != 1 or cuts[0] != 0 or cuts[-1] != length or sorted(cuts) != cuts:
        raise ValueError(f"cu_seqlens is {cuts}; it must rise from 0 to L={length}, with a batch of 1")
    yield from ((0, first, last) for first, last in pairwise(cuts))


def check_general(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[int, int, int, int]:
    """The shape of the states; TypeError or ValueError naming the argument that is not as it should be."""
    require_float64(q=q, k=k, v=v, g=g, b=b, w=w, initial_state=initial_state)
    for name, tensor in (("k", k), ("g", g), ("b", b)):
        require_shape(name, tensor, tuple(q.shape))
    require_shape("v", v, (*q.shape[:3], v.shape[-1]))
    require_shape("w", w, tuple(v.shape))
    sequences = q.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    state = (sequences, q.shape[2], q.shape[3], v.shape[3])
    require_shape("initial_state", initial_state, state)
    return state


def _along(S: Tensor, x: Tensor) -> Tensor:
    """S^T x: the state [H, dk, dv] read at x [H, dk]."""
    return torch.einsum("hkv,hk->hv", S, x)


def _across(S: Tensor, y: Tensor) -> Tensor:
    """S y for y [H, dv]."""
    return torch.einsum("hkv,hv->hk", S, y)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x[:, :, None] * y[:, None, :]


def _run(x: list[Tensor], S: Tensor) -> _Tape:
    """One sequence q, k, v, g, b, w [T, H, d] from the state S."""
    q, k, v, g, b, w = x
    states = [S]
    for t in range(q.shape[0]):
        Z = g[t].exp()[:, :, None] * S
        n = w[t] * v[t] - _along(Z, b[t] * k[t])
        S = Z + _outer(k[t], n)
        states.append(S)
    return _Tape(q, k, v, g, b, w, states)


def gated_delta_rule_forward(
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
) -> tuple[Tensor, Tensor]:
    """The outputs o [B, L, H, dv] and the final states [N, H, dk, dv]; differentiable by autograd too.

    Raises TypeError unless everything is float64, ValueError for a shape or for `cu_seqlens`.
    """
    shape = check_general(q, k, v, g, b, w, initial_state, cu_seqlens)
    S0 = torch.zeros(shape, dtype=q.dtype) if initial_state is None else initial_state
    outputs, finals = [], []
    for n, (row, first, last) in enumerate(spans(q.shape[0], q.shape[1], cu_seqlens)):
        tape = _run([x[row, first:last] for x in (q, k, v, g, b, w)], S0[n])
        outputs += [scale * _along(S, tape.q[t]) for t, S in enumerate(tape.states[1:])]
        finals.append(tape.states[-1])
    o = torch.stack(outputs).reshape(v.shape) if outputs else torch.zeros_like(v)
    return o, torch.stack(finals)


def gated_delta_rule_backward(
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
) -> dict[str, Tensor]:
    """Gradients by the names in `GRADIENTS`, given do [B, L, H, dv] and dfinal [N, H, dk, dv] (None is zero).

    ``initial_state`` is always among them: a missing initial state is zero, and has a gradient.
    Raises TypeError unless everything is float64, ValueError for a shape or for `cu_seqlens`.
    """
    shape = check_general(q, k, v, g, b, w, initial_state, cu_seqlens)
    require_float64(do=do, dfinal=dfinal)
    require_shape("do", do, tuple(v.shape))
    require_shape("dfinal", dfinal, shape)
    zero = torch.zeros(shape, dtype=q.dtype)
    S0 = zero if initial_state is None else initial_state
    D = zero if dfinal is None else dfinal
    named = {"q": q, "k": k, "v": v, "g": g, "b": b, "w": w}
    grads = {name: torch.zeros_like(value) for name, value in named.items()}
    dS0 = torch.zeros_like(zero)
    for n, (row, first, last) in enumerate(spans(q.shape[0], q.shape[1], cu_seqlens)):
        tape = _run([x[row, first:last] for x in named.values()], S0[n])
        views = {name: value[row, first:last] for name, value in grads.items()}
        dS0[n] = _adjoint(tape, do[row, first:last], D[n], scale, views)
    return {**grads, "initial_state": dS0}


def _adjoint(tape: _Tape, do: Tensor, D: Tensor, scale: float, out: dict[str, Tensor]) -> Tensor:
    """Fill the gradients of one sequence, last token first; return the gradient of its initial state."""
    for t in reversed(range(do.shape[0])):
        k, b, w, v, decay = tape.k[t], tape.b[t], tape.w[t], tape.v[t], tape.g[t].exp()
        p = b * k
        Z = decay[:, :, None] * tape.states[t]
        n = w * v - _along(Z, p)
        D = D + scale * _outer(tape.q[t], do[t])
        dn = _along(D, k)
        dp = -_across(Z, dn)
        dZ = D - _outer(p, dn)
        out["q"][t] = scale * _across(tape.states[t + 1], do[t])
        out["k"][t] = _across(D, n) + b * dp
        out["b"][t] = k * dp
        out["v"][t] = w * dn
        out["w"][t] = v * dn
        out["g"][t] = (dZ * Z).sum(-1)
        D = decay[:, :, None] * dZ
    return D
