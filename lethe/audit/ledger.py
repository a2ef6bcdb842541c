"""What a campaign's steps took: one JSON line for each time that a step ran, append-only.

Wall time is the step's, processor time that of this process and of every process below it that has ended.
A step that is killed outright leaves no line; its rows are in their file, and count for nothing here.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

SCHEMA = "lethe.steps/1"


@dataclass
class Entry:
    """One run of one step."""

    step: str
    workers: int
    rows: int = 0
    """Rows (or checks) done by this run; those that were there before are not counted."""
    wall: float = 0.0
    """Seconds."""
    cpu: float = 0.0
    """Core-seconds, user and system."""
    complete: bool = False
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    schema: str = SCHEMA


@contextmanager
def timed(path: Path, step: str, workers: int) -> Iterator[Entry]:
    """Time a step; its entry is appended to `path` however the step ends."""
    entry = Entry(step, workers)
    wall, cpu = time.perf_counter(), _processor_seconds()
    try:
        yield entry
    finally:
        entry.wall = round(time.perf_counter() - wall, 3)
        entry.cpu = round(_processor_seconds() - cpu, 3)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry), sort_keys=True) + "\n")


def _processor_seconds() -> float:
    own, below = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


def read(path: Path) -> list[Entry]:
    """The entries of a file; none where there is no file. A torn last line is ignored."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [Entry(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
