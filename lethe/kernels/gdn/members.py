"""The seven members of the family under their own names and with their own arguments.

Each is one call of `gated_delta_rule` with some gates fixed; `Options` are passed on. Shapes as there: q, k
[B, L, H, dk], v [B, L, H, dv], states [N, H, dk, dv]; each returns (o, final states or None).
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch.nn.functional as F
from torch import Tensor

from lethe.kernels.gdn.operator import gated_delta_rule


class Options(TypedDict, total=False):
    """Keywords of `gated_delta_rule` that every member takes."""

    scale: float | None
    initial_state: Tensor | None
    output_final_state: bool
    cu_seqlens: Tensor | None
    backend: str
    mode: str


Result = tuple[Tensor, Tensor | None]


def _one_a_head(name: str, gate: Tensor, q: Tensor) -> None:
    if gate.dim() != 3:
        raise ValueError(f"{name} has shape {tuple(gate.shape)}, expected {tuple(q.shape[:3])}")


def _one_a_channel(name: str, gate: Tensor, like: Tensor) -> None:
    if gate.shape != like.shape:
        raise ValueError(f"{name} has shape {tuple(gate.shape)}, expected {tuple(like.shape)}")


def linear_attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> Result:
    """LA: ``S_t = S_{t-1} + k_t v_t^T``."""
    return gated_delta_rule(q, k, v, **options)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Unpack[Options]) -> Result:
    """GLA: ``S_t = Diag(e^{g_t}) S_{t-1} + k_t v_t^T``; g [B, L, H, dk]."""
    _one_a_channel("g", g, k)
    return gated_delta_rule(q, k, v, g, **options)


def deltanet(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """DeltaNet: ``S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T``; beta [B, L, H]."""
    _one_a_head("beta", beta, q)
    return gated_delta_rule(q, k, v, None, beta, **options)


def gdn(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """GDN: ``S_t = e^{g_t} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T``; g, beta [B, L, H]."""
    _one_a_head("g", g, q)
    _one_a_head("beta", beta, q)
    return gated_delta_rule(q, k, v, g, beta, **options)


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Unpack[Options]) -> Result:
    """KDA: ``S_t = (I - beta_t k_t k_t^T) Diag(e^{g_t}) S_{t-1} + beta_t k_t v_t^T``; g [B, L, H, dk], beta
    [B, L, H].
    """
    _one_a_channel("g", g, k)
    _one_a_head("beta", beta, q)
    return gated_delta_rule(q, k, v, g, beta, **options)


def gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, **options: Unpack[Options]
) -> Result:
    """GDN-2: the general recurrence with every gate a channel's; g, b [B, L, H, dk], w [B, L, H, dv]."""
    _one_a_channel("g", g, k)
    _one_a_channel("b", b, k)
    _one_a_channel("w", w, v)
    return gated_delta_rule(q, k, v, g, b, w, **options)


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

    x, z [B, L, H, P]; dt [B, L, H] and dt_bias [H] float32; A [H] float32, negative; B, C [B, L, G, N] with
    G dividing H; D [H] or [H, P]; states [N, H, P, N] as there. Returns y in the dtype of x, and the states.
    """
    heads = x.shape[2]
    if B.shape != C.shape or heads % B.shape[2]:
        raise ValueError(
            f"B is {tuple(B.shape)} and C {tuple(C.shape)}; expected [B, L, G, N] with G dividing H={heads}"
        )
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    k, q = (t.repeat_interleave(heads // B.shape[2], 2) for t in (B, C))
    state = None if initial_states is None else initial_states.mT
    y, final = gated_delta_rule(
        q,
        k,
        x,
        dt * A,
        None,
        dt,
        scale=1.0,
        initial_state=state,
        output_final_state=return_final_states,
        cu_seqlens=cu_seqlens,
        backend=backend,
        mode=mode,
    )
    if D is not None:
        y = y + (D if D.dim() == 2 else D[:, None]).to(x.dtype) * x
    return (y if z is None else y * F.silu(z)), None if final is None else final.mT
