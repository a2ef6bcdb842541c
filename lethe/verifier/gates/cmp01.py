"""CMP-01, input variation: does the value agree on random and adversarial draws of every input?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier import semantics, tolerance, weights
from lethe.verifier.regimes import RANDOM_SEEDS
from lethe.verifier.sheet import Sheet, SkipCase
from lethe.verifier.verdict import Finding, GateResult

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case, Sizes
    from lethe.verifier.trial import Trial

KINDS = (
    "zeros", "one_hot", "large", "small", "mixed", "constant", "sorted", "exact_integer", "sparse", "deep",
    "spike",
)  # fmt: skip
ALONE = ("zeros", "large", "one_hot")
"""Kinds that are also drawn for each input alone when there are several."""
ORDINARY = "normal"
"""How the labels of the reference's own draws begin."""
VARIED = "varied_weights"


Draw = Callable[[], "Case"]


def run(trial: Trial) -> GateResult:
    """Random draws, then each adversarial kind on all inputs together and on each alone."""
    return look(trial).result()


def look(trial: Trial, only: Collection[str] | None = None) -> Sheet:
    """The sheet of this gate; `only` names the draws that are asked for, None asks for all."""
    sheet = Sheet("CMP-01")

    def check(case: Case, report: RunReport) -> list[Finding]:
        return trial.check_value(case, report, sheet)

    for label, draw in draws(trial):
        if only is None or label in only:
            trial.try_case(sheet, draw, label, check)
    return sheet


def draws(trial: Trial, sizes: Sizes | None = None) -> Iterator[tuple[str, Draw]]:
    """Every draw of this gate by its label, at the docket's sizes or at others."""
    docket, seed = trial.docket, trial.settings.seed
    at = partial(docket.case, sizes=sizes)
    for k in range(RANDOM_SEEDS):
        yield f"{ORDINARY}:{k}", partial(at, "normal", seed + k)
    for kind in (*KINDS, *_exact_kinds(trial)):
        yield kind, partial(at, kind, seed)
    if len(docket.floating) > 1:
        for kind in ALONE if trial.settings.quick else KINDS:
            for i in docket.floating:
                yield f"{kind}:input{i}", partial(at, kind, seed, i)
    if weights.uniform_names(docket.instance(sizes).module) and trial.candidate.kind == "module":
        yield VARIED, partial(_varied_weights, trial, sizes)


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


def _varied_weights(trial: Trial, sizes: Sizes | None) -> Case:
    """Ones and zeros that constructors set say nothing: hand other weights over, by name.

    A candidate that reads such a weight in its constructor may have derived something from it that a
    later copy leaves stale; that ambiguity is not charged (fairness rule 23).
    """
    docket = trial.docket
    names = weights.uniform_names(docket.instance(sizes).module)
    leaves = {n.rsplit(".", 1)[-1] for n in names}
    if semantics.reads_in_constructor(trial.candidate.source, trial.candidate.entry, leaves):
        raise SkipCase("the constructor reads weights, so that a later copy could leave something stale")
    base = docket.case("normal", trial.settings.seed, sizes=sizes)
    return replace(docket.derived(base, VARIED, "weights", lambda: list(base.inputs)), varied=True)
