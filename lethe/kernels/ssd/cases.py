"""Shapes that the engine is described, tuned and timed at, as graphs and as random operands.

What is measured against the oracle are the cases of `lethe.evidence.ssd_cases`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lethe.kernels.ssd.graph import Graph, TensorSpec, sequence_count


@dataclass(frozen=True)
class Case:
    """One call of the operator; see `lethe.kernels.ssd.ssd` for the names."""

    id: str
    batch: int = 2
    length: int = 200
    heads: int = 6
    groups: int = 2
    n: int = 64
    width: int = 64
    chunk: int = 64
    dtype: str = "bfloat16"
    skip: str = "head"
    """``head`` ([H]), ``channel`` ([H, P]) or ``none``."""
    gated: bool = True
    bias: bool = True
    softplus: bool = True
    limits: tuple[float, float] = (0.0, math.inf)
    initial: bool = True
    final: bool = True
    cuts: tuple[int, ...] = ()
    """Boundaries of packed sequences, with batch 1."""
    checkpoint: str = "float32"
    reuse: bool = True

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "chunk_size": self.chunk, "dt_softplus": self.softplus, "dt_limit": self.limits,
            "checkpoint_dtype": self.checkpoint,
        }  # fmt: skip

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Dims and dtype of the operands that the case has."""
        b, length, h, p, g, n = self.batch, self.length, self.heads, self.width, self.groups, self.n
        sequences = len(self.cuts) - 1 if self.cuts else b
        wide = ((b, length, h, p), self.dtype)
        found: dict[str, tuple[tuple[int, ...], str]] = {
            "x": wide, "dt": ((b, length, h), self.dtype), "A": ((h,), "float32"),
            "B": ((b, length, g, n), self.dtype), "C": ((b, length, g, n), self.dtype),
        }  # fmt: skip
        if self.skip != "none":
            found["D"] = ((h, p) if self.skip == "channel" else (h,), "float32")
        if self.gated:
            found["z"] = wide
        if self.bias:
            found["dt_bias"] = ((h,), "float32")
        if self.initial:
            found["initial_states"] = ((sequences, h, p, n), "float32")
        if self.cuts:
            found["cu_seqlens"] = ((sequences + 1,), "int32")
        return found


def graphs(case: Case) -> tuple[Graph, Graph]:
    """The forward and the backward pass of a case, for the analyzer."""
    forward, backward = Graph(), Graph()
    inputs = {name: forward.tensor(name, *shape) for name, shape in case.shapes().items()}
    node = forward.ssd(inputs, final_states=case.final, checkpoints=case.reuse, **case.attributes)
    upstream = {"dy": node.outputs["y"]}
    if case.final:
        upstream["dfinal_states"] = node.outputs["final_states"]
    if case.reuse:
        upstream["checkpoints"] = node.outputs["checkpoints"]
    given = inputs | {k: TensorSpec(k, t.dims, t.strides, t.dtype) for k, t in upstream.items()}
    backward.tensors.update(given)
    backward.ssd_bwd(given, **case.attributes)
    assert sequence_count(inputs) == (len(case.cuts) - 1 if case.cuts else case.batch)
    return forward, backward


def operands(case: Case, device: str, seed: int = 0, drawn_on: str = "cpu") -> dict[str, Any]:
    """Random operands on a device; drawn on the CPU every device sees the same ones, drawn on the device
    itself they cost no time."""
    import torch

    source = torch.Generator(drawn_on).manual_seed(seed)
    drawn: dict[str, Any] = {}
    for name, (dims, dtype) in case.shapes().items():
        if name == "cu_seqlens":
            drawn[name] = torch.tensor(case.cuts, dtype=torch.int32).to(device)
            continue
        t = torch.randn(dims, generator=source, device=drawn_on)
        if name == "A":
            t = -t.abs()
        elif name == "dt":
            t = 0.5 * t - 1.5
        elif name in ("B", "C"):
            t = t * 0.5
        elif name == "dt_bias":
            t = t * 0.3
        drawn[name] = t.to(getattr(torch, dtype)).to(device)
    return drawn


PLAIN = Case("plain")
"""Every option, a ragged last chunk, several heads a group."""


def speed() -> Iterator[Case]:
    """Training shapes: the shape of the target first, then more groups, longer sequences, wider states."""
    base = Case("", length=2048, heads=64, groups=1, initial=False, final=False, checkpoint="bfloat16")
    for length, n, groups in (
        (2048, 64, 1), (2048, 64, 8), (8192, 64, 1), (32768, 64, 1), (2048, 128, 1), (2048, 128, 8),
    ):  # fmt: skip
        for gated in (False, True):
            name = f"L{length}-N{n}-G{groups}-{'gated' if gated else 'plain'}"
            yield replace(base, id=name, length=length, n=n, groups=groups, gated=gated)
