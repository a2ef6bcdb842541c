"""Programs that build a C++ or CUDA extension: did they, or did they fall back to torch without a word?

Most of CUDA-L1's programs catch a failed build and answer with torch calls. Then torch is judged; such
a row is no evidence about a kernel, and its status says so. The build is looked for where the sandbox has the
program's extensions put; where it keeps none, or a program names its own directory, nothing is concluded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lethe.audit.pool import JudgeLike, JudgeSettings, real_judge
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import Status, Verdict

FELL_BACK = "the program built no extension in this environment and fell back to torch"


class Watched:
    """A judge that looks, after a verdict about a program with an extension, whether there is one."""

    def __init__(self, judge: JudgeLike) -> None:
        self._judge = judge

    def verify(self, problem: Problem, candidate: Candidate) -> Verdict:
        verdict = self._judge.verify(problem, candidate)
        if candidate.language != "cuda" or verdict.status is not Status.JUDGED or elsewhere(candidate):
            return verdict
        kept = verdict.environment.get("isolation", {}).get("cache") is True
        if not kept or not isinstance(self._judge, Judge) or built(self._judge.cache_of(candidate)):
            return verdict
        return replace(verdict, status=Status.NO_CUSTOM_KERNEL, message=FELL_BACK)

    def close(self) -> None:
        self._judge.close()


def elsewhere(candidate: Candidate) -> bool:
    """Whether a program says itself where its extension is built."""
    return "build_directory" in candidate.source


def built(cache: Path) -> bool:
    """Whether the cache of a candidate holds a library that torch built."""
    return any((cache / "torch_extensions").rglob("*.so"))


def judge(settings: JudgeSettings) -> Watched:
    """The verifier's judge, watched; for `JudgeSettings.factory`."""
    return Watched(real_judge(settings))
