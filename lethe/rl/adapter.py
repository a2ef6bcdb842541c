"""The verifier as a reward function for other people's trainers.

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from lethe.rl import reward_fn

    with reward_fn("softmax.py", schedule="paper", log="rewards.jsonl", workers=2) as reward:
        ask = "Write a Triton kernel as class ModelNew for:\\n" + open("softmax.py").read()
        GRPOTrainer(
            model="a causal language model", reward_funcs=reward, args=GRPOConfig(num_generations=8),
            train_dataset=Dataset.from_list([{"prompt": ask}] * 64),
        ).train()

The object has the signature that TRL's GRPOTrainer calls, ``(prompts, completions, **columns) ->
list[float]``, which is that of a group reward function of the ``verifiers`` library as well
(``vf.Rubric(funcs=[reward])``); its method `one` is that of a single rollout, ``(prompt, completion,
**columns) -> float``.

With several problems leave the first argument out and give the dataset a column ``problem``, a path or the
text of a reference in KernelBench's format; a column ``baseline`` is the kernel that an answer must beat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from lethe.audit.pool import JudgeSettings
from lethe.rl import ladder
from lethe.rl.judging import Attempt, Court
from lethe.rl.outcomes import Judged
from lethe.verifier.catalog import IDS
from lethe.verifier.problem import (
    Candidate,
    OpSpec,
    Problem,
    load_candidate,
    load_problem,
    problem_from_spec,
)

FENCE = re.compile(
    r"(?:(?:^[ \t]*)?```[ \t]*(?:(?:python3?|py)(?:[ \t][^`\n]*)?)?"
    r"|^[ \t]*```(?P<other>[^`\n]*))\n(?P<text>.*?)```",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
"""A fenced block. Those of other languages are read too, or the end of one would begin the next."""

DEVICES = ("auto", "cpu", "cuda")

Message = dict[str, Any]
Completion = str | Sequence[Message]


def text_of(completion: Completion) -> str:
    """The text of a completion, which may be a list of chat messages: what the last of them says."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content", "")) if completion else ""


def code_of(completion: Completion) -> str:
    """The last fenced block of Python in a completion, or all of its text where there is none.

    A block that names no language counts as Python. Line ends become LF.
    """
    text = text_of(completion).replace("\r\n", "\n")
    blocks = [found["text"] for found in FENCE.finditer(text) if found["other"] is None]
    return blocks[-1] if blocks else text


class RewardFunction:
    """See the module. A context manager: its judges are processes. `court` tells what judging has cost."""

    def __init__(
        self,
        problem: Problem | None,
        schedule: ladder.Schedule,
        court: Court,
        baseline: Candidate | None = None,
        language: str | None = "triton",
    ) -> None:
        self.__name__ = f"lethe_{schedule.name}"
        self.court = court
        self.last: list[Judged] = []
        """How the completions of the latest call ended."""
        self._problem, self._schedule = problem, schedule
        self._baseline, self._language = baseline, language

    def __enter__(self) -> RewardFunction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.court.close()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> list[float]:
        """A reward for each completion; NaN, which TRL leaves out of its group, where nobody could decide.

        Raises ValueError where neither the function nor a column says which problem is meant, or a column
        does not have one value for each completion.
        """
        count = len(completions)
        problems = _column(columns, "problem", count)
        baselines = _column(columns, "baseline", count)
        attempts = [
            Attempt(
                self._of(problems[i]),
                code_of(completion),
                self._baseline if baselines[i] is None else _candidate(baselines[i]),
                language=self._language,
            )
            for i, completion in enumerate(completions)
        ]
        self.last = self.court.judge(attempts)
        return [self._schedule.reward(end) for end in self.last]

    def one(self, prompt: Any, completion: Completion, **columns: Any) -> float:
        """The reward of one completion, as ``verifiers`` asks for it."""
        given = {k: [columns[k]] for k in ("problem", "baseline") if k in columns}
        return self([prompt], [completion], **given)[0]

    def _of(self, given: Any) -> Problem:
        if given is not None:
            return _problem(given)
        if self._problem is None:
            raise ValueError("say which problem: reward_fn(problem) or a column `problem` of the dataset")
        return self._problem


def reward_fn(
    problem: str | Path | Problem | OpSpec | None = None,
    *,
    schedule: str = "paper",
    baseline: str | Path | None = None,
    language: str | None = "triton",
    log: str | Path | None = None,
    workers: int = 0,
    device: str = "auto",
    quick: bool = True,
    gates: Sequence[str] | None = None,
    seed: int = 0,
) -> RewardFunction:
    """A reward function that judges completions against the contracts of `problem`.

    Args:
        problem: a reference in KernelBench's format (path or text), a `Problem` or an `OpSpec`; None: the
            dataset's column ``problem`` says.
        schedule: ``"paper"``, ``"readme"`` or ``"strict"``; see `lethe.rl.ladder`.
        baseline: a kernel to be faster than (path or text); without one speed pays nothing.
        language: what a kernel must be written in; None accepts plain torch too, which then earns the
        reward of a
            kernel.
        log: append-only file of every verdict; a run that was killed resumes from it.
        workers: judging processes beside each other; 0 judges in this one.
        device, quick, seed: how the battery runs.
        gates: only these gates, for a smoke test; a policy finds out which contracts nobody checks.

    Raises ValueError for an unknown schedule, device or gate, LogError for a file that cannot be had,
    ProblemError and CandidateError for a reference or baseline that cannot be read.
    """
    chosen = ladder.schedule(schedule)
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}; use {', '.join(DEVICES)}")
    if isinstance(gates, str) or (unknown := sorted(set(gates or ()) - set(IDS))):
        asked = gates if isinstance(gates, str) else ", ".join(unknown)
        raise ValueError(f"gates is a list of {', '.join(IDS)}, not {asked!r}")
    if workers < 0:
        raise ValueError(f"workers is {workers}; give 0 to judge in this process, or more")
    reference = None if problem is None else _problem(problem)
    against = None if baseline is None else load_candidate(baseline)
    chosen_gates = tuple(gates) if gates is not None else None
    settings = JudgeSettings(device=device, quick=quick, gates=chosen_gates, seed=seed)
    court = Court(Path(log) if log is not None else None, workers, settings)
    return RewardFunction(reference, chosen, court, against, language)


def _column(columns: dict[str, Any], name: str, count: int) -> list[Any]:
    values = columns.get(name)
    if values is None:
        return [None] * count
    if isinstance(values, str) or len(values) != count:
        told = repr(values[:40]) if isinstance(values, str) else f"{len(values)} values"
        raise ValueError(f"the column {name!r} has {told} for {count} completions; give a list, one for each")
    return list(values)


def _problem(given: Any) -> Problem:
    if isinstance(given, Problem):
        return given
    if isinstance(given, OpSpec):
        return problem_from_spec(given)
    return _loaded(str(given))


@lru_cache(maxsize=256)
def _loaded(origin: str) -> Problem:
    return load_problem(origin)


@lru_cache(maxsize=256)
def _candidate(origin: str) -> Candidate:
    return load_candidate(origin)
