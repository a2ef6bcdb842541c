"""How far may a faithful result lie from the truth? The bands.

Profile `derived` (the default) bounds every element by what rounding can do to *that* element;
profile `paper` is the formula behind the published figures, kept so that they can be compared.

Never scaled by max|x| and never by torch's error alone: the first rejects legal summation orders
(sequential sums of sorted data), the second punishes whoever rounds elsewhere.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from lethe.verifier.absolute import absolute_terms
from lethe.verifier.comparison import (
    Comparison,
    Selected,
    also_chosen,
    compare,
    compare_selection,
    same_nonfinite,
    selected_from,
)
from lethe.verifier.conditioning import (
    RUNS,
    Spread,
    overflow_limit,
    real_view,
    smallest,
    source_spread,
)
from lethe.verifier.conditioning import spread as perturbed_spread
from lethe.verifier.oracle import dtype_named
from lethe.verifier.precision import (
    CarryPoint,
    CarrySweep,
    PrecisionStatistic,
    carried_run,
    carry_point,
    carry_sweep,
    narrowed_run,
    precision_statistic,
)
from lethe.verifier.problem import Instance
from lethe.verifier.profiling import OperatorProfile, selections
from lethe.verifier.structure import flatten

__all__ = [
    "UNIT",
    "Band",
    "CarryPoint",
    "CarrySweep",
    "Comparison",
    "PrecisionStatistic",
    "Profile",
    "band",
    "bands",
    "carried_run",
    "carry_point",
    "carry_sweep",
    "compare",
    "compare_selection",
    "exact_integer_applies",
    "gamma",
    "gradient_band",
    "narrowed_run",
    "paper_bound",
    "precision_statistic",
    "structured",
]


class Profile(StrEnum):
    """Which formula turns a case into a band."""

    DERIVED = "derived"
    PAPER = "paper"


UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff: half the spacing of numbers just above 1 (IEEE 754, round to nearest)."""

ELEMENTWISE_C = 16.0
"""How many units (2u|y| + spread) an element may be off. Eager float32 on 200 KernelBench problems
x 6 kinds of input needed at most 14.4 (GELU, whose erf errs by several ulp); the next power of two."""

OWN_ERROR_C = 2.0
"""A candidate may be off by this multiple of the worst ratio that the reference's own working-precision run
shows on the same tensor: the reference is a faithful implementation, and another one may be as unlucky
in the opposite direction of every rounding."""

CONVOLUTION_C = 300.0
"""Normwise margin for convolutions: transform-domain algorithms (Winograd, FFT) spread the rounding error
of a tile over all of its elements, and F(4x4, 3x3) multiplies it by the product of its transform norms,
about 10^2."""

GAMMA_C = 1.0
"""gamma_n A is a theorem (Higham, *Accuracy and Stability of Numerical Algorithms*, 3.1): no margin is
needed."""

BLUNT = 1000.0
"""A multiplier above this says that the reference itself is ill-conditioned here; gates report such bands."""

EXACT_INTEGERS = {"float64": 2.0**53, "float32": 2.0**24, "bfloat16": 2.0**8, "float16": 2.0**11}
"""Integers up to 1/u are representable, so sums that stay below are exact in every order."""

FEW_VALUES = 16
"""An input of so few distinct values repeats the same rounding error, which then adds up instead of
averaging."""

NEARLY = 2.0**-7
"""Range of an input, relative to its largest magnitude, within which the error of an approximated function
(the exponential of a GPU, say, is a polynomial in the fraction of its argument) has one sign: a
128th of its period."""

PAPER_EPS = 1.19e-7
"""float32 epsilon as the published messages imply it: they reproduce to 4 digits with this value."""

PAPER_FACTOR = 4.0
PAPER_FLOOR = 1e-5
PAPER_HALF = {torch.float16: 1e-3, torch.bfloat16: 1e-2}
PAPER_ACCUMULATOR = 2e-2
PAPER_RELAXED = 1e-3


@dataclass(frozen=True)
class Band:
    """What is allowed on one output tensor."""

    bound: Tensor
    """float64, shape of the (real view of the) output: largest allowed absolute error."""
    valid: Tensor
    """bool: elements that may be charged for their value."""
    kind: str
    """``"elementwise"``, ``"gamma"``, ``"normwise"``, ``"exact"``, ``"selection"`` or ``"paper"``."""
    scale: float
    """The multiplier c that was applied; above `BLUNT` the band cannot see much."""
    nonfinite: Tensor | None = None
    """bool: elements where oracle and working-precision reference agree on the same NaN or infinity."""
    selected: Selected | None = None
    """For index outputs: the values they point at."""
    still: Tensor | None = None
    """bool: elements that two successive perturbed runs gave alike (`conditioning.Spread`)."""

    def at_rest(self, index: tuple[int, ...]) -> bool:
        """Whether the element at `index` (in the real view) is one of `still`."""
        return self.still is not None and bool(self.still[index])


def bound_is_local(profile: Profile | str) -> bool:
    """Rule 10: the bound of an element rests on that element's own terms, never on max|output|; the
    published formula is the exception."""
    return Profile(profile) is not Profile.PAPER


def judged_normwise(operator: OperatorProfile | None) -> bool:
    """Rule 29: transform-domain convolutions are legal, and they are accurate in norm only."""
    return operator is not None and operator.convolution


def unit_of(dtype: str | torch.dtype, output: torch.dtype | None = None) -> float:
    """Unit roundoff of the judged dtype, or of the output's own dtype if that is coarser.

    A reference in float32 that returns half is not charged below half's roundoff; a float64
    output of a float32 run keeps float32's unit.
    """
    return max(UNIT[_name(dtype_named(dtype))], UNIT.get(_name(output), 0.0))


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def structured(inputs: Any) -> bool:
    """True if some floating input is one-signed, sorted along a dimension, or of at most `FEW_VALUES` values.

    On such input rounding errors do not average out, so sums are bounded by gamma_n instead of sqrt(n).
    Found from the values, whatever the draw is called.
    """
    return any(_is_structured(t) for t in flatten(inputs)[0] if t.is_floating_point() and t.numel() > 1)


def repeating(inputs: Any) -> bool:
    """True if some floating input holds at most `FEW_VALUES` values, or values that are `NEARLY` equal.

    Then the errors of elementwise functions repeat too, and a sum of them grows with its length.
    """
    finite = (t[t.isfinite()] for t in flatten(inputs)[0] if t.is_floating_point() and t.numel() > 1)
    return any(_has_few_values(t) or _nearly_constant(t) for t in finite)


def _nearly_constant(finite: Tensor) -> bool:
    if finite.numel() < 2:
        return False
    low, high = finite.aminmax()
    return bool((high - low) <= NEARLY * torch.maximum(low.abs(), high.abs()))


def _has_few_values(finite: Tensor) -> bool:
    if finite.numel() < 2:
        return False
    return len(finite[:4096].unique()) <= FEW_VALUES and len(finite.unique()) <= FEW_VALUES


def _is_structured(t: Tensor) -> bool:
    finite = t[t.isfinite()]
    if finite.numel() < 2:
        return False
    steps = (t.diff(dim=d) for d in range(t.dim()) if t.shape[d] > 2)
    return _one_signed(finite) or _has_few_values(finite) or any(map(_one_signed, steps))


def _one_signed(t: Tensor) -> bool:
    """Whether all elements are at least 0, or all at most 0; found with one wait for the device."""
    low, high = torch.stack(t.aminmax()).tolist()
    return bool(low >= 0 or high <= 0)


def chargeable(truth: Tensor, working: Tensor | None, disagree: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Elements whose value may be charged: finite truth, away from overflow, finite in the reference's own
    run, and finite in every perturbed run (rules 8 and 9)."""
    valid = truth.isfinite() & (truth.abs() < overflow_limit(dtype))
    if working is not None:
        valid = valid & working.isfinite()
    if disagree is not None:
        valid = valid & ~disagree
    return valid


def band(
    truth: Tensor,
    working: Tensor | None,
    spread: Tensor | None,
    disagree: Tensor | None = None,
    *,
    dtype: str | torch.dtype = "float32",
    kind: str = "elementwise",
    absolute: Tensor | None = None,
    length: int = 0,
    still: Tensor | None = None,
) -> Band:
    """The derived band of one floating output tensor.

    truth: float64 oracle; working: the reference's own result in `dtype` (None if there is none);
    spread, disagree, still: from `conditioning.spread`. `kind`:

    ``"elementwise"``: c (2u|y| + spread), c = max(`ELEMENTWISE_C`, `OWN_ERROR_C` x the reference's own
    worst ratio). ``"normwise"``: the same with c at least `CONVOLUTION_C` and one unit per sample, for
    convolutions. ``"gamma"``: gamma_n A + 2u|y|, for linear operators on structured input; `absolute` and
    `length` are from `absolute.absolute_terms`.

    Raises ValueError for an unknown kind or shapes that do not match.
    """
    kept = dtype_named(dtype)
    y = real_view(truth).double()
    w = None if working is None else real_view(working).double().to(y.device)
    if w is not None and w.shape != y.shape:
        raise ValueError(f"the truth has shape {tuple(y.shape)}, the reference's own run {tuple(w.shape)}")
    output = working.dtype if working is not None and working.is_floating_point() else kept
    narrow = min(output, kept, key=lambda d: torch.finfo(d).max)
    valid = chargeable(y, w, disagree, narrow)
    nonfinite = same_nonfinite(y, w) if w is not None else ~y.isfinite()
    unit = unit_of(kept, output)
    base = 2 * unit * y.abs() + smallest(narrow)
    if kind == "gamma":
        if absolute is None or length < 1:
            raise ValueError("a gamma band needs the sums of absolute terms and their number")
        bound = gamma(length, unit) * real_view(absolute).double().to(y.device) + base
        c = max(GAMMA_C, OWN_ERROR_C * worst_ratio(y, w, bound, valid))
        return Band(c * bound, valid, kind, c, nonfinite)
    moved = spread is not None and bool(spread.any())
    if spread is not None:
        base = base + spread.to(y.device)
    if still is not None and w is not None and moved:
        # behind a kink few of the perturbed runs tell anything: the reference's own run is one more of them
        own = (w - y).abs().nan_to_num(0.0, 0.0, 0.0)
        base = torch.where(still & valid, base + own, base)
    if kind == "normwise":
        base, c = _normwise(base, valid), CONVOLUTION_C
    elif kind == "elementwise":
        c = ELEMENTWISE_C
    else:
        raise ValueError(f"a band is elementwise, normwise or gamma, not {kind!r}")
    c = max(c, OWN_ERROR_C * worst_ratio(y, w, base, valid))
    return Band(c * base, valid, kind, c, nonfinite, still=still)


def exact_band(truth: Tensor, working: Tensor) -> Band:
    """For an output on whose inputs every legal order agrees to the bit: any error is one too many, and the
    unit bound only lets the largest stand out."""
    y = real_view(truth).double()
    w = real_view(working).double().to(y.device)
    return Band(torch.ones_like(y), y.isfinite() & w.isfinite(), "exact", 1.0, same_nonfinite(y, w))


def widest(looks: list[Band]) -> Band:
    """What any of several bands of one tensor allows, from perturbations of their own."""
    first = looks[0]
    bound, valid = first.bound, first.valid
    for other in looks[1:]:
        bound, valid = torch.maximum(bound, other.bound), valid & other.valid
    return replace(first, bound=bound, valid=valid)


def gamma(n: int, unit: float) -> float:
    """gamma_n = n u / (1 - n u), the bound on a chain of n roundings; infinite once n u >= 1."""
    return n * unit / (1 - n * unit) if n * unit < 1 else math.inf


def worst_ratio(truth: Tensor, working: Tensor | None, base: Tensor, valid: Tensor) -> float:
    """Largest |working - truth| / base over the valid elements; 0 if there is nothing to compare."""
    if working is None or not valid.numel():
        return 0.0
    return float(torch.where(valid, (working - truth).abs() / base, 0.0).max())


def _normwise(base: Tensor, valid: Tensor) -> Tensor:
    """One unit for each sample (first dimension): the root mean square of its elementwise units."""
    dims = tuple(range(1, base.dim())) if base.dim() > 1 else tuple(range(base.dim()))
    kept = torch.where(valid, base, 0.0)
    count = valid.sum(dim=dims, keepdim=True).clamp_min(1)
    return (kept.square().sum(dim=dims, keepdim=True) / count).sqrt().expand(base.shape)


def bands(
    instance: Instance,
    inputs: Any,
    expected: list[Tensor],
    working: list[Tensor],
    *,
    kind: str = "normal",
    dtype: str | torch.dtype = "float32",
    profile: Profile | str = Profile.DERIVED,
    operator: OperatorProfile | None = None,
    gate: str = "CMP-01",
    k: int = RUNS,
    seed: int = 0,
) -> list[Band]:
    """One band per output tensor of a case.

    inputs: as given to the reference; expected: the oracle's tensors; working: the reference's own.
    kind: the name of the draw; it only seeds the perturbations, together with `seed`, so that a replay
    repeats them. operator: from `profile_operator` (traits are traced afresh where it is None). Raises
    ReferenceFailed.
    """
    kept = dtype_named(dtype)
    if not bound_is_local(profile):
        floating = [t for t in flatten(inputs)[0] if t.is_floating_point()]
        numel = floating[0].numel() if floating else 1
        return [_paper_band(e, w, numel, gate, kept) for e, w in zip(expected, working, strict=True)]
    regular = not structured(inputs)
    terms = None
    if not regular and (operator is None or operator.linear) and not judged_normwise(operator):
        terms = absolute_terms(instance, inputs)
    growth = "auto" if regular else "worst"
    salt = seed * 65_537 + zlib.crc32(kind.encode()) % 65_521
    s = perturbed_spread(
        instance,
        inputs,
        expected,
        unit_of(kept),
        k,
        salt,
        dtype=kept,
        growth=growth,
        repeating=repeating(inputs),
        crisp=kind == "halves",
    )
    form = "normwise" if judged_normwise(operator) else "elementwise"
    found = []
    for i, (e, w) in enumerate(zip(expected, working, strict=True)):
        if not (e.is_floating_point() or e.is_complex()):
            found.append(_discrete_band(instance, inputs, i, e, w, s, kept, salt))
        elif terms is not None:
            found.append(
                band(
                    e,
                    w,
                    None,
                    s.disagree[i],
                    dtype=kept,
                    kind="gamma",
                    absolute=terms.absolute[i],
                    length=terms.length,
                )
            )
        else:
            found.append(band(e, w, s.spread[i], s.disagree[i], dtype=kept, kind=form, still=s.still[i]))
    return found


def _discrete_band(
    instance: Instance,
    inputs: Any,
    i: int,
    truth: Tensor,
    working: Tensor,
    s: Spread,
    dtype: torch.dtype,
    seed: int,
) -> Band:
    """Integers and masks: by the value they select, or exactly where neither a perturbed run nor the
    reference's own changed them."""
    chosen = selections(instance, inputs)[i]
    if chosen is not None and dtype is not torch.float64:
        allowed = source_spread(instance, inputs, i, chosen.source, unit_of(dtype), seed=seed, dtype=dtype)
        selected = selected_from(chosen, truth, ELEMENTWISE_C * allowed)
        if selected is not None:
            selected = also_chosen(selected, working)
            everywhere = torch.ones(truth.shape, dtype=torch.bool, device=truth.device)
            return Band(
                torch.zeros(truth.shape, dtype=torch.float64), everywhere, "selection", 1.0, None, selected
            )
    bound = torch.full(truth.shape, 0.5, dtype=torch.float64, device=truth.device)
    valid = (s.spread[i] == 0) & (working.to(truth.device) == truth)
    return Band(bound, valid, "exact", 1.0, still=s.still[i])


def gradient_band(
    truth: Tensor,
    working: Tensor | None,
    spread: Spread,
    *,
    dtype: str | torch.dtype = "float32",
    profile: Profile | str = Profile.DERIVED,
    operator: OperatorProfile | None = None,
) -> Band:
    """The band of one gradient tensor; `spread` is the entry of `conditioning.gradient_spread` for its
    name."""
    if not bound_is_local(profile):
        return _paper_band(truth, working, truth.numel(), "CMP-02", dtype_named(dtype))
    form = "normwise" if judged_normwise(operator) else "elementwise"
    return band(
        truth, working, spread.spread[0], spread.disagree[0], dtype=dtype, kind=form, still=spread.still[0]
    )


def _paper_band(truth: Tensor, working: Tensor | None, numel: int, gate: str, dtype: torch.dtype) -> Band:
    y = real_view(truth).double()
    bound, scale = paper_bound(y, numel, gate=gate, dtype=dtype)
    w = y if working is None else real_view(working).double()
    return Band(bound, y.isfinite(), "paper", scale, same_nonfinite(y, w))


def paper_bound(
    truth: Tensor, numel: int, *, gate: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, float]:
    """The published harness's tolerance, reconstructed: (bound per element, the scale in it).

    A reconstruction from the failure messages of the 3,134 published rows, which print the tolerance, not
    from the harness's source. With scale = max(1, max|truth|) and n = elements of the first native input:
    ORD-01: 4 eps sqrt(n) scale; CMP-01, CMP-03: max(1e-5, 4 eps sqrt(n)) scale; PRC-01: 1e-3 scale in float16
    and 1e-2 scale in bfloat16; PRC-02: 2e-2 scale; ORD-03: 1e-3 + 1e-3 |truth|; eps = 1.19e-7.
    CMP-02 never failed in the record; it takes CMP-01's form here. The scale is what the derived profile
    avoids: one large output element loosens, and a long sum with a small result tightens, every element.
    """
    finite = truth[truth.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    if gate == "ORD-03":
        return PAPER_RELAXED + PAPER_RELAXED * truth.abs(), scale
    order = PAPER_FACTOR * PAPER_EPS * math.sqrt(max(1, numel))
    level = {"ORD-01": order, "PRC-02": PAPER_ACCUMULATOR}.get(gate, max(PAPER_FLOOR, order))
    if gate == "PRC-01":
        level = PAPER_HALF.get(dtype, level)
    return torch.full_like(truth, level * scale), scale


def exact_integer_applies(
    operator: OperatorProfile, inputs: Any, dtype: str = "float32", step: float = 1.0
) -> bool:
    """True if every partial sum on these inputs is an exact integer in `dtype`, so that any order agrees
    bit for bit. With another `step` the inputs are its multiples instead, which scales every partial sum
    alike where the operator is homogeneous.

    Needs an operator of sums, products and selections with integer parameters (`integer_preserving`), integer
    inputs, and the largest sum of absolute terms, ``ones_total`` times the product of the inputs' largest
    magnitudes, at most 1/u (2^24 in float32, 2,048 in float16). The product bounds multilinear operators
    only.
    """
    if not (operator.linear and operator.sum_of_products and operator.integer_preserving):
        return False
    total = operator.ones_total
    for t in flatten(inputs)[0]:
        if t.is_floating_point() and t.numel():
            t = t / step
            if not bool((t == t.round()).all()):
                return False
            total *= max(1.0, float(t.abs().max()))
    return total <= EXACT_INTEGERS[dtype]
