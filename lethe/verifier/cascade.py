"""What one gate's finding explains in others, and that what was left to another gate is charged there."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from lethe.verifier import blame
from lethe.verifier.sheet import not_applicable
from lethe.verifier.verdict import Blame, Finding, GateResult, GateStatus, Reason

WRONG = frozenset({"value", "nonfinite", "inexact_integer"})
"""Mechanisms of a finding that a value is wrong."""


def without_cascade(results: list[GateResult]) -> list[GateResult]:
    """Fairness rule 31: what only other sizes bring about is CMP-03's finding, not every gate's that tries
    other sizes too. CMP-03's own findings at other layouts have no part in this. The reverse is rule 46."""
    results = _without_alike(results)
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


def _without_alike(results: list[GateResult]) -> list[GateResult]:
    """Fairness rule 46: CMP-03 without the draws that CMP-01 finds wrong at the problem's own sizes too."""
    by_gate = {r.gate: r for r in results if r.status is GateStatus.FAIL}
    if not {"CMP-01", "CMP-03"} <= set(by_gate):
        return results
    base: dict[tuple[str, str], list[float]] = {}
    for f in by_gate["CMP-01"].findings:
        if f.mechanism in WRONG:
            base.setdefault((_kind(f.case), f.output), []).append(_times_bound(f))
    shapes = by_gate["CMP-03"]
    alike = [
        f
        for f in shapes.findings
        if f.mechanism in WRONG
        and blame.fails_alike(_times_bound(f), base.get((_kind(f.case), f.output), ()))
    ]
    if not alike:
        return results
    why = "the same draw fails at the problem's own sizes and layout"
    skipped = shapes.skipped | {f.case: why for f in alike}
    left = tuple(f for f in shapes.findings if f not in alike)
    judged = shapes.cases - len({f.case for f in alike} - {f.case for f in left})
    if left:
        told = replace(shapes, findings=left, cases=judged, skipped=skipped)
    elif judged:
        told = replace(shapes, status=GateStatus.PASS, findings=(), cases=judged, skipped=skipped)
    else:
        told = replace(not_applicable("CMP-03", Reason.EARLIER_FAILURE, why), skipped=skipped)
    return [told if r is shapes else r for r in results]


def _kind(case: str) -> str:
    """The kind of draw of a case of CMP-01 or CMP-03: ``spike`` of ``shape:n=7:spike`` and of ``spike``;
    sizes and layouts without one are ordinary draws."""
    head, *parts = case.split(":")
    if head not in ("shape", "layout"):
        return head
    sizes = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
    return parts[sizes + 1] if sizes + 1 < len(parts) else "normal"


def _times_bound(f: Finding) -> float:
    """How far beyond its bound a finding is."""
    if f.mechanism == "nonfinite" or f.metric is None or f.bound is None or math.isnan(f.metric):
        return math.inf
    return f.metric / f.bound if f.bound > 0 else math.inf


def at_other_sizes(f: Finding) -> bool:
    """Whether a finding rests on sizes that a gate substituted."""
    return f.case.startswith("shape:") or "sizes" in f.extra


def _wrong_at_a_size(f: Finding) -> bool:
    return f.case.startswith("shape:") and f.mechanism in WRONG
