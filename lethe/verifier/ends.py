"""How a suspect can end: the error that the judge sees, exit statuses, and what is left to clean up."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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


_FLEETING = (
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "0x..."),
    (re.compile(r"\b(lethe-(?:suspect|cache)-|tmp)[A-Za-z0-9_]{8}\b"), r"\1..."),
)
"""What another process would have said otherwise: addresses of objects, names of temporary folders."""


def lasting(text: str) -> str:
    """`text` without what differs from one process to the next, so that a verdict can be repeated."""
    for pattern, instead in _FLEETING:
        text = pattern.sub(instead, text)
    return text


def clean(text: str, limit: int) -> str:
    """Printable characters only, cut to `limit`; see `lasting`."""
    text = lasting(text[: 4 * limit])
    shown = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text[: 4 * limit]
    )
    return shown if len(shown) <= limit else shown[:limit] + "..."


def remove(path: Path) -> None:
    """Delete a scratch directory, also one that the candidate made unreadable.

    The candidate is dead by now. Directories nested beyond Python's recursion limit stay behind.
    """
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        path.chmod(stat.S_IRWXU)
        for parent, children, _ in os.walk(path):
            for name in children:
                child = os.path.join(parent, name)
                if not os.path.islink(child):
                    with suppress(OSError):
                        os.chmod(child, stat.S_IRWXU)
        shutil.rmtree(path, ignore_errors=True)
