"""PRC-01, precision regime: is the averaged error that of the declared dtype, not of a narrower one?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lethe.verifier import executors, fairness, precision, regimes
from lethe.verifier.docket import cast_floating
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten
from lethe.verifier.trial import structure_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial

SEEDS = 2


def run(trial: Trial) -> GateResult:
    """Generic draws at each declared dtype ({0,1} inputs are exact in TF32 and would hide it).

    float32 by the averaged statistic alone (values are CMP-01's business); other declared dtypes by their
    band as well, since no other gate runs at them and no narrower regime may be told apart from them.
    """
    docket, sheet = trial.docket, Sheet("PRC-01")
    spec = docket.problem.spec
    if not docket.floating:
        raise NotApplicable(Reason.NO_FLOATING_INPUT, "no input is floating point")
    if not fairness.precision_chargeable(docket.backends):
        raise NotApplicable(Reason.TF32_REFERENCE, "the reference itself turns a narrower regime on")
    unexplained: list[str] = []
    for dtype in spec.dtypes if spec is not None else ("float32",):
        if trial.settings.executor == "interpreter":
            unfaithful = executors.unfaithful(trial.candidate.source, dtype)
            if unfaithful:
                sheet.skip(dtype, f"interpreter: {unfaithful[0]}")
                continue
        for k in range(SEEDS):
            unexplained.extend(_one(trial, sheet, dtype, trial.settings.seed + 61 + k))
    if unexplained and not sheet.findings:
        return sheet.steps_back(f"{unexplained[0]}, so it is CMP-01's business")
    return sheet.result()


def _one(trial: Trial, sheet: Sheet, dtype: str, seed: int) -> list[str]:
    """Judge one draw; returns what is to be said of an error that no regime explains."""
    docket = trial.docket
    label = f"{dtype}:seed{seed}"
    try:
        case = replace(docket.case("normal", seed), id=label)
        truth = docket.truth(case, dtype)
        report = trial.run(case, dtype=dtype)[0]
    except SkipCase as e:
        sheet.skip(label, str(e))
        return []
    except CandidateStopped as e:
        sheet.halt(label, e)
        return []
    got, skeleton = flatten(report.outputs)
    mismatch = structure_finding(case, truth, got, skeleton)
    if mismatch is not None:
        sheet.add([mismatch])
        return []
    s = precision.precision_statistic(
        docket.instance(), cast_floating(case.inputs, dtype), got, truth.expected, truth.working, dtype=dtype
    )
    findings = [] if dtype == "float32" else trial.check_value(case, report, sheet, dtype=dtype)
    if not s.decidable and dtype == "float32":
        sheet.skip(label, "narrower operands would not show on this operator")
        return []
    sheet.worst(f"{dtype}:error", s.value)
    sheet.worst(f"{dtype}:reference_error", s.legal)
    sheet.worst(f"{dtype}:ratio", s.value / s.threshold)
    if s.value <= s.threshold:
        sheet.add(findings)
        return []
    kind = regimes.explaining(trial, case, got, s, dtype)
    if kind is None:
        why = regimes.UNEXPLAINED.format(s.value)
        sheet.skip(label, why)
        if findings:
            sheet.add(findings)
        return [why]
    name = regimes.label(trial, kind)
    sheet.add(
        [
            Finding(
                case=label,
                seed=seed,
                channel="B",
                mechanism=name,
                metric=s.value,
                bound=s.threshold,
                message=f"relative rms error {s.value:.3g} at {dtype}, where a faithful run has "
                f"{s.legal:.3g} and {name} would have {s.narrowed[kind]:.3g}",
            )
        ]
    )
    return []
