"""Backend ``torch``: the stages chunk by chunk in float32 or float64, on any device.

It defines what a native backend returns: `forward` gives (o, final state, saved), `backward` a gradient for
each tensor that is there, both in the dtypes of the inputs. ``saved`` is (A, T, S), what the backward pass
would otherwise compute again; T (without its unit diagonal) is empty where it is the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lethe.kernels.gdn import stages
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.chunks import Chunks, cut

Saved = tuple[Tensor, Tensor, Tensor]


def _operands(a: Arguments, at: Chunks) -> stages.Operands:
    def pack(x: Tensor | None) -> Tensor | None:
        return None if x is None else at.pack(x.to(a.compute_dtype))

    q, k, v = (at.pack(x.to(a.compute_dtype)) for x in (a.q, a.k, a.v))
    g = pack(a.g)
    return stages.Operands(
        q, k, v, torch.zeros_like(q[..., :1]) if g is None else g, pack(a.b), pack(a.w), a.scale
    )


def _initial(a: Arguments) -> Tensor:
    if a.initial_state is not None:
        return a.initial_state
    return torch.zeros(a.state_shape, dtype=a.compute_dtype, device=a.q.device)


def _cut(a: Arguments) -> Chunks:
    return cut(a.q.shape[0], a.q.shape[1], a.cu_seqlens, a.q.device)


def forward(a: Arguments, save: bool) -> tuple[Tensor, Tensor, Saved]:
    """o [B, L, H, dv] in the dtype of v, the final states [N, H, dk, dv], and (A, T, S) if `save`."""
    at = _cut(a)
    c = stages.local(_operands(a, at))
    S, final = stages.scan_forward(at, stages.prepare(c), _initial(a))
    o = at.unpack(stages.outputs(c, S)).to(a.v.dtype)
    saved = (c.A, c.T, S) if save else (None, None, None)
    A, T, S = (_or_nothing(x, final) for x in saved)
    return o, final, (A, T, S)


def _or_nothing(x: Tensor | None, like: Tensor) -> Tensor:
    """Dense, as the operator's fake promises; an absent tensor is an empty one."""
    return like.new_empty(0) if x is None else x.contiguous()


def backward(a: Arguments, do: Tensor, dfinal: Tensor, saved: Saved) -> dict[str, Tensor]:
    """Gradients by name of the tensors of `a`, given do and dfinal; `saved` as `forward` gave it."""
    at = _cut(a)
    A, T, S = saved
    x = _operands(a, at)
    c = (
        stages.local(x)
        if A.numel() == 0
        else stages.Local(x, x.g.cumsum(-2), stages.diagonal(x), A, T if T.numel() else None)
    )
    prepared = stages.prepare(c)
    if S.numel() == 0:
        S, _ = stages.scan_forward(at, prepared, _initial(a))
    do = at.pack(do.to(a.compute_dtype))
    P = stages.prepare_adjoint(c, prepared, do)
    D, dS0 = stages.scan_reverse(at, prepared, P, dfinal)
    found = stages.gradients(c, S, D, do)
    named = {name: at.unpack(t) for name, t in found.items() if t is not None}
    named["initial_state"] = dS0
    tensors = a.tensors()
    return {name: t.to(tensors[name].dtype) for name, t in named.items() if name in tensors}
