"""EXC-02, subnormals: are subnormal values kept where the reference keeps them?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier import fairness, inputs
from lethe.verifier.sheet import NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten
from lethe.verifier.trial import structure_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

SMALLEST_NORMAL = 2.0**-126


def run(trial: Trial) -> GateResult:
    """Subnormal values among ordinary ones, in each floating input (fairness rule 14)."""
    docket = trial.docket
    if not docket.floating:
        raise NotApplicable(Reason.NO_FLOATING_INPUT, "no input is floating point")
    if not fairness.subnormal_chargeable(docket.operator):
        raise NotApplicable(
            Reason.NOT_LINEAR_OR_AFFINE, "subnormals are charged only to copy and affine operators"
        )
    sheet = Sheet("EXC-02")
    for which in docket.floating:
        trial.try_case(
            sheet,
            partial(_draw, trial, which),
            f"subnormal:input{which}",
            lambda case, report: _check(trial, case, report),
        )
    return sheet.result()


def _draw(trial: Trial, which: int) -> Case:
    docket = trial.docket
    base = docket.case("normal", trial.settings.seed + 51)
    case = docket.derived(
        base,
        f"subnormal:input{which}",
        "subnormal",
        lambda: inputs.place_subnormals(docket.instance(), base.inputs, which),
    )
    truth = docket.truth(case)
    if not any(bool(_kept(e, w).any()) for e, w in zip(truth.expected, truth.working, strict=True)):
        raise SkipCase("the reference returns no subnormal for it")
    return case


def _kept(expected: Tensor, working: Tensor) -> Tensor:
    """Elements that are subnormal, and not zero, in float64 and in the working precision alike."""
    if not working.is_floating_point():
        return working != working
    e, w = expected.abs(), working.abs().double()
    return (e > 0) & (e < SMALLEST_NORMAL) & (w > 0) & (w < SMALLEST_NORMAL)


def _check(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    truth = trial.docket.truth(case)
    got, skeleton = flatten(report.outputs)
    mismatch = structure_finding(case, truth, got, skeleton)
    if mismatch is not None:
        return [mismatch]
    findings = []
    for i, name in enumerate(truth.names):
        kept = _kept(truth.expected[i], truth.working[i]).cpu()
        lost = kept & (got[i].cpu() == 0)
        if bool(lost.any()):
            where = tuple(int(v) for v in lost.nonzero()[0])
            findings.append(
                Finding(
                    case=case.id,
                    seed=case.seed,
                    channel="T",
                    mechanism="flushed",
                    output=name,
                    where=where,
                    metric=float(int(lost.sum())),
                    expected=float(truth.working[i][where]),
                    got=0.0,
                    message=f"{int(lost.sum())} of {int(kept.sum())} subnormal results are flushed to zero",
                )
            )
    return findings
