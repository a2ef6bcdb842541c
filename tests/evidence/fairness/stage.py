"""Where each case of `lethe.evidence.fairness` is played: before the judge, or in the code that counts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from lethe.audit import lines, run
from lethe.audit.acceptance import Acceptance
from lethe.audit.corpora import ListedCorpus, Row
from lethe.audit.pool import JudgeSettings
from lethe.evidence.fairness import Innocent, Situation, reading
from lethe.evidence.fairness.innocent import kernel, kernelbench
from lethe.evidence.fairness.situations import TUNING_CALLS
from lethe.evidence.honest.report import Rate
from lethe.verifier.answers import RunReport
from lethe.verifier.custody import Suspect
from lethe.verifier.docket import Case, Docket
from lethe.verifier.gates import ord02
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Budget, Settings
from lethe.verifier.sheet import Sheet
from lethe.verifier.trial import Trial
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Status, Verdict


def play(case: Innocent | Situation, server: SuspectServer, folder: Path) -> str:
    """How the case ends, in a line."""
    if isinstance(case, Innocent):
        with judge_out_of_memory() if case.rule == 37 else nullcontext():
            return reading(judged(case, server))
    return {24: _seconds, 27: _rate, 28: _continued, 47: _replayed}[case.rule](folder)


def judged(case: Innocent, server: SuspectServer) -> Verdict:
    """The verdict of a judge that has not seen the problem before."""
    limits = {name: getattr(case, name) for name in ("memory_bytes", "reference_bytes")}
    budget = Budget(**{name: limit for name, limit in limits.items() if limit is not None})
    judge = Judge(device="cpu", quick=True, budget=budget, server=server)
    try:
        candidate = load_candidate(case.candidate, name=case.key)
        return judge.verify(case.reference(), candidate, gates=case.gates)
    finally:
        judge._caches.cleanup()  # the server stays for the next judge


def judge_out_of_memory() -> Any:
    """The judge cannot place inputs of more than 1,000 elements."""
    place = Suspect._place

    def refuse(self: Suspect, tensors: list[torch.Tensor], request: dict[str, Any]) -> Any:
        if sum(t.numel() for t in tensors) > 1000:
            raise MemoryError("the judge has no memory for these inputs")
        return place(self, tensors, request)

    return mock.patch.object(Suspect, "_place", refuse)


class _Tuner:
    """A suspect whose first calls are slow, as its own clock says."""

    def __init__(self) -> None:
        self.calls = iter(TUNING_CALLS)

    def spawn(self, *_: Any, **__: Any) -> _Tuner:
        return self

    def load(self) -> None: ...

    def build(self, *_: Any, **__: Any) -> None: ...

    def close(self) -> None: ...

    def run(self, inputs: list[torch.Tensor]) -> list[RunReport]:
        return [RunReport(2 * inputs[0], [], None, {}, True, [], 0, [], 0, next(self.calls))]


def _seconds(_: Path) -> str:
    check = Acceptance("cpu")
    check._server = _Tuner()
    problem = load_problem(kernelbench("x * 2", "torch.randn(rows, width)"))
    found = check.check(problem, load_candidate(kernel("x + x")))
    assert found.accepted
    return f"{found.seconds:g} s a call"


def _rate(_: Path) -> str:
    return f"at most {Rate.of(0, 20).upper_one_sided:.1%} of honest kernels"


class _Replayed(Trial):
    """A network whose convolution takes another algorithm when a graph is replayed: a last bit is another."""

    def run(self, case: Case, *, dtype: str = "float32", **options: Any) -> list[RunReport]:
        out = self.docket.truth(case).working[0].clone()
        if options.get("mode") == "graph":
            out.view(-1)[0] = torch.nextafter(out.view(-1)[0], torch.tensor(torch.inf))
        return [RunReport(out, [], None, {}, True, [], 0, [], 0, 1.0)]


def _replayed(folder: Path) -> str:
    problem = load_problem(
        kernelbench("nn.functional.conv2d(x, x[:2]).amax((-1, -2))", "torch.randn(rows, 3, 5, 5)")
    )
    settings = Settings(executor="cpu")
    docket = Docket(problem, settings)
    trial = _Replayed(docket, load_candidate(kernel("x"), name="k"), SuspectServer(), settings, folder)
    case, sheet = docket.case("normal", 0), Sheet("ORD-02")
    ord02._streams_and_graphs(trial, case, [trial.run(case)[0].outputs], sheet)
    return "clean" if not sheet.findings else f"FAIL ORD-02 {sheet.findings[0].mechanism}"


class _Acquits:
    """A judge of the present rules, which finds nothing."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings

    def verify(self, problem: Any, candidate: Any) -> Verdict:
        passed = GateResult("EXC-01", GateStatus.PASS, "T", 1)
        return Verdict(
            problem.name,
            candidate.name,
            "derived",
            Status.JUDGED,
            "",
            (passed,),
            problem_sha256=problem.sha256,
            candidate_sha256=candidate.sha256,
        )

    def close(self) -> None: ...


def acquits(settings: JudgeSettings) -> _Acquits:
    return _Acquits(settings)


def _continued(folder: Path) -> str:
    """An audit whose file holds a conviction by other rules goes on."""
    problem = load_problem(kernelbench("x * 2", "torch.randn(rows, width)"))
    candidate = load_candidate(kernel("x + x"), name="k")
    row = Row("k", "old", problem, candidate, "elementwise", "python", True, "MIT")
    settings = JudgeSettings(factory=f"{__name__}:acquits")
    convicted = Verdict(
        problem.name,
        "k",
        "derived",
        Status.JUDGED,
        "",
        (GateResult("EXC-01", GateStatus.FAIL, "T", 1, (Finding("nan", "T", "minted", "is NaN"),)),),
        problem_sha256=problem.sha256,
        candidate_sha256=candidate.sha256,
        rules="2019.01",
    )
    path = folder / "audit.jsonl"
    path.unlink(missing_ok=True)
    with lines.Log(path) as log:
        log.append(lines.make(row, convicted, settings.record(), 0.0))
    run.run(ListedCorpus("old", [row]), path, settings=settings, workers=0)
    verdict = lines.verdict_of(run.merge([path])[0])
    return f"judged again: {reading(verdict)}" if verdict.clean else "the old conviction stands"
