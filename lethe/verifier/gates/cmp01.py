"""CMP-01, input variation: does the value agree on random and adversarial draws of every input?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier import semantics, tolerance, weights
from lethe.verifier.regimes import RANDOM_SEEDS
from lethe.verifier.sheet import Sheet
from lethe.verifier.verdict import Finding, GateResult

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

KINDS = (
    "zeros", "one_hot", "large", "small", "mixed", "constant", "sorted", "exact_integer", "sparse", "deep",
    "spike",
)  # fmt: skip
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
    for kind in _exact_kinds(trial):
        trial.try_case(sheet, partial(docket.case, kind, seed), kind, check)
    if len(docket.floating) > 1:
        for kind in ALONE if trial.settings.quick else KINDS:
            for i in docket.floating:
                trial.try_case(sheet, partial(docket.case, kind, seed, i), f"{kind}:input{i}", check)
    _varied_weights(trial, sheet)
    return sheet.result()


def _exact_kinds(trial: Trial) -> list[str]:
    """Draws on which nothing rounds: for sums of products at a scale where no absolute step survives, for
    operators that round to whole numbers at integers and ties."""
    docket = trial.docket
    operator = docket.operator
    kinds = ["halves"] if operator.stepping else []
    sums = operator.sum_of_products and operator.integer_preserving
    if sums and not tolerance.judged_normwise(operator):
        kinds.append("fine")
    return kinds


def _varied_weights(trial: Trial, sheet: Sheet) -> None:
    """Ones and zeros that constructors set say nothing: hand other weights over, by name.

    A candidate that reads such a weight in its constructor may have derived something from it that a
    later copy leaves stale; that ambiguity is not charged (fairness rule 23).
    """
    docket = trial.docket
    names = weights.uniform_names(docket.instance().module)
    if not names or trial.candidate.kind != "module":
        return
    label = "varied_weights"
    leaves = {n.rsplit(".", 1)[-1] for n in names}
    if semantics.reads_in_constructor(trial.candidate.source, trial.candidate.entry, leaves):
        sheet.skip(label, "the constructor reads weights, so that a later copy could leave something stale")
        return

    def draw() -> Case:
        base = docket.case("normal", trial.settings.seed)
        return replace(docket.derived(base, label, "weights", lambda: list(base.inputs)), varied=True)

    trial.try_case(sheet, draw, label, lambda case, report: trial.check_value(case, report, sheet))
