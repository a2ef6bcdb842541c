"""Shapes and kinds of operands that the engine is checked and timed on: drawn once, described as graphs.

`stress` names the cases that break such kernels (design, SSD section); `speed` the shapes of the speed table.
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
    rates: str = "usual"
    """Draw of A: ``usual``, ``strong`` (nothing is left in a few steps), ``zero``, ``growing`` (positive)."""
    steps: str = "usual"
    """Draw of the raw steps: ``usual``, ``branches`` (about 0 and 20, both sides), ``tail`` (about -15),
    ``raw`` (most of them positive)."""
    blank: tuple[str, ...] = ()
    """Operands that are zero."""

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


def operands(case: Case, device: str, seed: int = 0) -> dict[str, Any]:
    """Random operands on a device, drawn on the CPU, so that every device sees the same ones."""
    import torch

    source = torch.Generator().manual_seed(seed)
    drawn: dict[str, Any] = {}
    for name, (dims, dtype) in case.shapes().items():
        if name == "cu_seqlens":
            drawn[name] = torch.tensor(case.cuts, dtype=torch.int32).to(device)
            continue
        t = torch.randn(dims, generator=source)
        if name == "A":
            t = _rates(case.rates, t)
        elif name == "dt":
            t = _steps(case.steps, t)
        elif name in ("B", "C"):
            t = t * 0.5
        elif name == "dt_bias":
            t = t * 0.3
        if name in case.blank:
            t = torch.zeros_like(t)
        drawn[name] = t.to(getattr(torch, dtype)).to(device)
    return drawn


def _rates(kind: str, t: Any) -> Any:
    if kind == "strong":
        return -(20.0 + 10.0 * t.abs())
    if kind == "zero":
        return 0.0 * t
    return 0.02 * t.abs() if kind == "growing" else -t.abs()


def _steps(kind: str, t: Any) -> Any:
    if kind == "branches":
        ends = [0.0, 20.0, -20.0, 0.01, 19.9, 20.1]
        index = (t.flatten().argsort() % len(ends)).reshape(t.shape)
        return t.new_tensor(ends)[index]
    if kind == "raw":
        return 0.3 * t + 0.2
    return t - 15.0 if kind == "tail" else 0.5 * t - 1.5


def stress() -> list[Case]:
    """The cases of the design, and one plain case for each chunk, state size, dtype and checkpoint."""
    plain = Case("plain")
    return [
        plain,
        replace(plain, id="odd-heads-per-group", heads=9, groups=3),
        replace(plain, id="one-group-of-seven", heads=7, groups=1, batch=1),
        replace(plain, id="initial-state-only", blank=("x",), skip="none", gated=False),
        replace(plain, id="gate-only", blank=("B",), initial=False),
        replace(plain, id="strong-rates", rates="strong"),
        replace(plain, id="zero-rates", rates="zero"),
        replace(plain, id="growing", rates="growing"),
        replace(plain, id="softplus-branches", steps="branches", bias=False),
        replace(plain, id="negative-tail", steps="tail"),
        replace(plain, id="clamped", limits=(0.1, 0.5)),
        replace(plain, id="raw-steps", softplus=False, steps="raw"),
        replace(plain, id="ragged", length=131),
        replace(plain, id="shorter-than-a-chunk", length=17),
        replace(plain, id="one-token", length=1),
        replace(plain, id="packed", batch=1, cuts=(0, 70, 70, 71, 199, 200)),
        replace(plain, id="packed-chunk-256", batch=1, chunk=256, length=700, cuts=(0, 0, 300, 310, 700)),
        replace(plain, id="skip-per-channel", skip="channel"),
        replace(plain, id="nothing-optional", skip="none", gated=False, bias=False, initial=False,
                final=False),
        *(
            replace(plain, id=f"checkpoints-{dtype}-{'reused' if reuse else 'recomputed'}-chunk-{chunk}",
                    checkpoint=dtype, reuse=reuse, chunk=chunk, length=300)
            for chunk in (64, 128) for dtype in ("float32", "bfloat16") for reuse in (True, False)
        ),
        replace(plain, id="chunk-32", chunk=32),
        replace(plain, id="chunk-256", chunk=256, length=600),
        replace(plain, id="n-128", n=128),
        replace(plain, id="n-128-packed", n=128, batch=1, cuts=(0, 70, 70, 71, 199, 200), skip="channel"),
        replace(plain, id="float16", dtype="float16"),
        replace(plain, id="float16-n-128-chunk-128", dtype="float16", n=128, chunk=128, gated=False),
    ]  # fmt: skip


def speed() -> Iterator[Case]:
    """Training shapes: the shape of the target first, then more groups, longer sequences, wider states."""
    base = Case("", length=2048, heads=64, groups=1, initial=False, final=False, checkpoint="bfloat16")
    for length, n, groups in (
        (2048, 64, 1), (2048, 64, 8), (8192, 64, 1), (32768, 64, 1), (2048, 128, 1), (2048, 128, 8),
    ):  # fmt: skip
        for gated in (False, True):
            name = f"L{length}-N{n}-G{groups}-{'gated' if gated else 'plain'}"
            yield replace(base, id=name, length=length, n=n, groups=groups, gated=gated)
