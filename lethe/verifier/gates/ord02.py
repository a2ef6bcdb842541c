"""ORD-02, determinism and aliasing: same bytes again, and nothing shared that should not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.verifier.docket import same_bytes
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

REPEATS = 12
"""One more than the ten right answers after which a known cheat turned wrong, and a spare."""
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
        while len(reports) < REPEATS:
            reports += trial.run(case, times=REPEATS_A_REQUEST, between=3)
        first = _outputs(reports[0])
        sheet.add(_repeats(case, reports))
        sheet.add(_inputs_kept(trial, case, reports[0]))
        sheet.add(_aliases(trial, case, reports[0]))
        other = docket.case("normal", seed + 1)
        trial.run(other)
        sheet.add(_survives(case, first, trial.read("first")))
    except CandidateStopped as e:
        sheet.halt(case.id, e)
        return sheet.result()
    second = trial.fresh()
    try:
        again = second.run(case)
        found = _same(case, first, _outputs(again[0]), "process", "in a second process")
        if found and "autotune" in trial.candidate.source:
            sheet.skip(
                "second process", "autotuning may have chosen another schedule, which may round otherwise"
            )
        else:
            sheet.add(found)
    except CandidateStopped as e:
        sheet.halt("second process", e)
    finally:
        second.close()
    if trial.settings.executor == "cuda":
        _streams_and_graphs(trial, case, first, sheet)
    return sheet.result()


def _outputs(report: RunReport) -> list[Tensor]:
    return flatten(report.outputs)[0]


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
    """Fairness rule 17: an input that the reference writes itself may be written."""
    given, _ = flatten(map_tensors(case.inputs, lambda t: t.cpu()))
    after = report.inputs_after or []
    written, _ = trial.docket.reference_memory
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
        if i not in written and not same_bytes(a, b)
    ]


def _aliases(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    """Fairness rule 18: sharing is charged only where the reference does not share."""
    _, allowed = trial.docket.reference_memory
    findings = []
    for i, meta in enumerate(report.meta):
        extra = [a for a in meta.aliases if a not in allowed.get(i, ())]
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
    """On CUDA: a second stream, and replay of a captured graph; a refusal to capture is no breach."""
    for mode, when in (("stream", "on a second stream"), ("graph", "by graph replay")):
        try:
            report = trial.run(case, mode=mode)[0]
        except CandidateStopped as e:
            sheet.skip(mode, e.message)
            continue
        sheet.add(_same(case, first, _outputs(report), mode, when))
