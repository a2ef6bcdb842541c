"""Tables about the verifier as a reward: the ladder, the red team's earnings, searches, edits."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lethe.audit.lines import Line, verdict_of
from lethe.evidence.specimens import Kind
from lethe.paper.glue import count, percent
from lethe.provenance import Measurement
from lethe.rl import config_rl, ladder, mutations
from lethe.rl.config_rl import Plan, Point
from lethe.rl.knob_policy import KnobPolicy
from lethe.rl.launch_table import Table
from lethe.rl.outcomes import Judged, Outcome, judged

MISSING = "not measured yet"

WORDS = {
    Outcome.NOT_APPLIED: "edit did not apply",
    Outcome.DID_NOT_RUN: "does not compile or run",
    Outcome.SANDBOX: "stopped by the sandbox",
    Outcome.BROKE_CONTRACT: "breaks a contract",
    Outcome.UNTIMED: "correct, not timed",
    Outcome.NOT_FASTER: "correct, not faster",
    Outcome.FASTER: "correct and faster",
    Outcome.UNDECIDED: "nobody could decide",
}
PUBLISHED = {
    Outcome.NOT_APPLIED: "not_applied",
    Outcome.DID_NOT_RUN: "exec_fail",
    Outcome.SANDBOX: "sandbox",
    Outcome.BROKE_CONTRACT: "broke_correctness",
    Outcome.NOT_FASTER: "correct_not_faster",
}
"""The published record's names; it found nothing faster and timed everything that was correct."""


def ladder_table() -> pd.DataFrame:
    """What each outcome earns in each schedule; a kernel that is faster is shown at twice the speed."""
    rows = []
    for outcome, words in WORDS.items():
        end = Judged(outcome, "", speedup=2.0 if outcome is Outcome.FASTER else None)
        paid = {name: s.reward(end) for name, s in ladder.SCHEDULES.items()}
        shown = {name: "no part in its group" if r != r else f"{r:.2f}" for name, r in paid.items()}
        rows.append({"outcome": words + (" (twice as fast)" if outcome is Outcome.FASTER else ""), **shown})
    return pd.DataFrame(rows)


def earnings(lines: Iterable[Line]) -> pd.DataFrame:
    """What the red team's cheats and their honest twins would be paid, by outcome."""
    ends: Counter[tuple[str, Outcome]] = Counter()
    for line in lines:
        kind = Kind(line["extra"]["kind"])
        if kind in (Kind.CHEAT, Kind.HONEST):
            who = "cheats" if kind is Kind.CHEAT else "honest twins"
            ends[who, judged(verdict_of(line)).outcome] += 1
    rows = []
    for (who, outcome), n in sorted(ends.items()):
        end = Judged(outcome, "")
        paid = {name: s.reward(end) for name, s in ladder.SCHEDULES.items()}
        rows.append(
            {"who": who, "outcome": WORDS[outcome], "rows": n}
            | {name: "–" if r != r else f"{r:.2f}" for name, r in paid.items()}
        )
    return pd.DataFrame(rows or [{"who": MISSING, "outcome": "", "rows": ""}])


def paid_cheats(lines: Iterable[Line]) -> int:
    """Cheats that would earn more than a kernel that runs and is wrong."""
    wrong = ladder.PAPER.fails_gates
    cheats = [line for line in lines if Kind(line["extra"]["kind"]) is Kind.CHEAT]
    return sum(ladder.PAPER.reward(judged(verdict_of(line))) > wrong for line in cheats)


# --- launch parameters --------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """Policies of one kernel, one a seed, with their curves and random search's at the same budgets."""

    table: Table
    policies: list[KnobPolicy]
    curves: list[list[Point]]
    random: list[list[Point]]


def trained(table: Table, seeds: int, plan: Plan = config_rl.USUAL) -> Trained:
    """Train `seeds` policies, and search at random with the measurements that each had spent."""
    found = [config_rl.train(table, plan, seed) for seed in range(seeds)]
    curves = [curve for _, curve in found]
    random = [
        config_rl.random_search(table, sorted({p.spent for p in curve}), seed)
        for seed, curve in enumerate(curves)
    ]
    return Trained(table, [policy for policy, _ in found], curves, random)


def methods_table(runs: dict[str, Trained]) -> pd.DataFrame:
    """Mean regret of each method on the shapes it was tuned on and on those it never saw."""
    columns = ["kernel", "method", "measurements", "regret", "regret on unseen shapes"]
    rows: list[list[str]] = []
    for op, run in runs.items():
        t, last = run.table, [curve[-1] for curve in run.curves]
        spent = round(statistics.fmean(p.spent for p in last))
        unseen = [_mean(t, p.greedy) for p in run.policies]
        a_shape = max(1, round(spent / max(1, len(t.train))))
        rows += [
            [op, "exhaustive search", count(len(t.space) * len(t.train)), percent(0.0), "measure again"],
            [op, "GRPO: the policy's choice", count(spent), _range([p.greedy for p in last]), _range(unseen)],
            [op, "GRPO: fastest it measured", count(spent), _range([p.best for p in last]), "–"],
            [
                op, "random search", count(spent), _range([r[-1].best for r in run.random]),
                f"{percent(_over(t, lambda s, t=t, n=a_shape: config_rl.random_regret(t, s, n)))} "
                f"({a_shape} each)",
            ],
            [op, "kernels' selector", "0", _both(t, config_rl.selector), _unseen(t, config_rl.selector)],
            [op, "one for all shapes", count(len(t.space) * len(t.train)), *_index(t,
            config_rl.one_for_all(t))], [
                op, "best of the nearest shape", count(len(t.space) * len(t.train)), percent(0.0),
                percent(_over(t, lambda s, t=t: t.regret(s, config_rl.nearest(t, s)))),
            ],
            [op, "Triton's autotuner", f"{len(t.space)} a shape", _autotuner(t, t.train), _autotuner(t,
            t.held_out)],
        ]  # fmt: skip
    return pd.DataFrame(rows or [[MISSING, "", "", "", ""]], columns=columns)


def _mean(t: Table, choose: Any) -> float:
    return statistics.fmean(t.regret(s, choose(s)) for s in t.held_out) if t.held_out else float("nan")


def _over(t: Table, regret: Any) -> float:
    return statistics.fmean(regret(s) for s in t.held_out) if t.held_out else float("nan")


def _both(t: Table, regret: Any) -> str:
    return percent(statistics.fmean(regret(t, s) for s in t.train))


def _unseen(t: Table, regret: Any) -> str:
    return percent(statistics.fmean(regret(t, s) for s in t.held_out)) if t.held_out else "–"


def _index(t: Table, at: int) -> tuple[str, str]:
    train = percent(statistics.fmean(t.regret(s, at) for s in t.train))
    return train, percent(_over(t, lambda s: t.regret(s, at))) if t.held_out else "–"


def _autotuner(t: Table, shapes: Sequence[Any]) -> str:
    known = [r for s in shapes if (r := config_rl.autotuner(t, s)) is not None]
    return f"{percent(statistics.fmean(known))} ({len(known)} shapes)" if known else "–"


def _range(values: Sequence[float]) -> str:
    """``"1.2%"``, or the least and the largest of several seeds."""
    known = [v for v in values if v == v]
    if not known:
        return "–"
    low, high = percent(min(known)), percent(max(known))
    return low if low == high else f"{low} to {high}"


def choices_table(runs: dict[str, Trained]) -> pd.DataFrame:
    """For each unseen shape: the best configuration, the first policy's, and the selector's time over the
    best."""
    rows = []
    for op, run in runs.items():
        configs = list(run.table.space.configs())
        for shape in run.table.held_out:
            best, chosen = run.table.ranked(shape)[0], run.policies[0].greedy(shape)
            rows.append(
                {
                    "kernel": op,
                    "shape": "B{} L{} D{}".format(*shape),
                    "best": _said(configs[best]),
                    "µs": f"{run.table.best(shape):.1f}",
                    "policy": "the best" if chosen == best else _said(configs[chosen]),
                    "policy's regret": percent(run.table.regret(shape, chosen)),
                    "selector's regret": percent(config_rl.selector(run.table, shape)),
                }
            )
    return pd.DataFrame(rows or [{"kernel": MISSING, "shape": ""}])


def _said(config: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items())


# --- edits --------------------------------------------------------------------------------------


def taxonomy(samples: Sequence[dict[str, Any]], published: dict[str, Any]) -> pd.DataFrame:
    """How attempts ended, ours beside the published ones."""
    ours = Counter(Outcome(s["outcome"]) for s in samples)
    total = published["attempts"]
    rows = []
    for outcome, words in WORDS.items():
        theirs = published[PUBLISHED[outcome]] if outcome in PUBLISHED else None
        if not ours[outcome] and theirs is None:
            continue
        rows.append(
            {
                "outcome": words,
                "here": count(ours[outcome]) if samples else MISSING,
                "share": percent(ours[outcome], len(samples)) if samples else "",
                "published": "–" if theirs is None else count(theirs),
                "published share": "–" if theirs is None else percent(theirs, total),
            }
        )
    rows.append(
        {
            "outcome": "attempts", "here": count(len(samples)), "share": "", "published": count(total),
            "published share": "",
        }
    )  # fmt: skip
    return pd.DataFrame(rows)


def operators_table(samples: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """What became of each scripted operator, and how often it was drawn in the first and last third."""
    if not samples:
        return pd.DataFrame([[MISSING]], columns=["operator"])
    steps = max(s["step"] for s in samples) + 1
    rows = []
    for name in mutations.NAMES:
        mine = [s for s in samples if s["operator"] == name]
        if not mine:
            continue
        ends = Counter(Outcome(s["outcome"]) for s in mine)
        right = ends[Outcome.UNTIMED] + ends[Outcome.NOT_FASTER] + ends[Outcome.FASTER]
        paid = [s["reward"] for s in mine if s["reward"] is not None]
        rows.append(
            {
                "operator": name,
                "attempts": len(mine),
                "applied": len(mine) - ends[Outcome.NOT_APPLIED],
                "correct": right,
                "faster": ends[Outcome.FASTER],
                "mean reward": f"{statistics.fmean(paid):.2f}" if paid else "–",
                "first third": _third(samples, name, 0, steps),
                "last third": _third(samples, name, 2, steps),
            }
        )
    return pd.DataFrame(rows)


def _third(samples: Sequence[dict[str, Any]], name: str, which: int, steps: int) -> str:
    part = [s for s in samples if which * steps <= 3 * s["step"] < (which + 1) * steps]
    return percent(sum(s["operator"] == name for s in part), len(part))


def speedups(samples: Sequence[dict[str, Any]]) -> list[float]:
    """Of the attempts that were correct and timed."""
    return sorted(s["speedup"] for s in samples if s["speedup"] is not None)


def model_table(record: Measurement | None) -> pd.DataFrame:
    """How the small language model's edits ended, by phase."""
    if record is None:
        return pd.DataFrame([[MISSING, ""]], columns=["phase", "edits"])
    names = {"before": "as it is", "after": "after the warm start", "trained": "after GRPO"}
    rows = []
    for phase, words in names.items():
        told = record.samples.get(phase)
        if not isinstance(told, list):
            continue
        ends = Counter(Outcome(line["outcome"]) for line in told)
        shown = set(record.parameters["shown"])
        for label, mine in (("shown", True), ("not shown", False)):
            part = [line for line in told if (line["kernel"] in shown) == mine]
            if part:
                ends = Counter(Outcome(line["outcome"]) for line in part)
                rows.append(
                    {"phase": words, "kernels": label, "edits": len(part)}
                    | {WORDS[o]: ends[o] for o in WORDS if any(x["outcome"] == o for x in told)}
                )
    return pd.DataFrame(rows).fillna(0)


def model_arm(record: Measurement | None) -> str:
    """One phrase for the prose: what came of training the language model by reward."""
    if record is None:
        return MISSING
    told = record.samples.get("reward")
    if isinstance(told, list):
        ends: Counter[str] = Counter()
        for step in told:
            ends.update(step["outcomes"])
        applied = ends.total() - ends[Outcome.NOT_APPLIED]
        return f"run for {len(told)} steps, in which {applied} of {ends.total()} answers applied"
    return str(told) if told is not None else "not run: the time was spent before it"
