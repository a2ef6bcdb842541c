"""Evidence for the book: what this build judged beside what a full run recorded.

A full run takes longer than the paper may, so it is recorded under ``data/measured`` with its provenance.
Every build judges a stratified sample of the same rows again; `Evidence.agree` says how many end alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.audit import lines
from lethe.audit.run import merge
from lethe.provenance import Measurement


@dataclass(frozen=True)
class Evidence:
    """The lines that a chapter's tables are made of."""

    lines: list[lines.Line]
    origin: str
    """Where they come from, as a caption says it."""
    here: int
    """Rows that this build judged."""
    agree: int
    """Of these, rows that end as in the record: the same status, and the same gates failing."""
    compared: int
    """Rows of this build that the record holds."""

    @property
    def agreement(self) -> str:
        """One phrase for the prose."""
        return f"{self.agree:,} of {self.compared:,}"


def gather(here: str | Path, recorded: str | Path) -> Evidence:
    """This build's lines, or the record's if that holds more rows.

    A record that is missing is no error: then this build's lines are everything.
    Raises LogError where `here` is no audit, ProvenanceError where `recorded` is not a measured file.
    """
    live = merge([here])
    record = load(recorded)
    if record is None:
        return Evidence(live, "judged by this build", len(live), 0, 0)
    known = {line["id"]: line for line in record.samples}
    both = [(line, known[line["id"]]) for line in live if line["id"] in known]
    agree = sum(outcome(a) == outcome(b) for a, b in both)
    if len(record.samples) <= len(live):
        return Evidence(live, "judged by this build", len(live), agree, len(both))
    return Evidence(record.samples, origin(record), len(live), agree, len(both))


def load(recorded: str | Path) -> Measurement | None:
    """A measured file, or None where there is none. Raises ProvenanceError where it is something else."""
    path = Path(recorded)
    return provenance.load(path) if path.exists() else None


def samples(recorded: str | Path) -> list[Any]:
    """The samples of a measured file; empty where there is none."""
    record = load(recorded)
    return list(record.samples) if record is not None else []


def origin(record: Measurement) -> str:
    """``"recorded 2026-11-29 on NVIDIA H200 (torch 2.11.0)"``."""
    device = record.device.name if record.device.kind == "cuda" else "a CPU"
    stale = ", with sources that changed since" if provenance.stale(record) else ""
    return f"recorded {record.date[:10]} on {device} (torch {record.versions.get('torch', '?')}){stale}"


def outcome(line: lines.Line) -> tuple[str, tuple[str, ...]]:
    """How a verdict ended: its status and the gates that failed."""
    verdict = line["verdict"]
    return verdict["status"], tuple(g["gate"] for g in verdict["gates"] if g["status"] == "fail")
