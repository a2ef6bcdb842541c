"""The fairness rules: what must never be charged to an innocent kernel.

`RULES` names each rule, states it, and holds the function that applies it. Each is called where the verdict
is made: the ones below by gates, docket and trial; those about statuses and counts live in `blame`, those
about one module's own business (bands, draws, weights) in that module. Replacing a rule's function switches
the rule off, which is how its innocent kernel is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lethe.verifier import blame, comparison, conditioning, inputs, precision, sites, tolerance, weights
from lethe.verifier.comparison import compare
from lethe.verifier.conditioning import OperatorProfile
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.tolerance import Band
from lethe.verifier.verdict import Finding

BORDERLINE = 2.0
"""A breach by less than this factor is drawn again with a second seed: the band's own Monte-Carlo estimate
varies by about that much between seeds (8 draws)."""
REST_LOOKS = 4
"""Behind a kink (ReLU, clamp) only errors of one sign show. Where the value before it is a rounding error
itself, 8 draws are all of the other sign with probability 2^-8, which some element of a large tensor meets;
40 draws with 2^-40."""


@dataclass(frozen=True)
class Rule:
    """One fairness rule."""

    number: int
    name: str
    statement: str
    predicate: Callable[..., Any]
    where: str
    """The module that applies it."""


def reference_raises(outcome: object) -> bool:
    """Rule 1: the reference raised, so nothing may be concluded."""
    return isinstance(outcome, (ReferenceFailed, ProblemError))


def reference_varies(runs: Sequence[Sequence[Tensor]]) -> bool:
    """Rule 2: repeated runs of the reference on the same bytes differ (NaN equals NaN)."""
    first, *others = runs
    return not all(_alike(first, run) for run in others)


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(_identical(a, b) for a, b in zip(first, second, strict=True))


def _identical(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same = a == b
    return bool((same | (a.isnan() & b.isnan())).all()) if a.is_floating_point() else bool(same.all())


def is_stochastic(operator: OperatorProfile, declared: bool = False) -> bool:
    """Rule 3: the operator draws random numbers, as its trace shows or its specification declares."""
    return operator.stochastic or declared


def ignore_nan_payload(t: Tensor) -> Tensor:
    """Rule 5: a copy in which every NaN has the same bits."""
    return torch.where(t.isnan(), torch.full_like(t, math.nan), t) if t.is_floating_point() else t


def inf_sign_differs(value: Tensor, expected: Tensor) -> Tensor:
    """Rule 6: mask of elements that are infinite on both sides with different signs."""
    return value.isinf() & expected.isinf() & (torch.signbit(value) != torch.signbit(expected))


def masked_out(clean: Sequence[Tensor], poisoned: Sequence[Tensor]) -> bool:
    """Rule 7: a non-finite that changes no output of the reference sits in a masked-out position."""
    return _alike(clean, poisoned)


def references_agree(oracle64: Tensor, working: Tensor) -> Tensor:
    """Rule 8: mask of elements on whose class (finite, NaN, +Inf, -Inf) the float64 oracle and the
    working-precision reference agree."""
    return _class(oracle64) == _class(working).to(oracle64.device)


def structural_zero(oracle64: Tensor, zero_absorbing: Tensor) -> Tensor:
    """Rule 30: mask of elements whose non-finite stems from 0 times a non-finite."""
    return _class(oracle64) != _class(zero_absorbing)


def _class(t: Tensor) -> Tensor:
    t = conditioning.real_view(t).sum(-1) if t.is_complex() else t
    if not t.is_floating_point():
        return torch.zeros(t.shape, dtype=torch.int8, device=t.device)
    return (
        t.isnan().to(torch.int8) + 2 * torch.isposinf(t).to(torch.int8) + 3 * torch.isneginf(t).to(torch.int8)
    )


def precision_chargeable(backends: Mapping[str, Any]) -> bool:
    """Rule 13: PRC-01 may be charged only if the record says that the reference ran without TF32.

    The judge pins it off; a reference that turns it on itself asks for what it gets.
    """
    return backends.get("float32_matmul_precision") == "highest" and backends.get("cudnn_allow_tf32") is False


def subnormal_chargeable(operator: OperatorProfile) -> bool:
    """Rule 14: subnormals are charged for copying and affine operators only."""
    return operator.affine_or_copy


TOOLCHAIN_FLUSHES = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log1p", "rsqrt", "sqrt", "div", "sigmoid", "tanh"}
)
"""Functions whose device-library or approximate instructions flush subnormals whatever the source says."""


def flush_is_imposed(operator: OperatorProfile) -> bool:
    """Rule 14, sub-label: the tool chain's own functions flush here, so the kernel's author has no choice."""
    return bool(TOOLCHAIN_FLUSHES & set(operator.ops))


MOVING = frozenset(
    [
        "view",
        "reshape",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "squeeze",
        "unsqueeze",
        "clone",
        "copy",
        "_to_copy",
        "as_strided",
        "index",
        "index_select",
        "gather",
        "cat",
        "stack",
        "flip",
        "roll",
        "repeat",
        "alias",
        "detach",
        "unbind",
        "split",
        "split_with_sizes",
        "narrow",
        "_unsafe_view",
        "_reshape_alias",
        "diagonal",
        "unfold",
        "empty",
        "empty_like",
        "new_empty",
    ]
)
"""Operators that move values without looking at them, so that the sign of a zero moves along."""
SIGNING = frozenset({"neg", "abs", "copysign"})
"""Operators that IEEE 754 (5.5.1) defines on the sign bit alone, zeros included."""


def signed_zero_chargeable(operator: OperatorProfile) -> bool:
    """Rule 15: the sign of zero is defined where values are only moved, negated or made absolute."""
    return bool(operator.ops) and set(operator.ops) <= MOVING | SIGNING


def declared_in_place(position: int, declared: Iterable[int], written_by_reference: Iterable[int]) -> bool:
    """Rule 17: the operator is declared to write this input, or the reference itself does."""
    return position in set(declared) or position in set(written_by_reference)


def alias_chargeable(aliases: Iterable[str], reference_aliases: Iterable[str]) -> list[str]:
    """Rule 18: the aliases of an output that the reference's output does not have."""
    allowed = set(reference_aliases)
    return [a for a in aliases if a not in allowed]


def legal_shape(outcome: object, outputs: Sequence[Tensor] = ()) -> bool:
    """Rule 19: a shape belongs to the operator's domain if the reference accepts it and returns something."""
    raised = isinstance(outcome, (ReferenceFailed, ProblemError))
    return not raised and (not outputs or any(t.numel() for t in outputs))


def further_looks(ratio: float, at_rest: bool, rare: bool = False) -> int:
    """Rule 22: how many further seeds must confirm a breach: one a small breach, `REST_LOOKS` a breach at an
    element that successive perturbed runs have not moved (`Band.at_rest`) or at few elements only
    (`Comparison.rare`: where a kink's value is added to another, the sum moves in every run)."""
    if (at_rest or rare) and ratio > 1.0:
        return REST_LOOKS
    return int(1.0 < ratio <= BORDERLINE)


def is_vacuous(outputs: Sequence[Tensor], on_other_inputs: Sequence[Tensor] | None = None) -> bool:
    """Rule 25: no output element, or outputs that other inputs do not change: passing proves nothing."""
    if not any(t.numel() for t in outputs):
        return True
    return on_other_inputs is not None and _alike(outputs, on_other_inputs)


def has_hidden_state(
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> bool:
    """Rule 34: calling one instance of the reference again on the same inputs gives other outputs, or its
    state moved."""
    moved = any(n not in after or not _identical(t, after[n]) for n, t in before.items())
    return moved or reference_varies((first, second))


def reassociation_explains_inf(
    value: Tensor, expected: Tensor, absolute: Tensor, dtype: torch.dtype
) -> Tensor:
    """Rule 36: mask of elements that differ by infinities only, where the sum of absolute terms can overflow.

    A partial sum of another legal order may pass the largest number although the whole sum does not; once
    it has, the result is an infinity, or NaN where two partial sums overflow with opposite signs. `absolute`
    adds up the finite terms: a term that is infinite itself stays so in every order, with its sign.
    """
    differs = _class(value) != _class(expected)
    return differs & ~value.isfinite() & ~absolute.isnan() & (absolute >= torch.finfo(dtype).max)


def distribution_explains_inf(value: Tensor, expected: Tensor, undecided: Tensor) -> Tensor:
    """Rule 41: mask of elements that are an infinity where the reference adds +Inf and -Inf up to NaN, if
    another association of the same terms need not (`association.undecided`).

    Of either sign: x * sum(w) takes that of a sum which may itself be a rounding error.
    """
    return value.isinf() & expected.isnan() & undecided


def approximation_explains(value: Tensor, truth: Tensor, alternative: Tensor, band: Band) -> bool:
    """Rule 38: the value misses the truth but meets its legitimate approximation (`oracle.tanh_form`)
    within the band."""
    return not compare(value, truth, band).within and compare(value, alternative, band).within


def is_rounding(finding: Finding) -> bool:
    """Rule 43: the finding may be a rounding error, which an order of summation or a subnormal brings about;
    another structure or shape, or a result that is not finite, has a cause of its own."""
    return finding.mechanism not in ("structure", "shape", "nonfinite")


def gradient_chargeable(forward: Sequence[Finding]) -> bool:
    """Rule 44: gradient values are charged only on a draw whose forward values keep their band: behind a
    kink, the gradient of slightly other values is that of another function."""
    return not forward


def _rules() -> dict[int, Rule]:
    rows: list[tuple[str, Callable[..., Any], str]] = [
        ("a reference that raises decides nothing", reference_raises, "trial"),
        ("a reference that varies from run to run cannot charge ORD-02", reference_varies, "docket"),
        ("stochastic operators are not judged by value", is_stochastic, "docket"),
        ("agreeing non-finites are no value error", comparison.same_nonfinite, "comparison"),
        ("the payload and sign of NaN are ignored", ignore_nan_payload, "docket"),
        ("the sign of an infinity is not ignored", inf_sign_differs, "gates.exc01"),
        ("non-finites in masked-out positions are not charged", masked_out, "gates.exc01"),
        (
            "a non-finite is charged only where oracle and working-precision reference agree on it",
            references_agree,
            "gates.exc01",
        ),
        ("elements near overflow are skipped", conditioning.overflow_limit, "tolerance"),
        (
            "bounds use sums of absolute terms, never the largest output",
            tolerance.bound_is_local,
            "tolerance",
        ),
        (
            "on structured input errors add up: gamma_n bounds linear operators there",
            tolerance.structured,
            "tolerance",
        ),
        (
            "the declared dtype is judged; extra internal precision is never charged",
            tolerance.unit_of,
            "tolerance",
        ),
        ("TF32 is pinned off and recorded; PRC-01 is charged only then", precision_chargeable, "gates.prc01"),
        (
            "subnormals are charged for copying and affine operators; imposed flushes are a sub-label",
            subnormal_chargeable,
            "gates.exc02",
        ),
        ("signed zero counts only where the operator defines it", signed_zero_chargeable, "gates.exc02"),
        ("ties are free: any valid index set passes", comparison.judged_by_selection, "comparison"),
        ("declared in-place outputs may alias", declared_in_place, "gates.ord02"),
        (
            "a view is charged only if it aliases an input that the reference's does not",
            alias_chargeable,
            "gates.ord02",
        ),
        ("shapes come from the operator's legal domain", legal_shape, "shapes"),
        ("a raised error is never silent wrongness", blame.is_loud, "gates.cmp02"),
        (
            "compile, tool-chain, memory and time failures are their own statuses; memory is retried",
            blame.has_own_status,
            "sheet",
        ),
        (
            "seeds are fixed per gate and case; a borderline case, or one at a kink, must break at others",
            further_looks,
            "trial",
        ),
        (
            "the same weights on both sides, copied only by name and exact shape",
            weights.seeded_alike,
            "weights",
        ),
        ("warm-up is allowed and autotuning is not timed", blame.counts_for_time, "audit.acceptance"),
        ("vacuous cases are not passes", is_vacuous, "docket"),
        ("a failure is reproduced in a second process", blame.is_reproduced, "judge"),
        (
            "the false-rejection rate of the honest corpus is measured and published",
            blame.false_rejection,
            "evidence",
        ),
        ("rules are versioned and a verdict names its version", blame.same_rules, "audit.lines"),
        (
            "convolutions are judged normwise, and for swallowed non-finites only",
            tolerance.judged_normwise,
            "tolerance",
        ),
        ("structural zeros are not charged with 0 times infinity", structural_zero, "gates.exc01"),
        ("what only the tile boundary explains is CMP-03 alone", blame.tile_boundary_only, "cascade"),
        ("an executor's own failure is an error of the executor", blame.executor_fault, "sheet"),
        (
            "zero patterns, symmetry and structure of the inputs are kept in every draw",
            inputs.with_structure,
            "inputs",
        ),
        (
            "stateful modules are rebuilt; a reference with hidden state is not judged by repetition",
            has_hidden_state,
            "docket",
        ),
        (
            "a size that the candidate holds itself is substituted on both sides",
            sites.hard_coded_sizes,
            "trial",
        ),
        (
            "infinities that a legal reassociation explains are counted apart",
            reassociation_explains_inf,
            "gates.exc01",
        ),
        ("a failure of the harness is never the candidate's", blame.harness_fault, "sheet"),
        ("exp(x) - 1 and tanh-form approximations are tolerance", approximation_explains, "trial"),
        ("a configuration that an autotuner passes over is not charged", blame.passed_over, "integrity"),
        (
            "the history of calls is charged only where the first answer was right",
            blame.history_chargeable,
            "integrity",
        ),
        (
            "an infinity that the distributive law makes of the reference's NaN is counted apart",
            distribution_explains_inf,
            "gates.exc01",
        ),
        (
            "a narrower regime or carry is charged only where it explains the error",
            precision.explains,
            "precision",
        ),
        (
            "where ordinary draws fail otherwise than by rounding, order and subnormals are not to blame",
            is_rounding,
            "regimes",
        ),
        (
            "gradient values are not charged where the forward values are wrong already",
            gradient_chargeable,
            "gates.cmp02",
        ),
        (
            "what fails at sizes that the judge chose, and not as written, is CMP-03 alone",
            blame.sizes_explain,
            "venue",
        ),
        (
            "what fails alike at the problem's own sizes and layout is not CMP-03's",
            blame.fails_alike,
            "cascade",
        ),
        (
            "other bits on another stream or by graph replay may be a library's choice",
            blame.library_chose,
            "gates.ord02",
        ),
    ]
    return {
        n: Rule(
            n,
            predicate.__name__,
            statement,
            predicate,
            f"lethe.{where}" if where.startswith(("audit", "evidence")) else f"lethe.verifier.{where}",
        )
        for n, (statement, predicate, where) in enumerate(rows, start=1)
    }


RULES: dict[int, Rule] = _rules()
"""All rules by number."""
