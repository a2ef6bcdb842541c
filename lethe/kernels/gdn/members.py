"""The seven members of the family under their own names and with their own arguments.

Each is the recurrence of `gated_delta_rule` with some gates fixed; `Options` are passed on. Shapes as there:
q, k [B, L, H, dk], v [B, L, H, dv], states [N, H, dk, dv]; each returns (o, final states or None). What is
said there of decays, of numbers that are not finite, of derivatives and of errors holds here.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.kernels.gdn.checks import check_layout, check_shape, require_tensors
from lethe.kernels.gdn.operator import recurrence
from lethe.kernels.gdn.ssd_arguments import check_ssd


class Options(TypedDict, total=False):
    """Keywords of `gated_delta_rule` that every member takes."""

    scale: float | None
    initial_state: Tensor | None
    output_final_state: bool
    cu_seqlens: Tensor | None
    backend: str
    mode: str


Result = tuple[Tensor, Tensor | None]
_OPTIONS = frozenset(Options.__annotations__)
_GATES = ("g", "beta", "b", "w")


def _check(member: str, options: Options, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse a keyword that is not the member's, and q, k or v of a wrong form."""
    for name in options:
        if name in _GATES:
            raise TypeError(f"{member} has no gate {name}; use gated_delta_rule, which takes every gate")
        if name not in _OPTIONS:
            raise TypeError(f"{member} has no argument {name!r}; choose from {', '.join(sorted(_OPTIONS))}")
    check_layout(q, k, v)


def _check_gate(name: str, gate: Tensor, expected: tuple[int, ...]) -> None:
    require_tensors({name: gate}, {})
    check_shape(name, gate, expected)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Result:
    """LA: ``S_t = S_{t-1} + k_t v_t^T``."""
    _check("linear_attention", options, q, k, v)
    return recurrence(q, k, v, **options)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Unpack[Options]) -> Result:
    """GLA: ``S_t = Diag(e^{g_t}) S_{t-1} + k_t v_t^T``; g [B, L, H, dk]."""
    _check("gla", options, q, k, v)
    _check_gate("g", g, k.shape)
    return recurrence(q, k, v, g, **options)


def deltanet(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """DeltaNet: ``S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T``; beta [B, L, H]."""
    _check("deltanet", options, q, k, v)
    _check_gate("beta", beta, q.shape[:3])
    return recurrence(q, k, v, None, beta, **options)


def gdn(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """GDN: ``S_t = e^{g_t} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T``; g, beta [B, L, H]."""
    _check("gdn", options, q, k, v)
    _check_gate("g", g, q.shape[:3])
    _check_gate("beta", beta, q.shape[:3])
    return recurrence(q, k, v, g, beta, **options)


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """KDA: ``S_t = (I - beta_t k_t k_t^T) Diag(e^{g_t}) S_{t-1} + beta_t k_t v_t^T``; g [B, L, H, dk], beta
    [B, L, H].
    """
    _check("kda", options, q, k, v)
    _check_gate("g", g, k.shape)
    _check_gate("beta", beta, q.shape[:3])
    return recurrence(q, k, v, g, beta, **options)


def gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, **options: Unpack[Options]
) -> Result:
    """GDN-2: the general recurrence with every gate a channel's; g, b [B, L, H, dk], w [B, L, H, dv]."""
    _check("gdn2", options, q, k, v)
    _check_gate("g", g, k.shape)
    _check_gate("b", b, k.shape)
    _check_gate("w", w, v.shape)
    return recurrence(q, k, v, g, b, w, erase="b", **options)


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    *,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    mode: str = "recompute",
) -> Result:
    """SSD as mamba-ssm names it: ``h = e^{dt A} h + dt B x^T``, ``y = C h + D x``, times silu(z).

    x, z [B, L, H, P] and B, C [B, L, G, N] with G dividing H, in one dtype (bfloat16, float16, float32 or
    float64); dt [B, L, H], dt_bias and A [H], A negative, D [H] or [H, P], in the dtype of the sums or that
    of x; states [N, H, P, N] as there, in the dtype of the sums: float32, float64 with float64. Nothing is
    broadcast. dt + dt_bias, its softplus if `dt_softplus`, D x and silu(z) are formed in the dtype of the
    sums, and y is rounded to that of x once, at the end (native kernels give C h in it, which is rounded
    once more where D or z is there). mamba-ssm's chunk_size is no argument here: chunks have 64 tokens.

    Returns y [B, L, H, P] in the dtype of x, and the final states or None. Raises TypeError and ValueError as
    `gated_delta_rule`, by the names above.
    """
    check_ssd(x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens)
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    dt = dt.to(sums)
    if dt_bias is not None:
        dt = dt + dt_bias.to(sums)
    if dt_softplus:
        dt = F.softplus(dt)
    k, q = (t.repeat_interleave(x.shape[2] // B.shape[2], 2) for t in (B, C))
    y, final = recurrence(
        q,
        k,
        x,
        dt * A.to(sums),
        None,
        dt,
        scale=1.0,
        initial_state=None if initial_states is None else initial_states.mT,
        output_final_state=return_final_states,
        cu_seqlens=cu_seqlens,
        backend=backend,
        mode=mode,
        wide=D is not None or z is not None,
    )
    if D is not None:
        y = y + (D if D.dim() == 2 else D[:, None]).to(sums) * x.to(sums)
    if z is not None:
        y = y * F.silu(z.to(sums))
    return y.to(x.dtype), None if final is None else final.mT
