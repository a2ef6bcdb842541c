"""CMP-03, shape polymorphism: other sizes and layouts. Rejecting and computing wrongly are told apart."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier import fairness, inputs, integrity
from lethe.verifier.blame import is_loud
from lethe.verifier.docket import Case, Docket
from lethe.verifier.gates import cmp01
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.reference import run_apart
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten
from lethe.verifier.verdict import Blame, Finding, GateResult, Reason

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial


def run(trial: Trial) -> GateResult:
    """Sizes 1, odd, prime and above one tile; strided and offset views of the reference's own inputs."""
    docket, sheet = trial.docket, Sheet("CMP-03")
    cases = docket.shape_cases
    _failed_elsewhere(trial, sheet)
    if not cases and not sheet.cases:
        raise NotApplicable(Reason.NO_FREE_DIMENSION, "no size can be varied without breaking the reference")
    for shape in cases:
        for kind in ("normal", shape.also) if shape.also else ("normal",):
            label = f"shape:{shape.id}" + (f":{kind}" if kind != "normal" else "")
            try:
                case = replace(docket.case(kind, trial.settings.seed + 31, sizes=shape.sizes), id=label)
            except (SkipCase, ProblemError) as e:
                sheet.skip(label, str(e))
                continue
            _one(trial, sheet, case, shape.refusable)
    base = docket.case("normal", trial.settings.seed + 31)
    for name, laid_out in inputs.layouts(base.inputs):
        case = docket.derived(base, f"layout:{name}", "layout", partial(list, laid_out))
        refusal = docket.remembered(case.id, partial(_refusal, docket, case))
        if refusal:
            sheet.skip(case.id, refusal)
        else:
            _one(trial, sheet, case)
    return sheet.result()


def _failed_elsewhere(trial: Trial, sheet: Sheet) -> None:
    """The draws that failed at sizes which the judge chose, where those are not what the candidate is judged
    at (fairness rule 45)."""
    if trial.failed_elsewhere is None:
        return
    sizes, labels = trial.failed_elsewhere
    text = ",".join(f"{name}={v}" for name, v in sizes.items())
    for label, draw in cmp01.draws(trial, sizes):
        if label in labels:
            name = f"shape:{text}:{label}"
            try:
                case = replace(draw(), id=name)
            except (SkipCase, ProblemError) as e:
                sheet.skip(name, str(e))
                continue
            _one(trial, sheet, case)


def _refusal(docket: Docket, case: Case) -> str:
    """Why the reference refuses this layout, or ``""``: where it begins with a ``view``, a kernel need not
    take other strides either (fairness rule 19). One that ignores strides (``as_strided``) finds the NaN
    between the elements, and so may a kernel."""
    try:
        seen, _ = flatten(run_apart(docket.instance(case.sizes), case.inputs))
        usual = docket.truth(case).working
    except (ReferenceFailed, ProblemError) as e:
        return "" if fairness.legal_shape(e) else str(e)
    alike = [t.shape for t in seen] == [t.shape for t in usual]
    if not alike or any(bool((a.isnan() & ~b.isnan()).any()) for a, b in zip(seen, usual, strict=True)):
        return "the reference reads what lies between the elements"
    return ""


def _one(trial: Trial, sheet: Sheet, case: Case, refusable: bool = False) -> None:
    """The truth comes first: where the reference gives none, nothing is asked of the candidate (rule 19)."""
    try:
        trial.docket.truth(case)
    except (ReferenceFailed, ProblemError) as e:
        if not fairness.legal_shape(e):
            sheet.skip(case.id, str(e))
            return
    try:
        report = trial.run(case)[0]
    except CandidateStopped as e:
        if e.blame is Blame.CANDIDATE and is_loud(e.status) and refusable:
            sheet.skip(case.id, f"such a size may be refused: {e.message}")
        elif e.blame is Blame.CANDIDATE and is_loud(e.status):
            sheet.add([_rejects(case, e.message)])
        else:
            sheet.halt(case.id, e)
        return
    found = trial.check_value(case, report, sheet)
    sheet.add(found + integrity.out_of_bounds(case, report))


def _rejects(case: Case, message: str) -> Finding:
    return Finding(
        case=case.id,
        seed=case.seed,
        channel="T",
        mechanism="rejects",
        message=f"a legal {case.id.split(':')[0]} is refused: {message}",
        extra={"sizes": case.sizes},
    )
