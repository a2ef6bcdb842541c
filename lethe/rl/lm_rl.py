"""A small language model that edits kernels: as it is, after a warm start, and after GRPO.

    python -m lethe.rl.lm_rl run --out FOLDER [--seconds 1200] [--device auto] [--workers 0]
        [--weights FOLDER] [--examples 64] [--answers 4] [--steps 8]
    python -m lethe.rl.lm_rl dry --out FOLDER
    python -m lethe.rl.lm_rl record FOLDER

The model answers to kernels that its warm start shows and to others. It is trained by reward only where
edits of its own apply after the warm start; where none does there is nothing to reinforce, and the run says
so instead of going on. Each phase is written as soon as it ends. `dry` walks the same path with a tiny
random model: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lethe import provenance
from lethe.audit.corpora import Row
from lethe.evidence import elsewhere
from lethe.rl import edit_rl, ladder, lm, prompts, sft
from lethe.rl.grpo import Objective
from lethe.rl.judging import Court
from lethe.rl.outcomes import Judged, Outcome
from lethe.rl.train import grpo_step

EXPERIMENT = "lm_edit_rl"
PHASES = "phases.json"

SHOWN = ("scan_cumsum__a", "softmax_log__a", "loss_mse__b")
"""Short kernels, of which the warm start shows edits."""
UNSEEN = ("scan_reverse_exclusive_cumsum__a",)


@dataclass(frozen=True)
class Plan:
    """How much of each phase."""

    examples: int = 64
    batch: int = 2
    rate: float = 1e-3
    answers: int = 4
    """To each kernel, when the model is looked at."""
    steps: int = 8
    group: int = 4
    reward_rate: float = 1e-4
    schedule: str = "readme"
    sampling: lm.Sampling = field(default_factory=lm.Sampling)


def look(policy: lm.LmPolicy, court: Court, rows: Sequence[Row], count: int) -> list[dict[str, Any]]:
    """`count` answers to each kernel and what became of them."""
    rollout = policy.sample(rows, count)
    ends = edit_rl.judge(court, rollout.contexts, rollout.answers)
    return [
        {
            "kernel": row.id,
            "outcome": str(end.outcome),
            "failed": list(end.failed),
            "reason": edit_rl.FOLDERS.sub("", end.reason)[:200],
            "answer": answer[:600],
        }
        for row, answer, end in zip(rollout.contexts, rollout.answers, ends, strict=True)
    ]


def applied(told: Sequence[dict[str, Any]]) -> int:
    return sum(line["outcome"] != Outcome.NOT_APPLIED for line in told)


def run(
    out: Path,
    policy: lm.LmPolicy,
    court: Court,
    rows: tuple[list[Row], list[Row]],
    plan: Plan,
    seconds: float,
) -> dict[str, Any]:
    """All phases within the time; what there is of them is in `out` after each."""
    end = time.monotonic() + seconds
    shown, unseen = rows
    told: dict[str, Any] = {"plan": {**vars(plan), "sampling": vars(plan.sampling)}}

    def keep(name: str, found: Any, begun: float) -> None:
        told[name] = found
        told.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)
        told["cost"] = court.throughput.facts()
        provenance.write_atomically(out / PHASES, json.dumps(told, indent=1) + "\n")
        print(name, told["seconds"][name], flush=True)

    begun = time.monotonic()
    keep("before", look(policy, court, [*shown, *unseen], plan.answers), begun)
    begun = time.monotonic()
    examples = sft.examples(shown, plan.examples)
    keep("warm_start", sft.warm_start(policy, examples, rate=plan.rate, batch=plan.batch), begun)
    begun = time.monotonic()
    keep("after", look(policy, court, [*shown, *unseen], plan.answers), begun)
    if not applied(told["after"]):
        count = len(told["after"])
        keep("reward", f"not run: none of {count} edits applied after the warm start", begun)
        return told
    begun = time.monotonic()
    steps = reinforce(policy, court, shown, plan, end - 60)
    keep("reward", steps if steps else "not run: the time was spent", begun)
    if steps:
        begun = time.monotonic()
        keep("trained", look(policy, court, [*shown, *unseen], plan.answers), begun)
    return told


def reinforce(
    policy: lm.LmPolicy, court: Court, rows: Sequence[Row], plan: Plan, end: float
) -> list[dict[str, Any]]:
    """Steps of GRPO, one kernel after the other, until the time is spent; a line for each."""
    optimiser = torch.optim.AdamW(list(policy.parameters()), plan.reward_rate, weight_decay=0.0)
    pays = ladder.schedule(plan.schedule)
    found = []
    for step in range(plan.steps):
        if time.monotonic() > end:
            break
        ends: list[Judged] = []

        def reward(rollout: Any, ends: list[Judged] = ends) -> list[float]:
            ends += edit_rl.judge(court, rollout.contexts, rollout.answers)
            return [pays.reward(e) for e in ends]

        row = rows[step % len(rows)]
        done = grpo_step(policy, optimiser, [row], reward, group=plan.group, objective=Objective(beta=0.02))
        counts = {
            str(o): sum(e.outcome is o for e in ends) for o in Outcome if any(e.outcome is o for e in ends)
        }
        found.append(
            {"kernel": row.id, "reward": round(done.reward, 4), "kl": round(done.kl, 6), "outcomes": counts}
        )
    return found


def record(folder: Path, target: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write what `run` left in `folder`. Raises OSError where it left nothing."""
    told = json.loads((folder / PHASES).read_text())
    return elsewhere.record(
        target / elsewhere.device(folder).slug / f"{EXPERIMENT}.json",
        folder,
        experiment=EXPERIMENT,
        samples={k: v for k, v in told.items() if k != "plan"},
        parameters={**told["plan"], "weights": lm.WEIGHTS, "shown": list(SHOWN), "unseen": list(UNSEEN)},
        script="lethe/rl/lm_rl.py",
        sources=["data/corpus/house"],
        command="python -m lethe.rl.lm_rl run",
    )


def _dry(out: Path) -> None:
    """The whole path with a model of a few thousand weights."""
    from lethe.rl.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    plan = Plan(examples=2, batch=2, answers=1, steps=1, group=2, sampling=lm.Sampling(longest=8))
    policy = lm.LmPolicy(tiny_model(tokenizer), tokenizer, prompts.ask, rank=2, sampling=plan.sampling)
    rows = edit_rl.levels_of((SHOWN[:1], UNSEEN[:1]))
    with Court() as court:
        run(out, policy, court, (rows[0], rows[1]), plan, 600)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.rl.lm_rl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--seconds", type=float, default=1200.0)
    go.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    go.add_argument("--workers", type=int, default=0)
    go.add_argument("--weights", type=Path, help="a folder that holds the model's GGUF file")
    go.add_argument("--examples", type=int, default=Plan.examples)
    go.add_argument("--answers", type=int, default=Plan.answers)
    go.add_argument("--steps", type=int, default=Plan.steps)
    for command in (go, commands.add_parser("dry")):
        command.add_argument("--out", type=Path, required=True)
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    try:
        if given.command == "record":
            print(record(given.folder))
            return 0
        if given.command == "dry":
            elsewhere.note(given.out, "cpu")
            _dry(given.out)
            return 0
        cuda = given.device == "cuda" or (given.device == "auto" and torch.cuda.is_available())
        elsewhere.note(given.out, "cuda" if cuda else "cpu")
        plan = Plan(examples=given.examples, answers=given.answers, steps=given.steps)
        model, tokenizer = lm.small_model(given.weights)
        policy = lm.LmPolicy(
            model.to("cuda" if cuda else "cpu"), tokenizer, prompts.chat(tokenizer), sampling=plan.sampling
        )
        rows = edit_rl.levels_of((SHOWN, UNSEEN))
        with Court(given.out / edit_rl.VERDICTS, given.workers) as court:
            run(given.out, policy, court, (rows[0], rows[1]), plan, given.seconds)
    except (lm.ModelMissing, OSError, RuntimeError) as error:
        print(f"lm_rl: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
