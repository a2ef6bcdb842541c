"""A small corpus and a judge that decides by the candidate's text, for tests of the audit's machinery."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lethe.audit.corpora import ListedCorpus, Row
from lethe.audit.pool import JudgeSettings
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Reason, Status, Verdict

REFERENCE = "class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n"


def row(row_id: str, source: str = "", *, family: str = "softmax", accepted: bool | None = True) -> Row:
    return Row(
        id=row_id,
        corpus="fake",
        problem=Problem(name="p", source=REFERENCE),
        candidate=Candidate(name=row_id, source=source or f"# {row_id}\n", language="triton"),
        family=family,
        language="triton",
        accepted=accepted,
        licence="MIT",
    )


def corpus(n: int = 4, source: str = "", name: str = "fake") -> ListedCorpus:
    return ListedCorpus(name, [row(f"r{i}", f"# r{i}\n{source}") for i in range(n)])


def gate(
    identifier: str, status: GateStatus, *findings: Finding, channel: str = "T", elapsed: float = 0.0
) -> GateResult:
    reason = Reason.STOCHASTIC if status is GateStatus.NOT_APPLICABLE else None
    return GateResult(identifier, status, channel, 1, tuple(findings), reason=reason, elapsed=elapsed)


class FakeJudge:
    """Does what comments of the candidate say: ``sleep 0.1``, ``fail EXC-01``, ``die``, ``raise``,
    ``crowded 2 FILE`` (memory runs out twice; FILE counts)."""

    def __init__(self, settings: JudgeSettings) -> None:
        if settings.device == "cuda":
            raise ValueError("no CUDA device is visible to torch")
        self.settings = settings

    def verify(self, problem: Problem, candidate: Candidate) -> Verdict:
        start = time.perf_counter()
        text = candidate.source
        if nap := re.search(r"# sleep ([\d.]+)", text):
            time.sleep(float(nap[1]))
        if die := re.search(r"# die( once (\S+))?", text):
            marker = Path(die[2]) if die[2] else None
            if marker is None or not marker.exists():
                if marker is not None:
                    marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if "# raise" in text:
            raise RuntimeError("a bug of the judge")
        if crowded := re.search(r"# crowded (\d+) (\S+)", text):
            counter = Path(crowded[2])
            counter.write_text((counter.read_text() if counter.exists() else "") + "x")
            if len(counter.read_text()) <= int(crowded[1]):
                message = "the device failed in run: AcceleratorError: CUDA error: out of memory"
                return Verdict(problem.name, candidate.name, "derived", Status.CRASHED, message)
        failing = re.findall(r"# fail (\S+)", text)
        gates = []
        for name in self.settings.gates or ("CMP-01", "EXC-01", "RES-01"):
            if name in failing:
                found = Finding(
                    "nan:first", "T", "swallowed", "finite where the reference has NaN", metric=3.0, bound=1.0
                )
                gates.append(gate(name, GateStatus.FAIL, found, elapsed=time.perf_counter() - start))
            else:
                gates.append(gate(name, GateStatus.PASS, elapsed=time.perf_counter() - start))
        status = Status.JUDGED
        if told := re.search(r"# status (\S+)", text):
            status, gates = Status(told[1]), []
        return Verdict(
            problem=problem.name,
            candidate=candidate.name,
            profile=self.settings.profile,
            status=status,
            message="" if status is Status.JUDGED else "as told",
            gates=tuple(gates),
            problem_sha256=problem.sha256,
            candidate_sha256=candidate.sha256,
            executor="interpreter",
            options={
                **{k: v for k, v in self.settings.record().items() if k != "device"},
                "candidate_path": candidate.path,
                "reference_path": problem.path,
            },
            environment={"pid": os.getpid()},
            elapsed={"total": time.perf_counter() - start},
        )

    def close(self) -> None:
        pass

    def __enter__(self) -> FakeJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StandIn(FakeJudge):
    """The fake behind the signature of `lethe.verifier.judge.Judge`."""

    made = 0

    def __init__(
        self, *, budget: object = None, counterexamples: object = None, server: Any = None, **options: Any
    ) -> None:
        type(self).made += 1
        if server is not None:
            server.close()
        super().__init__(JudgeSettings(**options))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake in the judge's place for one test; no server for suspects is started ahead of it."""
    monkeypatch.setattr(SuspectServer, "start", lambda self, executor: 0.0)
    module = ModuleType("lethe.verifier.judge")
    module.Judge = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lethe.verifier.judge", module)


def judge(settings: JudgeSettings) -> FakeJudge:
    return FakeJudge(settings)


SETTINGS = JudgeSettings(factory="tests.audit.fakes:judge")


def main(out: str, count: str, workers: str, source: str) -> None:
    """Audit `count` rows into `out`: a process of its own that a test can kill."""
    from lethe.audit.run import run

    run(corpus(int(count), source), out, settings=SETTINGS, workers=int(workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
