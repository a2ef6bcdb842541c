"""Runs KernelBench checks in child processes that reference and candidate share, in the suspects' sandbox."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.audit.corpora import Row
from lethe.audit.kernelbench_check import VARIANTS, Outcome
from lethe.verifier import sandbox
from lethe.verifier.custody import Suspect
from lethe.verifier.ends import SuspectError
from lethe.verifier.sandbox import Limits
from lethe.verifier.server import SPAWN_SECONDS, ServerLostError, ServerProcess, scratch_base
from lethe.verifier.settings import choose_executor
from lethe.verifier.verdict import Status

SECONDS = 300.0
"""Wall time of one check; KernelBench's own scripts allow 180 s, compilation included."""
LIMITS = Limits(
    cpu_seconds=1800, wall_seconds=SECONDS, memory_bytes=16 << 30, file_bytes=1 << 30, processes=256
)
"""Wide enough for nvcc on a large extension; a time-out is no answer, so the limits decide nothing else."""
DEATHS = {str(Status.CRASHED), str(Status.GARBAGE)}
"""Ends of the process that are the candidate's: their check would have died with it."""


@dataclass(frozen=True)
class Job:
    """One check of one row."""

    row: Row
    variant: str
    implementation: str
    """``"theirs"`` or ``"ours"``."""
    precision: str = "float32"


class _CheckServer(ServerProcess):
    MODULE = "lethe.audit.differential_child"


class _CheckProcess(Suspect):
    def check(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        return self._ask("check", request, seconds=seconds)

    def kill(self) -> None:
        """End the process from another thread than the one that waits for its answer."""
        if not self._ended:
            with contextlib.suppress(OSError):
                os.write(self._lifeline, b"k")


class CheckRoom:
    """Forks a process for each check. Thread-safe; close it or use ``with``."""

    def __init__(
        self, device: str = "auto", checkouts: dict[str, Path] | None = None, seconds: float = SECONDS
    ) -> None:
        """`checkouts` are the importable folders of KernelBench's own code, by variant."""
        self.device = device
        self.checkouts = checkouts or {}
        self.seconds = seconds
        self._servers: dict[str, ServerProcess] = {}
        self._running: dict[int, _CheckProcess] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._builds = Path(tempfile.mkdtemp(prefix="lethe-builds-", dir=scratch_base()))
        self._builds.chmod(0o755)

    def __enter__(self) -> CheckRoom:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the servers, and the checks that other threads wait for."""
        with self._lock:
            self._closed = True
            for process in self._running.values():
                process.kill()
            for server in self._servers.values():
                server.close()
            self._servers.clear()
        shutil.rmtree(self._builds, ignore_errors=True)

    def builds_of(self, row: Row) -> Path:
        """Where the checks of a row keep what they compile, so that each text is compiled once."""
        return self._builds / row.candidate.sha256[:24]

    def forget(self, row: Row) -> None:
        """Delete what was compiled for a row."""
        shutil.rmtree(self.builds_of(row), ignore_errors=True)

    def run(self, job: Job) -> tuple[Outcome, list[str]]:
        """The outcome of a check, and the placeholders that KernelBench's own code was given."""
        executor = choose_executor(self.device, job.row.candidate.language)
        request = {
            "variant": job.variant,
            "reference": job.row.problem.source,
            "candidate": job.row.candidate.source,
            "triton": job.row.candidate.language == "triton",
            "precision": job.precision,
            "checkout": str(self.checkouts[job.variant]) if job.implementation == "theirs" else "",
        }
        try:
            process = self._process(job.row, executor)
        except (OSError, ServerLostError) as e:
            return Outcome(None, str(Status.HARNESS_FAILED), message=f"no process could be started: {e}"), []
        try:
            process.greet(SPAWN_SECONDS)
            answer = process.check(request, self.seconds)
            return Outcome(**answer["outcome"]), [str(name) for name in answer["placeholders"]]
        except SuspectError as e:
            accepted = False if str(e.status) in DEATHS else None
            return Outcome(accepted, str(e.status), message=e.message[:300]), []
        except (TypeError, KeyError) as e:
            return Outcome(False, str(Status.GARBAGE), message=f"an answer of another form: {e}"[:300]), []
        finally:
            with self._lock:
                self._running.pop(id(process), None)
            process.close()

    def _process(self, row: Row, executor: str) -> _CheckProcess:
        with self._lock:
            for retry in (True, False):
                if self._closed:
                    raise ServerLostError("the room is closed")
                server = self._server(executor)
                try:
                    found = _CheckProcess.open(
                        server, row.candidate, executor, LIMITS, self.builds_of(row), ()
                    )
                    assert isinstance(found, _CheckProcess)
                    self._running[id(found)] = found
                    return found
                except ServerLostError:
                    server.close()
                    if not retry:
                        raise
        raise AssertionError("unreachable")

    def _server(self, executor: str) -> ServerProcess:
        kind = "interpreted" if executor == "interpreter" else "compiled"
        server = self._servers.get(kind)
        if server is None or not server.usable():
            sandbox.give(self._builds)
            server = self._servers[kind] = _CheckServer(kind)
        return server


def variants(name: str) -> list[str]:
    """``"both"`` or one variant's name. Raises ValueError."""
    if name == "both":
        return list(VARIANTS)
    if name not in VARIANTS:
        raise ValueError(f"no variant {name!r}; use {', '.join(VARIANTS)} or both")
    return [name]
