"""Problems for the kernel `out`: what prep and scan hand over, the float64 oracle, a rounded torch run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lethe.evidence.gdn_precision import Case, draw
from lethe.kernels.gdn import stages
from lethe.kernels.gdn.chunks import Chunks, cut
from lethe.kernels.gdn.precision import CHOSEN, sequence_powers

DTYPES = {"fp16": ("float16", torch.float16), "bf16": ("bfloat16", torch.bfloat16)}
NAMES = ("q", "k", "v", "g", "b", "w")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """Inputs in float32, whose values the input dtype holds, and S, D, A, T as float16 holds them."""

    case: Case
    at: Chunks
    x: dict[str, Any]
    local: stages.Local
    S: Tensor
    D: Tensor
    powers: dict[str, Tensor]
    cuts: tuple[int, ...] | None

    @property
    def options(self) -> dict[str, Any]:
        """Of the kernel's variant."""

        def kind(gate: Tensor | None) -> str:
            return "none" if gate is None else "channel" if gate.shape[-1] > 1 else "head"

        gates = {"gate": kind(self.x["g"]), "erase": kind(self.x["b"]), "write": kind(self.x["w"])}
        io, packed = DTYPES[self.case.io][0], self.cuts is not None
        return {"dk": self.case.dk, "dv": self.case.dv, "io": io, "packed": packed, **gates}

    @property
    def gradients(self) -> tuple[str, ...]:
        """Inputs that have one."""
        return tuple(name for name in NAMES if self.x[name] is not None)

    def _run(self, dtype: torch.dtype, rounding: Any, block: int = 1) -> dict[str, Tensor]:
        operands, do = _pack(self.x, self.at, dtype, self.local.x.scale)
        given = {name: getattr(self.local, name) for name in "aAT"}
        given = {name: None if t is None else t.to(dtype) for name, t in given.items()}
        G = operands.g.cumsum(-2)
        local = stages.Local(operands, G, stages.diagonal(operands), given["A"], given["T"])
        made = stages.gradients(local, self.S.to(dtype), self.D.to(dtype), do, rounding, block)
        return {name: self.at.unpack(made[name]) for name in self.gradients}

    def expected(self) -> dict[str, Tensor]:
        """The gradients in float64."""
        return self._run(torch.float64, stages.exact)

    def rounded(self, block: int = 16) -> dict[str, Tensor]:
        """In float32, with operands rounded as the plan says; diagonal blocks of this size."""
        return self._run(torch.float32, CHOSEN.rounding(self.powers), block)

    def arrays(self, out: Any, programs: int) -> dict[str, Any]:
        """The kernel's arguments."""
        slots, heads = self.S.shape[:2]
        values: dict[str, Any] = {
            name: self._stored(self.x[name]) for name in ("q", "k", "v", "b", "w", "do")
        }
        values["g"] = None if self.x["g"] is None else _dense(self.x["g"], np.float32)
        for name, state in (("S", self.S), ("D", self.D)):
            values[name] = _dense(torch.ldexp(state, self.powers[name]).mT, np.float16)
        values |= {
            name: None if (t := getattr(self.local, name)) is None else _dense(t, np.float16) for name in "AT"
        }
        values["a"] = _dense(self.local.a[..., 0], np.float32)
        pair = torch.stack([self.powers[name].reshape(heads) for name in "SD"], -1)
        values["powers"] = _dense(pair.expand(slots, heads, 2), np.int32)
        values["cu_seqlens"] = None if self.cuts is None else np.array(self.cuts, np.int32)
        for name in NAMES:
            there = self.x[name] is not None
            values[f"d{name}"] = out.empty(f"d{name}", tuple(self.x[name].shape)) if there else None
        return values | {"scale": self.local.x.scale, "programs": programs}

    def results(self, arrays: dict[str, Any]) -> dict[str, Tensor]:
        """The gradients that the kernel wrote, in float64."""
        return {name: self._loaded(arrays[f"d{name}"], name == "g") for name in self.gradients}

    def _stored(self, x: Tensor | None) -> Any:
        if x is None:
            return None
        if self.case.io == "fp16":
            return _dense(x, np.float16)
        return np.ascontiguousarray(x.bfloat16().view(torch.int16).numpy().view(np.uint16))

    def _loaded(self, array: Any, wide: bool) -> Tensor:
        if wide or self.case.io == "fp16":
            return torch.from_numpy(array.astype(np.float64))
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).double()


def make(
    case: Case,
    cuts: tuple[int, ...] | None = None,
    size: float = 1.0,
    decay: float = 1.0,
    block: int = 16,
    batch: int = 1,
    change: Callable[[dict[str, Any]], None] = lambda x: None,
) -> Problem:
    """prep and scan by the plan, on the case's tokens as a batch.

    `size` multiplies dO and the adjoint of the final state, `decay` g; `change` comes first."""
    x = draw(case)
    change(x)
    dtype = DTYPES[case.io][1]
    x["do"] = (x["do"] * size).to(dtype).float()
    if x["g"] is not None:
        x["g"] = x["g"] * decay
    for name in (*NAMES, "do"):
        x[name] = None if x[name] is None else x[name].reshape(batch, -1, *x[name].shape[2:])
    at = cut(batch, case.length // batch, None if cuts is None else torch.tensor(cuts), CPU)
    shape = (len(at.first), *x["dfinal"].shape[1:])
    start, end = x["initial_state"].expand(shape), x["dfinal"].expand(shape) * size
    operands, do = _pack(x, at, torch.float32, case.dk**-0.5)
    rounding = CHOSEN.rounding()
    local = stages.local(operands, rounding, block)
    prepared = stages.prepare(local, rounding)
    P = stages.prepare_adjoint(local, prepared, do, rounding)
    powers = sequence_powers(prepared, P, start, end)
    rounding = CHOSEN.rounding(powers)
    S, _ = stages.scan_forward(at, prepared, start, rounding)
    D, _ = stages.scan_reverse(at, prepared, P, end, rounding)
    return Problem(case, at, x, local, S, D, powers, cuts)


def worst(found: Tensor, exact: Tensor) -> float:
    """Largest error over the largest magnitude; infinite where something is not finite."""
    error = float((found.double() - exact).abs().max() / exact.abs().max())
    return error if error == error else float("inf")


def _pack(x: dict[str, Any], at: Chunks, dtype: torch.dtype, scale: float) -> tuple[stages.Operands, Tensor]:
    packed = {name: None if x[name] is None else at.pack(x[name].to(dtype)) for name in NAMES}
    if packed["g"] is None:
        packed["g"] = torch.zeros_like(packed["q"][..., :1])
    return stages.Operands(**packed, scale=scale), at.pack(x["do"].to(dtype))


def _dense(x: Tensor, dtype: Any) -> Any:
    return np.ascontiguousarray(x.numpy().astype(dtype))
