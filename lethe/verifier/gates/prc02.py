"""PRC-02, accumulator: does a long reduction show a wide accumulator, or does the error grow like a narrow carry?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lethe.verifier import precision
from lethe.verifier.docket import Case, Sizes
from lethe.verifier.gates.base import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.gates.prc01 import narrow_operands
from lethe.verifier.operations import ADDING, CONTRACTIONS
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.structure import flatten
from lethe.verifier.trial import structure_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial

SHORTEST = 64
"""Below 64 terms a carry in half precision is not told from an unlucky order."""
KINDS = ("one_signed", "shifted")
OPERAND_GROWTH = 0.25
"""Exponent of the error in the length that separates rounded operands (relative error flat or falling: at most 0)
from a narrow carry (at least 1/2, the random walk): the midpoint. Asked only where operands are known to be narrow."""


def run(trial: Trial) -> GateResult:
    """The carry sweep: one-signed and shifted draws at the base length and at longer ones."""
    docket = trial.docket
    if docket.operator.reduction_length < 2:
        raise NotApplicable(Reason.NOT_A_REDUCTION, "no output element depends on more than one term")
    lengths = _lengths(trial)
    if not lengths:
        raise NotApplicable(Reason.NOT_A_REDUCTION, f"no reduction is as long as {SHORTEST} terms")
    sheet = Sheet("PRC-02")
    narrow = narrow_operands(trial)
    for kind in KINDS:
        if narrow and kind == "shifted":
            sheet.skip(kind, f"the operands are {narrow} already, which a shift amplifies; PRC-01 charges that")
            continue
        points = []
        for length, sizes in lengths:
            point = _point(trial, sheet, kind, length, sizes)
            if point is not None:
                points.append(point)
        sweep = precision.carry_sweep(points)
        if not sweep.decidable:
            sheet.skip(kind, "a narrow carry would not show on this operator")
            continue
        worst = max(points, key=lambda p: p.length)
        if narrow and sweep.kind is not None and not sweep.growth > OPERAND_GROWTH:
            sheet.skip(kind, f"the error does not grow with the length: the operands are {narrow}, not the carry")
            continue
        sheet.worst(f"{kind}:error", worst.value)
        sheet.worst(f"{kind}:wide", worst.wide)
        sheet.measured[f"{kind}:length"] = float(worst.length)
        sheet.add([] if sweep.kind is None else [_finding(kind, sweep.kind, worst, trial.settings.seed)])
    return sheet.result()


def _lengths(trial: Trial) -> list[tuple[int, Sizes]]:
    """The base sizes and the shape cases, by reduction length: the shortest and the longest of those that suffice."""
    docket = trial.docket
    found: dict[int, Sizes] = {}
    for sizes in [docket.base, *(s.sizes for s in docket.shape_cases)]:
        try:
            case = docket.case("normal", trial.settings.seed, sizes=sizes)
            profile = docket.operator_at(case)
        except (SkipCase, ProblemError, ReferenceFailed):
            continue
        if profile.reduction_length >= SHORTEST:
            found.setdefault(profile.reduction_length, sizes)
    by_length = sorted(found.items())
    return by_length if len(by_length) < 2 else [by_length[0], by_length[-1]]


def _point(trial: Trial, sheet: Sheet, kind: str, length: int, sizes: Sizes) -> precision.CarryPoint | None:
    docket = trial.docket
    label = f"{kind}:N={length}"
    try:
        case: Case = replace(docket.case(kind, trial.settings.seed + 71, sizes=sizes), id=label)
        truth = docket.truth(case)
        report = trial.run(case)[0]
    except (SkipCase, ProblemError) as e:
        sheet.skip(label, str(e))
        return None
    except CandidateStopped as e:
        sheet.skip(label, e.message)
        return None
    got, skeleton = flatten(report.outputs)
    if structure_finding(case, truth, got, skeleton) is not None:
        sheet.skip(label, "another shape is returned, which CMP-03 charges")
        return None
    return precision.carry_point(
        docket.instance(sizes), case.inputs, got, truth.expected, truth.working, length, recurrence=_loops(trial)
    )


def _loops(trial: Trial) -> bool:
    """True if the reduction is a state carried by a Python loop rather than one reducing operator."""
    return not set(trial.docket.operator.ops) & (ADDING | CONTRACTIONS)


def _finding(kind: str, carry: str, p: precision.CarryPoint, seed: int) -> Finding:
    return Finding(
        case=f"{kind}:N={p.length}",
        seed=seed,
        channel="B",
        mechanism=f"{carry}_carry",
        metric=p.value,
        bound=p.threshold(carry),
        message=f"relative error {p.value:.3g} over {p.length} terms on {kind} inputs: a float32 accumulator has "
        f"{p.wide:.3g}, one carried in {carry} {p.narrow[carry]:.3g}",
    )
