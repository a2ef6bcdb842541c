"""Which row a worker gets: one of the problem whose oracle it holds, so that oracles are computed once."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from lethe.audit.corpora import Row
from lethe.audit.pool import JudgeSettings, _Pool, _Worker
from lethe.verifier.problem import Problem
from tests.audit.fakes import row


def of(problem: str, row_id: str) -> Row:
    return replace(row(row_id), problem=Problem(name=problem, source=f"# {problem}\n"))


def pending(*rows: Row) -> deque[tuple[Row, int]]:
    return deque((r, 0) for r in rows)


@pytest.fixture
def pool() -> _Pool:
    return _Pool(JudgeSettings(factory="unused"), 2)


def worker(pool: _Pool, holds: str | None) -> _Worker:
    nothing: Any = None
    w = _Worker(nothing, nothing, problem=of(holds, "held").problem.sha256 if holds else None)
    pool.workers.append(w)
    return w


def test_a_worker_stays_with_its_problem(pool: _Pool) -> None:
    queue = pending(of("a", "a1"), of("b", "b1"), of("a", "a2"))
    assert pool._next(worker(pool, "b"), queue)[0].id == "b1"
    assert [r.id for r, _ in queue] == ["a1", "a2"]


def test_a_new_worker_leaves_the_problems_of_others_alone(pool: _Pool) -> None:
    worker(pool, "a")
    queue = pending(of("a", "a1"), of("a", "a2"), of("b", "b1"))
    assert pool._next(worker(pool, None), queue)[0].id == "b1"


def test_where_only_problems_of_others_are_left_the_first_row_is_taken(pool: _Pool) -> None:
    worker(pool, "a")
    queue = pending(of("a", "a1"), of("a", "a2"))
    assert pool._next(worker(pool, "c"), queue)[0].id == "a1"
    assert [r.id for r, _ in queue] == ["a2"]
