"""What a campaign's steps took: one JSON line for each time that a step ran, append-only.

Wall time is the step's, processor time that of this process and of every process below it that has ended.
Steps that shared a pool share its times in proportion to what their rows took.
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


@dataclass
class Share:
    """What one step did while several were timed together."""

    step: str
    rows: int = 0
    seconds: float = 0.0
    """Of all workers, for its rows; only the proportion between steps counts."""
    complete: bool = False


@contextmanager
def timed(path: Path, workers: int, shares: list[Share]) -> Iterator[None]:
    """Time what fills `shares`, of one step or several; an entry for each is appended however it ends."""
    wall, cpu = time.perf_counter(), _processor_seconds()
    try:
        yield
    finally:
        wall, cpu = time.perf_counter() - wall, _processor_seconds() - cpu
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            for entry in split(shares, workers, wall, cpu):
                file.write(json.dumps(asdict(entry), sort_keys=True) + "\n")


def split(shares: list[Share], workers: int, wall: float, cpu: float) -> list[Entry]:
    """Entries of steps that took `wall` and `cpu` together; equal parts where no row was timed."""
    total = sum(s.seconds for s in shares)
    parts = [s.seconds / total if total else 1 / len(shares) for s in shares]
    return [
        Entry(s.step, workers, s.rows, round(wall * part, 3), round(cpu * part, 3), s.complete)
        for s, part in zip(shares, parts, strict=True)
    ]


def _processor_seconds() -> float:
    own, below = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


def read(path: Path) -> list[Entry]:
    """The entries of a file; none where there is no file. A torn last line is ignored."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [Entry(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
