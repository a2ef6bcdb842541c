"""Inputs of `prep` for the emulator, and what it should find: in float64, and with the plan's roundings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lethe.evidence import gdn_precision
from lethe.kernels.gdn import stages
from lethe.kernels.gdn.chunks import CHUNK, Chunks, cut
from lethe.kernels.gdn.precision import CHOSEN, TARGET, power_for

SCALE = 0.11
NAMES = ("q", "k", "v", "g", "b", "w", "do")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PrepCase:
    """One member's inputs; ``cuts``: first tokens of packed sequences. ``steeper`` multiplies g."""

    member: str = "gdn2"
    gate: str = "unit"
    length: int = 100
    batch: int = 1
    heads: int = 1
    dk: int = 128
    dv: int = 128
    io: str = "float16"
    cuts: tuple[int, ...] | None = None
    adjoint: bool = True
    steeper: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """Of the compiled variant."""
        kinds = dict(zip("gbw", gdn_precision.MEMBERS[self.member], strict=True))
        return {
            "io": self.io,
            "dk": self.dk,
            "dv": self.dv,
            "gate": kinds["g"] or "none",
            "erase": kinds["b"] or "none",
            "write": kinds["w"] or "none",
            "packed": self.cuts is not None,
            "adjoint": self.adjoint,
        }

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """Inputs in float32 with values of the input dtype."""
        io = "fp16" if self.io == "float16" else "bf16"
        size = {"dv": self.dv, "dk": self.dk, "length": self.batch * self.length, "heads": self.heads}
        x = gdn_precision.draw(gdn_precision.Case(self.member, self.gate, "silu", io=io, **size))
        if x["g"] is not None:
            x["g"] = x["g"] * self.steeper
        shape = (self.batch, self.length)
        return {n: None if t is None else t.reshape(*shape, *t.shape[2:]) for n, t in x.items() if n in NAMES}

    @cached_property
    def at(self) -> Chunks:
        """Where the tokens lie."""
        cuts = None if self.cuts is None else torch.tensor(self.cuts)
        return cut(self.batch, self.length, cuts, torch.device("cpu"))

    @cached_property
    def used(self) -> list[int]:
        """Slots that hold a chunk."""
        return [
            slot for slot, tokens in enumerate(self.at.tokens) if (tokens < self.batch * self.length).any()
        ]

    def arrays(self, prep: Any) -> dict[str, Any]:
        """Arguments for `emulate.Emulated.run`."""
        x, slots, H = self.drawn, self.at.tokens.shape[0], self.heads
        given: dict[str, Any] = {n: self._stored(x[n]) for n in ("q", "k", "v", "b", "w", "do")}
        given["g"] = None if x["g"] is None else x["g"].numpy().copy()
        given["cu_seqlens"] = None if self.cuts is None else np.array(self.cuts, np.int32)
        given["scale"] = SCALE
        if not self.adjoint:
            given["do"] = None
        sizes = {"slots": slots, "H": H}
        for a in prep.variant.arguments:
            if a.output:
                shape = tuple(sizes.get(size, size) for size in a.shape)
                given[a.name] = None if a.optional else prep.empty(a.name, shape)
        return given

    def _stored(self, x: torch.Tensor | None) -> Array | None:
        if x is None or self.io == "float16":
            return None if x is None else x.numpy().astype(np.float16)
        return x.bfloat16().view(torch.int16).numpy().view(np.uint16).copy()

    def results(self, arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs of the used slots, with the powers of U and P undone."""
        found = {}
        most = torch.from_numpy(arrays["maxima"].copy())
        for name in ("Kt", "W", "U", "P", "Qh", "A", "T", "a", "decay"):
            if arrays.get(name) is not None:
                found[name] = torch.from_numpy(arrays[name].astype(np.float64))[self.used]
        for name, column in (("U", 0), ("P", 2)):
            if name in found:
                power = power_for(most[..., column], TARGET)[self.used][..., None, None]
                found[name] = torch.ldexp(found[name], -power)
        if "P" in found:
            found["P"] = found["P"].mT
        return found

    def expected(self, rounded: bool = False) -> dict[str, torch.Tensor]:
        """In float64, or in float32 with the plan's roundings."""
        kind, hooks = (torch.float32, (CHOSEN.rounding(),)) if rounded else (torch.float64, ())
        x = {n: None if self.drawn[n] is None else self.at.pack(self.drawn[n].to(kind)) for n in "qkvgbw"}
        if x["g"] is None:
            x["g"] = torch.zeros_like(x["q"][..., :1])
        do = self.at.pack(self.drawn["do"].to(kind))
        c = stages.local(stages.Operands(**x, scale=SCALE), *hooks, *([16] * rounded))
        prepared = stages.prepare(c, *hooks)
        P = stages.prepare_adjoint(c, prepared, do, *hooks)
        decay = prepared.decay[..., 0].expand(*prepared.decay.shape[:2], self.dk)
        Qh = CHOSEN.rounding()("P.Qh", c.Qh) if rounded else c.Qh
        found = {"Kt": prepared.Kt, "W": prepared.W, "U": prepared.U, "P": P, "Qh": Qh, "A": c.A, "T": c.T}
        found |= {"a": c.a[..., 0], "decay": decay}
        return {n: t.double()[self.used] for n, t in found.items() if t is not None}

    @property
    def tokens(self) -> torch.Tensor:
        """[used slots, CHUNK] whether a row holds a token."""
        return self.at.tokens[self.used].reshape(-1, CHUNK) < self.batch * self.length


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error over the largest value; inf for NaN."""
    off = float((found - exact).abs().max() / exact.abs().max())
    return off if np.isfinite(off) else float("inf")


def mean(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the errors over the largest value; inf for NaN."""
    off = float((found - exact).square().mean().sqrt() / exact.abs().max())
    return off if np.isfinite(off) else float("inf")
