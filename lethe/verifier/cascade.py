"""What one gate's finding explains in others, and that what was left to another gate is charged there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lethe.verifier import blame
from lethe.verifier.sheet import not_applicable
from lethe.verifier.verdict import Blame, Finding, GateResult, GateStatus, Reason

WRONG = frozenset({"value", "nonfinite", "inexact_integer"})
"""Mechanisms of a finding that a value is wrong."""


def without_cascade(results: list[GateResult]) -> list[GateResult]:
    """Fairness rule 31: what only other sizes bring about is CMP-03's finding, not every gate's that tries
    other sizes too. CMP-03's own findings at other layouts have no part in this."""
    failed = [r for r in results if r.status is GateStatus.FAIL]
    elsewhere = {r.gate for r in failed if all(at_other_sizes(f) for f in r.findings)} - {"CMP-03"}
    if any(_wrong_at_a_size(f) for r in failed if r.gate == "CMP-03" for f in r.findings):
        elsewhere.add("CMP-03")
    at_base = {r.gate for r in failed} - elsewhere
    passed = {r.gate for r in results if r.status is GateStatus.PASS}
    if not blame.tile_boundary_only(elsewhere, at_base, passed):
        return results
    why = "it fails at other sizes only, where CMP-03 says that values are wrong"
    return [
        not_applicable(r.gate, Reason.EARLIER_FAILURE, why) if r.gate in elsewhere - {"CMP-03"} else r
        for r in results
    ]


def accounted_for(results: list[GateResult], charged: bool, left: Collection[Reason]) -> list[GateResult]:
    """A gate leaves to another what that one charges. Where nobody charges anything, what was left (a reason
    of `left`) is an open question and no innocence: an error of that gate, so that the verdict is not clean.

    charged: whether anything else speaks against the candidate.
    """
    if charged or any(r.status is GateStatus.FAIL for r in results):
        return results
    return [
        replace(
            r,
            status=GateStatus.ERROR,
            whose=Blame.HARNESS,
            detail=f"{r.detail}; no other gate charges it, so that nothing is decided",
        )
        if r.status is GateStatus.NOT_APPLICABLE and r.reason in left
        else r
        for r in results
    ]


def at_other_sizes(f: Finding) -> bool:
    """Whether a finding rests on sizes that a gate substituted."""
    return f.case.startswith("shape:") or "sizes" in f.extra


def _wrong_at_a_size(f: Finding) -> bool:
    return f.case.startswith("shape:") and f.mechanism in WRONG
