"""What every gate shares: how cases become a result, and who is to blame for one that did not run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lethe.verifier.blame import executor_fault, harness_fault, has_own_status
from lethe.verifier.catalog import contract
from lethe.verifier.verdict import (
    Blame,
    Finding,
    GateResult,
    GateStatus,
    Reason,
    Status,
)


class NotApplicable(Exception):
    """Raised inside a gate: the contract cannot be charged here, with the reason code."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or str(reason))
        self.reason = reason
        self.detail = detail


class SkipCase(Exception):
    """Raised while preparing a case: it is not evaluated, and the gate records why."""


class CandidateStopped(Exception):
    """A request to the suspect ended without an answer; `status` and `message` say how."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def blame(self) -> Blame:
        if executor_fault(self.status):
            return Blame.EXECUTOR
        return Blame.HARNESS if harness_fault(self.status) else Blame.CANDIDATE


@dataclass
class Sheet:
    """The running record of one gate: cases seen, findings, statistics, skipped cases."""

    gate: str
    cases: int = 0
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: list[CandidateStopped] = field(default_factory=list)

    def worst(self, name: str, value: float) -> None:
        """Keep the largest value seen of a statistic."""
        self.measured[name] = max(self.measured.get(name, 0.0), value)

    def add(self, findings: list[Finding]) -> None:
        """Count one evaluated case and keep its findings."""
        self.cases += 1
        self.findings.extend(findings)

    def skip(self, case: str, why: str) -> None:
        self.skipped[case] = why

    def halt(self, case: str, stop: CandidateStopped, *, mechanism: str = "raises") -> None:
        """The candidate did not answer at `case`: a finding if it is its own fault, else skipped.

        A time-out or memory limit at a case that the candidate's own sizes do not cover is
        the harness's limit, never a conviction (fairness rules 21 and 37).
        """
        if stop.blame is Blame.CANDIDATE and not has_own_status(stop.status):
            kind = mechanism if stop.status is Status.RUN_FAILED else str(stop.status)
            self.add([Finding(case=case, channel="T", mechanism=kind, message=stop.message)])
        else:
            self.skip(case, f"{stop.status}: {stop.message}")
            self.stopped.append(stop)

    def result(self, *, detail: str = "") -> GateResult:
        """Close the sheet: fail if anything was found, pass if something was evaluated."""
        blank = GateResult(
            gate=self.gate,
            status=GateStatus.PASS,
            channel=str(contract(self.gate).channel),
            cases=self.cases,
            detail=detail,
            measured=self.measured,
            skipped=self.skipped,
        )
        if self.findings:
            return replace(blank, status=GateStatus.FAIL, findings=tuple(self.findings))
        if self.cases:
            return blank
        if self.stopped:
            stop = self.stopped[0]
            return replace(blank, status=GateStatus.ERROR, whose=stop.blame, detail=stop.message)
        why = detail or next(iter(self.skipped.values()), "no case could be drawn")
        return replace(
            blank, status=GateStatus.NOT_APPLICABLE, reason=Reason.NO_CHARGEABLE_ELEMENT, detail=why
        )

    def steps_back(self, why: str) -> GateResult:
        """Close the sheet without a charge, since a failure elsewhere explains what was found; measurements
        stay."""
        closed = replace(self, findings=[], cases=0).result(detail=why)
        return replace(closed, status=GateStatus.NOT_APPLICABLE, reason=Reason.EARLIER_FAILURE, whose=None)


def not_applicable(gate: str, reason: Reason, detail: str = "") -> GateResult:
    return GateResult(
        gate=gate,
        status=GateStatus.NOT_APPLICABLE,
        channel=str(contract(gate).channel),
        reason=reason,
        detail=detail,
    )


def first_of_each(findings: list[Finding], limit: int = 4) -> list[Finding]:
    """At most `limit` findings per mechanism, in order: enough to understand, small enough to keep."""
    seen: dict[str, int] = {}
    kept = []
    for f in findings:
        seen[f.mechanism] = seen.get(f.mechanism, 0) + 1
        if seen[f.mechanism] <= limit:
            kept.append(f)
    return kept
