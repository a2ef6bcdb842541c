"""Probes beyond the twelve contracts: what an honest kernel never does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.verifier.verdict import Finding

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case


def probe(case: Case, first: RunReport) -> list[Finding]:
    """Guard zones around every buffer of the first call, at the problem's own sizes."""
    if first.guards_intact:
        return []
    return [
        Finding(
            case=case.id,
            seed=case.seed,
            channel="T",
            mechanism="out_of_bounds_write",
            message="the kernel wrote outside its buffers at the problem's own sizes",
        )
    ]
