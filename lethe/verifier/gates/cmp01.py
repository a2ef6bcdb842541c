"""CMP-01, input variation: does the value agree on random and adversarial draws of every input?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier.sheet import Sheet
from lethe.verifier.verdict import Finding, GateResult

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

RANDOM_SEEDS = 3
KINDS = ("zeros", "one_hot", "large", "small", "mixed", "constant", "sorted", "exact_integer", "sparse")
ALONE = ("zeros", "large", "one_hot")
"""Kinds that are also drawn for each input alone when there are several."""


def run(trial: Trial) -> GateResult:
    """Random draws, then each adversarial kind on all inputs together and on each alone."""
    sheet = Sheet("CMP-01")
    docket, seed = trial.docket, trial.settings.seed

    def check(case: Case, report: RunReport) -> list[Finding]:
        return trial.check_value(case, report, sheet)

    for k in range(RANDOM_SEEDS):
        trial.try_case(sheet, partial(docket.case, "normal", seed + k), f"normal:{k}", check)
    for kind in KINDS:
        trial.try_case(sheet, partial(docket.case, kind, seed), kind, check)
    if len(docket.floating) > 1:
        for kind in ALONE if trial.settings.quick else KINDS:
            for i in docket.floating:
                trial.try_case(sheet, partial(docket.case, kind, seed, i), f"{kind}:input{i}", check)
    return sheet.result()
