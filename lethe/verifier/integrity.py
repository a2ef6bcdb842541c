"""Probes beyond the twelve contracts: what an honest kernel never does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.verifier.docket import same_bytes
from lethe.verifier.sheet import CandidateStopped
from lethe.verifier.structure import flatten
from lethe.verifier.verdict import Finding, GateResult, GateStatus

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial


def probe(trial: Trial, case: Case, first: RunReport, gates: list[GateResult]) -> list[Finding]:
    """Guard zones of the first call at the problem's own sizes, and that call again after all others."""
    findings = []
    if not first.guards_intact:
        findings.append(_finding(case, "out_of_bounds_write", "the kernel wrote outside its buffers"))
    if _repeats(gates) and _answers_otherwise(trial, case, first):
        message = (
            "the same inputs gave other bytes after the calls of all gates: the answer depends on the history"
        )
        findings.append(_finding(case, "call_history", message))
    return findings


def _repeats(gates: list[GateResult]) -> bool:
    """True if ORD-02 says nothing against comparing bytes: it passed, or failed only in one process."""
    return any(g.gate == "ORD-02" and g.status in (GateStatus.PASS, GateStatus.ERROR) for g in gates)


def _answers_otherwise(trial: Trial, case: Case, first: RunReport) -> bool:
    before, _ = flatten(first.outputs)
    try:
        now, _ = flatten(trial.run(case, need_inputs_after=True)[0].outputs)
    except CandidateStopped:
        return False
    return len(before) != len(now) or not all(same_bytes(a, b) for a, b in zip(before, now, strict=True))


def _finding(case: Case, mechanism: str, message: str) -> Finding:
    return Finding(case=case.id, seed=case.seed, channel="T", mechanism=mechanism, message=message)
