"""A small language model around a member of the gated linear recurrence, several of them trained at once.

Replicas differ in their seeds and share nothing: every parameter has a leading axis of replicas, and the
operator takes the replicas as part of its batch. So a step of twenty of them costs hardly more than a step
of one where launches are what a step costs.

A block is the layer that models of this family are made of: query, key and value are projected, pass a
short causal convolution and SiLU, queries and keys are brought to length one, the gates are formed from the
hidden states, the member is called by its own name (`lethe.kernels.gdn.members`), its output is normalised
and projected; then a perceptron. Logits are products with the embedding.

Keys begin with the weights of the queries, but on the token before: whoever asks finds what came after the
same token earlier (an induction head, Olsson et al. 2022). Without that start, 300 steps teach such a model
which bytes follow each other and nothing that needs the state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.evidence.gdn_precision import MEMBERS
from lethe.evidence.sequence_tasks import VOCABULARY
from lethe.kernels.gdn import members

BLOCKS, MODEL, HEADS, DK, DV, TAPS, WIDER = 2, 64, 2, 128, 64, 4, 2
"""Blocks, width of the hidden states, sizes of the operator, tokens of the convolution, and how many times
wider the perceptron is inside."""

REMEMBERS = 5.0
"""Decays begin at logsigmoid of this, 0.0067 a token."""

SLOWNESS = 0.01
"""SSD's -A; its steps begin at softplus(0), which gives the same decay."""

NOISE = 0.2
"""Of the convolution's taps at the start, beside the token that they look at."""

Draw = Callable[[int, int], nn.Parameter]


class Replicas(nn.Module):
    """The models of `seeds`, alike but for their weights, with one member.

    Args:
        member: a name of `MEMBERS`.
        seeds: of the initial weights, one a replica.
        io: dtype of the operator's inputs (decays are float32); everything else is float32.
        backend: of `gated_delta_rule`.
        within: tokens after which the operator's state is dropped; 0 keeps it. Divides the length.
    """

    def __init__(
        self, member: str, seeds: Sequence[int], io: torch.dtype, backend: str, within: int = 0
    ) -> None:
        super().__init__()
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def draw(rows: int, columns: int) -> nn.Parameter:
            drawn = [torch.randn(rows, columns, generator=r) for r in generators]
            return nn.Parameter(torch.stack(drawn) * rows**-0.5)

        self.embedding = nn.Parameter(draw(VOCABULARY, MODEL).detach() * VOCABULARY**0.5)
        call = functools.partial(operator, member, backend=backend)
        self.blocks = nn.ModuleList(Block(member, draw, io, call, within) for _ in range(BLOCKS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [replicas, batch, length, `VOCABULARY`] of tokens [replicas, batch, length]."""
        replicas = len(tokens)
        first = VOCABULARY * torch.arange(replicas, device=tokens.device)[:, None, None]
        hidden = F.embedding(first + tokens.long(), self.embedding.flatten(0, 1))
        for block in self.blocks:
            hidden = block(hidden)
        return _apply(self.embedding.mT, normalised(hidden)) * MODEL**-0.5


class Block(nn.Module):
    """Mixing over tokens, then a perceptron, both beside the hidden states."""

    def __init__(
        self, member: str, draw: Draw, io: torch.dtype, call: Callable[..., Tensor], within: int
    ) -> None:
        super().__init__()
        self.io, self.call, self.within = io, call, within
        self.widths = [HEADS * width for width in (DK, DK, DV)]
        query, _, value = draw(MODEL, sum(self.widths)).detach().split(self.widths, -1)
        self.mixed = nn.Parameter(torch.cat([query, query, value], -1))
        looks, keys = torch.zeros(TAPS, sum(self.widths)), slice(HEADS * DK, 2 * HEADS * DK)
        looks[-1] = 1.0
        looks[-2:, keys] = looks[-2:, keys].flip(0)
        self.taps = nn.Parameter(looks + NOISE * draw(TAPS, sum(self.widths)).detach())
        widths = zip("gbw", MEMBERS[member], (DK, DK, DV), strict=True)
        gates = {name: 1 if how == "head" else width for name, how, width in widths if how}
        if member != "gdn2":  # the write gate of all others is the erase gate, or SSD's step
            gates.pop("w", None)
        self.gates = nn.ParameterDict({name: draw(MODEL, HEADS * width) for name, width in gates.items()})
        self.out = draw(HEADS * DV, MODEL)
        self.up, self.down = draw(MODEL, WIDER * MODEL), draw(WIDER * MODEL, MODEL)

    def forward(self, hidden: Tensor) -> Tensor:
        """[replicas, batch, length, `MODEL`]."""
        hidden = hidden + _apply(self.out, self.mix(normalised(hidden)))
        inside: Tensor = F.silu(_apply(self.up, normalised(hidden)))
        return hidden + _apply(self.down, inside)

    def mix(self, x: Tensor) -> Tensor:
        """[replicas, batch, length, `HEADS` * `DV`]."""
        (replicas, batch, length), within = x.shape[:3], self.within or x.shape[2]

        def heads(t: Tensor) -> Tensor:
            """The operator's layout, replicas and what is cut off counted in its batch."""
            return t.reshape(-1, within, HEADS, t.shape[-1] // HEADS)

        mixed = F.silu(causal(_apply(self.mixed, x), self.taps))
        q, k, v = map(heads, mixed.split(self.widths, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        gates = {name: heads(_apply(weight, x)) for name, weight in self.gates.items()}
        o = self.call(q.to(self.io), k.to(self.io), v.to(self.io), **gates)
        return normalised(o.float()).reshape(replicas, batch, length, HEADS * DV)


def operator(member: str, q: Tensor, k: Tensor, v: Tensor, backend: str, **logits: Tensor) -> Tensor:
    """A member's output [B, L, H, dv] under gates that are formed from `logits` g, b and w in float32.

    Erase and write gates come in the dtype of q. Raises ValueError where `backend` cannot run the call.
    """
    options: dict[str, Any] = {"backend": backend}
    if member == "ssd":
        dt = F.softplus(logits["g"]).squeeze(-1)
        slow = torch.full((q.shape[2],), -SLOWNESS, device=q.device)
        return members.ssd(v, dt, slow, k, q, **options)[0]
    gates = []
    for name, how in zip("gbw", MEMBERS[member], strict=True):
        if name in logits:
            x = logits[name].squeeze(-1) if how == "head" else logits[name]
            gates.append(F.logsigmoid(x + REMEMBERS) if name == "g" else x.sigmoid().to(q.dtype))
    call = members.linear_attention if member == "linear" else getattr(members, member)
    found: Tensor = call(q, k, v, *gates, **options)[0]
    return found


def normalised(x: Tensor) -> Tensor:
    """Root mean square of one over the last axis."""
    return F.rms_norm(x, x.shape[-1:])


def causal(x: Tensor, taps: Tensor) -> Tensor:
    """x [replicas, batch, length, d] over the last tokens, by taps [replicas, `TAPS`, d]."""
    length = x.shape[2]
    padded = F.pad(x, (0, 0, TAPS - 1, 0))
    parts = (padded[:, :, i : i + length] * taps[:, i, None, None] for i in range(TAPS))
    return functools.reduce(torch.add, parts)


def _apply(weight: Tensor, x: Tensor) -> Tensor:
    """x [replicas, batch, length, rows] times weight [replicas, rows, columns]."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])
