"""Problems for the kernel `scan`: arrays as prep hands them over, the float64 oracle, a rounded torch run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lethe.kernels.gdn import stages
from lethe.kernels.gdn.chunks import CHUNK, Chunks, cut
from lethe.kernels.gdn.precision import CHOSEN, TARGET, power_for, sequence_powers

NAMES = ("S", "final", "D", "dS0")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One call; tensors in float64, ``starts`` are S0 and dfinal."""

    at: Chunks
    local: stages.Local
    prepared: stages.Prepared
    P: Tensor
    starts: tuple[Tensor, Tensor]
    cuts: tuple[int, ...] | None
    given: bool

    @property
    def used(self) -> list[int]:
        """Slots that hold a chunk."""
        return [
            slot
            for first, count in zip(self.at.first, self.at.count, strict=True)
            for slot in range(first, first + count)
        ]

    def expected(self) -> dict[str, Tensor]:
        """Every output in float64; states of used slots."""
        S, final = stages.scan_forward(self.at, self.prepared, self.starts[0])
        D, dS0 = stages.scan_reverse(self.at, self.prepared, self.P, self.starts[1])
        o = self.at.unpack(stages.outputs(self.local, S))
        return {"S": S[self.used], "final": final, "D": D[self.used], "dS0": dS0, "o": o}

    def rounded(self) -> dict[str, Tensor]:
        """The same in float32, rounded as the plan says, one sequence after the other."""
        found: dict[str, list[Tensor]] = {name: [] for name in NAMES}
        chunks = self.prepared.U.new_zeros(self.prepared.U.shape)
        for n, (first, count) in enumerate(zip(self.at.first, self.at.count, strict=True)):
            slots = slice(first, first + count)
            S0, dfinal = (x[n : n + 1].float() for x in self.starts)
            results = (S0[:0], S0, dfinal[:0], dfinal)
            outputs = S0.new_zeros(0, *self.P.shape[1:2], CHUNK, self.P.shape[-1])
            if count:
                parts = (self.prepared.Kt, self.prepared.U, self.prepared.W, self.prepared.decay)
                one = stages.Prepared(*(None if x is None else x[slots].float() for x in parts))
                P, at = self.P[slots].float(), cut(1, count * CHUNK, None, CPU)
                r = CHOSEN.rounding(sequence_powers(one, P, S0, dfinal))
                W = None if one.W is None else r("store.W", one.W)
                stored = stages.Prepared(r("store.Kt", one.Kt), r("store.U", one.U), W, one.decay)
                forward = stages.scan_forward(at, stored, S0, r)
                outputs = stages.outputs(stages.local(self._operands(slots), r, 16), forward[0], r)
                results = (*forward, *stages.scan_reverse(at, stored, r("store.P", P), dfinal, r))
            for name, x in zip(NAMES, results, strict=True):
                found[name].append(x.double())
            chunks[slots] = outputs.double()
        return {name: torch.cat(x) for name, x in found.items()} | {"o": self.at.unpack(chunks)}

    def _operands(self, slots: slice) -> stages.Operands:
        """Inputs of some slots in float32."""
        x = self.local.x
        parts = (None if t is None else t[slots].float() for t in (x.q, x.k, x.v, x.g, x.b, x.w))
        return stages.Operands(*parts, x.scale)

    def arrays(self, kernel: Any) -> dict[str, Any]:
        """Arguments of the kernel (`scan` or `forward`), those that it declares."""
        p, c, (slots, heads, _, dk) = self.prepared, self.local, self.prepared.Kt.shape
        dv, count = self.P.shape[-1], len(self.at.count)
        maxima = [x.abs().amax((2, 3)) for x in (p.U, p.Kt, self.P)]
        maxima.append(torch.zeros_like(maxima[0]))
        starts = [_array(x.float()) if self.given else None for x in self.starts]
        shapes = {"S": (slots, heads, dv, dk), "D": (slots, heads, dv, dk), "powers": (slots, heads, 2)}
        shapes |= dict.fromkeys(("final", "dS0"), (count, heads, dk, dv))
        shapes["o"] = (1, self.at.length, heads, dv)
        given = {
            "Kt": _array(p.Kt.half()),
            "W": None if p.W is None else _array(p.W.half()),
            "U": _array(_scaled(p.U)),
            "P": _array(_scaled(self.P).mT),
            "Qh": _array(c.Qh.half()),
            "A": _array(c.A.half()),
            "a": _array(c.a[..., 0].float()),
            "decay": _array(p.decay[..., 0].float()),
            "maxima": _array(torch.stack(maxima, -1).float()),
            "S0": starts[0],
            "dfinal": starts[1],
            "cu_seqlens": None if self.cuts is None else np.array(self.cuts, np.int32),
            "scale": c.x.scale,
            "sequences": count,
        }
        declared = [a.name for a in kernel.variant.arguments]
        given |= {name: kernel.empty(name, shapes[name]) for name in declared if name in shapes}
        return {name: given[name] for name in declared}

    def results(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        """The outputs in float64, states with their powers undone."""
        powers = torch.from_numpy(arrays["powers"][self.used]).long()
        found = {name: torch.from_numpy(arrays[name]).double() for name in ("final", "dS0")}
        for way, name in enumerate(("S", "D")):
            states = torch.from_numpy(arrays[name][self.used]).double().mT
            found[name] = torch.ldexp(states, -powers[..., way][..., None, None])
        return found


def draw(
    length: int = 128,
    heads: int = 1,
    dv: int = 128,
    cuts: tuple[int, ...] | None = None,
    erase: bool = True,
    given: bool = True,
    size: float = 1.0,
    gate: float = 0.1,
    seed: int = 0,
    dk: int = 128,
) -> Case:
    """Random inputs through `prep`; ``size``: of v, dO and the states, ``gate``: largest decay of a token."""
    r = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=r, dtype=torch.float64)

    def uniform(d: int) -> Tensor:
        return torch.rand(1, length, heads, d, generator=r, dtype=torch.float64)

    at = cut(1, length, None if cuts is None else torch.tensor(cuts), CPU)
    q, k = (torch.nn.functional.normalize(normal(1, length, heads, dk), dim=-1) for _ in range(2))
    v, do = (size * normal(1, length, heads, dv) for _ in range(2))
    g, b, w = -gate * uniform(dk), uniform(dk) if erase else None, uniform(dv)
    packed = (at.pack(x) if x is not None else None for x in (q, k, v, g, b, w))
    local = stages.local(stages.Operands(*packed, dk**-0.5))
    prepared = stages.prepare(local)
    starts = [size * given * normal(len(at.count), heads, dk, dv) for _ in range(2)]
    P = stages.prepare_adjoint(local, prepared, at.pack(do))
    return Case(at, local, prepared, P, (starts[0], starts[1]), cuts, given)


def worst(found: Tensor, exact: Tensor) -> float:
    """max|x - x64| / max|x64|."""
    return float((found - exact).abs().max() / exact.abs().max())


def _scaled(x: Tensor) -> Tensor:
    return torch.ldexp(x, power_for(x.abs().amax((-2, -1), keepdim=True), TARGET)).half()


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(x.numpy())
