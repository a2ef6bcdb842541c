"""Backend ``torch``: the stages chunk by chunk in float32 or float64, on any device.

It defines what a native backend returns: `forward` gives (o, final state, saved), `backward` a gradient for
each tensor that is there, both in the dtypes of the inputs. ``saved`` is (A, T, S), what the backward pass
would otherwise compute again; T (without its unit diagonal) is empty where it is the identity.

*Decays.* Every decay between two tokens of a chunk is e to a difference of two sums of g. A sum past a steep
token has lost the low bits of what follows, and two infinite sums have no difference. So

* a token's g is raised to `floor`: e to less than that is zero in float64, and so is e to any difference
  across such a token, which the floor only moves from one zero to another;
* the sums and e to their differences are float64. The sum of a chunk is then at most 64 * 745.5 < 2^16, each
  addition is off by half a unit, 2^-38, and a difference by less than 64 of these: 2^-32 = 2.4e-10 relative
  in the worst case, which float32 (2^-24) does not see. A single steep token costs 64 * 2^-44 = 4e-12.

Operands of matrix products, states and what is saved stay float32 for float32 and 16-bit inputs: they pass
through the hook by which `precision` rounds operands. What is formed element by element from a decay is
float64 up to there, and so is the sum of dg, whose terms cancel where everything decays fast.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lethe.kernels.gdn import stages
from lethe.kernels.gdn.checks import Arguments, check_cuts
from lethe.kernels.gdn.chunks import CHUNK, Chunks, cut
from lethe.kernels.gdn.decay import Rounding

Saved = tuple[Tensor, Tensor, Tensor]


def floor(dtype: torch.dtype) -> float:
    """A logarithm whose exponential is zero in `dtype`: that of the least subnormal less 1 (half of that
    number is rounded to zero): -745.4 in float64, -104.3 in float32."""
    limits = torch.finfo(dtype)
    return math.log(limits.smallest_normal) + math.log(limits.eps) - 1.0


def _exponents(device: torch.device) -> torch.dtype:
    """Dtype of the sums of g. On a device without float64 the error of a difference is 2^-24 of the sum."""
    return torch.float32 if device.type == "mps" else torch.float64


def _products(a: Arguments) -> Rounding:
    """Operands of products, states and what is saved, in the dtype of the sums of this call."""
    return lambda _operand, x: x.to(a.compute_dtype)


def _operands(a: Arguments, at: Chunks) -> stages.Operands:
    def pack(x: Tensor | None) -> Tensor | None:
        return None if x is None else at.pack(x.to(a.compute_dtype))

    q, k, v = (at.pack(x.to(a.compute_dtype)) for x in (a.q, a.k, a.v))
    return stages.Operands(q, k, v, _gate(a, at, q), pack(a.b), pack(a.w), a.scale)


def _gate(a: Arguments, at: Chunks, q: Tensor) -> Tensor:
    """g in chunks, no token below `floor`; NaN stays NaN."""
    if a.g is None:
        return torch.zeros_like(q[..., :1])
    dtype = _exponents(a.q.device)
    return at.pack(a.g.to(dtype).clamp(min=floor(dtype)))


def _prepare(a: Arguments, c: stages.Local) -> stages.Prepared:
    prepared = stages.prepare(c, _products(a))
    return replace(prepared, decay=prepared.decay.to(a.compute_dtype))


def _initial(a: Arguments) -> Tensor:
    if a.initial_state is not None:
        return a.initial_state
    return torch.zeros(a.state_shape, dtype=a.compute_dtype, device=a.q.device)


def _cut(a: Arguments) -> Chunks:
    cuts = a.cu_seqlens if a.cu_seqlens is None else check_cuts(a.cu_seqlens, a.q.shape[1])
    return cut(a.q.shape[0], a.q.shape[1], cuts, a.q.device)


def _unpack(at: Chunks, y: Tensor) -> Tensor:
    """[slots, H, 64, d] back to [B, L, H, d], as a tensor that is no view: it may be changed in place."""
    lies = torch.empty(at.batch * at.length + 1, dtype=torch.long, device=y.device)
    lies[at.tokens.flatten()] = torch.arange(at.tokens.numel(), device=y.device)
    lies = lies[:-1].reshape(at.batch, at.length)
    return y[lies // CHUNK, :, lies % CHUNK]


def forward(a: Arguments, save: bool) -> tuple[Tensor, Tensor, Saved]:
    """o [B, L, H, dv] in the dtype of v, the final states [N, H, dk, dv], and (A, T, S) if `save`."""
    at, r = _cut(a), _products(a)
    c = stages.local(_operands(a, at), r)
    S, final = stages.scan_forward(at, _prepare(a, c), _initial(a))
    o = _unpack(at, stages.outputs(c, S, r)).to(a.v.dtype)
    saved = (c.A, c.T, S) if save else (None, None, None)
    A, T, S = (_or_nothing(x, final) for x in saved)
    return o, final, (A, T, S)


def _or_nothing(x: Tensor | None, like: Tensor) -> Tensor:
    """Dense, as the operator's fake promises; an absent tensor is an empty one."""
    return like.new_empty(0) if x is None else x.contiguous()


def backward(a: Arguments, do: Tensor, dfinal: Tensor, saved: Saved) -> dict[str, Tensor]:
    """Gradients by name of the tensors of `a`, given do and dfinal; `saved` as `forward` gave it."""
    at, r = _cut(a), _products(a)
    A, T, S = saved
    x = _operands(a, at)
    c = (
        stages.local(x, r)
        if A.numel() == 0
        else stages.Local(x, x.g.cumsum(-2), stages.diagonal(x), A, T if T.numel() else None)
    )
    prepared = _prepare(a, c)
    if S.numel() == 0:
        S, _ = stages.scan_forward(at, prepared, _initial(a))
    do = at.pack(do.to(a.compute_dtype))
    P = stages.prepare_adjoint(c, prepared, do, r)
    D, dS0 = stages.scan_reverse(at, prepared, P, dfinal)
    found = stages.gradients(c, S, D, do, r)
    named = {name: _unpack(at, t) for name, t in found.items() if t is not None}
    named["initial_state"] = dS0
    tensors = a.tensors()
    return {name: t.to(tensors[name].dtype) for name, t in named.items() if name in tensors}
