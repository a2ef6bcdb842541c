"""Worker processes, each with a warm Judge, fed one row at a time.

Only the parent writes results. A worker that dies takes its row with it: the row
is tried once more in a fresh worker, then recorded as the harness's failure.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from lethe.audit.corpora import Row
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.settings import Budget, choose_executor, usual_budget
from lethe.verifier.verdict import UNREPEATED, Blame, Status, Verdict

ROW_SECONDS = 1800.0
"""A row that holds a worker longer than this is given up; every step inside has its own, shorter limit."""
ATTEMPTS = 2
FEWER = 4
"""Rows that others may have disturbed are first judged again with so many times fewer beside each other."""


class JudgeLike(Protocol):
    def verify(self, problem: Problem, candidate: Candidate) -> Verdict: ...

    def close(self) -> Any: ...


@dataclass(frozen=True)
class JudgeSettings:
    """How the judge of each worker is made. Everything but `counterexamples` is part of a row's line."""

    profile: str = "derived"
    device: str = "auto"
    seed: int = 0
    gates: tuple[str, ...] | None = None
    quick: bool = False
    counterexamples: str | None = None
    patience: float = 1.0
    """Multiplies the suspect's limits on time, for candidates that compile themselves at every new size."""
    factory: str = "lethe.audit.pool:real_judge"
    """``module:function`` that takes these settings and returns a judge."""

    def record(self) -> dict[str, Any]:
        return {
            "profile": self.profile,
            "device": self.device,
            "seed": self.seed,
            "gates": list(self.gates) if self.gates is not None else None,
            "quick": self.quick,
            **({"patience": self.patience} if self.patience != 1.0 else {}),
        }

    def make(self) -> JudgeLike:
        module, _, function = self.factory.partition(":")
        return getattr(import_module(module), function)(self)


def real_judge(settings: JudgeSettings) -> JudgeLike:
    """The verifier's own Judge. Raises ValueError if the device cannot be had."""
    from pathlib import Path

    import torch

    from lethe.verifier.judge import Judge
    from lethe.verifier.waiting import sleep_while_waiting

    torch.set_num_threads(1)
    if settings.device == "cuda":
        sleep_while_waiting()
    return Judge(
        profile=settings.profile,
        device=settings.device,
        seed=settings.seed,
        gates=settings.gates,
        quick=settings.quick,
        budget=_patient_budget(settings),
        counterexamples=Path(settings.counterexamples) if settings.counterexamples else None,
    )


def _patient_budget(settings: JudgeSettings) -> Budget | None:
    """The usual budget with more time for the suspect; None leaves the choice to the judge."""
    if settings.patience == 1.0:
        return None
    usual = usual_budget(choose_executor(settings.device, "python"))
    return replace(
        usual,
        wall_seconds=usual.wall_seconds * settings.patience,
        cpu_seconds=round(usual.cpu_seconds * settings.patience),
    )


def judge_row(judge: JudgeLike, row: Row) -> Verdict:
    """Judge one row; an exception of the judge becomes a `harness_failed` verdict, never the row's fault.

    It is tried `ATTEMPTS` times, as not every exception is about the row: CPython 3.11's parser, for one, may
    raise SystemError when two threads parse at once.
    """
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return judge.verify(row.problem, row.candidate)
        except Exception as e:
            failure = e
    return harness_failed(row, f"the judge raised {type(failure).__name__}: {failure}")


CROWDED = (
    "out of memory",
    "OutOfMemoryError",
    "memory ran out",
    "busy or unavailable",
    "CUDNN_STATUS_",
    "CUBLAS_STATUS_",
    UNREPEATED,
)
"""What the device, its libraries and the judge say where others hold it; some for other reasons too."""


def is_crowded(verdict: Verdict) -> bool:
    """Whether memory may have run out anywhere, or a failure did not repeat: beside others, who hold the
    device's memory, neither says anything about the candidate (fairness rule 21)."""
    if verdict.status is Status.OUT_OF_MEMORY:
        return True
    told = [verdict.message] if verdict.status is not Status.JUDGED else []
    told += [g.detail for g in verdict.gates if g.whose is not Blame.EXECUTOR]
    told += [f.message for g in verdict.gates for f in g.findings]
    told += [why for g in verdict.gates for why in g.skipped.values()]
    told += verdict.unprobed.values()
    return any(sign in text for text in told for sign in CROWDED)


def harness_failed(row: Row, message: str) -> Verdict:
    return Verdict(
        problem=row.problem.name,
        candidate=row.candidate.name,
        profile="",
        status=Status.HARNESS_FAILED,
        message=message[:500],
        problem_sha256=row.problem.sha256,
        candidate_sha256=row.candidate.sha256,
    )


@dataclass
class Result:
    row: Row
    verdict: Verdict
    wall: float


def judged(
    rows: Iterable[Row], settings: JudgeSettings, workers: int, rank: Callable[[Row], int] = lambda row: 0
) -> Generator[Result, None, None]:
    """Judge rows, yielding results as they come; ``workers=0`` judges in this process, in the rows' order.

    A row is taken only when every row of a lower `rank` is in hand; among those of a rank a worker takes the
    one that costs it least.
    Closing the iterator (or an exception in the caller) stops the workers.
    Raises ValueError where the judge cannot be made (e.g. no CUDA device).
    """
    if workers == 0:
        yield from _judged_here(rows, settings)
        return
    pool = Pool(settings, workers, rank)
    try:
        yield from pool.run(deque((row, 0) for row in rows))
    finally:
        pool.stop()


def _judged_here(rows: Iterable[Row], settings: JudgeSettings) -> Generator[Result, None, None]:
    judge: JudgeLike | None = None
    try:
        for row in rows:
            judge = judge or settings.make()
            start = time.perf_counter()
            verdict = judge_row(judge, row)
            yield Result(row, verdict, time.perf_counter() - start)
    finally:
        if judge is not None:
            judge.close()


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    row: Row | None = None
    problem: str | None = None
    """Digest of the problem it judged last, whose reference side is still in its memory."""
    attempt: int = 0
    since: float = field(default_factory=time.monotonic)


class Pool:
    """The workers, and which row each takes; see `judged`."""

    def __init__(
        self, settings: JudgeSettings, workers: int, rank: Callable[[Row], int] = lambda row: 0
    ) -> None:
        self.settings = settings
        self.size = workers
        self.width = workers
        """How many work beside each other at present."""
        self.rank = rank
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[_Worker] = []
        self.crowded: list[Row] = []
        """Rows that others may have disturbed; they are judged again beside fewer, in the end alone."""

    def run(self, pending: deque[tuple[Row, int]]) -> Iterator[Result]:
        for width in sorted({self.size, max(1, self.size // FEWER), 1}, reverse=True):
            self.width = width
            yield from self._beside_each_other(pending)
            pending = deque((row, 0) for row in self.crowded)
            self.crowded = []
            if not pending:
                return
            self.stop()  # idle workers hold memory too

    def _beside_each_other(self, pending: deque[tuple[Row, int]]) -> Iterator[Result]:
        while pending or any(w.row for w in self.workers):
            self._feed(pending)
            busy = {w.pipe: w for w in self.workers if w.row is not None}
            limit = min(w.since + ROW_SECONDS for w in busy.values()) - time.monotonic()
            for pipe in wait(list(busy), timeout=max(0.0, limit)):
                worker = busy[pipe]  # type: ignore[index]
                result = self._answer(worker, pending)
                if result is not None:
                    yield result
            for worker in list(self.workers):
                if worker.row is not None and time.monotonic() - worker.since > ROW_SECONDS:
                    row = worker.row
                    self._drop(worker)
                    message = f"the row held its worker for more than {ROW_SECONDS:g} s"
                    yield Result(row, harness_failed(row, message), ROW_SECONDS)

    def _feed(self, pending: deque[tuple[Row, int]]) -> None:
        idle = [w for w in self.workers if w.row is None]
        while pending and (idle or len(self.workers) < self.width):
            worker = idle.pop() if idle else self._start()
            row, attempt = self._next(worker, pending)
            worker.row, worker.attempt, worker.since = row, attempt, time.monotonic()
            worker.problem = row.problem.sha256
            with contextlib.suppress(OSError):  # a worker that died meanwhile is found by its closed pipe
                worker.pipe.send(row)

    def _next(self, worker: _Worker, pending: deque[tuple[Row, int]]) -> tuple[Row, int]:
        """Take the row of the lowest rank that costs this worker least: one of the problem it holds, whose
        oracle is most of a row's cost, else the first of a problem that no other worker holds, else the
        first."""
        ranks = [self.rank(row) for row, _ in pending]
        lowest = min(ranks)
        among = [i for i, rank in enumerate(ranks) if rank == lowest]
        held = {w.problem for w in self.workers if w is not worker}
        own = (i for i in among if pending[i][0].problem.sha256 == worker.problem)
        free = (i for i in among if pending[i][0].problem.sha256 not in held)
        best = next(own, next(free, among[0]))
        chosen = pending[best]
        del pending[best]
        return chosen

    def _answer(self, worker: _Worker, pending: deque[tuple[Row, int]]) -> Result | None:
        row = worker.row
        assert row is not None
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            code = self._drop(worker)
            if worker.attempt + 1 < ATTEMPTS:
                pending.appendleft((row, worker.attempt + 1))
                return None
            verdict = harness_failed(row, f"the judge's process ended with code {code} on this row, twice")
            return Result(row, verdict, time.monotonic() - worker.since)
        if isinstance(answer, str):
            raise ValueError(answer)
        worker.row = None
        verdict, wall = answer
        if self.width > 1 and is_crowded(verdict):
            self.crowded.append(row)
            return None
        return Result(row, verdict, wall)

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.settings, os.getpid()))
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker

    def _drop(self, worker: _Worker) -> int | None:
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.join(1.0)
        _end(worker.process)
        return worker.process.exitcode

    def stop(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.row is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(10.0)
            _end(worker.process)
        self.workers.clear()


def _end(process: Any) -> None:
    if process.is_alive():
        process.terminate()
        process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(pipe: Connection, settings: JudgeSettings, parent: int) -> None:
    """A worker's life: make the judge, answer rows until the pipe closes or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _die_with_parent(parent)
    try:
        judge = settings.make()
    except Exception as e:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()
            pipe.send(str(e) if isinstance(e, ValueError) else f"the judge cannot be made: {e!r}")
        return
    try:
        while True:
            row = pipe.recv()
            start = time.perf_counter()
            verdict = judge_row(judge, row)
            pipe.send((verdict, time.perf_counter() - start))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        judge.close()


def _die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that a killed audit leaves no workers."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(143)
