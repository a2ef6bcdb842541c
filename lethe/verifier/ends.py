"""How a suspect can end: the error that the judge sees, exit statuses, and what is left to clean up."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.verifier.verdict import Status

MAY_REPORT = frozenset(
    {
        Status.MALFORMED_CANDIDATE,
        Status.IMPORT_FAILED,
        Status.BUILD_FAILED,
        Status.COMPILE_FAILED,
        Status.RUN_FAILED,
        Status.WRONG_TYPE,
        Status.OUT_OF_MEMORY,
        Status.CRASHED,
        Status.RESOURCE_LIMIT,
        Status.TIMED_OUT,
        Status.EXECUTOR_FAILED,
        Status.HARNESS_FAILED,
    }
)
"""Statuses that a suspect may give as the outcome of a request."""


class SuspectError(Exception):
    """A request that got no usable answer.

    `status` says what kind of end it was, `message` says it in one sentence, `stage` is the
    request (``"load"``, ``"build"``, ``"run"``...). `alive` tells whether the suspect can be
    asked again.
    """

    def __init__(self, status: Status, message: str, stage: str, alive: bool = False) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.stage = stage
        self.alive = alive


@dataclass
class Exit:
    """How the candidate's process ended, as its init told."""

    code: int
    seconds: float

    @property
    def signum(self) -> int:
        return os.WTERMSIG(self.code) if os.WIFSIGNALED(self.code) else 0

    def __str__(self) -> str:
        if self.signum:
            return f"signal {self.signum} ({signal_name(self.signum)})"
        return f"exit {os.waitstatus_to_exitcode(self.code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def clean(text: str, limit: int) -> str:
    """Printable characters only, cut to `limit`."""
    shown = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text[: 4 * limit]
    )
    return shown if len(shown) <= limit else shown[:limit] + "..."


def remove(path: Path) -> None:
    """Delete a scratch directory, also one that the candidate made unreadable."""

    def retry(function: Any, name: str, _: Any) -> None:
        try:
            os.chmod(os.path.dirname(name), stat.S_IRWXU)
            os.chmod(name, stat.S_IRWXU)
            function(name)
        except OSError:
            pass

    shutil.rmtree(path, onerror=retry)
    if path.exists():
        shutil.rmtree(path, ignore_errors=True)
