"""A chunked SSD in plain torch that stands in for the engine, honest or with one fault planted.

It computes in float32 and rounds what a tensor-core engine rounds, to the io dtype and in both directions:
the operands of products, the output, the gradients. So the cases can be shown to be passable at this
precision, and the metrics to see a fault, without the engine. Gradients are autograd's.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FAULTS: dict[str, str] = {
    "carry dropped": "everything",
    "carry not decayed": "long memory",
    "initial state ignored": "initial state only",
    "initial state forgotten after a chunk": "initial state only",
    "state not reset between sequences": "cut from zero states",
    "empty sequences skipped": "cut",
    "final state without the last chunk": "final state without initial",
    "final state decayed by the padding": "final state without initial",
    "group of the wrong heads": "odd heads per group",
    "gradient of B from one head of a group": "odd heads per group",
    "clamp ignored": "clamp edges",
    "clamp's gradient forgotten": "clamp edges",
    "clamp's edges without gradient": "clamp edges",
    "no clamp at zero": "negative steps without softplus",
    "softplus without its gradient": "plain",
    "softplus as log(1 + exp)": "softplus negative tail",
    "softplus overflows": "softplus beyond exp",
    "bias of the step not added": "everything",
    "bias's gradient from one batch entry": "two batch entries",
    "skip after the gate": "everything",
    "skip by channel read by head": "skip by channel",
    "sigmoid for silu": "gate only",
    "rates kept from growing": "growing rate",
    "decay split in two factors": "strong rate",
    "gradient of the decay by a difference": "strong rate",
    "decay of the own token": "plain",
    "a token of the next chunk": "one token more than a chunk",
    "output in half the precision": "plain",
    "views read as if dense": "views of a projection",
    "upstream gradient of the final state dropped": "final state without initial",
}
"""A fault, and the small case that must see it."""


class _Round(torch.autograd.Function):
    """Round to a dtype, forward and backward."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return t.to(dtype).float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.to(ctx.dtype).float(), None


class _RoundGradient(torch.autograd.Function):
    """The gradient alone is rounded: two sums that should cancel, one in float32 and one not."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return t.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.to(ctx.dtype).float(), None


class _NoEdge(torch.autograd.Function):
    """A clamp whose gradient is zero on its bounds too."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward((t > low) & (t < high))
        return t.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return g * ctx.saved_tensors[0], None, None


class _OneHead(torch.autograd.Function):
    """Groups to heads; the gradient comes from the first head of each group."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, share: int) -> Tensor:
        ctx.share = share
        return t.repeat_interleave(share, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g[:, :, :: ctx.share], None


class _FirstEntry(torch.autograd.Function):
    """A bias [H] for each batch entry, whose gradient is the first entry's alone."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, batch: int) -> Tensor:
        return bias.expand(batch, 1, -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g[0, 0], None


def step_of(
    dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float], fault: str
) -> Tensor:
    """The step [B, L, H] in float32."""
    raw = dt.float()
    if bias is not None and fault != "bias of the step not added":
        raw = raw + (_FirstEntry.apply(bias, dt.shape[0]) if "one batch entry" in fault else bias)
    elif bias is not None:
        raw = raw + 0 * bias
    soft = raw
    if softplus:
        soft = F.softplus(raw)
        if fault == "softplus without its gradient":
            soft = raw + (soft - raw).detach()
        if fault == "softplus as log(1 + exp)":
            soft = torch.where(raw > 20, raw, torch.log(1 + torch.exp(raw)))
        if fault == "softplus overflows":
            soft = torch.log1p(torch.exp(raw))
    if fault == "clamp ignored" or (fault == "no clamp at zero" and limit == (0.0, math.inf)):
        return soft
    if fault == "clamp's edges without gradient":
        return _NoEdge.apply(soft, *limit)
    clamped = soft.clamp(*limit)
    return soft + (clamped - soft).detach() if fault == "clamp's gradient forgotten" else clamped


def by_head(t: Tensor, heads: int, fault: str) -> Tensor:
    """[B, L, G, N] -> [B, L, H, N]."""
    share = heads // t.shape[2]
    if fault == "group of the wrong heads":
        return t.repeat(1, 1, share, 1)
    if fault == "gradient of B from one head of a group":
        return _OneHead.apply(t, share)
    return t.repeat_interleave(share, 2)


def _dense(t: Tensor) -> Tensor:
    """What a kernel reads that takes the tensor's address and assumes that it is dense."""
    if t.is_contiguous():
        return t
    storage = t.as_strided((t.untyped_storage().nbytes() // t.element_size() - t.storage_offset(),), (1,))
    return storage[: t.numel()].reshape(t.shape)


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk_size: int = 64,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_states: bool = False,
    checkpoint_dtype: str = "float32",
    reuse_checkpoints: bool = True,
    fault: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """The engine's interface; `fault` is a key of `FAULTS`."""
    io, heads = x.dtype, x.shape[2]
    narrow = {"float32": torch.float32, "bfloat16": torch.bfloat16}[checkpoint_dtype]
    if fault == "views read as if dense":
        x, B, C = _dense(x), _dense(B), _dense(C)
    step = step_of(dt, dt_bias, dt_softplus, dt_limit, fault)
    rate = A.clamp(max=0.0) if fault == "rates kept from growing" else A
    keys, queries = by_head(B.float(), heads, fault), by_head(C.float(), heads, fault)
    cuts = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    rows, finals, left = [], [], None
    for index, (start, stop) in enumerate(pairwise(cuts)):
        S = x.new_zeros(x.shape[0], heads, x.shape[3], B.shape[3], dtype=torch.float32)
        if initial_states is not None:
            S = initial_states.float() if cu_seqlens is None else initial_states[index : index + 1].float()
        if initial_states is not None and fault == "initial state ignored":
            S = 0 * S
        if fault == "state not reset between sequences" and left is not None:
            S = S + left
        if fault == "empty sequences skipped" and start == stop:
            S = 0 * S
        entry = S
        for first in range(start, stop, chunk_size):
            last = min(first + chunk_size, stop)
            span = slice(first, last)
            before = S
            y, S = _chunk(
                x[:, span].float(), step[:, span], rate, keys[:, span], queries[:, span], S, io, fault
            )
            if fault == "final state decayed by the padding" and last == stop:
                S = S * torch.exp(rate * step[:, stop - 1])[..., None, None]
            if fault == "carry dropped":
                S = S - before * torch.exp((step[:, span] * rate).sum(1))[..., None, None]
            if fault == "initial state forgotten after a chunk" and first == start:
                S = S - entry * torch.exp((step[:, span] * rate).sum(1))[..., None, None]
            S = _Round.apply(S, narrow)
            rows.append(y)
        if fault == "final state without the last chunk" and stop > start:
            S = before
        left = S
        finals.append(S)
    y = torch.cat(rows, 1)
    out = _outside(y, x, D, z, fault)
    if fault == "output in half the precision":
        out = out.to(torch.float8_e4m3fn)
    out = out.to(io)
    if not return_final_states:
        return out
    final = torch.cat(finals)
    return out, final.detach() + 0 * final if "final state dropped" in fault else final


def _outside(y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None, fault: str) -> Tensor:
    """Skip and gate."""
    skip = 0.0
    if D is not None:
        by_channel = D if D.dim() == 2 else D[:, None]
        if fault == "skip by channel read by head":
            by_channel = by_channel[:, :1] + 0 * by_channel
        skip = by_channel * x.float()
    gate = 1.0
    if z is not None:
        gate = torch.sigmoid(z.float()) if fault == "sigmoid for silu" else F.silu(z.float())
    return y * gate + skip if fault == "skip after the gate" else (y + skip) * gate


def _chunk(
    x: Tensor, d: Tensor, rate: Tensor, keys: Tensor, queries: Tensor, S: Tensor, io: torch.dtype, fault: str
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, P] of T tokens before skip and gate, and the state after them."""
    log = (d * rate).cumsum(1)
    tokens = torch.arange(x.shape[1], device=x.device)
    seen = tokens[:, None] >= tokens[None, :]
    if fault == "a token of the next chunk":
        seen = seen | (tokens[:, None] == 30) & (tokens[None, :] == 31)
    later = _RoundGradient.apply(log, io) if fault == "gradient of the decay by a difference" else log
    between = later[:, :, None] - log[:, None]
    if fault == "decay of the own token":
        between = between + (d * rate)[:, None]
    decay = torch.exp(between.masked_fill(~seen[..., None], -math.inf))
    if fault == "decay split in two factors":
        decay = (torch.exp(log)[:, :, None] * torch.exp(-log)[:, None]).masked_fill(~seen[..., None], 0.0)
    scores = torch.einsum("bthn,bshn->btsh", queries, keys) * decay * d[:, None]
    y = torch.einsum("btsh,bshp->bthp", _Round.apply(scores, io), x)
    entering = torch.einsum("bthn,bhpn->bthp", queries, _Round.apply(S, io))
    y = y + torch.exp(log)[..., None] * entering
    weight = torch.exp(log[:, -1:] - log) * d
    added = torch.einsum("bshp,bshn->bhpn", _Round.apply(weight[..., None] * x, io), keys)
    kept = 1.0 if fault == "carry not decayed" else torch.exp(log[:, -1])[..., None, None]
    return y, kept * S + added
