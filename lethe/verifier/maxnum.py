"""The sub-label IEEE maxNum of EXC-01's findings, by experiment: is it gone if no maximum drops a NaN?

A finding carries it if the candidate's NaN-keeping twin (`nan_keeping`) does not show it on the same case.
C++ has no twin, and a twin may fail to compile: there the label is read off the text, for what was swallowed.
``extra["maxnum_by"]`` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lethe.verifier import nan_keeping, semantics
from lethe.verifier.sheet import CandidateStopped, SkipCase
from lethe.verifier.verdict import Finding

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

MASKS = frozenset({"swallowed", "minted", "nan_for_inf", "inf_for_nan", "wrong_sign"})
Shown = frozenset[tuple[str, str]]
"""Output and mechanism of each finding of a case."""
Check = Callable[["Trial", "Case", "RunReport"], Sequence[Finding]]


def labelled(trial: Trial, kept: Sequence[Finding], found: Sequence[Finding], check: Check) -> list[Finding]:
    """`kept`, a part of all that was `found`, with ``extra["maxnum"]`` set on every finding of a mask.

    `check` compares a report of a trial with the truth of a case.
    """
    source = trial.candidate.source
    twin, in_c = nan_keeping.twin(source), semantics.drops_nan_in_c(source)
    masks = [f for f in kept if f.mechanism in MASKS]
    after = _experiment(trial, twin, [f.case for f in masks], check) if twin and masks else {}
    before = {case: _shown([f for f in found if f.case == case]) for case in after}
    labels = []
    for f in kept:
        if f.mechanism not in MASKS:
            labels.append(f)
            continue
        shown = after.get(f.case)
        extra: dict[str, object] = {"maxnum": False}
        if shown is not None:
            gone = (f.output, f.mechanism) not in shown and not {
                s for s in shown - before[f.case] if s[0] == f.output
            }
            extra = {"maxnum": gone, "maxnum_by": "experiment"}
        if shown is None and (in_c or twin):
            extra = {"maxnum": f.mechanism == "swallowed", "maxnum_by": "text"}
        labels.append(replace(f, extra={**f.extra, **extra}))
    return labels


def _experiment(trial: Trial, source: str, cases: Sequence[str], check: Check) -> dict[str, Shown | None]:
    """What the twin shows on each case; None where it does not answer. Asked once for all of the candidate's
    trials, whose twin is the same."""
    answers: dict[str, Shown | None] = trial.twins.setdefault("nan_keeping", {})
    open_cases = [c for c in dict.fromkeys(cases) if c not in answers]
    if open_cases:
        twin = trial.rewritten(source)
        try:
            for name in open_cases:
                case = trial.cases[name]
                try:
                    answers[name] = _shown(check(twin, case, twin.run(case)[0]))
                except (CandidateStopped, SkipCase):
                    answers[name] = None
        finally:
            twin.close()
    return {c: answers[c] for c in cases}


def _shown(findings: Sequence[Finding]) -> Shown:
    return frozenset((f.output, f.mechanism) for f in findings)
