"""Which narrower regime explains an error? What PRC-01 names, and what other gates ask before they blame.

The levels of `precision` say how large an error a regime makes; a draw of small integers, on which it makes
none, says whether the error is one of rounding at all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lethe.verifier import fairness, nan_keeping, oracle, precision, semantics
from lethe.verifier.problem import ProblemError
from lethe.verifier.sheet import CandidateStopped, Sheet, SkipCase
from lethe.verifier.structure import flatten
from lethe.verifier.trial import structure_finding

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lethe.verifier.docket import Case, Docket
    from lethe.verifier.precision import PrecisionStatistic
    from lethe.verifier.problem import Instance
    from lethe.verifier.trial import Trial
    from lethe.verifier.verdict import Finding

RANDOM_SEEDS = 3
"""CMP-01's ordinary draws."""
WIDE = ("large", "mixed", "deep", "spike")
"""Draws of CMP-01 that reach far beyond the reference's own magnitudes."""
ROOMY = ("spike", "deep")
"""Draws that reach beyond `precision.FP16_MAX` wherever the reference allows it."""


def explaining(
    trial: Trial, case: Case, got: list[Tensor], s: PrecisionStatistic, dtype: str = "float32"
) -> str | None:
    """The narrower regime that explains the error of `got`, run in `dtype`; None if none does.

    Raises ReferenceFailed.
    """
    instance = trial.docket.instance(case.sizes)
    truth = trial.docket.truth(case, dtype).expected
    inputs = oracle.cast_floating(case.inputs, oracle.dtype_named(dtype))
    for kind in s.suspects:
        stored = precision.representable(got, kind)
        limit = precision.REACH * precision.ceiling(instance, inputs, truth, kind, stored)
        fallen = _fallen(trial, kind, s.value, stored, dtype) if s.value <= limit else None
        if precision.explains(s.value, limit, fallen):
            return kind
    return None


def label(trial: Trial, kind: str) -> str:
    """float16 only where it overflows: rounding alone does not tell it from TF32."""
    name = precision.LABELS[kind]
    return "float16" if name == precision.ELEVEN_BITS and _overflows(trial) else name


def _overflows(trial: Trial) -> bool:
    """Whether a result that float32 holds is not finite on a draw beyond the range of float16."""
    docket = trial.docket
    for kind in ROOMY:
        try:
            case = docket.case(kind, trial.settings.seed)
            truth = docket.truth(case)
            got, skeleton = flatten(trial.run(case)[0].outputs)
        except (SkipCase, CandidateStopped, oracle.ReferenceFailed):
            continue
        beyond = [*flatten(case.inputs)[0], *truth.expected]
        if not any(t.is_floating_point() and bool((t.abs() > precision.FP16_MAX).any()) for t in beyond):
            continue
        if structure_finding(case, truth, got, skeleton) is not None:
            continue
        triples = zip(got, truth.expected, truth.working, strict=True)
        if any(bool((~g.to(e.device).isfinite() & e.isfinite() & w.isfinite()).any()) for g, e, w in triples):
            return True
    return False


@dataclass(frozen=True)
class _Exact:
    """The draw of small integers, with weights to match, and what the reference makes of it."""

    case: Case
    instance: Instance
    state: dict[str, Tensor]
    """All weights of `instance`."""
    altered: set[str]
    """Names of those that differ from the reference's own."""
    truth: list[Tensor]
    legal: float


def _fallen(trial: Trial, kind: str, value: float, stored: bool, dtype: str) -> bool | None:
    """Whether the error is gone where operands, and mostly the results of contractions, are numbers of `kind`
    exactly; None if that cannot be tried, or if `kind` would make an error there too."""
    docket = trial.docket
    try:
        exact: _Exact = docket.remembered(f"exact:{dtype}", partial(_exact, docket, dtype))
        inputs = oracle.cast_floating(exact.case.inputs, oracle.dtype_named(dtype))
        there = partial(precision.ceiling, exact.instance, inputs, exact.truth, kind, stored)
        expected = max(exact.legal, docket.remembered(f"exact:{dtype}:{kind}:{stored}", there))
        if value < precision.SEPARATION * expected:
            return None
        got, skeleton = flatten(_answer(trial, exact, dtype))
    except (SkipCase, CandidateStopped, oracle.ReferenceFailed, ProblemError):
        return None
    if structure_finding(exact.case, docket.truth(exact.case, dtype), got, skeleton) is not None:
        return None
    return precision.fell(value, precision.level(got, exact.truth), expected)


def _exact(docket: Docket, dtype: str) -> _Exact:
    """Raises SkipCase where the domain admits no such draw."""
    case = docket.case("exact_integer", docket.settings.seed + 61)
    own = docket.instance(case.sizes)
    state, altered = _few_bits(own.module)
    module = copy.deepcopy(own.module)
    module.load_state_dict(state)
    instance = replace(own, module=module, notes={})
    drawn = oracle.cast_floating(case.inputs, oracle.dtype_named(dtype))
    truth = flatten(oracle.run_float64(instance, drawn, dtype))[0]
    working = oracle.run_working(instance, drawn, dtype)
    legal = precision.legal_level(instance, drawn, truth, working, dtype)
    return _Exact(replace(case, id="exact"), instance, state, altered, truth, legal)


def _few_bits(module: nn.Module) -> tuple[dict[str, Tensor], set[str]]:
    """All weights, and the names of those that were altered: parameters that hold more than one value become
    small multiples of a power of two, at most their root mean square, so that their magnitudes stay."""
    parameters = {n for n, _ in module.named_parameters()}
    state, altered = {}, set()
    for name, t in module.state_dict().items():
        state[name] = t.clone()
        several = t.is_floating_point() and bool(t.isfinite().all()) and bool((t != t.flatten()[:1]).any())
        if name in parameters and several:
            step = 2.0 ** math.floor(math.log2(float(t.double().square().mean().sqrt())))
            state[name] = (t / step).round() * step
            altered.add(name)
    return state, altered


def _answer(trial: Trial, exact: _Exact, dtype: str) -> Any:
    """Raises SkipCase where the candidate cannot be given the weights without leaving something stale."""
    if not exact.altered:
        return trial.run(exact.case, dtype=dtype)[0].outputs
    leaves = {n.rsplit(".", 1)[-1] for n in exact.altered}
    if trial.candidate.kind != "module" or semantics.reads_in_constructor(
        trial.candidate.source, trial.candidate.entry, leaves
    ):
        raise SkipCase("the candidate's constructor may have made something of its weights")
    return trial.with_weights(exact.case, exact.state, exact.altered, dtype).outputs


def ordinary_failure(trial: Trial) -> str:
    """How one of CMP-01's ordinary draws fails otherwise than by rounding, or ``""``."""
    return next((f.message for f in _on_ordinary(trial) if not fairness.is_rounding(f)), "")


def wide_failure(trial: Trial) -> str:
    """The same on the draws of CMP-01 that overflow what holds too little."""
    draws = [partial(trial.docket.case, kind, trial.settings.seed) for kind in WIDE]
    found = list(_findings(trial, draws))
    rounding = of_rounding(trial, found)
    return next((f.message for f in found if f not in rounding), "")


def of_rounding(trial: Trial, found: Sequence[Finding]) -> list[Finding]:
    """Those of the findings that may be rounding errors (fairness rule 43).

    A maximum or a clamp that drops a NaN hides a result that was not finite behind an ordinary number, so
    those cases are shown to the candidate's NaN-keeping twin as well.
    """
    rounding = [f for f in found if fairness.is_rounding(f)]
    hidden = _hidden(trial, rounding)
    return [f for f in rounding if _place(f) not in hidden]


_Place = tuple[str, str, tuple[int, ...]]
"""Case, output and index of a finding."""


def _place(f: Finding) -> _Place:
    return f.case, f.output, f.where


def _hidden(trial: Trial, found: Collection[Finding]) -> set[_Place]:
    """Of the places of these findings, those at which the twin is not finite and the reference is. A twin
    that is not finite on an ordinary draw either, as one that loads NaN on purpose, tells nothing."""
    answers: dict[_Place, bool] = trial.twins.setdefault("hidden", {})
    source = nan_keeping.twin(trial.candidate.source)
    asked = [f for f in found if f.case in trial.cases and _place(f) not in answers]
    if asked and source is not None:
        twin = trial.rewritten(source)
        ordinary = trial.docket.case("normal", trial.settings.seed)
        try:
            telling = not any(bool(mask.any()) for mask in _nonfinite(twin, ordinary).values())
            names = {f.case for f in asked if telling}
            masks = {name: _nonfinite(twin, trial.cases[name]) for name in names}
        finally:
            twin.close()
        for f in asked:
            mask = masks.get(f.case, {}).get(f.output)
            answers[_place(f)] = mask is not None and len(f.where) == mask.dim() and bool(mask[f.where])
    return {_place(f) for f in found if answers.get(_place(f))}


def _nonfinite(twin: Trial, case: Case) -> dict[str, Tensor]:
    """For each output, where a trial's answer is not finite and the reference's is; nothing where there is no
    answer."""
    try:
        got, skeleton = flatten(twin.run(case)[0].outputs)
        truth = twin.docket.truth(case)
    except (SkipCase, CandidateStopped, oracle.ReferenceFailed):
        return {}
    if structure_finding(case, truth, got, skeleton) is not None:
        return {}
    return {
        name: ~g.to(e.device).isfinite() & e.isfinite()
        for name, g, e in zip(truth.names, got, truth.expected, strict=True)
        if g.is_floating_point()
    }


def beyond_rounding(trial: Trial) -> str:
    """Why the failure of ordinary draws is not one of rounding; ``""`` if it may be, or if they keep their
    bands. Then neither an order of summation nor an accumulator is to blame for what other draws show."""
    why = ordinary_failure(trial)
    seen = ordinary(trial) if _on_ordinary(trial) and not why else None
    if seen is None or not seen.unexplained:
        return why
    s = seen.statistic
    kind = s.suspects[0]
    fallen = _fallen(trial, kind, s.value, precision.representable(seen.got, kind), "float32")
    return "" if fallen else UNEXPLAINED.format(s.value)


UNEXPLAINED = "the relative rms error {:.3g} of an ordinary draw is not that of any narrower regime"


def _on_ordinary(trial: Trial) -> list[Finding]:
    """What CMP-01 finds on its ordinary draws; asked for once."""
    if "ordinary findings" not in trial.notes:
        seeds = [trial.settings.seed + k for k in range(RANDOM_SEEDS)]
        draws = [partial(trial.docket.case, "normal", seed) for seed in seeds]
        trial.notes["ordinary findings"] = list(_findings(trial, draws))
    found: list[Finding] = trial.notes["ordinary findings"]
    return found


def _findings(trial: Trial, draws: Iterable[Callable[[], Case]]) -> Iterator[Finding]:
    """What CMP-01 finds on these draws."""
    for draw in draws:
        try:
            case = draw()
            report = trial.run(case)[0]
            yield from trial.check_value(case, report, Sheet("CMP-01"))
        except (SkipCase, CandidateStopped, oracle.ReferenceFailed):
            continue


@dataclass(frozen=True)
class Ordinary:
    """What one generic float32 draw says of the regime."""

    got: list[Tensor]
    statistic: PrecisionStatistic
    kind: str | None
    """The narrower regime that explains the error."""

    @property
    def unexplained(self) -> bool:
        """True if the error is that of a faithful run no more, nor that of any narrower regime."""
        return self.kind is None and bool(self.statistic.suspects)


def ordinary(trial: Trial) -> Ordinary | None:
    """For gates that build on the regime; None if the draw cannot be judged."""
    docket = trial.docket
    try:
        case = docket.case("normal", trial.settings.seed + 61)
        got, skeleton = flatten(trial.run(case)[0].outputs)
    except (SkipCase, CandidateStopped):
        return None
    truth = docket.truth(case)
    if structure_finding(case, truth, got, skeleton) is not None:
        return None
    s = precision.precision_statistic(docket.instance(), case.inputs, got, truth.expected, truth.working)
    return Ordinary(got, s, explaining(trial, case, got, s))
