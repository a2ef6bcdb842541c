"""How much faster a candidate that passed is, by a clock that it cannot reach.

A suspect's own time is only what it says. Here the judge's process reads its own clock around whole
requests, in which the suspect rebuilds its inputs, calls the candidate a few times and returns every
output; and each of those outputs is compared with the oracle, on new inputs in each round. Candidate and
baseline carry the same overhead and take turns, so the ratio of their times is nearer to one than that of
the kernels alone: speed is understated, never overstated.

Only native CPU kernels are timed. Triton's interpreter says nothing about a kernel's speed, and on a GPU
the copies of a request hide it: there a candidate that passes has the outcome ``correct_untimed``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.verifier.docket import Docket
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Settings, choose_executor, usual_budget
from lethe.verifier.sheet import CandidateStopped, Sheet
from lethe.verifier.trial import Trial

ROUNDS = 15
"""Odd, so that the median is a measured ratio. With 15 rounds the ratios of rank 4 and 12 are a 96%
interval of the median (binomial distribution), whatever the distribution of the ratios."""
RANK = 4
CALLS = 24
"""Calls in one request."""


@dataclass(frozen=True)
class Speed:
    """Ratios of the baseline's time to the candidate's, one a round."""

    ratios: tuple[float, ...]
    valid: bool = True
    """Whether every output of a timed call was right."""
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The median; below one the candidate is slower."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Of the median, at 96%."""
        ordered = sorted(self.ratios)
        at = min(RANK, (len(ordered) + 1) // 2)
        return ordered[at - 1], ordered[-at]

    @property
    def faster(self) -> bool:
        """Whether the whole interval lies above one."""
        return self.valid and bool(self.ratios) and self.interval[0] > 1.0

    def facts(self) -> dict[str, Any]:
        return {
            "ratios": [round(r, 4) for r in self.ratios],
            "valid": self.valid,
            "reason": self.reason,
        }

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Speed:
        """Inverse of `facts`."""
        return cls(tuple(facts["ratios"]), facts["valid"], facts["reason"])


def timeable(candidate: Candidate, device: str = "cpu") -> bool:
    """Whether its speed can be measured here."""
    return choose_executor(device, candidate.language) == "cpu"


class Stopwatch:
    """Times candidates against baselines, each in a suspect's process of its own; close it or use
    ``with``."""

    def __init__(self, seed: int = 0, rounds: int = ROUNDS, calls: int = CALLS) -> None:
        self._server = SuspectServer()
        self._scratch = tempfile.TemporaryDirectory(prefix="lethe-stopwatch-")
        self._settings = Settings(executor="cpu", seed=seed, budget=usual_budget("cpu"))
        self._rounds, self._calls = rounds, calls
        self._docket: tuple[str, Docket] | None = None

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.close()
        self._scratch.cleanup()

    def compare(self, problem: Problem, candidate: Candidate, baseline: Candidate) -> Speed:
        """Time both. A candidate that stops, or returns a wrong value, while it is timed is not valid."""
        docket = self._prepared(problem)
        trials = [self._trial(docket, c) for c in (candidate, baseline)]
        try:
            ratios = []
            for k in range(-1, self._rounds):  # the first round warms up
                case = docket.case("normal", self._settings.seed + 1 + k)
                order = (0, 1) if k % 2 else (1, 0)
                spent = [0.0, 0.0]
                for who in order:
                    spent[who], wrong = self._timed(trials[who], case)
                    if wrong and who == 0:
                        return Speed((), valid=False, reason=f"while it was timed: {wrong}")
                if k >= 0:
                    ratios.append(spent[1] / spent[0])
            return Speed(tuple(ratios))
        except CandidateStopped as e:
            return Speed((), valid=False, reason=f"while it was timed: {e.status}: {e}")
        finally:
            for trial in trials:
                trial.close()

    def _prepared(self, problem: Problem) -> Docket:
        if self._docket is None or self._docket[0] != problem.sha256:
            self._docket = problem.sha256, Docket(problem, self._settings, as_written=True)
        return self._docket[1]

    def _trial(self, docket: Docket, candidate: Candidate) -> Trial:
        cache = Path(self._scratch.name) / candidate.sha256[:24]
        cache.mkdir(exist_ok=True)
        return Trial(docket, candidate, self._server, self._settings, cache)

    def _timed(self, trial: Trial, case: Any) -> tuple[float, str]:
        """Seconds of a request by this process's clock, and what was wrong with an output, if anything."""
        trial.build(case.sizes)
        trial.docket.on_host(case)
        begun = time.perf_counter()
        reports = trial.run(case, times=self._calls, guard=False)
        spent = time.perf_counter() - begun
        sheet = Sheet("CMP-01")
        findings = [f for report in reports for f in trial.check_value(case, report, sheet)]
        return spent, findings[0].message if findings else ""
