"""Probes beyond the twelve contracts: what an honest kernel never does."""

from __future__ import annotations

from lethe.verifier.sheet import CandidateStopped, SkipCase
from lethe.verifier.trial import Trial
from lethe.verifier.verdict import Finding


def probe(trial: Trial) -> list[Finding]:
    """Guard zones at the problem's own sizes, in a fresh process."""
    fresh = trial.fresh()
    findings: list[Finding] = []
    try:
        case = trial.docket.case("normal", trial.settings.seed)
        report = fresh.run(case)[0]
        if not report.guards_intact:
            findings.append(
                Finding(
                    case=case.id,
                    seed=case.seed,
                    channel="T",
                    mechanism="out_of_bounds_write",
                    message="the kernel wrote outside its buffers at the problem's own sizes",
                )
            )
    except (CandidateStopped, SkipCase):
        return findings
    finally:
        fresh.close()
    return findings
