"""Attempts to verdicts: judged in parallel, each source once, every answer kept in an append-only file.

The judge is the two-process verifier. A policy's text is data to this process: it is hashed, parsed by the
judge and executed by a suspect in a sandbox, so nothing that it does can reach the code that rewards it.

The file is that of an audit (`lethe.audit.lines`), one JSON line for each source: a run that is killed
resumes from it, and a source that is sampled again costs a look-up. What a line holds is the verdict and
the time, not the reward: the same file can be read under another schedule.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lethe.audit import lines
from lethe.audit.corpora import Row
from lethe.audit.pool import JudgeSettings, Pool, Result, judge_row
from lethe.rl.outcomes import Judged, Outcome, judged
from lethe.rl.speed import Speed, Stopwatch, timeable
from lethe.verifier.problem import Candidate, CandidateError, Problem, load_candidate

CORPUS = "rl"

LIBRARY = re.compile(r"^\s*(import ctypes|from ctypes)\b", re.MULTILINE)
"""How a text that brings its own C++ loads it, as those of the house corpus do. Only a launch of a Triton
kernel is proved; whether a library is called as well as loaded is not."""


@dataclass(frozen=True)
class Attempt:
    """A source that a policy wrote for a problem."""

    problem: Problem
    source: str
    baseline: Candidate | None = None
    """What it must be faster than; without one its speed is not measured."""
    entry: str = "ModelNew"
    language: str | None = None
    """What it must be written in (``"triton"``, ``"cpp"``), or it launches no kernel of its own; None:
    anything. A text that calls torch keeps torch's contracts, so a policy would learn to call torch."""


@dataclass
class Throughput:
    """What judging has cost so far."""

    asked: int = 0
    distinct: int = 0
    """Different sources among them."""
    judged: int = 0
    """Attempts that no earlier line answered."""
    timed: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Rewards a second, those answered from the file included."""
        return self.asked / self.seconds if self.seconds else 0.0

    @property
    def reused(self) -> float:
        """Share of the attempts that an earlier line, or an equal attempt of the batch, answered."""
        return 1 - self.judged / self.asked if self.asked else 0.0

    def facts(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 2), "per_second": round(self.per_second, 3)}


@dataclass
class Court:
    """Judges attempts. A context manager; raises LogError where the file cannot be had.

    Args:
        log: the append-only file; None keeps the answers of this process alone.
        workers: processes that judge beside each other; 0 judges in this one.
        settings: how they judge.
        witness: how a kernel that passed is judged once more, in this process. On a GPU a kernel that is
        launched as a
            decoy and one that reads past the end of a tensor leave no trace, in Triton's interpreter they
            do; so where `settings` may take a GPU, the witness is the interpreter. What it cannot run does
            not count.
        timing: whether what passes is timed, where a clock can tell (see `lethe.rl.speed`); always one at a
        time
            and with no judge at work.
    """

    log: Path | None = None
    workers: int = 0
    settings: JudgeSettings = field(default_factory=lambda: JudgeSettings(device="cpu", quick=True))
    witness: JudgeSettings | None = None
    timing: bool = True
    throughput: Throughput = field(default_factory=Throughput)

    def __post_init__(self) -> None:
        self._log = lines.Log(self.log) if self.log is not None else None
        self._kept: dict[str, lines.Line] = {}
        self._sources: set[str] = set()
        for line in self._log.lines.values() if self._log is not None else ():
            self._kept[line["id"]] = line
        self._pool = Pool(self.settings, self.workers) if self.workers else None
        self._judge: Any = None
        if self.witness is None and self.settings.device != "cpu":
            self.witness = replace(self.settings, device="cpu")
        self._witness: Any = None
        self._watch: Stopwatch | None = None

    def __enter__(self) -> Court:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the judges and release the file."""
        if self._pool is not None:
            self._pool.stop()
        for held in (self._judge, self._witness, self._watch, self._log):
            if held is not None:
                held.close()

    def judge(self, attempts: Sequence[Attempt]) -> list[Judged]:
        """How each attempt ended, in order. A text that is not a candidate at all did not run."""
        begun = time.perf_counter()
        rows: dict[str, Row] = {}
        answers: list[str | Judged] = []
        baselines: dict[str, Candidate | None] = {}
        for attempt in attempts:
            try:
                row = _row(attempt)
            except CandidateError as e:
                answers.append(Judged(Outcome.DID_NOT_RUN, str(e)))
                continue
            if attempt.language not in (None, row.language):
                reason = f"it is written in {row.language}, not in {attempt.language}"
                answers.append(Judged(Outcome.BROKE_CONTRACT, reason))
                continue
            answers.append(row.id)
            baselines[row.id] = attempt.baseline
            if not self._known(row):
                rows[row.id] = row
        fresh = {result.row.id: result for result in self._verdicts(list(rows.values()))}
        for row_id, result in fresh.items():
            result = self._confirmed(result)
            self._keep(result, self._timed(result, baselines[row_id]))
        self._sources |= {a for a in answers if isinstance(a, str)}
        self.throughput.asked += len(attempts)
        self.throughput.distinct = len(self._sources)
        self.throughput.judged += len(rows)
        self.throughput.seconds += time.perf_counter() - begun
        return [a if isinstance(a, Judged) else _read(self._kept[a]) for a in answers]

    def _known(self, row: Row) -> bool:
        line = self._kept.get(row.id)
        return line is not None and lines.is_current(line, row) and line["settings"] == self._asked()

    def _asked(self) -> dict[str, Any]:
        """How an attempt is judged, as its line says."""
        told = self.settings.record()
        return told if self.witness is None else {**told, "witness": self.witness.record()}

    def _verdicts(self, rows: list[Row]) -> Iterator[Result]:
        if self._pool is not None:
            yield from self._pool.run(deque((row, 0) for row in rows))
            return
        for row in rows:
            self._judge = self._judge or self.settings.make()
            start = time.perf_counter()
            verdict = judge_row(self._judge, row)
            yield Result(row, verdict, time.perf_counter() - start)

    def _confirmed(self, result: Result) -> Result:
        """The witness's verdict in the place of a pass that it contradicts."""
        if self.witness is None or not result.verdict.clean:
            return result
        self._witness = self._witness or self.witness.make()
        again = judge_row(self._witness, result.row)
        return replace(result, verdict=again) if again.violated else result

    def _timed(self, result: Result, baseline: Candidate | None) -> Speed | None:
        device = self.settings.device
        if not (self.timing and baseline and result.verdict.clean and device == "cpu"):
            return None
        if not timeable(result.row.candidate) or not timeable(baseline):
            return None
        self._watch = self._watch or Stopwatch(self.settings.seed)
        self.throughput.timed += 1
        first = self._watch.compare(result.row.problem, result.row.candidate, baseline)
        # As a failure must show again before it is charged, so must a gain before it is paid: the load of a
        # shared machine drifts, and rounds that follow each other are not independent.
        return (
            self._watch.compare(result.row.problem, result.row.candidate, baseline) if first.faster else first
        )

    def _keep(self, result: Result, speed: Speed | None) -> None:
        line = lines.make(result.row, result.verdict, self._asked(), result.wall)
        if speed is not None:
            line["timing"]["speed"] = speed.facts()
        self._kept[result.row.id] = line
        if self._log is not None:
            self._log.append(line)


def _row(attempt: Attempt) -> Row:
    """The attempt as a row of a corpus, its id made of what its answer depends on."""
    candidate = load_candidate(_as_text(attempt.source), attempt.entry)
    if candidate.language == "python" and LIBRARY.search(candidate.source):
        candidate = replace(candidate, language="cpp")
    against = attempt.baseline.sha256[:12] if attempt.baseline is not None else "untimed"
    key = f"{attempt.problem.sha256[:12]}-{candidate.sha256}-{attempt.entry}-{against}"
    return Row(
        id=key,
        corpus=CORPUS,
        problem=attempt.problem,
        candidate=candidate,
        family=attempt.problem.name.split("_")[0],
        language=candidate.language,
        accepted=None,
        licence="",
    )


def _as_text(source: str) -> str:
    """Never a path: a policy that writes the name of a file gets no file read."""
    return source if "\n" in source else source + "\n"


def _read(line: lines.Line) -> Judged:
    told = line["timing"].get("speed")
    return judged(lines.verdict_of(line), Speed.of(told) if told is not None else None)
