"""Recorded campaigns: what ``data/measured/<device>`` holds of the audit at scale, or that it holds nothing.

Every reader here takes JSON lines and measured files alike, so that a table is made of a run in progress and
of its record by the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe import provenance
from lethe.audit import ledger
from lethe.audit import lines as audit_log
from lethe.audit.run import merge
from lethe.provenance import Measurement

if TYPE_CHECKING:
    import pandas as pd

FOLDER = provenance.ROOT / "data" / "measured"


def audit_lines(paths: Iterable[Path]) -> list[audit_log.Line]:
    """Audit lines of measured files (``.json``) and of JSON lines; of a row judged twice the last.

    Raises LogError or ProvenanceError where a file is something else.
    """
    files = list(paths)
    found = {
        (line["corpus"], line["id"]): line
        for path in files
        if path.suffix == ".json"
        for line in provenance.load(path).samples
    }
    return [*found.values(), *merge(path for path in files if path.suffix != ".json")]


def check_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Differential lines of measured files and of JSON lines."""
    from lethe.audit.differential import read

    found: list[dict[str, Any]] = []
    for path in paths:
        found += provenance.load(path).samples if path.suffix == ".json" else read(path)
    return found


@dataclass(frozen=True)
class Campaign:
    """What one device's folder holds; everything that is not recorded is empty."""

    folder: Path

    def record(self, name: str) -> Measurement | None:
        """A measured file, or None where there is none."""
        path = self.folder / f"{name}.json"
        return provenance.load(path) if path.is_file() else None

    def samples(self, name: str) -> list[Any]:
        found = self.record(name)
        return list(found.samples) if found is not None else []

    def audit(self, *names: str) -> pd.DataFrame:
        """The frame of ``report.frame`` over ``<name>_audit.json`` files; empty where none is recorded."""
        from lethe.audit import report

        return report.frame(line for name in names for line in self.samples(f"{name}_audit"))

    def checks(self, *corpora: str) -> pd.DataFrame:
        """The frame of ``agreement.frame`` over ``<corpus>_differential.json`` files."""
        from lethe.audit import agreement

        return agreement.frame(line for name in corpora for line in self.samples(f"{name}_differential"))

    @cached_property
    def cost(self) -> Measurement | None:
        return self.record("audit_cost")

    def steps(self) -> list[ledger.Entry]:
        """What the campaign's steps took."""
        return [ledger.Entry(**e) for e in self.cost.parameters["steps"]] if self.cost is not None else []

    def origin(self, *names: str) -> str:
        """``"recorded 2026-11-29 on NVIDIA H200 (torch 2.11.0, triton 3.6.0)"``, or `NOT_RECORDED`."""
        found = [m for name in names if (m := self.record(name)) is not None]
        if not found:
            return NOT_RECORDED
        last = max(found, key=lambda m: m.date)
        device = last.device.name if last.device.kind == "cuda" else "a CPU"
        software = ", ".join(f"{k} {last.versions[k]}" for k in ("torch", "triton") if k in last.versions)
        stale = ", with sources that changed since" if any(provenance.stale(m) for m in found) else ""
        return f"recorded {last.date[:10]} on {device} ({software}){stale}"


NOT_RECORDED = "not recorded yet"


def choose(folders: Sequence[Path], name: str = "dlblas_accepted_audit") -> Campaign:
    """The first folder that holds `name`, else the first: a GPU's record before a CPU's."""
    return Campaign(next((f for f in folders if (f / f"{name}.json").is_file()), folders[0]))


def recorded_audits(folder: Path = FOLDER) -> list[Path]:
    """Every recorded audit of a public corpus, those of a GPU before those of a CPU."""
    names = ("dlblas_accepted_audit", "dlblas_rejected_audit", "cuda_l1_audit")
    found = [folder_ / f"{name}.json" for folder_ in _devices(folder) for name in names]
    return [path for path in found if path.is_file()]


def _devices(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: (p.name == "cpu", p.name))
