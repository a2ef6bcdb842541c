"""PRC-02, accumulator: is the error of a long reduction that of a wide accumulator or of a narrow carry?"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lethe.verifier import precision, regimes
from lethe.verifier.docket import Case, Sizes
from lethe.verifier.operations import ADDING, CONTRACTIONS
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.trial import structure_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.trial import Trial

SHORTEST = 64
"""Below 64 terms a carry in half precision is not told from an unlucky order."""
KINDS = ("one_signed", "shifted")
UNIT_FLOAT32 = 2.0**-24
GROUPS = 4
"""Normalised groups on which one-pass variance is looked for at least, by drawing again. What a difference of
squares loses is a rounding error, anything up to its level and now and then near nothing."""


def run(trial: Trial) -> GateResult:
    """The carry sweep: one-signed and shifted draws at the base length and at longer ones."""
    docket = trial.docket
    if docket.operator.reduction_length < 2:
        raise NotApplicable(Reason.NOT_A_REDUCTION, "no output element depends on more than one term")
    lengths = _lengths(trial)
    if not lengths:
        raise NotApplicable(Reason.NOT_A_REDUCTION, f"no reduction is as long as {SHORTEST} terms")
    sheet = Sheet("PRC-02")
    if trial.settings.profile == "paper":
        return _published(trial, sheet, lengths)
    if not _exact_operands(trial):
        _require_wide_operands(trial)
    carried, unexplained = False, ""
    for kind in KINDS:
        answered = [(p, z) for n, z in lengths if (p := _point(trial, sheet, kind, n, z)) is not None]
        points = [p for p, _ in answered]
        if kind == "shifted" and points and not carried:
            found = _one_pass(trial, sheet, answered)
            if found is not None:
                sheet.add([found])
                continue
        sweep = precision.carry_sweep(points)
        if not sweep.decidable:
            sheet.skip(kind, "a narrow carry would not show on this operator")
            continue
        worst = max(points, key=lambda p: p.length)
        sheet.worst(f"{kind}:error", worst.value)
        sheet.worst(f"{kind}:wide", worst.wide)
        sheet.worst(f"{kind}:ratio", worst.value / worst.lowest)
        sheet.measured[f"{kind}:length"] = float(worst.length)
        if sweep.kind is None:
            sheet.add([])
            continue
        carry = _explaining(trial, sweep.kind, answered)
        if carry is None:
            unexplained = f"no narrow carry explains the relative error {worst.value:.3g} on {kind} inputs"
            sheet.skip(kind, unexplained)
            break  # what shifted inputs show is then no one-pass variance either
        carried = True
        sheet.add([_finding(trial, kind, carry, worst, answered)])
    if any(f.mechanism != "nonfinite" for f in sheet.findings):
        unexplained = regimes.beyond_rounding(trial)
        if unexplained:
            sheet.findings = [f for f in sheet.findings if f.mechanism == "nonfinite"]
    if unexplained and not sheet.findings:
        return sheet.steps_back(unexplained)
    return sheet.result()


def _require_wide_operands(trial: Trial) -> None:
    """Raises NotApplicable where an ordinary draw is as wrong as narrow operands make it, or more."""
    seen = regimes.ordinary(trial)
    if seen is None:
        return
    if seen.kind is not None:
        name = precision.LABELS[seen.kind]
        raise NotApplicable(
            Reason.NARROW_OPERANDS, f"operands or intermediates are {name} already, which PRC-01 charges"
        )
    if seen.unexplained:
        raise NotApplicable(Reason.EARLIER_FAILURE, regimes.UNEXPLAINED.format(seen.statistic.value))


def _explaining(trial: Trial, nearest: str, answered: list[tuple[precision.CarryPoint, Sizes]]) -> str | None:
    """The narrow carry that explains the error at the longest length; None if none does.

    A carry rounds whatever is added up, so that ordinary draws of the same size show it as well, wherever
    the simulation says that they would.
    """
    p, sizes = max(answered, key=lambda found: found[0].length)
    ordinary = _point(trial, Sheet("PRC-02"), "normal", p.length, sizes)
    for carry in sorted(p.narrow, key=lambda k: k != nearest):
        shown = None
        if ordinary is not None and ordinary.threshold(carry) < math.inf:
            shown = ordinary.value > precision.REACH * ordinary.wide
        if precision.explains(p.value, precision.CARRY_REACH * p.narrow[carry], shown):
            return carry
    return None


def _published(trial: Trial, sheet: Sheet, lengths: list[tuple[int, Sizes]]) -> GateResult:
    """Profile ``paper``: the same draws under the published bound on values (`tolerance.paper_bound`)."""

    def check(case: Case, report: RunReport) -> list[Finding]:
        found = trial.check_value(case, report, sheet)
        return [replace(f, extra=f.extra | _sizes(trial, case.sizes)) for f in found]

    for kind in KINDS:
        for length, sizes in lengths:
            trial.try_case(sheet, partial(_draw, trial, kind, sizes), f"{kind}:N={length}", check)
    return sheet.result()


def _draw(trial: Trial, kind: str, sizes: Sizes, again: int = 0) -> Case:
    drawn = trial.docket.case(kind, trial.settings.seed + 71 + again, sizes=sizes)
    return replace(drawn, inputs=coarse(drawn.inputs))


def _lengths(trial: Trial) -> list[tuple[int, Sizes]]:
    """Base sizes and shape cases by reduction length: the shortest and the longest that suffice."""
    docket = trial.docket
    found: dict[int, Sizes] = {}
    for sizes in [docket.base, *(s.sizes for s in docket.shape_cases if not s.refusable)]:
        try:
            case = docket.case("normal", trial.settings.seed, sizes=sizes)
            profile = docket.operator_at(case)
        except (SkipCase, ProblemError, ReferenceFailed):
            continue
        if profile.reduction_length >= SHORTEST:
            found.setdefault(profile.reduction_length, sizes)
    by_length = sorted(found.items())
    return by_length if len(by_length) < 2 else [by_length[0], by_length[-1]]


def _exact_operands(trial: Trial) -> bool:
    """True if every operand is an input: `coarse` draws are then exact in each narrower regime, and what is
    left is the carry's error. Weights and intermediates cannot be made exact from outside."""
    operator = trial.docket.operator
    return operator.linear and not trial.docket.instance().module.state_dict()


def coarse(value: Any) -> Any:
    """Floating tensors rounded to the 8 significant bits of bfloat16, which TF32 and float16 hold exactly."""
    import torch

    return map_tensors(value, lambda t: t.bfloat16().to(t.dtype) if t.dtype == torch.float32 else t)


def _one_pass(trial: Trial, sheet: Sheet, points: list[tuple[precision.CarryPoint, Sizes]]) -> Finding | None:
    """The signature of E[x^2] - E[x]^2, for operators that a shift leaves alone (normalisations, variances).

    With r = mean/std the difference of two float32 numbers near r^2 loses u r^2 of a result near 1, where a
    two-pass form loses u r. Threshold: the geometric mean of the wide level and u r^2 / 2, where they differ
    by more than `precision.SEPARATION`. Judged at the length that tells them apart best: the wide level grows
    with the length, and r is smaller where the coarse draw is spread wider. Closer levels leave the verdict
    to the order in which a processor's vector unit happens to sum. A draw in which a difference of squares
    shows suffices, of as many as it takes to see `GROUPS` groups.
    """
    if not trial.docket.operator.normalises:
        return None
    levels = [(_one_pass_level(_draw(trial, "shifted", sizes)), p, sizes) for p, sizes in points]
    level, p, sizes = max(levels, key=lambda found: found[0] / found[1].wide)
    found = _lost(trial, level, p, sizes)
    groups = seen = max(1, _values(_draw(trial, "shifted", sizes)).numel() // p.length)
    again = 0
    while found is None and seen < GROUPS and level >= precision.SEPARATION * p.wide:
        again += 1
        seen += groups
        more = _point(trial, sheet, "shifted", p.length, sizes, again)
        if more is not None:
            level = _one_pass_level(_draw(trial, "shifted", sizes, again))
            found = _lost(trial, level, more, sizes, again)
    return found


def _lost(
    trial: Trial, level: float, p: precision.CarryPoint, sizes: Sizes, again: int = 0
) -> Finding | None:
    if level < precision.SEPARATION * p.wide:
        return None
    bound = math.sqrt(level * p.wide)
    if p.value <= bound:
        return None
    return Finding(
        case=_label("shifted", p.length, again),
        seed=trial.settings.seed,
        extra=_sizes(trial, sizes),
        channel="B",
        mechanism="one_pass",
        metric=p.value,
        bound=bound,
        message=f"relative error {p.value:.3g} on shifted inputs, where a faithful run has {p.wide:.3g}: the "
        f"difference of squares in one pass loses about {level:.3g}",
    )


def _one_pass_level(case: Case) -> float:
    """u r^2 / 2 of the values that were handed over."""
    x = _values(case)
    return UNIT_FLOAT32 * float(x.mean().abs() / x.std()) ** 2 / 2


def _values(case: Case) -> Tensor:
    tensors, _ = flatten(case.inputs)
    return next(t for t in tensors if t.is_floating_point()).double()


def _label(kind: str, length: int, again: int = 0) -> str:
    return f"{kind}:N={length}" + (f":{again}" if again else "")


def _point(
    trial: Trial, sheet: Sheet, kind: str, length: int, sizes: Sizes, again: int = 0
) -> precision.CarryPoint | None:
    docket = trial.docket
    label = _label(kind, length, again)
    try:
        case = replace(_draw(trial, kind, sizes, again), id=label)
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
    if any(bool((~g.isfinite()).any()) for g in got if g.is_floating_point()):
        # an average over what is left would make it look accurate
        minted = [f for f in trial.check_value(case, report, sheet) if f.mechanism == "nonfinite"]
        if minted:
            sheet.add([replace(f, extra=f.extra | _sizes(trial, sizes)) for f in minted])
            return None
    return precision.carry_point(
        docket.instance(sizes),
        case.inputs,
        got,
        truth.expected,
        truth.working,
        length,
        recurrence=_loops(trial),
    )


def _loops(trial: Trial) -> bool:
    """True if the reduction is a state carried by a Python loop rather than one reducing operator."""
    return not set(trial.docket.operator.ops) & (ADDING | CONTRACTIONS)


def _elsewhere(trial: Trial, points: list[tuple[precision.CarryPoint, Sizes]]) -> dict[str, Any]:
    """The sizes of a finding that rests on substituted sizes alone (fairness rule 31)."""
    telling = [z for p, z in points if p.lowest < math.inf]
    return {} if trial.docket.base in telling else _sizes(trial, telling[-1])


def _sizes(trial: Trial, sizes: Sizes) -> dict[str, Any]:
    return {} if sizes == trial.docket.base else {"sizes": sizes}


def _finding(
    trial: Trial,
    kind: str,
    carry: str,
    p: precision.CarryPoint,
    points: list[tuple[precision.CarryPoint, Sizes]],
) -> Finding:
    return Finding(
        case=f"{kind}:N={p.length}",
        seed=trial.settings.seed,
        extra=_elsewhere(trial, points),
        channel="B",
        mechanism=f"{carry}_carry",
        metric=p.value,
        bound=p.threshold(carry),
        message=f"relative error {p.value:.3g} over {p.length} terms on {kind} inputs: a float32 accumulator "
        f"has {p.wide:.3g}, one carried in {carry} {p.narrow[carry]:.3g}",
    )
