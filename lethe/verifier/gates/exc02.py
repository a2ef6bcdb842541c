"""EXC-02, subnormals: are subnormal values, and the signs of zeros, kept where the reference keeps them?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lethe.verifier import fairness, inputs, oracle, regimes
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.trial import structure_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

SMALLEST_NORMAL = 2.0**-126
SURVIVES = 16 * 2.0**-149
"""Each rounding moves a value down here by half a spacing (2^-150) at most, so that 16 spacings outlive 32 of
them. Below, 0 may be right: 0.4 spacings rounded once are 0, although float32 steps may leave one."""

Kept = Callable[["Tensor", "Tensor"], "Tensor"]
"""(float64 oracle, working-precision reference) -> mask of the elements that a case is about."""


def run(trial: Trial) -> GateResult:
    """Subnormals (fairness rule 14) and signed zeros (rule 15) among the values of each floating input.

    A flush is charged to copy and affine operators only; a NaN that no flush explains, to all.
    """
    docket = trial.docket
    if not docket.floating:
        raise NotApplicable(Reason.NO_FLOATING_INPUT, "no input is floating point")
    why = regimes.ordinary_failure(trial)
    if why:
        raise NotApplicable(Reason.EARLIER_FAILURE, f"an ordinary draw fails as well: {why}")
    subnormals = fairness.subnormal_chargeable(docket.operator)
    zeros = fairness.signed_zero_chargeable(docket.operator)
    sheet = Sheet("EXC-02")
    for which in docket.floating:
        if subnormals:
            _try(trial, sheet, "subnormal", which, _subnormal, _flushed)
        _try(trial, sheet, "subnormal_nan", which, _finite, _minted)
        if zeros:
            _try(trial, sheet, "signed_zero", which, _zero, _zero_sign)
    return sheet.result()


def _try(
    trial: Trial, sheet: Sheet, kind: str, which: int, kept: Kept, judge: Callable[..., Finding | None]
) -> None:
    name = f"{kind}:input{which}"
    trial.try_case(
        sheet,
        partial(_draw, trial, kind, which, kept),
        name,
        lambda case, report: _check(trial, case, report, kept, judge),
    )


def _draw(trial: Trial, kind: str, which: int, kept: Kept) -> Case:
    docket = trial.docket
    base = _base(trial)
    place = {"signed_zero": inputs.place_signed_zeros}.get(kind, inputs.place_subnormals)
    case = docket.derived(
        base,
        f"{kind}:input{which}",
        kind,
        lambda: place(docket.instance(), base.inputs, which),
    )
    truth = docket.truth(case)
    if not any(bool(kept(e, w).any()) for e, w in zip(truth.expected, truth.working, strict=True)):
        raise SkipCase(f"the reference returns no {_NAMED[kind]} for it")
    return case


def _base(trial: Trial) -> Case:
    return trial.docket.case("normal", trial.settings.seed + 51)


_NAMED = {"subnormal": "subnormal", "signed_zero": "signed zero", "subnormal_nan": "finite value"}


def _finite(expected: Tensor, working: Tensor) -> Tensor:
    """Elements that are finite in float64 and in the working precision."""
    return expected.isfinite() & working.isfinite()


def _subnormal(expected: Tensor, working: Tensor) -> Tensor:
    """Elements that are subnormal in float64 and in working precision alike, and 0 by no legal rounding."""
    if not working.is_floating_point():
        return working != working
    e, w = expected.abs(), working.abs().double()
    return (e >= SURVIVES) & (e < SMALLEST_NORMAL) & (w > 0) & (w < SMALLEST_NORMAL)


def _zero(expected: Tensor, working: Tensor) -> Tensor:
    """Elements that are a zero of the same sign in float64 and in the working precision."""
    if not working.is_floating_point():
        return working != working
    return (expected == 0) & (working == 0) & (expected.signbit() == working.signbit())


def _check(
    trial: Trial, case: Case, report: RunReport, kept: Kept, judge: Callable[..., Finding | None]
) -> list[Finding]:
    truth = trial.docket.truth(case)
    got, skeleton = flatten(report.outputs)
    mismatch = structure_finding(case, truth, got, skeleton)
    if mismatch is not None:
        return [mismatch]
    findings = []
    for i, name in enumerate(truth.names):
        mask = kept(truth.expected[i], truth.working[i]).cpu()
        found = judge(trial, case, name, mask, got[i].cpu(), truth.working[i].cpu())
        if found is not None:
            findings.append(found)
    return findings


def _flushed(
    trial: Trial, case: Case, name: str, kept: Tensor, got: Tensor, working: Tensor
) -> Finding | None:
    what = f"of {int(kept.sum())} subnormal results are flushed to zero"
    extra = {"imposed": fairness.flush_is_imposed(trial.docket.operator)}
    return _finding(case, name, "flushed", kept & (got == 0), got, working, what, extra)


def _minted(
    trial: Trial, case: Case, name: str, kept: Tensor, got: Tensor, working: Tensor
) -> Finding | None:
    """NaN where the reference is finite, and is so with its subnormal inputs flushed as well, and where the
    candidate is finite on the same draw without subnormals."""
    if not got.is_floating_point() or not bool((kept & got.isnan()).any()):
        return None
    flushed, _ = flatten(
        oracle.run_working(trial.docket.instance(case.sizes), _without_subnormals(case.inputs))
    )
    at = trial.docket.truth(case).names.index(name)
    kept = kept & flushed[at].cpu().isfinite() & _finite_without(trial, at, got)
    what = f"of {int(kept.sum())} results are NaN on subnormal inputs, where the reference is finite"
    return _finding(case, name, "minted", kept & got.isnan(), got, working, what, {})


def _finite_without(trial: Trial, at: int, got: Tensor) -> Tensor:
    """Elements of output number `at` that are finite on the draw into which subnormals are placed."""
    import torch

    everywhere = torch.ones(got.shape, dtype=torch.bool)
    try:
        plain = flatten(trial.run(_base(trial))[0].outputs)[0]
    except CandidateStopped:
        return everywhere
    return plain[at].cpu().isfinite() if at < len(plain) and plain[at].shape == got.shape else everywhere


def _without_subnormals(value: Any) -> Any:
    """The inputs as a device that flushes subnormals to zero would see them."""

    def flush(t: Tensor) -> Tensor:
        return t.masked_fill(t.abs() < SMALLEST_NORMAL, 0.0) if t.is_floating_point() else t

    return map_tensors(value, flush)


def _zero_sign(
    trial: Trial, case: Case, name: str, kept: Tensor, got: Tensor, working: Tensor
) -> Finding | None:
    what = f"of {int(kept.sum())} zeros have the other sign, where the operator moves or sets it"
    wrong = kept & (got == 0) & (got.signbit() != working.signbit())
    return _finding(case, name, "zero_sign", wrong, got, working, what, {})


def _finding(
    case: Case,
    name: str,
    mechanism: str,
    wrong: Tensor,
    got: Tensor,
    working: Tensor,
    what: str,
    extra: dict[str, bool],
) -> Finding | None:
    if not bool(wrong.any()):
        return None
    where = tuple(int(v) for v in wrong.nonzero()[0])
    return Finding(
        case=case.id,
        seed=case.seed,
        channel="T",
        mechanism=mechanism,
        output=name,
        where=where,
        metric=float(int(wrong.sum())),
        expected=float(working[where]),
        got=float(got[where]),
        message=f"{int(wrong.sum())} {what}",
        extra=dict(extra),
    )
