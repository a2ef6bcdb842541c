"""Which row a worker gets: one of the problem whose oracle it holds, so that oracles are computed once."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lethe.audit.corpora import Row
from lethe.audit.pool import JudgeSettings, Pool, _Worker, is_crowded, judge_row, judged
from lethe.verifier.problem import Problem
from lethe.verifier.verdict import UNREPEATED, Finding, GateResult, GateStatus, Status, Verdict
from tests.audit import fakes
from tests.audit.fakes import row


def of(problem: str, row_id: str) -> Row:
    return replace(row(row_id), problem=Problem(name=problem, source=f"# {problem}\n"))


def pending(*rows: Row) -> deque[tuple[Row, int]]:
    return deque((r, 0) for r in rows)


@pytest.fixture
def pool() -> Pool:
    return Pool(JudgeSettings(factory="unused"), 2)


def worker(pool: Pool, holds: str | None) -> _Worker:
    nothing: Any = None
    w = _Worker(nothing, nothing, problem=of(holds, "held").problem.sha256 if holds else None)
    pool.workers.append(w)
    return w


def test_a_worker_stays_with_its_problem(pool: Pool) -> None:
    queue = pending(of("a", "a1"), of("b", "b1"), of("a", "a2"))
    assert pool._next(worker(pool, "b"), queue)[0].id == "b1"
    assert [r.id for r, _ in queue] == ["a1", "a2"]


def test_a_new_worker_leaves_the_problems_of_others_alone(pool: Pool) -> None:
    worker(pool, "a")
    queue = pending(of("a", "a1"), of("a", "a2"), of("b", "b1"))
    assert pool._next(worker(pool, None), queue)[0].id == "b1"


def test_where_only_problems_of_others_are_left_the_first_row_is_taken(pool: Pool) -> None:
    worker(pool, "a")
    queue = pending(of("a", "a1"), of("a", "a2"))
    assert pool._next(worker(pool, "c"), queue)[0].id == "a1"
    assert [r.id for r, _ in queue] == ["a2"]


def test_a_row_waits_for_those_of_lower_rank() -> None:
    ranked = Pool(JudgeSettings(factory="unused"), 1, lambda row: int(row.id == "c"))
    queue = pending(of("y", "c"), of("x", "a"), of("y", "b"))
    holder = worker(ranked, "y")
    assert [ranked._next(holder, queue)[0].id for _ in range(3)] == ["b", "a", "c"]


def test_an_exception_that_does_not_come_again_costs_no_verdict() -> None:
    class Stumbles(fakes.FakeJudge):
        calls = 0

        def verify(self, problem, candidate):  # type: ignore[no-untyped-def]
            self.calls += 1
            if self.calls == 1:
                raise SystemError("AST constructor recursion depth mismatch")
            return super().verify(problem, candidate)

    judge = Stumbles(fakes.SETTINGS)
    assert judge_row(judge, fakes.row("r")).status is Status.JUDGED and judge.calls == 2
    failed = judge_row(fakes.FakeJudge(fakes.SETTINGS), fakes.row("r", "# raise"))
    assert failed.status is Status.HARNESS_FAILED and "RuntimeError: a bug of the judge" in failed.message


@pytest.mark.parametrize(("times", "final"), [(1, Status.JUDGED), (2, Status.JUDGED), (9, Status.CRASHED)])
def test_where_memory_ran_out_a_row_is_judged_beside_fewer_and_then_alone(
    tmp_path: Path, times: int, final: Status
) -> None:
    counter = tmp_path / "counter"
    rows = [fakes.row("greedy", f"# crowded {times} {counter}\n"), fakes.row("other")]
    found = {r.row.id: r.verdict.status for r in judged(rows, fakes.SETTINGS, 8, lambda row: 0)}
    assert found == {"greedy": final, "other": Status.JUDGED}
    assert len(counter.read_text()) == min(times + 1, 3), "beside seven, beside one, alone"


def test_what_a_full_device_brings_about_is_told_from_what_a_kernel_does() -> None:
    def verdict(status: Status = Status.JUDGED, message: str = "", *gates: GateResult) -> Verdict:
        return Verdict("p", "c", "derived", status, message, gates=gates)

    refused = Finding("shape:n=7", "T", "rejects", "Triton Error [CUDA]: out of memory (line 74)")
    wrong = Finding("normal:0", "T", "value", "out[0] is 1, expected 2")
    unrepeated = replace(fakes.gate("ORD-02", GateStatus.ERROR), detail=UNREPEATED)
    assert is_crowded(verdict(Status.CRASHED, "CUDA error: out of memory"))
    assert is_crowded(verdict(Status.RUN_FAILED, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR (line 69)"))
    assert is_crowded(verdict(Status.JUDGED, "", fakes.gate("CMP-03", GateStatus.FAIL, refused)))
    assert is_crowded(verdict(Status.JUDGED, "", unrepeated))
    passed = replace(fakes.gate("CMP-03", GateStatus.PASS), skipped={"shape:n=7": "memory ran out in run"})
    assert is_crowded(verdict(Status.JUDGED, "", passed))
    assert is_crowded(replace(verdict(), unprobed={"call_history": "OutOfMemoryError: no room"}))
    assert not is_crowded(verdict(Status.JUDGED, "", fakes.gate("CMP-03", GateStatus.FAIL, wrong)))
    assert not is_crowded(verdict(Status.RUN_FAILED, "ValueError: Conflicting meta-parameters: BLOCK_D"))
