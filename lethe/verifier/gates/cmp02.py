"""CMP-02, gradient: do all input and parameter gradients agree with the reference's float64 gradient?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from lethe.verifier import conditioning, fairness, oracle, semantics, tolerance
from lethe.verifier.blame import is_loud
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet
from lethe.verifier.trial import value_finding
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case, Docket
    from lethe.verifier.trial import Trial

SEEDS = 2


def run(trial: Trial) -> GateResult:
    """Non-uniform upstream gradients; every floating input and every parameter.

    A candidate whose outputs carry no gradient at all is forward only: `backward` on it raises,
    which is loud, so the contract does not apply. One that carries a gradient must carry a right one.
    """
    docket, sheet = trial.docket, Sheet("CMP-02")
    wrong = ""
    if not any(
        t.is_floating_point() for t in docket.truth(docket.case("normal", trial.settings.seed)).working
    ):
        raise NotApplicable(Reason.DISCRETE_OUTPUT, "no output is floating point")
    for k in range(SEEDS):
        case = replace(docket.case("normal", trial.settings.seed + 21 + k), id=f"gradient:{k}")
        upstream = _upstream(docket.truth(case).working, case.seed)
        try:
            right = docket.remembered(f"gradients:{case.seed}", partial(_right, docket, case, upstream))
        except oracle.ReferenceFailed as e:
            raise NotApplicable(Reason.NO_GRADIENT, f"the reference has no gradient: {e}") from e
        if not any(g is not None for g in right.truth.values()):
            raise NotApplicable(
                Reason.NO_GRADIENT, "no gradient reaches any input or parameter of the reference"
            )
        try:
            report = trial.run(case, upstream=[u.cpu() if u is not None else None for u in upstream])[0]
        except CandidateStopped as e:
            if is_loud(e.status):
                raise NotApplicable(
                    Reason.FORWARD_ONLY, f"backward raises, which is loud: {e.message}"
                ) from e
            sheet.halt(case.id, e)
            continue
        if not any(m.requires_grad for m in report.meta):
            raise NotApplicable(Reason.FORWARD_ONLY, "the candidate's outputs carry no gradient")
        found = _compare(trial, case, right, report, sheet)
        values = [f for f in found if f.mechanism in ("value", "nonfinite")]
        forward = trial.check_value(case, report, Sheet("CMP-01")) if values else []
        if fairness.gradient_chargeable(forward) or not _wrong_without_gradients(trial, case):
            sheet.add(found)
            continue
        wrong = f"the forward values are wrong already: {forward[0].message}"
        sheet.skip(f"{case.id}:values", wrong)
        if len(found) > len(values):
            sheet.add([f for f in found if f not in values])
    if wrong and not sheet.findings:
        return sheet.steps_back(wrong)
    return sheet.result()


def _wrong_without_gradients(trial: Trial, case: Case) -> bool:
    """Whether the values break their band in a plain call too, where CMP-01 charges them: a candidate that is
    wrong only where gradients are wanted is charged here."""
    return bool(trial.check_value(case, trial.run(case)[0], Sheet("CMP-01")))


@dataclass(frozen=True)
class _Right:
    """The reference's gradients of one case: float64, its own float32, and the former's spread; by name."""

    truth: dict[str, Tensor | None]
    working: dict[str, Tensor | None]
    spread: dict[str, conditioning.Spread]
    look: Callable[[int], dict[str, conditioning.Spread]]
    """The spread from another seed's perturbations."""


def _right(docket: Docket, case: Case, upstream: list[Tensor | None]) -> _Right:
    """Raises ReferenceFailed."""
    instance = docket.instance(case.sizes)
    truth = oracle.gradients(instance, case.inputs, upstream, "float64")
    if not any(g is not None for g in truth.values()):
        return _Right(truth, {}, {}, lambda seed: {})
    working = oracle.gradients(instance, case.inputs, upstream, "float32")
    unit = tolerance.UNIT["float32"]
    look = cache(
        partial(conditioning.gradient_spread, instance, case.inputs, upstream, truth, unit, conditioning.RUNS)
    )
    return _Right(truth, working, look(0), look)


def _upstream(working: list[Tensor], seed: int) -> list[Tensor | None]:
    """Random, non-uniform upstream gradients; a uniform one hides a gradient right only on average."""
    import torch

    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(t.shape, generator=g, dtype=torch.float32).to(t.device) if t.is_floating_point() else None
        for t in working
    ]


def _held(trial: Trial, name: str) -> bool:
    """Parameters that the candidate holds under another name (or not at all) cannot be compared by name."""
    return not name.startswith("param:") or name.removeprefix("param:") in trial.parameters


def _detached(trial: Trial, report: RunReport) -> bool:
    """Whether a missing gradient ends at a launch for which nobody wrote a backward pass.

    Before a differentiable layer such a kernel loses gradients in silence; alone it is forward only, and the
    contract does not apply. Still a finding, with a sub-label by which it can be counted apart.
    """
    launched = report.launches > 0 or trial.candidate.language in ("cpp", "native")
    return launched and semantics.leaves_gradients_alone(trial.candidate.source)


def _compare(
    trial: Trial,
    case: Case,
    right: _Right,
    report: RunReport,
    sheet: Sheet,
) -> list[Finding]:
    import torch

    docket = trial.docket
    names = [n for n, g in right.truth.items() if g is not None and _held(trial, n)]
    expected = [right.truth[n] for n in names]
    findings = []
    for name, e in zip(names, expected, strict=True):
        assert e is not None
        got = (report.grads or {}).get(name)
        if got is None:
            if bool((e != 0).any()):
                findings.append(
                    Finding(
                        case=case.id,
                        seed=case.seed,
                        channel="T",
                        mechanism="missing_gradient",
                        output=f"grad:{name}",
                        message=f"no gradient reaches {name}; the reference's is not zero",
                        extra={"detached": True} if _detached(trial, report) else {},
                    )
                )
            continue
        if got.shape != e.shape:
            findings.append(
                Finding(
                    case=case.id,
                    seed=case.seed,
                    channel="T",
                    mechanism="shape",
                    output=f"grad:{name}",
                    message=f"the gradient of {name} has shape {tuple(got.shape)}, expected {tuple(e.shape)}",
                )
            )
            continue
        own = right.working.get(name)
        banded = partial(
            tolerance.gradient_band,
            e,
            own if own is not None else torch.zeros_like(e),
            profile=trial.settings.profile,
            operator=docket.operator,
        )
        band = banded(right.spread[name])
        c = tolerance.compare(got, e, band)
        sheet.worst("worst_ratio", c.ratio)
        if c.ratio > 1.0:
            looks = fairness.further_looks(c.ratio, band.at_rest(c.index), c.rare)
            wider = tolerance.widest([band, *(banded(right.look(k)[name]) for k in range(1, looks + 1))])
            if tolerance.compare(got, e, wider).ratio <= 1.0:
                sheet.worst("borderline_ratio", c.ratio)
                continue
            findings.append(value_finding(case, f"grad:{name}", c, 1.0))
    return findings
