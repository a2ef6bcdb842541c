"""A program whose extension was not built is no evidence about a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lethe.audit.extensions import FELL_BACK, Watched
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import Status, Verdict

PROBLEM = Problem(name="p", source="class Model: pass\n")
BUILT = Candidate(name="c", source="load_inline()\n", language="cuda")


class Told(Judge):
    """Says what it was told, with the build cache of the real one."""

    def __init__(self, status: Status = Status.JUDGED, cache: object = True) -> None:
        super().__init__(device="cpu")
        self.status, self.kept = status, cache

    def verify(self, problem: Problem, candidate: Candidate, gates: object = None) -> Verdict:
        found = {"isolation": {"cache": self.kept}}
        return Verdict(problem.name, candidate.name, "derived", self.status, "", environment=found)


def library(judge: Judge, candidate: Candidate) -> Path:
    file = judge.cache_of(candidate) / "torch_extensions" / "py311" / "c" / "c.so"
    file.parent.mkdir(parents=True)
    file.touch()
    return file


def test_without_a_library_the_row_has_no_kernel_and_with_one_it_has():
    judge = Told()
    watched = Watched(judge)
    verdict = watched.verify(PROBLEM, BUILT)
    assert (verdict.status, verdict.message) == (Status.NO_CUSTOM_KERNEL, FELL_BACK)
    library(judge, BUILT)
    assert watched.verify(PROBLEM, BUILT).status is Status.JUDGED
    watched.close()


@pytest.mark.parametrize(
    ("judge", "candidate"),
    [
        (Told(), replace(BUILT, language="triton")),
        (Told(), replace(BUILT, source="load_inline(build_directory='here')\n")),
        (Told(cache="refused: not reachable"), BUILT),
        (Told(status=Status.RUN_FAILED), BUILT),
    ],
    ids=["triton", "its own directory", "no cache is kept", "it did not run"],
)
def test_where_nothing_can_be_concluded_the_verdict_stands(judge, candidate):
    before = judge.status
    assert Watched(judge).verify(PROBLEM, candidate).status is before
    judge.close()
