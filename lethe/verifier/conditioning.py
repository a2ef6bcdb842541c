"""How far can rounding alone move the result of a faithful kernel? The spread of perturbed oracle runs.

The float64 reference runs K times under `perturbation.Perturb`: every operator that rounds has its output
moved by one random rounding error of the working precision, and every sum by one accumulation error. The
spread of the K results around the truth, element by element, is the unit in which `tolerance` measures.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lethe.verifier.absolute import Terms, absolute_terms
from lethe.verifier.modes import widened
from lethe.verifier.operations import Rounding
from lethe.verifier.oracle import (
    call,
    cast_floating,
    default_dtype,
    gradients,
    module_copy,
    pinned_backends,
    reference_errors,
)
from lethe.verifier.perturbation import Perturb, real_view, smallest
from lethe.verifier.problem import Instance
from lethe.verifier.profiling import OperatorProfile, Trace, profile_operator
from lethe.verifier.structure import flatten, map_tensors

__all__ = [
    "OperatorProfile",
    "Perturb",
    "Spread",
    "Terms",
    "absolute_terms",
    "gradient_spread",
    "perturbed_run",
    "profile_operator",
    "real_view",
    "regrouping",
    "smallest",
    "source_spread",
    "spread",
]

WIDE_DTYPES = (torch.float64, torch.complex128)
"""What rounds in a perturbed run."""

RUNS = 8
"""Perturbed runs. The maximum of 8 draws of a uniform error has mean 16/18 = 0.89 of its
largest value, and an element misses the largest error by a factor 2 with probability 2^-8."""

RUNS_LARGE = 4
"""Perturbed runs for references of more than `MANY_OPERATIONS` operators, to bound the time."""

MANY_OPERATIONS = 150

OVERFLOW_MARGIN = 2.0**4
"""Values within this factor of the largest finite number are overflow's neighbourhood: a faithful
kernel that scales, squares or sums in another order may overflow there (fairness rule 9)."""


def overflow_limit(dtype: torch.dtype) -> float:
    """Rule 9: magnitude from which on a value of `dtype` is near overflow and is not charged."""
    return float(torch.finfo(dtype).max) / OVERFLOW_MARGIN


FAR_OFF = 64.0
"""A run that overflowed and deviates by this multiple of the other runs' spread owes it to the overflow: of 4
uniform errors all are 64 times smaller than a fifth with probability 64^-4, and overflows err by the whole
value."""


@dataclass(frozen=True)
class Spread:
    """Per output tensor, the largest deviation of the perturbed runs and where they are not conclusive."""

    spread: list[Tensor]
    """float64, shape of the output (complex outputs as real pairs)."""
    disagree: list[Tensor]
    """bool: some perturbed run is finite where the truth is not, or the reverse."""
    still: list[Tensor]
    """bool: two successive perturbed runs gave the same bits, as behind a kink (ReLU, clamp, round)."""


def _jitter(mode: Perturb, value: Any) -> Any:
    """Inputs moved by one relative rounding error each; zeros, infinities and integers stay."""

    return map_tensors(value, lambda t: mode.jittered(t) if t.dtype in WIDE_DTYPES else t)


def _perturbed_reference(instance: Instance, mode: Perturb) -> nn.Module:
    """A float64 copy of the reference whose parameters and buffers carry one rounding error each."""
    module = module_copy(instance, torch.float64)
    with torch.no_grad():
        for t in [*module.parameters(), *module.buffers()]:
            if t.dtype in WIDE_DTYPES:
                t.copy_(mode.jittered(t))
    return module


def _mode(
    unit: float, seed: int, run: int, runs: int, dtype: torch.dtype, growth: str, repeating: bool = False
) -> Perturb:
    """The mode of one run; the second half of the runs overflows like `dtype`, with `OVERFLOW_MARGIN` to
    spare. On `repeating` inputs every other run errs coherently."""
    limit = overflow_limit(dtype) if run >= (runs + 1) // 2 else None
    return Perturb(
        unit,
        seed * 1009 + run,
        tiny=smallest(dtype),
        rounding=Rounding(growth),
        limit=limit,
        coherent=repeating and run % 2 == 1,
    )


class _Collector:
    """Largest deviations of the perturbed runs, and where they are not conclusive."""

    def __init__(self, expected: list[Tensor], unit: float) -> None:
        self.expected = [t.double() for t in expected]
        self.finite = [t.isfinite() for t in self.expected]
        self.unit = unit
        self.spread = [torch.zeros_like(t) for t in self.expected]
        self.disagree = [torch.zeros(t.shape, dtype=torch.bool, device=t.device) for t in self.expected]
        self.still = [torch.zeros(t.shape, dtype=torch.bool, device=t.device) for t in self.expected]
        self._previous: list[Tensor] | None = None

    @property
    def found(self) -> Spread:
        return Spread(self.spread, self.disagree, self.still)

    def add(self, seen: list[Tensor], overflowed: bool) -> None:
        """Book one run. A run that overflowed somewhere adds no spread: where it lies far off, or differs in
        finiteness, the result hangs on an overflow that another order of evaluation may avoid."""
        for i, (y, z) in enumerate(zip(self.expected, seen, strict=True)):
            if z.shape != y.shape:
                self.disagree[i].fill_(True)
                continue
            z = z.double()
            if self._previous is not None and self._previous[i].shape == z.shape:
                self.still[i] |= z == self._previous[i]
            self.disagree[i] |= self.finite[i] != z.isfinite()
            difference = (z - y).abs().nan_to_num_(0.0, 0.0, 0.0)
            if overflowed:
                self.disagree[i] |= difference > FAR_OFF * (self.spread[i] + 2 * self.unit * y.abs())
            else:
                self.spread[i] = torch.maximum(self.spread[i], difference)
        self._previous = [z.double() for z in seen]


def spread(
    instance: Instance,
    inputs: Any,
    truth: Any,
    unit: float,
    k: int = RUNS,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    growth: str = "auto",
    repeating: bool = False,
    crisp: bool = False,
) -> Spread:
    """Largest deviation of `k` perturbed float64 runs from `truth`, the oracle's result.

    `truth` is nested, or a list of tensors; `unit` is the unit roundoff of the working `dtype`;
    `growth` says how sums err (`operations.Rounding`); `repeating` that the inputs hold few values, so that
    an elementwise function errs alike on all elements and the errors do not average out; `crisp` that they
    are meant as they stand, so that neither they nor results that are exact on them are moved.
    The second half of the runs also overflows like the working precision, so that elements whose
    finiteness hangs on the order of evaluation show up in `disagree`. Raises ReferenceFailed.
    """
    found = _Collector([real_view(t) for t in flatten(truth)[0]], unit)
    wide = cast_floating(inputs, torch.float64)
    run = 0
    while run < k:
        mode = _mode(unit, seed, run, k, dtype, growth, repeating)
        mode.crisp = dtype if crisp else None
        out = _run_perturbed(instance, wide, mode, None, jitter=not crisp)
        found.add([real_view(t) for t in flatten(out)[0]], mode.overflowed)
        run += 1
        k = min(k, RUNS_LARGE) if mode.operations > MANY_OPERATIONS else k
    return found.found


def perturbed_run(
    instance: Instance,
    inputs: Any,
    unit: float,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    growth: str = "rss",
) -> Any:
    """One perturbed float64 result (nested): a sample of what a faithful kernel in `dtype` may return."""
    mode = Perturb(unit, seed, tiny=smallest(dtype), rounding=Rounding(growth))
    return _run_perturbed(instance, cast_floating(inputs, torch.float64), mode, None)


def _run_perturbed(
    instance: Instance, wide: Any, mode: Perturb, trace: Trace | None, *, jitter: bool = True
) -> Any:
    with pinned_backends(), default_dtype(torch.float64), reference_errors("perturbed"):
        exact = mode.crisp is not None
        module = module_copy(instance, torch.float64) if exact else _perturbed_reference(instance, mode)
        moved = _jitter(mode, wide) if jitter else wide
        with widened(), trace or nullcontext(), mode:
            return call(module, moved)


def source_spread(
    instance: Instance,
    inputs: Any,
    output: int,
    source: Tensor,
    unit: float,
    k: int = RUNS_LARGE,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """How far rounding moves the values that the index output number `output` was chosen from (float64,
    like `source`).

    Where the source holds the values of an input, only what the reference does to them counts (a cast to
    half): comparing the numbers as they came involves no rounding, and then this is zero.
    """
    wide = cast_floating(inputs, torch.float64)
    given = any(t.numel() == source.numel() and _same_values(t, source) for t in flatten(wide)[0])
    largest = torch.zeros_like(source) if given else 2 * unit * source.abs()
    for run in range(k):
        trace = Trace()
        mode = _mode(unit, seed, run, 2 * k, dtype, "auto")
        out = flatten(_run_perturbed(instance, wide, mode, trace, jitter=not given))[0]
        found = trace.selections.get(id(out[output]))
        if found is None or found[1].source.shape != source.shape:
            continue
        difference = (found[1].source - source).abs()
        largest = torch.maximum(largest, torch.where(difference.isfinite(), difference, 0.0))
    return largest


def _same_values(a: Tensor, b: Tensor) -> bool:
    """The same multiset of values: `b` is `a` or a permutation of it."""
    if a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).sort().values.nan_to_num(), b.reshape(-1).sort().values.nan_to_num())


def gradient_spread(
    instance: Instance,
    inputs: Any,
    upstream: list[Tensor | None],
    truth: dict[str, Tensor | None],
    unit: float,
    k: int = RUNS,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    growth: str = "auto",
) -> dict[str, Spread]:
    """As `spread`, for the gradients that `oracle.gradients` names; forward and backward are both perturbed.

    An element's spread is at least what `regrouping` allows. Names whose true gradient is None are absent.
    """
    names = [n for n, t in truth.items() if t is not None]
    expected = [t for t in truth.values() if t is not None]
    collected = _Collector(expected, unit)
    run = 0
    while run < k:
        mode = _mode(unit, seed, run, k, dtype, growth)
        moved = _jitter(mode, cast_floating(inputs, torch.float64))
        shifted = replace(instance, module=_perturbed_reference(instance, mode))
        found = gradients(shifted, moved, upstream, "float64", mode=mode)
        seen = [found[n] for n in names]
        collected.add(
            [torch.zeros_like(t) if g is None else g for g, t in zip(seen, expected, strict=True)],
            mode.overflowed,
        )
        run += 1
        k = min(k, RUNS_LARGE) if mode.operations > MANY_OPERATIONS else k
    spreads = [torch.maximum(s, regrouping(t, unit)) for s, t in zip(collected.spread, expected, strict=True)]
    by_name = zip(names, spreads, collected.disagree, collected.still, strict=True)
    return {name: Spread([s], [d], [k]) for name, s, d, k in by_name}


def regrouping(gradient: Tensor, unit: float) -> Tensor:
    """One rounding error of a typical element of the same sample, for every element of a gradient.

    A gradient is a sum over the paths through a program, and another program for the same function groups
    them differently: where the reference multiplies two small sums, (a - b)(c - d), a parallel scan adds
    their large products. Elements that are small by cancellation then err like the others of their sample
    (first dimension; of the whole tensor for vectors): the root mean square stands for the terms.
    """
    y = gradient.double()
    y = torch.where(y.isfinite(), y, 0.0)
    dims = tuple(range(1, y.dim())) if y.dim() > 1 else tuple(range(y.dim()))
    typical = y.square().mean(dim=dims, keepdim=True).sqrt() if y.numel() else y
    return (unit * typical).expand(y.shape)
