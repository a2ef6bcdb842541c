"""Edits by reinforcement learning: a policy proposes, the verifier judges, the ladder pays.

    python -m lethe.rl.edit_rl run --out FOLDER [--attempts 320] [--schedule readme] [--workers 0] [--seed 0]
    python -m lethe.rl.edit_rl record FOLDER

The policy chooses one of the scripted operators of `lethe.rl.mutations`; the operator finds a place at
random. It is trained from nothing, by the same step as every other policy here. Each kernel that it starts
from keeps all contracts in the recorded audit, and is the baseline that its edits must beat. Every verdict
is kept in the folder, so a run that was stopped goes through what it has judged in seconds and then
continues.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lethe import provenance
from lethe.audit import house
from lethe.audit.corpora import Row
from lethe.evidence import elsewhere
from lethe.rl import edits, ladder, mutations
from lethe.rl.curriculum import Curriculum
from lethe.rl.grpo import Objective
from lethe.rl.judging import Attempt, Court
from lethe.rl.outcomes import Judged, not_applied
from lethe.rl.train import Rollout, grpo_step

EXPERIMENT = "edit_rl"
VERDICTS, ATTEMPTS, COST = "verdicts.jsonl", "attempts.json", "cost.json"

KERNELS = (
    ("reduction_sum__cpp", "scan_cumsum__cpp", "softmax_row__cpp", "loss_mse__b"),
    ("matmul_square__cpp", "norm_layernorm__cpp", "reduction_sum__a", "softmax_log__a"),
    ("activation_gelu__cpp", "loss_cross_entropy__cpp", "norm_rmsnorm__b", "scan_cumsum__a"),
)
"""Kernels of the house corpus that keep every contract, in three levels of a curriculum: short ones first."""

GROUP = 8

FOLDERS = re.compile(r"/\S*/")
"""In messages: where a file lay on the machine that judged says nothing."""


class OperatorPolicy(nn.Module):
    """Chooses an operator for a kernel: logits for each language, over the operators that have a place
    there."""

    def __init__(self, languages: Sequence[str] = ("cpp", "triton"), seed: int = 0) -> None:
        super().__init__()
        self.languages = tuple(languages)
        self.table = nn.Parameter(torch.zeros(len(self.languages), len(mutations.NAMES)))
        self._draw = torch.Generator().manual_seed(seed)
        self._sites = random.Random(seed)

    def _log_probabilities(self, rows: Sequence[Row]) -> Tensor:
        """[n, operators]; minus infinity where an operator has no place."""
        which = torch.tensor([self.languages.index(row.candidate.language) for row in rows])
        able = torch.tensor([mutations.applicable(row.candidate.source) for row in rows])
        return torch.log_softmax(self.table[which].masked_fill(~able, -torch.inf), -1)

    @torch.no_grad()
    def sample(self, contexts: Sequence[Row], group: int) -> Rollout:
        """`group` answers (texts) to each kernel."""
        rows = [row for row in contexts for _ in range(group)]
        logps = self._log_probabilities(rows)
        picks = torch.multinomial(logps.exp(), 1, generator=self._draw)
        answers = [
            mutations.answer(row.candidate.source, mutations.NAMES[pick], self._sites)
            for row, pick in zip(rows, picks.squeeze(1).tolist(), strict=True)
        ]
        chosen = logps.gather(1, picks)
        return Rollout(rows, answers, picks, torch.ones_like(chosen), chosen)

    def logps(self, rollout: Rollout) -> Tensor:
        return self._log_probabilities(rollout.contexts).gather(1, rollout.tokens)

    @torch.no_grad()
    def reference_logps(self, rollout: Rollout) -> Tensor:
        """The untrained policy: every operator that has a place, alike."""
        able = torch.tensor([mutations.applicable(row.candidate.source) for row in rollout.contexts])
        return -torch.log(able.sum(1, keepdim=True).float())

    def probabilities(self, language: str) -> dict[str, float]:
        """Of each operator, were all of them to have a place."""
        p = torch.softmax(self.table.detach()[self.languages.index(language)], 0)
        return dict(zip(mutations.NAMES, p.tolist(), strict=True))

    def parameters(self, recurse: bool = True) -> Iterable[nn.Parameter]:  # type: ignore[override]
        return list(super().parameters(recurse))


def judge(court: Court, rows: Sequence[Row], answers: Sequence[str]) -> list[Judged]:
    """What became of each answer: applied to its kernel, judged, and timed against it where a clock can
    tell."""
    ends: list[Judged | None] = []
    attempts: list[Attempt] = []
    for row, text in zip(rows, answers, strict=True):
        try:
            source = edits.apply(row.candidate.source, text)
        except edits.EditError as e:
            ends.append(not_applied(str(e)))
            continue
        ends.append(None)
        attempts.append(Attempt(row.problem, source, row.candidate, language=row.candidate.language))
    found = iter(court.judge(attempts))
    return [next(found) if end is None else end for end in ends]


@dataclass(frozen=True)
class Plan:
    """How a run is made."""

    attempts: int = 320
    schedule: str = "readme"
    seed: int = 0
    rate: float = 0.3
    """Of plain gradient steps on the logits: an advantage of one moves a probability by about a third."""
    kernels_a_step: int = 2

    @property
    def steps(self) -> int:
        return -(-self.attempts // (GROUP * self.kernels_a_step))


def run(court: Court, plan: Plan, levels: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Train on `levels` of kernels, easiest first; a line for each attempt, in order."""
    policy = OperatorPolicy(seed=plan.seed)
    optimiser = torch.optim.SGD(policy.parameters(), plan.rate)
    pays = ladder.schedule(plan.schedule)
    curriculum: Curriculum[Row] = Curriculum(levels, seed=plan.seed)
    told: list[dict[str, Any]] = []
    for step in range(plan.steps):
        ends: list[Judged] = []

        def reward(rollout: Rollout, ends: list[Judged] = ends) -> list[float]:
            ends += judge(court, rollout.contexts, rollout.answers)
            return [pays.reward(end) for end in ends]

        contexts = curriculum.draw(plan.kernels_a_step)
        done = grpo_step(policy, optimiser, contexts, reward, group=GROUP, objective=Objective(beta=0.02))
        for row, pick, end, paid in zip(
            done.rollout.contexts, done.rollout.tokens[:, 0].tolist(), ends, done.rewards, strict=True
        ):
            told.append(_line(step, row, mutations.NAMES[pick], end, paid))
            curriculum.report(row, end.outcome)
    return told


def _line(step: int, row: Row, operator: str, end: Judged, paid: float) -> dict[str, Any]:
    return {
        "step": step,
        "kernel": row.id,
        "operator": operator,
        "outcome": str(end.outcome),
        "failed": list(end.failed),
        "speedup": None if end.speedup is None else round(end.speedup, 4),
        "reason": FOLDERS.sub("", end.reason)[:200],
        "reward": None if paid != paid else round(paid, 4),
    }


def levels_of(names: Sequence[Sequence[str]] = KERNELS) -> list[list[Row]]:
    """The rows of the house corpus by those names. Raises CorpusError for one that does not exist."""
    corpus = house.load()
    return [[corpus.get(name) for name in level] for level in names]


def record(folder: Path, target: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write what `run` left in `folder`. Raises OSError where it left nothing."""
    told = json.loads((folder / ATTEMPTS).read_text())
    cost = json.loads((folder / COST).read_text())
    return elsewhere.record(
        target / elsewhere.device(folder).slug / f"{EXPERIMENT}.json",
        folder,
        experiment=EXPERIMENT,
        samples=told["attempts"],
        parameters={**told["plan"], "distinct": told.get("distinct"), "cost": cost},
        script="lethe/rl/edit_rl.py",
        sources=["data/corpus/house"],
        command="python -m lethe.rl.edit_rl run",
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.rl.edit_rl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--out", type=Path, required=True)
    go.add_argument("--attempts", type=int, default=320)
    go.add_argument("--schedule", choices=sorted(ladder.SCHEDULES), default="readme")
    go.add_argument("--workers", type=int, default=0)
    go.add_argument("--seed", type=int, default=0)
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "record":
        try:
            print(record(given.folder))
        except OSError as error:
            print(f"edit_rl: {given.folder} holds no run: {error.strerror}", file=sys.stderr)
            return 2
        return 0
    torch.set_num_threads(1)
    elsewhere.note(given.out, "cpu")
    plan = Plan(given.attempts, given.schedule, given.seed)
    with Court(given.out / VERDICTS, given.workers) as court:
        attempts = run(court, plan, levels_of())
        cost = court.throughput.facts()
    if cost["judged"] or not (given.out / COST).is_file():
        provenance.write_atomically(given.out / COST, json.dumps(cost) + "\n")
    told = {"plan": vars(plan), "distinct": cost["distinct"], "attempts": attempts}
    provenance.write_atomically(given.out / ATTEMPTS, json.dumps(told, indent=1) + "\n")
    print(json.dumps(cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
