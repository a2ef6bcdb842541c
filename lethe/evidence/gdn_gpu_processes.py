"""Tasks on a device, done by processes that may be lost: a line of a file for each, as soon as it is found.

A process is given the numbers of its tasks and prints a marked line for each (`MARK`, then JSON). One that
dies, loses the device (a line with ``lost``) or does not answer in time is ended, and another one takes the
rest; the task that it was at is a line with ``error``. Lines that a file has already, and that are no errors,
are kept and not found again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lethe import provenance

PATIENCE = {"training": 150.0, "fla": 120.0, "cudnn": 60.0}
"""Seconds that one task may take, by kind: a kernel that waits for ever is ended with its process."""

OTHERWISE = 25.0

STARTS = 30.0
"""Seconds that a process has for itself before its first task."""

LOST = 5
"""Processes that may be lost in a row before a phase is given up."""

MARK = "row "
ENVIRONMENT = {"TRITON_CACHE_AUTOTUNING": "1"}
"""Of every process: what a kernel has tuned is kept for the next one."""


Row = dict[str, Any]


def found(file: Path, abouts: list[Row]) -> list[Row]:
    """The lines of an earlier run that answer one of these tasks."""
    if not file.is_file():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a line that was cut short
            row = json.loads(line)
            if "error" not in row and any(_answers_to(row, about) for about in abouts):
                rows.append(row)
    return rows


def _line(row: Row) -> str:
    return json.dumps(row, sort_keys=True, allow_nan=False) + "\n"


def _answers_to(row: Row, about: Row) -> bool:
    about = json.loads(json.dumps(about))
    return (
        about.items() <= row.items()
        and row.get("cuts") == about.get("cuts")
        and bool(row.get("save")) == bool(about.get("save"))
    )


def watched(file: Path, abouts: list[Row], command: list[str], end: float, alone: bool = False) -> None:
    """A line for each task that has none; processes that die, lose the device or do not answer are
    replaced."""
    earlier, lost = found(file, abouts), 0
    todo = [n for n, about in enumerate(abouts) if not any(_answers_to(row, about) for row in earlier)]
    provenance.write_atomically(file, "".join(map(_line, earlier)))
    with file.open("a", encoding="utf-8") as lines:

        def write(row: Row) -> None:
            lines.write(_line(row))
            lines.flush()
            print(_brief(row), flush=True)

        while todo and lost < LOST:
            if time.monotonic() >= end:
                done = len(abouts) - len(todo)
                write({"kind": "end", "why": f"the time was over after {done} of {len(abouts)} tasks"})
                return
            why, batch = "", todo[:1] if alone else list(todo)
            numbers = ",".join(map(str, batch))
            for answer in _answers([*command, "--tasks", numbers], [abouts[n] for n in batch], end):
                if isinstance(answer, str):
                    why = answer
                    break
                write(answer)
                todo.pop(0)
                lost = lost + 1 if "lost" in answer else 0
            if why and time.monotonic() < end:
                write({**abouts[todo.pop(0)], "error": why})
                lost += 1
        if todo:
            why = (
                f"{LOST} processes were lost in a row; {len(abouts) - len(todo)} of {len(abouts)} tasks done"
            )
            write({"kind": "end", "why": why})


def _answers(command: list[str], abouts: list[Row], end: float) -> Iterator[Row | str]:
    """Each task's answer by a new process; unless it answers all, at last why the next one has none."""
    answers: queue.Queue[str | None] = queue.Queue()
    environment = {**os.environ, **ENVIRONMENT}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=provenance.ROOT, env=environment)

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(MARK):
                answers.put(line.removeprefix(MARK))
        answers.put(None)

    threading.Thread(target=read, daemon=True).start()
    extra = STARTS
    try:
        for about in abouts:
            patience = PATIENCE.get(about["kind"], OTHERWISE) + extra
            wait, extra = min(patience, end - time.monotonic()), 0.0
            try:
                answer = answers.get(timeout=max(0.0, wait))
            except queue.Empty:
                yield f"no answer within {patience:.0f} s"
                return
            if answer is None:
                yield f"the process ended with status {child.wait()}"
                return
            row: Row = json.loads(answer)
            yield row
            if "lost" in row:
                return
    finally:
        child.kill()
        child.wait()


def _brief(row: Row) -> str:
    """A line for whoever watches."""
    names = (
        "kind",
        "member",
        "backend",
        "gate",
        "io",
        "dv",
        "batch",
        "heads",
        "steps",
        "length",
        "cuts",
        "save",
    )
    text = " ".join(str(row[name]) for name in names if name in row)
    for said in ("why", "error", "skipped"):
        if said in row:
            return f"{text}: {row[said]}"
    if "passed" in row:
        worst = row.get("errors") and max(row["errors"].items(), key=lambda x: x[1] if x[1] else 9.0)
        return f"{text}: {'passed' if row['passed'] else 'FAILED'} {worst or ''}"
    median = {name: round(us, 1) for name, us in row.get("median_us", {}).items()}
    ratio = {name: round(x, 2) for name, x in row.get("ratio", {}).items()}
    against = {
        n: round(x["over_ours"], 2) for n, x in row.items() if isinstance(x, dict) and "over_ours" in x
    }
    return f"{text}: {median or ''} {ratio or ''} {against or ''} {row.get('agrees', '')}"
