"""Backend ``cute_sm100``: the native kernels for compute capability 10.0 as one operator.

The plan of a call, its workspaces and its variants are those of `cute_sm90`: the same stages with the same
arguments, from the libraries of `sm100`. No GPU of this kind was at hand, so nothing here has been timed or
run on silicon; the plans are executed in `lethe.ptx` (`lethe.evidence.gdn_blackwell`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn import cute_sm90
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.cute_sm90 import DK, DV, KINDS, Allocate, Kind, Named, Saved, Step, libraries
from lethe.kernels.gdn.sm100 import launch


class Launch(Step):
    """A launch of a variant for sm_100a."""

    def launch(self) -> None:
        """On torch's current stream."""
        launch.kernel(self.stage, **self.options)(**self.arguments)


_ready: set[Kind] = set()


def lacks(*kind: Any) -> str:
    """Why calls of a kind (the fields of `cute_sm90.Kind`) cannot run here, or an empty string.

    Compiles nothing.
    """
    k = Kind(*kind)
    if k in _ready:
        return ""
    if k.dk != DK:
        return f"d_k is {k.dk}, the kernels are compiled for {DK}"
    if k.dv not in DV:
        return f"d_v is {k.dv}, the kernels are compiled for {' and '.join(map(str, DV))}"
    come = (k.gate, k.erase, k.write)
    if come not in KINDS:
        have = "; ".join(", ".join(known) for known in KINDS)
        return f"g, beta and w come as {', '.join(come)}, the kernels are compiled for {have}"
    for variant in libraries(k):
        if why := launch.unavailable(variant):
            return why
    _ready.add(k)
    return ""


def forward(a: Arguments, save: bool, new: Allocate | None = None) -> tuple[Tensor, Tensor, Saved]:
    """o [B, L, H, dv], the final states [N, H, dk, dv], and what `backward` may use again if `save`."""
    steps, made = plan_forward(a, save, new or _on(a))
    for step in steps:
        step.launch()
    saved = (made["powers"], None, made["S"]) if save else (None, None, None)
    powers, nothing, S = (a.q.new_empty(0) if t is None else t for t in saved)
    return made["o"], made["final"], (powers, nothing, S)


def backward(
    a: Arguments, do: Tensor, dfinal: Tensor | None, saved: Saved | None = None, new: Allocate | None = None
) -> dict[str, Tensor]:
    """Gradients by name of the tensors of `a`; no ``dfinal`` is the same as zeros."""
    count = torch.cuda.get_device_properties(a.q.device).multi_processor_count
    steps, made = plan_backward(a, do, dfinal, saved, new or _on(a), count)
    for step in steps:
        step.launch()
    tensors = a.tensors()
    return {name: made[name].to(tensors[name].dtype) for name in tensors if name in made}


def plan_forward(a: Arguments, save: bool, new: Allocate) -> tuple[list[Launch], Named]:
    """The launches of the forward pass, and o, final, powers and S (None unless `save`)."""
    steps, made = cute_sm90.plan_forward(a, save, new)
    return _for_blackwell(steps), made


def plan_backward(
    a: Arguments,
    do: Tensor,
    dfinal: Tensor | None,
    saved: Saved | None,
    new: Allocate,
    processors: int,
) -> tuple[list[Launch], Named]:
    """The launches of the backward pass, and the gradients by name."""
    steps, made = cute_sm90.plan_backward(a, do, dfinal, saved, new, processors)
    return _for_blackwell(steps), made


def _for_blackwell(steps: list[Step]) -> list[Launch]:
    return [Launch(step.stage, step.options, step.arguments) for step in steps]


def _on(a: Arguments) -> Allocate:
    return lambda shape, dtype: torch.empty(shape, dtype=dtype, device=a.q.device)
