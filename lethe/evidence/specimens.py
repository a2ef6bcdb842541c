"""Specimens: rows whose right verdict is known before they are judged.

An evidence corpus is an ordinary corpus of `lethe.audit`, so it is judged by the same pool, resumes and
shards like any audit (``lethe audit --corpus redteam``), and one row can be judged alone (``--row ID``).
What is known about a row stands in its ``extra``: ``kind``, ``gate``, ``twin``, and the corpus's own facts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lethe.audit.corpora import Row
from lethe.audit.lines import Line, verdict_of
from lethe.verifier import catalog
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import CANDIDATE_FAULTS, GateStatus, Status


class Kind(StrEnum):
    """What a specimen is known to be."""

    HONEST = "honest"
    """Keeps the contract by construction: a rejection is the verifier's mistake until explained."""
    CHEAT = "cheat"
    """Written to pass without doing the work; a named gate must reject it."""
    MUTANT = "mutant"
    """An honest kernel with one edit; some gate must reject it unless it is equivalent."""


INTEGRITY = "INTEGRITY"
"""Stands in `gate` for the probes outside the twelve gates."""

REFUSALS = CANDIDATE_FAULTS | {Status.NO_CUSTOM_KERNEL}
"""Statuses that refuse a candidate before any gate; they too may stand in `gate` (``"crashed"``)."""


def specimen(
    id: str,
    kind: Kind,
    problem: Problem,
    candidate: Candidate,
    *,
    corpus: str,
    family: str,
    language: str,
    gate: str | None = None,
    twin: str | None = None,
    **facts: Any,
) -> Row:
    """A row of an evidence corpus.

    Args:
        kind: what it is known to be.
        gate: for a cheat, the gate it was written for (or ``INTEGRITY``, or a status of `REFUSALS`).
        twin: id of the honest row one line away, if there is one.
        facts: JSON values of the corpus's own, e.g. the mutation operator.

    Raises ValueError for a gate that does not exist.
    """
    if gate is not None and gate not in (*catalog.IDS, INTEGRITY, *REFUSALS):
        raise ValueError(f"{id} names the gate {gate!r}; the gates are {', '.join(catalog.IDS)}, {INTEGRITY}")
    extra = {"kind": str(kind), "gate": gate, "twin": twin, **facts}
    return Row(
        id=id,
        corpus=corpus,
        problem=problem,
        candidate=candidate,
        family=family,
        language=language,
        accepted=None,
        licence="MIT",
        extra=extra,
    )


def rejected_by(line: Line) -> set[str]:
    """Gates that failed, ``INTEGRITY`` if a probe found something, the status if it refuses the candidate."""
    verdict = verdict_of(line)
    failed = {g.gate for g in verdict.gates if g.status is GateStatus.FAIL}
    refused = {str(verdict.status)} & {str(s) for s in REFUSALS}
    return failed | refused | ({INTEGRITY} if verdict.integrity else set())


def is_rejected(line: Line) -> bool:
    """Whether the verdict says that a contract is broken (a gate, a probe, or it could not run)."""
    return verdict_of(line).violated


def is_caught(line: Line) -> bool:
    """Whether a cheat was rejected by the gate it was written for."""
    return line["extra"]["gate"] in rejected_by(line)
