"""What the usual check makes of the same rows: five trials of allclose, at 1e-2 and at 1e-4.

One run of the trials answers for both tolerances. Results are JSON lines, appended as they come; rows that
the file holds for the same source are not run again. ``python -m lethe.evidence run --step mutants_check``
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lethe.audit.corpora import Row
from lethe.evidence import parallel

SCHEMA = "lethe.evidence.check/1"
TOLERANCES = (1e-2, 1e-4)
"""KernelBench's tolerance for all dtypes, and its later one for float32."""

BATCH = 8
"""Rows that share one fork server; what an interruption can lose."""


def run(rows: Iterable[Row], file: Path, workers: int = 1) -> int:
    """Check the rows that `file` does not hold yet; returns how many were checked now."""
    known = {(c["id"], c["sha256"]) for c in read(file)} if file.exists() else set()
    pending = [r for r in rows if (r.id, r.candidate.sha256) not in known]
    if not pending:
        return 0
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = [pending[i : i + BATCH] for i in range(0, len(pending), BATCH)]
    with file.open("a", encoding="utf-8") as out:
        for checked in parallel.results(_check_all, parts, workers):
            out.writelines(json.dumps(line, sort_keys=True) + "\n" for line in checked)
            out.flush()
            os.fsync(out.fileno())
    return len(pending)


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of this check; the last of a row wins. A torn last line is ignored.

    Raises ValueError for another file.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line.get("schema") != SCHEMA:
            raise ValueError(f"{file} does not hold lines of {SCHEMA}")
        found[line["id"]] = line
    return list(found.values())


def _check_all(rows: list[Row]) -> list[dict[str, Any]]:
    return list(check(rows))


def check(rows: Iterable[Row], device: str = "cpu") -> Iterator[dict[str, Any]]:
    """One line for each row: ``accepted`` by tolerance, and both checks in full."""
    from lethe.audit.acceptance import Acceptance

    with Acceptance(device) as acceptance:
        for row in rows:
            checks = acceptance.check_at(row.problem, row.candidate, TOLERANCES)
            yield {
                "schema": SCHEMA,
                "id": row.id,
                "sha256": row.candidate.sha256,
                "accepted": {f"{t:g}": c.accepted for t, c in zip(TOLERANCES, checks, strict=True)},
                "status": checks[0].status,
                "checks": [c.to_dict() for c in checks],
            }
