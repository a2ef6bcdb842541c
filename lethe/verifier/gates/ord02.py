"""ORD-02, determinism and aliasing: same bytes again, and nothing shared that should not be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lethe.verifier import blame, fairness
from lethe.verifier.docket import same_bytes
from lethe.verifier.domains import Domain, describe
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten, map_tensors, unflatten
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

REPEATS = 12
"""One more than the ten right answers after which a known cheat turned wrong, and a spare."""
MANY_REPEATS = 48
"""Where calls are cheap: a race that shows once in 16 calls is then missed once in 22 (e^-3.1)."""
CHEAP_ELEMENTS = 1 << 16
"""Calls on so many elements of inputs and outputs (about a millisecond of eager code) count as cheap."""
REPEATS_A_REQUEST = 3
"""The wall limit is one request's, so a slow but honest kernel is not asked for all repeats at once."""


def run(trial: Trial) -> GateResult:
    docket, seed = trial.docket, trial.settings.seed
    if docket.varies:
        raise NotApplicable(Reason.REFERENCE_VARIES, "two runs of the reference differ")
    if docket.keeps_state:
        raise NotApplicable(Reason.HIDDEN_STATE, "the reference remembers earlier calls")
    sheet = Sheet("ORD-02")
    case = docket.case("normal", seed)
    try:
        reports = trial.run(case, times=REPEATS_A_REQUEST, between=3, need_inputs_after=True, hold="first")
        first = _outputs(reports[0])
        repeats = _repeats_wanted(trial, case, first)
        while len(reports) < repeats:
            reports += trial.run(case, times=REPEATS_A_REQUEST, between=3)
        sheet.add(_repeats(case, reports))
        sheet.add(_inputs_kept(trial, case, reports[0]))
        sheet.add(_aliases(trial, case, reports[0]))
        other = docket.case("normal", seed + 1)
        trial.run(other, between=1)  # never answered from memory: the call itself is what matters
        sheet.add(_survives(case, first, trial.read("first")))
        reused = _reused(trial)
    except CandidateStopped as e:
        sheet.halt(case.id, e)
        return sheet.result()
    second = trial.second
    try:
        if reused is not None and not sheet.findings:
            rearranged, answer = reused
            found = _same(rearranged, _outputs(second.run(rearranged)[0]), answer, "stale", _IN_PLACE)
            sheet.add(found)
        again = _outputs(second.run(case)[0])
        sheet.add(_same(case, first, again, "process", "in a second process"))
    except CandidateStopped as e:
        sheet.halt("second process", e)
    if trial.settings.executor == "cuda":
        _streams_and_graphs(trial, case, first, sheet)
    return sheet.result()


_IN_PLACE = "when they were written into the tensors of an earlier call"


def _outputs(report: RunReport) -> list[Tensor]:
    return flatten(report.outputs)[0]


def _repeats_wanted(trial: Trial, case: Case, outputs: list[Tensor]) -> int:
    """More repeats where they cost little; interpreted kernels take some ten milliseconds a call."""
    if trial.settings.executor == "interpreter":
        return REPEATS
    elements = sum(t.numel() for t in [*flatten(case.inputs)[0], *outputs])
    return MANY_REPEATS if elements <= CHEAP_ELEMENTS else REPEATS


def _reused(trial: Trial) -> tuple[Case, list[Tensor]] | None:
    """Call on one draw, write another into the very same tensors, call again: (that draw, its answer).

    Kernels are called like that wherever buffers are static. The second draw holds the elements of the
    first in another order where the domain allows it, whole numbers, so that address, identity, shape,
    first and last element, sum, norm and extremes are all the same: an answer that was remembered by
    any of them is stale.
    """
    docket, seed = trial.docket, trial.settings.seed
    try:
        case = docket.case("exact_integer", seed)
    except SkipCase:
        try:
            case = docket.case("normal", seed)
        except SkipCase:
            return None
    domains = describe(docket.instance())

    def rearranged() -> list[Any]:
        tensors, skeleton = flatten(case.inputs)
        turned: list[Any] = unflatten(
            [_turned(t, d) for t, d in zip(tensors, domains, strict=True)], skeleton
        )
        return turned

    other = docket.derived(case, "rearranged", "rearranged", rearranged)
    try:
        docket.truth(other)
    except ReferenceFailed:
        return None
    drawn = map_tensors(other.inputs, lambda t: t.cpu())
    return other, _outputs(trial.run(case, then=drawn)[1])


def _turned(t: Tensor, d: Domain) -> Tensor:
    """All but the first and last element in reverse order, where the domain ties no value to its place."""
    tied = d.zeros is not None or d.symmetric or d.ascending or not t.is_contiguous()
    if tied or d.kind not in ("real", "unit", "binary"):
        return t
    flat = t.reshape(-1).clone()
    flat[1:-1] = flat[1:-1].flip(0)
    return flat.reshape(t.shape)


def _same(case: Case, a: list[Tensor], b: list[Tensor], mechanism: str, when: str) -> list[Finding]:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if not same_bytes(x, y):
            changed = int((x != y).sum()) if x.shape == y.shape else x.numel()
            return [
                Finding(
                    case=case.id,
                    seed=case.seed,
                    channel="T",
                    mechanism=mechanism,
                    output=f"out[{i}]",
                    metric=float(changed),
                    message=f"the same inputs gave {changed} other element(s) {when}",
                )
            ]
    return []


def _repeats(case: Case, reports: list[RunReport]) -> list[Finding]:
    first = _outputs(reports[0])
    for k, r in enumerate(reports[1:], start=2):
        found = _same(case, first, _outputs(r), "nondeterministic", f"at call {k}")
        if found:
            return found
    return []


def _inputs_kept(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    """Fairness rule 17: an input that is declared to be written, or that the reference writes, may be."""
    given, _ = flatten(map_tensors(case.inputs, lambda t: t.cpu()))
    after = report.inputs_after or []
    written, _ = trial.docket.reference_memory
    spec = trial.docket.problem.spec
    declared = spec.in_place if spec is not None else ()
    return [
        Finding(
            case=case.id,
            seed=case.seed,
            channel="T",
            mechanism="input_overwritten",
            output=f"input:{i}",
            message=f"input {i} was changed by the call; the reference leaves it alone",
        )
        for i, (a, b) in enumerate(zip(given, after, strict=False))
        if not fairness.declared_in_place(i, declared, written) and not same_bytes(a, b)
    ]


def _aliases(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    """Fairness rule 18: sharing is charged only where the reference does not share."""
    _, allowed = trial.docket.reference_memory
    findings = []
    for i, meta in enumerate(report.meta):
        extra = fairness.alias_chargeable(meta.aliases, allowed.get(i, ()))
        if extra:
            findings.append(
                Finding(
                    case=case.id,
                    seed=case.seed,
                    channel="T",
                    mechanism="aliasing",
                    output=f"out[{i}]",
                    message=f"out[{i}] shares memory with {', '.join(extra)}; the reference's does not",
                )
            )
    return findings


def _survives(case: Case, before: list[Tensor], now: list[Tensor]) -> list[Finding]:
    found = _same(case, before, now, "aliasing", "when read again after a later call")
    return [
        Finding(
            **{
                **f.__dict__,
                "message": "a result changed after a later call on other inputs: it lives in a buffer "
                "that the kernel reuses",
            }
        )
        for f in found
    ]


def _streams_and_graphs(trial: Trial, case: Case, first: list[Tensor], sheet: Sheet) -> None:
    """On CUDA: a second stream, and replay of a captured graph; a refusal to capture is no breach.

    A kernel that cannot be captured, such as one that reads a value back, leaves the context of its process
    in error: what is asked of it later would fail for that reason alone.
    """
    for mode, when in (("stream", "on a second stream"), ("graph", "by graph replay")):
        try:
            report = trial.run(case, mode=mode)[0]
        except CandidateStopped as e:
            sheet.skip(mode, e.message)
            trial.restart()
            continue
        found = _same(case, first, _outputs(report), mode, when)
        if found and _of_library(trial, case, report):
            sheet.skip(mode, f"{found[0].message}, within the bounds; a library's product may choose so")
        else:
            sheet.add(found)


def _of_library(trial: Trial, case: Case, report: RunReport) -> bool:
    kept = not trial.check_value(case, report, Sheet("ORD-02"))
    return blame.library_chose(trial.docket.operator.contraction, kept)
