"""The record of which mutants are equivalent: outcomes that a run wrote, and reasons that somebody wrote.

``equivalents.json`` holds the outcome for every mutant of the corpus. Write it again with::

    python -m lethe.evidence.mutants equivalents

``reasons.json`` holds, for each equivalent mutant, why it is one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe.evidence.mutants.bases import data_folder
from lethe.evidence.mutants.equivalents import ROUNDING, Outcome
from lethe.verifier.problem import Candidate

SCHEMA = "lethe.mutants.equivalents/1"

Entries = dict[str, dict[str, Any]]
"""Mutant id -> ``sha256`` of its text and the fields of `Outcome`."""


def outcomes(data: Path | None = None) -> Entries:
    """What the last run wrote; empty if there was none."""
    file = (data or data_folder()) / "equivalents.json"
    if not file.is_file():
        return {}
    found: Entries = json.loads(file.read_text(encoding="utf-8"))["mutants"]
    return found


def recorded(data: Path | None = None) -> Entries:
    """The same with ``reason`` for each equivalent mutant (None while nobody has given one)."""
    why = reasons(data)
    return {n: e | {"reason": why.get(n)} if e["equivalent"] else e for n, e in outcomes(data).items()}


def reasons(data: Path | None = None) -> dict[str, str]:
    """Mutant id -> why it is equivalent, in a sentence that somebody wrote after reading it."""
    file = (data or data_folder()) / "reasons.json"
    found: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def document(entries: Entries) -> dict[str, Any]:
    """What ``equivalents.json`` holds."""
    return {
        "schema": SCHEMA,
        "command": "python -m lethe.evidence.mutants equivalents",
        "rounding": ROUNDING,
        "mutants": dict(sorted(entries.items())),
    }


def entry(candidate: Candidate, outcome: Outcome) -> dict[str, Any]:
    """One mutant's record."""
    return {"sha256": candidate.sha256, **asdict(outcome)}
