"""The fairness rules: what must never be charged to an innocent kernel.

`RULES` names each rule, states it, and holds the predicate that applies it. The predicates are small pure
functions over tensors, statuses and numbers; gates, the judge and the reports call them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lethe.verifier.comparison import Selected, compare, compare_selection, same_nonfinite
from lethe.verifier.conditioning import OVERFLOW_MARGIN, OperatorProfile
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.tolerance import UNIT, Band, structured
from lethe.verifier.verdict import RULES_VERSION, Blame, Status

BORDERLINE = 2.0
"""A breach by less than this factor is drawn again with a second seed: the band's own Monte-Carlo estimate
varies by about that much between seeds (8 draws)."""

CONFIDENCE = 0.95


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
    return isinstance(outcome, ReferenceFailed)


def reference_varies(runs: Sequence[Sequence[Tensor]]) -> bool:
    """Rule 2: repeated runs of the reference on the same bytes differ (NaN equals NaN)."""
    first, *others = runs
    return any(not _identical(a, b) for run in others for a, b in zip(first, run, strict=True))


def _identical(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same = a == b
    return bool((same | (a.isnan() & b.isnan())).all()) if a.is_floating_point() else bool(same.all())


def is_stochastic(operator: OperatorProfile) -> bool:
    """Rule 3: the operator draws random numbers."""
    return operator.stochastic


def agreeing_nonfinite(value: Tensor, expected: Tensor) -> Tensor:
    """Rule 4: mask of elements where both are NaN or the same infinity."""
    return same_nonfinite(value.double(), expected.double().to(value.device))


def ignore_nan_payload(t: Tensor) -> Tensor:
    """Rule 5: a copy in which every NaN has the same bits."""
    return torch.where(t.isnan(), torch.full_like(t, math.nan), t) if t.is_floating_point() else t


def inf_sign_differs(value: Tensor, expected: Tensor) -> Tensor:
    """Rule 6: mask of elements that are infinite on both sides with different signs."""
    return value.isinf() & expected.isinf() & (torch.signbit(value) != torch.signbit(expected))


def masked_out(clean: Sequence[Tensor], poisoned: Sequence[Tensor]) -> bool:
    """Rule 7: a non-finite that changes no output of the oracle sits in a masked-out position."""
    return all(_identical(a, b) for a, b in zip(clean, poisoned, strict=True))


def chargeable_nonfinite(oracle64: Tensor, working: Tensor, zero_absorbing: Tensor | None) -> Tensor:
    """Rules 8 and 30: mask of elements on whose class (finite, NaN, +Inf, -Inf) all references agree."""
    agreed = _class(oracle64) == _class(working).to(oracle64.device)
    return agreed if zero_absorbing is None else agreed & (_class(oracle64) == _class(zero_absorbing))


def _class(t: Tensor) -> Tensor:
    t = torch.view_as_real(t).sum(-1) if t.is_complex() else t
    if not t.is_floating_point():
        return torch.zeros(t.shape, dtype=torch.int8, device=t.device)
    return (
        t.isnan().to(torch.int8) + 2 * torch.isposinf(t).to(torch.int8) + 3 * torch.isneginf(t).to(torch.int8)
    )


def near_overflow(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Rule 9: mask of elements within 2^4 of the overflow threshold of `dtype`."""
    return truth.isfinite() & (truth.abs() >= torch.finfo(dtype).max / OVERFLOW_MARGIN)


def band_is_local(band: Band) -> bool:
    """Rule 10: True if the bound of an element rests on that element's (or sample's) terms, not on
    max|output|."""
    return band.kind != "paper"


def gamma_applies(operator: OperatorProfile, inputs: Any) -> bool:
    """Rule 11: linear operators on constant, sorted or one-signed input are bounded by gamma_n."""
    return operator.linear and operator.sum_of_products and not operator.convolution and structured(inputs)


def narrower_than_declared(level: float, threshold: float) -> bool:
    """Rule 12: only an error above the threshold of a narrower regime is charged; a smaller one never is."""
    return level > threshold


def precision_chargeable(pinned: Mapping[str, Any]) -> bool:
    """Rule 13: PRC-01 may be charged only if the record says that the reference ran without TF32."""
    return pinned.get("float32_matmul_precision") == "highest" and pinned.get("cudnn_allow_tf32") is False


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


SIGN_DEFINING = frozenset(
    {"neg", "abs", "copysign", "sign", "signbit", "clone", "where", "cat", "transpose", "permute"}
)


def signed_zero_chargeable(operator: OperatorProfile) -> bool:
    """Rule 15: the sign of zero is defined where values are only copied or their sign is the result."""
    from lethe.verifier.operations import EXACT

    copies = set(operator.ops) <= EXACT and not operator.selects
    return copies and bool(set(operator.ops) & SIGN_DEFINING)


def valid_selection(index: Tensor, selected: Selected) -> bool:
    """Rule 16: any index set that selects the right values is valid."""
    return compare_selection(index, selected).within


def declared_in_place(position: int, declared: Iterable[int], written_by_reference: Iterable[int]) -> bool:
    """Rule 17: the operator is declared to write this input, or the reference itself does."""
    return position in set(declared) or position in set(written_by_reference)


def alias_chargeable(aliases: Iterable[str], reference_aliases: Iterable[str]) -> set[str]:
    """Rule 18: the aliases of an output that the reference's output does not have."""
    return set(aliases) - set(reference_aliases)


def legal_shape(reference_outcome: object, outputs: Sequence[Tensor] = ()) -> bool:
    """Rule 19: a shape belongs to the operator's domain if the reference accepts it and returns something."""
    return not reference_raises(reference_outcome) and (not outputs or any(t.numel() for t in outputs))


LOUD = frozenset({Status.RUN_FAILED, Status.COMPILE_FAILED, Status.BUILD_FAILED, Status.IMPORT_FAILED})


def is_loud(status: Status) -> bool:
    """Rule 20: the candidate raised, which is never silent wrongness."""
    return status in LOUD


OWN_STATUS = frozenset(
    {
        Status.COMPILE_FAILED,
        Status.OUT_OF_MEMORY,
        Status.TIMED_OUT,
        Status.EXECUTOR_FAILED,
        Status.RESOURCE_LIMIT,
    }
)


def has_own_status(status: Status) -> bool:
    """Rule 21: compile, tool-chain, memory and time failures are reported as themselves, not as a gate's
    failure."""
    return status in OWN_STATUS


def retried_alone(status: Status) -> bool:
    """Rule 21: running out of memory says nothing while others hold the device."""
    return status is Status.OUT_OF_MEMORY


def case_seed(gate: str, case: str, base: int = 0) -> int:
    """Rule 22: the seed of a case, a fixed function of its gate and name (CRC-32, 31 bits)."""
    return (zlib.crc32(f"{gate}/{case}".encode()) + base) % 2**31


def is_borderline(ratio: float) -> bool:
    """Rule 22: a breach so small that a second seed must confirm it."""
    return 1.0 < ratio <= BORDERLINE


def weights_agree(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> bool:
    """Rule 23: after seeding both alike, the candidate's tensors equal the reference's by name, shape and
    value."""
    return all(
        n in reference
        and reference[n].shape == t.shape
        and _identical(reference[n], t.to(reference[n].dtype))
        for n, t in candidate.items()
    )


def weights_copyable(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> bool:
    """Rule 23: every tensor of the candidate has a namesake of exactly its shape; nothing is broadcast or
    matched by order."""
    return all(n in reference and reference[n].shape == t.shape for n, t in candidate.items())


def counts_for_time(call: int, warm_up: int, tuning: bool) -> bool:
    """Rule 24: whether the call with this index is timed; warm-up and autotuning are not."""
    return call >= warm_up and not tuning


def is_vacuous(outputs: Sequence[Tensor], on_other_inputs: Sequence[Tensor] | None = None) -> bool:
    """Rule 25: no output element, or outputs that other inputs do not change: passing proves nothing."""
    if not any(t.numel() for t in outputs):
        return True
    return on_other_inputs is not None and masked_out(outputs, on_other_inputs)


def is_reproduced(failures_in_fresh_processes: Sequence[bool]) -> bool:
    """Rule 26: the failure showed in at least two fresh processes, and in every one that was tried."""
    return len(failures_in_fresh_processes) >= 2 and all(failures_in_fresh_processes)


def false_rejection(rejected: int, honest: int) -> tuple[float, float]:
    """Rule 27: rate of honest kernels rejected and its one-sided 95% upper bound (Clopper and Pearson
    1934)."""
    if honest <= 0:
        return 0.0, 1.0
    low, high = rejected / honest, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = sum(
            math.comb(honest, i) * middle**i * (1 - middle) ** (honest - i) for i in range(rejected + 1)
        )
        low, high = (middle, high) if tail > 1 - CONFIDENCE else (low, middle)
    return rejected / honest, high


def same_rules(version: str) -> bool:
    """Rule 28: a verdict reached by other rules is not compared with this version's."""
    return version == RULES_VERSION


def judged_normwise(operator: OperatorProfile) -> bool:
    """Rule 29: transform-domain convolutions are legal, and they are accurate in norm only."""
    return operator.convolution


def nonfinite_charge(
    value: Tensor, expected: Tensor, chargeable: Tensor, operator: OperatorProfile
) -> Tensor:
    """Rule 29: mask of charged non-finites; a convolution is charged only where it swallows one."""
    differs = _class(value) != _class(expected).to(value.device)
    if operator.convolution:
        differs = differs & value.isfinite()
    return differs & chargeable.to(value.device)


def structural_zero(oracle64: Tensor, zero_absorbing: Tensor) -> Tensor:
    """Rule 30: mask of elements whose non-finite stems from 0 times a non-finite."""
    return _class(oracle64) != _class(zero_absorbing)


def tile_boundary_only(failed: Iterable[str], passed: Iterable[str]) -> bool:
    """Rule 31: every failing case is a substituted shape while cases at the usual shape passed: CMP-03's
    alone.

    Cases are named as in findings: shape cases start with ``"shape"``.
    """
    names = list(failed)
    return (
        bool(names)
        and all(n.startswith("shape") for n in names)
        and any(not n.startswith("shape") for n in passed)
    )


def executor_fault(status: Status) -> bool:
    """Rule 32: the executor cannot run this program; that says nothing of the kernel."""
    return status is Status.EXECUTOR_FAILED


def keeps_structure(original: Tensor, drawn: Tensor) -> bool:
    """Rule 33: a draw keeps shape and dtype, triangular zero patterns, and symmetry of square matrices."""
    if original.shape != drawn.shape or original.dtype != drawn.dtype:
        return False
    if original.dim() < 2 or original.shape[-1] < 2 or original.shape[-1] != original.shape[-2]:
        return True
    for half in (torch.triu, torch.tril):
        if bool((half(original) == original).all()) and not bool((half(drawn) == drawn).all()):
            return False
    symmetric = torch.equal(original, original.mT)
    return not symmetric or torch.equal(drawn, drawn.mT)


def has_hidden_state(
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> bool:
    """Rule 34: calling one instance of the reference again on the same inputs gives other outputs, or its
    state moved."""
    moved = any(n not in after or not _identical(t, after[n]) for n, t in before.items())
    return moved or not masked_out(first, second)


def size_substitutable(site: str, candidate_constants: Mapping[str, int], usual: int) -> bool | None:
    """Rule 35: True: the candidate holds the size under the same name, substitute both; False: it holds
    another value under that name or the number under another name, the shape case is n/a; None: it holds
    none."""
    if site in candidate_constants:
        return candidate_constants[site] == usual
    return False if usual > 1 and usual in candidate_constants.values() else None


def reassociation_explains_inf(
    value: Tensor, expected: Tensor, absolute: Tensor, dtype: torch.dtype
) -> Tensor:
    """Rule 36: mask of elements that differ by infinities only, where the sum of absolute terms can overflow.

    A partial sum of another legal order may pass the largest number although the whole sum does not; once
    it has, the result is an infinity, or NaN where two partial sums overflow with opposite signs.
    """
    differs = _class(value) != _class(expected)
    return differs & ~value.isfinite() & ~absolute.isnan() & (absolute >= torch.finfo(dtype).max)


def harness_fault(status: Status, whose: Blame | None = None) -> bool:
    """Rule 37: the judge's own limits and failures are never the candidate's."""
    return status is Status.HARNESS_FAILED or whose in (Blame.HARNESS, Blame.EXECUTOR, Blame.REFERENCE)


def approximation_explains(value: Tensor, truth: Tensor, alternative: Tensor, band: Band) -> bool:
    """Rule 38: the value misses the truth but meets its legitimate approximation (`oracle.tanh_form`)
    within the band."""
    return not compare(value, truth, band).within and compare(value, alternative, band).within


def reaches_unit(dtype: str) -> float:
    """Rule 12: the unit roundoff a value declared in `dtype` is judged by."""
    return UNIT[dtype]


def _rules() -> dict[int, Rule]:
    rows: list[tuple[str, Callable[..., Any], str]] = [
        ("a reference that raises decides nothing", reference_raises, "gates"),
        ("a reference that varies from run to run cannot charge ORD-02", reference_varies, "docket"),
        ("stochastic operators are not judged by value", is_stochastic, "docket"),
        ("agreeing non-finites are no value error", agreeing_nonfinite, "tolerance"),
        ("the payload and sign of NaN are ignored", ignore_nan_payload, "gates"),
        ("the sign of an infinity is not ignored", inf_sign_differs, "gates"),
        ("non-finites in masked-out positions are not charged", masked_out, "gates"),
        (
            "a non-finite is charged only where oracle and working-precision reference agree on it",
            chargeable_nonfinite,
            "gates",
        ),
        ("elements near overflow are skipped", near_overflow, "tolerance"),
        ("bounds use sums of absolute terms, never the largest output", band_is_local, "tolerance"),
        ("gamma_n bounds linear operators on structured input", gamma_applies, "tolerance"),
        (
            "the declared dtype is judged; extra internal precision is never charged",
            narrower_than_declared,
            "precision",
        ),
        ("TF32 is pinned off and recorded; PRC-01 is charged only then", precision_chargeable, "gates"),
        (
            "subnormals are charged for copying and affine operators; imposed flushes are a sub-label",
            subnormal_chargeable,
            "gates",
        ),
        ("signed zero counts only where the operator defines it", signed_zero_chargeable, "gates"),
        ("ties are free: any valid index set passes", valid_selection, "comparison"),
        ("declared in-place outputs may alias", declared_in_place, "gates"),
        (
            "a view is charged only if it aliases an input that the reference's does not",
            alias_chargeable,
            "gates",
        ),
        ("shapes come from the operator's legal domain", legal_shape, "gates"),
        ("a raised error is never silent wrongness", is_loud, "trial"),
        (
            "compile, tool-chain, memory and time failures are their own statuses; memory is retried",
            has_own_status,
            "trial",
        ),
        ("seeds are fixed per gate and case; a borderline case draws a second one", is_borderline, "trial"),
        ("the same weights on both sides, copied only by name and exact shape", weights_copyable, "weights"),
        ("warm-up is allowed and autotuning is not timed", counts_for_time, "trial"),
        ("vacuous cases are not passes", is_vacuous, "docket"),
        ("a failure is reproduced in two fresh processes", is_reproduced, "judge"),
        (
            "the false-rejection rate of the honest corpus is measured and published",
            false_rejection,
            "evidence",
        ),
        ("rules are versioned and a verdict names its version", same_rules, "verdict"),
        (
            "convolutions are judged normwise, and for swallowed non-finites only",
            nonfinite_charge,
            "tolerance",
        ),
        ("structural zeros are not charged with 0 times infinity", structural_zero, "gates"),
        ("what only the tile boundary explains is CMP-03 alone", tile_boundary_only, "judge"),
        ("an executor's own failure is an error of the executor", executor_fault, "trial"),
        (
            "zero patterns, symmetry and structure of the inputs are kept in every draw",
            keeps_structure,
            "inputs",
        ),
        (
            "stateful modules are rebuilt; a reference with hidden state is not judged",
            has_hidden_state,
            "docket",
        ),
        (
            "a size that the candidate holds itself is substituted on both sides, or the case does not apply",
            size_substitutable,
            "shapes",
        ),
        (
            "infinities that a legal reassociation explains are counted apart",
            reassociation_explains_inf,
            "gates",
        ),
        ("a failure of the harness is never the candidate's", harness_fault, "judge"),
        ("exp(x) - 1 and tanh-form approximations are tolerance", approximation_explains, "tolerance"),
    ]
    return {
        n: Rule(n, predicate.__name__, statement, predicate, f"lethe.verifier.{where}")
        for n, (statement, predicate, where) in enumerate(rows, start=1)
    }


RULES: dict[int, Rule] = _rules()
"""All 38 rules by number."""
