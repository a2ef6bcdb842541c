"""ORD-01, reduction order, and ORD-03, cancellation: is the error one a legal summation order can produce?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier import regimes
from lethe.verifier.sheet import NotApplicable, Sheet
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

ORDER_KINDS = ("mixed", "one_signed", "sorted")
CANCELLING_KINDS = ("cancelling",)
RELAXATION = 4.0
"""ORD-03 is a backstop: a blocked order may lose up to two more bits than the bound's model order. The
published formula (profile ``paper``) is relaxed by itself."""


def run(trial: Trial) -> GateResult:
    return _sums("ORD-01", ORDER_KINDS, 1.0, trial)


def run_cancellation(trial: Trial) -> GateResult:
    relax = 1.0 if trial.settings.profile == "paper" else RELAXATION
    return _sums("ORD-03", CANCELLING_KINDS, relax, trial)


def _sums(gate: str, kinds: tuple[str, ...], relax: float, trial: Trial) -> GateResult:
    if trial.docket.operator.reduction_length < 2:
        raise NotApplicable(Reason.NOT_A_REDUCTION, "no output element depends on more than one term")
    why = regimes.beyond_rounding(trial)
    if why:
        raise NotApplicable(
            Reason.EARLIER_FAILURE, f"an ordinary draw fails otherwise than by rounding: {why}"
        )
    sheet = Sheet(gate)
    seed = trial.settings.seed + 11

    def check(case: Case, report: RunReport) -> list[Finding]:
        return trial.check_value(case, report, sheet, relax=relax)

    for kind in kinds:
        for k in range(1 if trial.settings.quick else 2):
            trial.try_case(sheet, partial(trial.docket.case, kind, seed + k), f"{kind}:{k}", check)
    rounding = regimes.of_rounding(trial, sheet.findings)
    if len(rounding) < len(sheet.findings):
        why = regimes.wide_failure(trial)
        if why and not rounding:
            raise NotApplicable(
                Reason.EARLIER_FAILURE, f"CMP-01's draws fail otherwise than by rounding: {why}"
            )
        sheet.findings = rounding if why else sheet.findings
    return sheet.result()
