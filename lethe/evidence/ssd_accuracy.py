"""How far the SSD engine is from the token-serial float64 oracle: two metrics for every tensor it returns.

For output, final states and the gradient of every operand: the relative RMS error, ``|got - exact|`` over
``|exact|`` in the Euclidean norm, must be below 1 %, and the largest error over the largest value below
1.5 %. A value that is not finite, a missing gradient and a wrong shape or dtype count as an infinite error.

Where the exact value is zero everywhere, zero is what must come, with one exception: a gradient that is zero
because a decay underflows is a sum of terms that cancel, and is held against the sum of their magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from lethe.evidence.ssd_cases import Call, Case, draw

if TYPE_CHECKING:
    from torch import Tensor

RMS, PEAK = 0.01, 0.015
"""What issue and design ask for."""

Engine = Callable[..., Any]


class Error(NamedTuple):
    """Relative RMS and peak-normalised largest error."""

    rms: float
    peak: float

    @property
    def passed(self) -> bool:
        return self.rms < RMS and self.peak < PEAK


WRONG = Error(math.inf, math.inf)


def error(got: Tensor | None, exact: Tensor, terms: float = 0.0) -> Error:
    """The two metrics of one tensor against a float64 one.

    terms: sum of the magnitudes of the terms of a value that is exactly zero, 0 where zero itself must come.
    """
    if got is None or got.shape != exact.shape:
        return WRONG
    found = got.detach().to(exact)
    if not bool(found.isfinite().all()):
        return WRONG
    gap = found - exact
    if not exact.numel():
        return Error(0.0, 0.0)
    rms, peak = float(exact.square().mean().sqrt()), float(exact.abs().max())
    if peak == 0.0:
        worst = float(gap.abs().max())
        relative = worst / terms if terms else math.inf if worst else 0.0
        return Error(relative, relative)
    return Error(float(gap.square().mean().sqrt()) / rms, float(gap.abs().max()) / peak)


def computed(call: Call, engine: Engine) -> dict[str, Tensor | None]:
    """y, final and gradients (``d...``) by the engine. Raises what it raises."""
    import torch

    wanted = call.case.wanted or tuple(call.tensors)
    live = {k: t.detach().requires_grad_(k in wanted) for k, t in call.tensors.items()}
    found = engine(**live, **call.options, **call.engine)
    y, final = found if call.case.final else (found, None)
    outputs, upstream = [y], [call.dy]
    if final is not None and call.dfinal is not None and (final.requires_grad or wanted != ("z",)):
        outputs, upstream = [y, final], [call.dy, call.dfinal]
    gradients = torch.autograd.grad(outputs, [live[k] for k in wanted], upstream, allow_unused=True)
    named = {f"d{k}": g for k, g in zip(wanted, gradients, strict=True)}
    return {"y": y, **({} if final is None else {"final": final}), **named}


def exact(call: Call) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The same by the oracle in float64 on the same device, and the terms of gradients that may underflow."""
    from lethe.references.ssd import ssd_backward, ssd_reference, step_of

    wide: dict[str, Any] = {k: t.double() for k, t in call.tensors.items()}
    y = ssd_reference(**wide, **call.options)
    options = {k: v for k, v in call.options.items() if k != "return_final_states"}
    dfinal = None if call.dfinal is None else call.dfinal.double()
    gradients = ssd_backward(call.dy.double(), **wide, **options, dfinal=dfinal)
    found = {"y": y[0], "final": y[1]} if isinstance(y, tuple) else {"y": y}
    wanted = call.case.wanted or tuple(call.tensors)
    found |= {f"d{k}": gradients[k] for k in wanted}
    step = step_of(wide["dt"], wide.get("dt_bias"), call.case.softplus, call.case.limit)
    return found, {"dA": float((step * gradients["dt"]).abs().sum((0, 1)).max())}


def measure(case: Case, engine: Engine, device: str = "cpu") -> dict[str, Error]:
    """Errors by name: y, final, dx, ddt, dA, ... Raises what the engine raises."""
    call = draw(case, device)
    expected, terms = exact(call)
    got = computed(call, engine)
    found = {name: error(got.get(name), t, terms.get(name, 0.0)) for name, t in expected.items()}
    kept = {"y": call.tensors["x"].dtype} | ({"final": _float32()} if case.final else {})
    kept |= {f"d{k}": t.dtype for k, t in call.tensors.items() if f"d{k}" in found}
    for name, dtype in kept.items():
        value = got.get(name)
        if value is not None and value.dtype != dtype:
            found[name] = WRONG
    return found


def _float32() -> Any:
    import torch

    return torch.float32


def beyond(errors: dict[str, Error]) -> list[str]:
    """What misses the bounds, in words."""
    return [
        f"{name}: relative RMS {e.rms:.3g} (bound {RMS:g}), peak-normalised {e.peak:.3g} (bound {PEAK:g})"
        for name, e in errors.items()
        if not e.passed
    ]


def worst(errors: Iterable[Error]) -> Error:
    """The larger of each metric."""
    both = list(errors)
    return Error(max(e.rms for e in both), max(e.peak for e in both))


def ours() -> Engine:
    """The engine under test. Raises ImportError where it is absent."""
    import importlib

    engine: Engine = importlib.import_module("lethe.kernels.ssd").ssd
    return engine
