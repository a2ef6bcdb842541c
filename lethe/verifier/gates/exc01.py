"""EXC-01, non-finite propagation: do the NaN, +Inf and -Inf masks of the outputs agree?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lethe.verifier import association, fairness, inputs, maxnum, oracle, products, profiling, tolerance
from lethe.verifier.sheet import NotApplicable, Sheet, first_of_each
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.trial import structure_finding
from lethe.verifier.unread import unread
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case, Docket
    from lethe.verifier.trial import Trial

VALUES = {"nan": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}
PLACEMENTS = ("first", "last", "interior", "whole_row", "tile_edges")
QUICK_INF_PLACEMENTS = ("interior", "tile_edges")
"""Infinities follow the same data path as NaN; the quick set keeps one element and the tile edges."""


def run(trial: Trial) -> GateResult:
    """Each value at each placement in each floating input of the reference."""
    docket = trial.docket
    if not docket.floating:
        raise NotApplicable(Reason.NO_FLOATING_INPUT, "no input is floating point")
    sheet = Sheet("EXC-01")
    for which in docket.floating:
        for label, value in VALUES.items():
            placements = QUICK_INF_PLACEMENTS if trial.settings.quick and label != "nan" else PLACEMENTS
            for placement in placements:
                name = f"{label}:input{which}:{placement}"
                trial.try_case(
                    sheet,
                    partial(_draw, trial, which, value, placement, name),
                    name,
                    lambda case, report: check(trial, case, report, sheet),
                )
    kept = first_of_each(sheet.findings)
    sheet.findings = maxnum.labelled(trial, kept, sheet.findings, _shown_by)
    return sheet.result(detail=_detail(trial) if sheet.cases else "")


def _shown_by(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    return check(trial, case, report, Sheet("EXC-01")) or []


def _detail(trial: Trial) -> str:
    """Which outputs had no mask to compare, if any."""
    truth = trial.docket.truth(trial.docket.case("normal", trial.settings.seed))
    outputs = list(zip(truth.names, truth.working, strict=True))
    parts = [n for n, t in outputs if t.is_complex()]
    whole = [n for n, t in outputs if not (t.is_floating_point() or t.is_complex())]
    reasons = {"integers hold no NaN and no infinity": whole, "a spelling decides which part is NaN": parts}
    return "; ".join(
        f"not compared, since {why}: {', '.join(names)}" for why, names in reasons.items() if names
    )


def _draw(trial: Trial, which: int, value: float, placement: str, name: str) -> Case:
    docket = trial.docket
    base = docket.case("normal", trial.settings.seed + 41)
    return docket.derived(
        base,
        name,
        "nonfinite",
        lambda: inputs.place_nonfinite(
            docket.instance(), base.inputs, which, value, placement, _unread(trial, base, which)
        ),
    )


def _unread(trial: Trial, base: Case, which: int) -> Tensor | None:
    """Mask of the elements of one input that the reference does not use (fairness rule 7), if any."""
    import torch

    def find() -> Tensor | None:
        docket, instance = trial.docket, trial.docket.instance(base.sizes)
        clean = docket.truth(base).working
        g = torch.Generator().manual_seed(base.seed)
        upstream = [
            torch.randn(t.shape, generator=g).to(t.device) if t.is_floating_point() else None for t in clean
        ]
        name = f"input:{docket.floating.index(which)}"
        try:
            return unread(instance, base.inputs, which, name, upstream, clean)
        except oracle.ReferenceFailed:
            return None

    mask: Tensor | None = trial.docket.remembered(f"unread:{which}", find)
    return mask


def check(trial: Trial, case: Case, report: RunReport, sheet: Sheet) -> list[Finding] | None:
    """Compare the three masks where all oracles agree (fairness rules 6 to 9, 29, 30, 36 and 41)."""
    docket = trial.docket
    truth = docket.truth(case)
    got, skeleton = flatten(report.outputs)
    mismatch = structure_finding(case, truth, got, skeleton)
    if mismatch is not None:
        return [mismatch]
    clean_case = docket.case("normal", trial.settings.seed + 41)
    if fairness.masked_out(docket.truth(clean_case).working, truth.working):
        sheet.skip(case.id, "the reference ignores this element")
        return None
    kept = truth.remembered("exc01", partial(_open, docket, case))
    if not kept:
        sheet.skip(case.id, "how many elements the reference returns depends on their values")
        return None
    findings = []
    for i, name in enumerate(truth.names):
        if not truth.working[i].is_floating_point():
            continue
        want, chargeable, absolute = kept[i]
        value, expected = got[i].cpu(), truth.expected[i].cpu()
        sheet.worst("chargeable_share", float(chargeable.double().mean()) if chargeable.numel() else 0.0)
        legal = chargeable & (expected.isnan() & value.isinf())
        if bool(legal.any()):
            undecided = truth.remembered("exc01:undecided", partial(_undecided, docket, case, clean_case))
            legal &= fairness.distribution_explains_inf(value, expected, undecided[i])
        if absolute is not None:
            legal |= chargeable & fairness.reassociation_explains_inf(value, expected, absolute, want.dtype)
        if absolute is not None or bool(legal.any()):
            sheet.worst("inf_by_reassociation", float(legal.sum()))
        found = _masks(trial, case, name, want, value, chargeable & ~legal)
        if any(f.mechanism == "nan_for_inf" for f in found):
            split = want.isinf() & value.isnan() & _splittable(docket, clean_case)[i]
            found = _masks(trial, case, name, want, value, chargeable & ~legal & ~split)
        findings += found
    return findings


def _splittable(docket: Docket, clean: Case) -> list[Tensor]:
    """Masks of `products.splittable` (fairness rule 9); empty where the reference does not let itself be
    asked."""
    import torch

    truth = docket.truth(clean)

    def find() -> list[Tensor]:
        try:
            masks = products.splittable(docket.instance(clean.sizes), clean.inputs)
            return [m & ~t.isnan().cpu() for m, t in zip(masks, truth.expected, strict=True)]
        except oracle.ReferenceFailed:
            return [torch.zeros(t.shape, dtype=torch.bool) for t in truth.expected]

    masks: list[Tensor] = truth.remembered("exc01:splittable", find)
    return masks


def _undecided(docket: Docket, case: Case, clean: Case) -> list[Tensor]:
    """Masks of `association.undecided`; everything, where the reference does not let itself be asked."""
    try:
        return association.undecided(docket.instance(case.sizes), case.inputs, clean.inputs)
    except oracle.ReferenceFailed:
        return [t.isnan().cpu() for t in docket.truth(case).expected]


def _open(docket: Docket, case: Case) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """For each output, in the host's memory: the reference's own, a mask of the elements that all oracles
    agree on, and for a linear operator the sums of absolute terms. Candidates have no part in it.

    Empty where the oracles return other shapes, as they may where values decide which elements there are.
    """
    truth, instance = docket.truth(case), docket.instance(case.sizes)
    absorbing, _ = flatten(oracle.zero_absorbing(instance, case.inputs))
    terms = profiling.absolute_terms(instance, _finite(case.inputs)) if docket.operator.linear else None
    shapes = [t.shape for t in truth.expected]
    for other in (absorbing, terms.absolute if terms is not None else truth.expected):
        if [t.shape for t in other] != shapes:
            return []
    found = []
    for i, (want, expected) in enumerate(zip(truth.working, truth.expected, strict=True)):
        chargeable = fairness.references_agree(expected, want)
        chargeable = chargeable & ~fairness.structural_zero(expected, absorbing[i])
        absolute = terms.absolute[i].cpu() if terms is not None else None
        found.append((want.cpu(), chargeable.cpu(), absolute))
    return found


def _finite(value: Any) -> Any:
    """The inputs without their infinite and NaN terms, whose class no order of summation changes."""
    return map_tensors(value, lambda t: t.nan_to_num(0.0, 0.0, 0.0) if t.is_floating_point() else t)


def _masks(
    trial: Trial, case: Case, name: str, want: Tensor, got: Tensor, chargeable: Tensor
) -> list[Finding]:
    import torch

    finite, nan = torch.isfinite(got), torch.isnan(got)
    by_mechanism = {
        "swallowed": ~torch.isfinite(want) & finite,
        "minted": torch.isfinite(want) & ~finite,
        "nan_for_inf": torch.isinf(want) & nan,
        "inf_for_nan": torch.isnan(want) & torch.isinf(got),
        "wrong_sign": fairness.inf_sign_differs(got, want),
    }
    if tolerance.judged_normwise(trial.docket.operator):
        by_mechanism = {"swallowed": by_mechanism["swallowed"]}
    findings = []
    for mechanism, mask in by_mechanism.items():
        mask = mask & chargeable
        if not bool(mask.any()):
            continue
        where = tuple(int(v) for v in mask.nonzero()[0])
        e, g = float(want[where]), float(got[where])
        findings.append(
            Finding(
                case=case.id,
                seed=case.seed,
                channel="T",
                mechanism=mechanism,
                output=name,
                where=where,
                metric=float(int(mask.sum())),
                expected=e,
                got=g,
                message=f"{int(mask.sum())} of {mask.numel()} elements {_SAYS[mechanism]}: "
                f"{name}{list(where)} is {g:g}, the reference gives {e:g}",
            )
        )
    return findings


_SAYS = {
    "swallowed": "are finite where the reference is not",
    "minted": "are not finite where the reference is",
    "nan_for_inf": "are NaN where the reference is infinite",
    "inf_for_nan": "are infinite where the reference is NaN",
    "wrong_sign": "have the other infinity",
}
