"""Training with the native kernels of the gated linear recurrence on a GPU, beside the torch backend.

`tasks` gives, for `gdn_gpu`, a line for each member: a layer of projections around the operator, with its
gates formed from the hidden states as the member's models do, memorises one batch. The same weights, batch
and steps are trained with the torch backend in float32 inputs. ``passed``: every loss is finite, and of both
runs the mean loss of the last tenth of the steps is at most half of that of the first tenth. How far the two
curves are apart is recorded and not judged, because training amplifies every rounding.

Linear attention, whose states never forget, is trained for 4,000 steps at 64 tokens as well.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.evidence.gdn_precision import MEMBERS

STEPS, LENGTH = 300, 128
LONG_STEPS, SHORT_LENGTH = 4000, 64
"""Of linear attention's second training."""

BATCH, HEADS, DK, DV, MODEL = 4, 2, 128, 64, 64
RATE = 3e-3
"""Adam's."""

KEPT = 40
"""Losses of a curve that a line keeps, at equal distances."""

Row = dict[str, Any]


class Layer(nn.Module):
    """Projections of hidden states [B, L, `MODEL`] to the operands of a member, the operator, and back.

    The operands are in `io`, decays in float32; keys and queries have length one.
    """

    def __init__(self, member: str, io: torch.dtype, backend: str) -> None:
        super().__init__()
        self.io, self.backend = io, backend
        widths = {"q": DK, "k": DK, "v": DV}
        full = {"g": DK, "b": DK, "w": DV}
        for name, how in zip("gbw", MEMBERS[member], strict=True):
            if how:
                widths[name] = 1 if how == "head" else full[name]
        self.projections = nn.ModuleDict({n: nn.Linear(MODEL, HEADS * w) for n, w in widths.items()})
        self.out = nn.Linear(HEADS * DV, MODEL)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, L, `MODEL`] float32."""
        from lethe.kernels.gdn.operator import gated_delta_rule

        x = {n: p(hidden).unflatten(-1, (HEADS, -1)) for n, p in self.projections.items()}
        q, k = (F.normalize(F.silu(x[name]), dim=-1).to(self.io) for name in "qk")
        g = F.logsigmoid(x["g"] + 3) if "g" in x else None
        b, w = (x[n].sigmoid().to(self.io) if n in x else None for n in "bw")
        o, _ = gated_delta_rule(q, k, x["v"].to(self.io), g, b, w, backend=self.backend)
        out: Tensor = self.out(o.float().flatten(-2))
        return out


def losses(member: str, steps: int, length: int, io: torch.dtype, backend: str, device: str) -> list[float]:
    """Mean squared errors of every step, from the same start for the same member."""
    torch.manual_seed(0)
    layer = Layer(member, io, backend).to(device)
    hidden = torch.randn(BATCH, length, MODEL).to(device)
    target = torch.randn(BATCH, length, MODEL).to(device)
    optimiser = torch.optim.Adam(layer.parameters(), lr=RATE)
    found = torch.empty(steps, device=device)
    for step in range(steps):
        optimiser.zero_grad(set_to_none=True)
        loss = (layer(hidden) - target).square().mean()
        loss.backward()
        optimiser.step()
        found[step] = loss.detach()
    return [float(x) for x in found.cpu()]


def train(member: str, steps: int, length: int, backend: str = "cute", device: str = "cuda") -> Row:
    """Both curves, whether both fall, and how far they are apart at the end."""
    curves = {
        "native": losses(member, steps, length, torch.bfloat16, backend, device),
        "torch": losses(member, steps, length, torch.float32, "torch", device),
    }
    ends = {name: (_tenth(x, first=True), _tenth(x, first=False)) for name, x in curves.items()}
    finite = all(abs(x) < float("inf") for curve in curves.values() for x in curve)
    fell = {name: last <= 0.5 * first for name, (first, last) in ends.items()}
    every = max(1, steps // KEPT)
    return {
        "losses": {name: [round(x, 6) for x in curve[::every]] for name, curve in curves.items()},
        "first": {name: first for name, (first, _) in ends.items()},
        "last": {name: last for name, (_, last) in ends.items()},
        "apart": abs(ends["native"][1] - ends["torch"][1]) / ends["torch"][1],
        "passed": finite and all(fell.values()),
    }


def _tenth(curve: list[float], first: bool) -> float:
    """Mean loss of the first or of the last tenth of the steps."""
    count = max(1, len(curve) // 10)
    return statistics.fmean(curve[:count] if first else curve[-count:])


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found)."""
    plan = [(member, STEPS, LENGTH) for member in reversed(MEMBERS)]
    for member, steps, length in (*plan, ("linear", LONG_STEPS, SHORT_LENGTH)):
        about = {"kind": "training", "member": member, "steps": steps, "length": length, "dv": DV}
        yield about, functools.partial(train, member, steps, length)
