"""Probes beyond the twelve contracts: what an honest kernel never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lethe.verifier.blame import has_own_status, history_chargeable, is_reproduced, passed_over
from lethe.verifier.docket import same_bytes
from lethe.verifier.poison import READ
from lethe.verifier.sheet import CandidateStopped, Sheet
from lethe.verifier.structure import bytes_of, flatten
from lethe.verifier.verdict import Finding, GateResult, GateStatus

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial

LEAST_SHARE = 0.5
"""A candidate whose kernels produce less than half of every output leaves the operator to other code. A
tail that an honest wrapper hands to torch is less than one tile; a decoy launched on one row makes
1/rows."""

CONFIGURATION = "configuration"
MOST_CONFIGURATIONS = {"interpreter": 8, "cuda": 4, "cpu": 0}
"""Other configurations that are tried: a third of published kernels tune, most of those among two to eight
sets of constants. On a device each is compiled, which takes as long as a gate."""


def probe(trial: Trial, case: Case, first: RunReport, gates: list[GateResult]) -> Sheet:
    """Guard zones of the first call at the problem's own sizes, that call again after all others, whether
    weights that are written between calls are seen, whether the result depends on the kernels launched, and
    whether it holds under the configurations that an autotuner would take elsewhere.

    The sheet holds the findings, and which probes a candidate that stopped answering left undone.
    """
    sheet = Sheet("INTEGRITY")
    sheet.add(out_of_bounds(case, first))
    probes: dict[str, Callable[[], list[Finding]]] = {}
    if _repeats(gates):
        probes["call_history"] = lambda: _call_history(trial, case, first)
    if _repeats(gates) and trial.candidate.kind == "module":
        probes["stale_weights"] = lambda: _stale_weights(trial, case)
    if trial.settings.executor == "interpreter" and trial.candidate.language == "triton":
        probes["decoy"] = lambda: _decoy(trial, case, first)
    for name, look in probes.items():
        try:
            sheet.add(look())
        except CandidateStopped as e:
            sheet.skip(name, f"{e.status}: {e.message}")
    _configurations(trial, case, first, sheet)
    return sheet


def out_of_bounds(case: Case, report: RunReport) -> list[Finding]:
    """What a call wrote outside its buffers, or read there (loads are seen in the interpreter only)."""
    reads = [note for note in report.overrun if f": {READ} " in note]
    findings = []
    if len(reads) < len(report.overrun):
        message = "the kernel wrote outside its buffers: a guard zone was overwritten"
        findings.append(_finding(case, "out_of_bounds_write", message))
    if reads:
        message = "the kernel read outside its buffers, where only a guard zone lies"
        findings.append(_finding(case, "out_of_bounds_read", message))
    return [replace(f, extra={"sizes": case.sizes, "where": report.overrun[:4]}) for f in findings]


def _stale_weights(trial: Trial, case: Case) -> list[Finding]:
    """Call, write the candidate's own weights in place, call again: the answer must be that of a candidate
    built with those weights. It is compared with itself, so that what its constructor derives from weights
    is stale on both sides and never charged (fairness rule 23)."""
    outputs = trial.second.after_update(case)
    if outputs is None or all(same_bytes(a, b) for a, b in zip(*outputs, strict=True)):
        return []
    message = (
        "after its weights were written in place, as by an optimiser or load_state_dict, a call still used "
        "what an earlier call had kept of the old ones"
    )
    return [_finding(case, "stale_weights", message)]


def _decoy(trial: Trial, case: Case, first: RunReport) -> list[Finding]:
    """Call once more with marks in place of everything the launched kernels store.

    What comes out as before was never computed by them. That says nothing about a kernel that merely
    copies what torch computed: it stores every element, and passes.
    """
    before, _ = flatten(first.outputs)
    try:
        marked, _ = flatten(trial.second.run(case, taint=True)[0].outputs)
    except CandidateStopped as e:
        if has_own_status(e.status):
            raise
        return []  # it could not go on without its kernels' results, which a decoy can
    shares = [share for a, b in zip(before, marked, strict=False) if (share := _differing(a, b)) is not None]
    if not shares or max(shares) >= LEAST_SHARE:
        return []
    message = (
        f"at most {max(shares):.1%} of an output depends on the kernels that were launched; the rest is "
        "computed elsewhere"
    )
    return [replace(_finding(case, "decoy", message), metric=max(shares), bound=LEAST_SHARE)]


def _differing(a: Tensor, b: Tensor) -> float | None:
    """Share of the elements whose bytes differ; None where it cannot be told."""
    if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
        return None
    return float((bytes_of(a) != bytes_of(b)).any(1).double().mean())


def _configurations(trial: Trial, case: Case, first: RunReport, sheet: Sheet) -> None:
    """Call under the other configurations of the candidate's autotuners: which of them runs elsewhere is a
    matter of that machine's speed. One finding names all that are wrong.

    Only those with constants of their own: warps and stages schedule the same program. Where the value is
    wrong already, the first is tried again beside them: if none is right, the choice decides nothing.
    """
    if trial.choices < 2:
        return
    indices = _spread(trial.choices, MOST_CONFIGURATIONS[trial.settings.executor])
    if len(indices) < trial.choices - 1:
        sheet.skip("configurations", f"{len(indices)} of {trial.choices - 1} others were tried")
    wrong_already = bool(trial.check_value(case, first, Sheet("CMP-01")))
    tried = [0, *indices] if wrong_already else indices
    outcomes = {k: _configuration(trial.second, case, k, sheet) for k in tried}
    right = [k for k, found in outcomes.items() if found == []]
    if wrong_already and not right:
        return
    wrong = _confirmed(trial, case, [k for k, found in outcomes.items() if found])
    sheet.add([_summed_up(found[0], wrong, right) for k in wrong[:1] if (found := outcomes[k])])


def _summed_up(found: Finding, wrong: list[int], right: list[int]) -> Finding:
    """The finding of the first wrong configuration, and which others are wrong or right."""
    told = f"wrong under {', '.join(map(str, wrong))}"
    if right:
        told += f", right under {', '.join(map(str, right))}"
    return replace(
        found, message=f"{found.message}; {told}", extra=found.extra | {"wrong": wrong, "right": right}
    )


def _spread(choices: int, most: int) -> list[int]:
    """At most so many of the indices above 0, the first and the last among them."""
    others = choices - 1
    if others <= most:
        return list(range(1, choices))
    return [1 + round(k * (others - 1) / (most - 1)) for k in range(most)]


def _configuration(trial: Trial, case: Case, k: int, sheet: Sheet) -> list[Finding] | None:
    """What is wrong with the answer under configuration `k`; None if there is none to charge or to clear."""
    try:
        report = trial.run(case, configuration=k)[0]
    except CandidateStopped as e:
        if passed_over(e.status):
            sheet.skip(f"configuration:{k}", f"{e.status}: {e.message}")
            return None
        found = [_finding(case, str(e.status), e.message)]
    else:
        found = trial.check_value(case, report, Sheet("CMP-01")) + out_of_bounds(case, report)
    return [
        replace(
            f,
            mechanism=CONFIGURATION,
            message=f"under configuration {k} of its autotuner: {f.message}",
            extra={CONFIGURATION: k, "breaks": f.mechanism, "sizes": case.sizes},
        )
        for f in found[:1]
    ]


def _confirmed(trial: Trial, case: Case, wrong: list[int]) -> list[int]:
    """Which of the wrong configurations are wrong in a process of their own too (fairness rule 26)."""
    if not wrong:
        return []
    other = trial.fresh()
    try:
        again = {k: bool(_configuration(other, case, k, Sheet("INTEGRITY"))) for k in wrong}
        return [k for k in wrong if is_reproduced([True, again[k]])]
    finally:
        other.close()


def _repeats(gates: list[GateResult]) -> bool:
    """True if ORD-02 says nothing against comparing bytes: it passed, or failed only in one process."""
    return any(g.gate == "ORD-02" and g.status in (GateStatus.PASS, GateStatus.ERROR) for g in gates)


def _call_history(trial: Trial, case: Case, first: RunReport) -> list[Finding]:
    """Whether the first call's answer comes again, by its bytes or else as a value that the contract allows.

    Other bytes alone are no breach: after other sizes a compiler may specialise anew and an autotuner choose
    anew, and both may sum in another order.
    """
    before, _ = flatten(first.outputs)
    report = trial.run(case, need_inputs_after=True)[0]
    now, _ = flatten(report.outputs)
    if len(before) == len(now) and all(same_bytes(a, b) for a, b in zip(before, now, strict=True)):
        return []
    wrong_at_first, wrong_now = (bool(trial.check_value(case, r, Sheet("CMP-01"))) for r in (first, report))
    if not wrong_now or not history_chargeable(wrong_at_first):
        return []
    message = "the same inputs gave a wrong value after the calls of all gates: the history decides"
    return [_finding(case, "call_history", message)]


def _finding(case: Case, mechanism: str, message: str) -> Finding:
    return Finding(case=case.id, seed=case.seed, channel="T", mechanism=mechanism, message=message)
