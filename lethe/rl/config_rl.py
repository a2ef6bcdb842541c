"""Launch parameters by reinforcement learning, against searches that spend the same measurements.

The reward of a configuration is the logarithm of its speed; what is common to a group, the shape's own
scale, drops out of the advantages. A failing launch earns one unit less than the slowest of its group.
After every step the policy's own choice, and the fastest configuration that it has measured, are held
against the best of the table: the regret. Beside it stand

* random search: the same number of measurements, spread evenly over the shapes, without repetition;
* exhaustive search: every configuration of every shape;
* Triton's autotuner: every configuration too, for each new shape, ranked by its own benchmark;
* what costs no measurement at a new shape: the kernels' selector, the best single configuration for all
training
  shapes, the best one of the nearest training shape.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lethe.rl.grpo import Objective
from lethe.rl.knob_policy import KnobPolicy, features
from lethe.rl.launch_table import Bench, Shape, Table
from lethe.rl.train import Rollout, grpo_step


@dataclass(frozen=True)
class Plan:
    """How a policy is trained."""

    steps: int = 40
    group: int = 8
    rate: float = 3e-3
    epochs: int = 2
    beta: float = 0.01
    look: int = 3
    """Steps between two points of the curve."""


USUAL = Plan()


@dataclass(frozen=True)
class Point:
    """Regrets, averaged over the training shapes, once so many measurements are spent."""

    spent: int
    greedy: float
    """Of what the policy would choose; NaN for a method without one."""
    best: float
    """Of the fastest configuration measured so far."""


def rewards(bench: Bench, rollout: Rollout, group: int) -> list[float]:
    """Logarithm of the speed of each sampled configuration."""
    times = [bench.measure(s, i) for s, i in zip(rollout.contexts, rollout.answers, strict=True)]
    found = []
    for at in range(0, len(times), group):
        part = times[at : at + group]
        worst = max((t for t in part if math.isfinite(t)), default=1.0)
        found += [-math.log(t) if math.isfinite(t) else -math.log(worst) - 1.0 for t in part]
    return found


def train(table: Table, plan: Plan = USUAL, seed: int = 0) -> tuple[KnobPolicy, list[Point]]:
    """A policy trained from nothing on the table's training shapes, and its curve."""
    policy, bench = KnobPolicy(table.space, seed), Bench(table, seed)
    optimiser = torch.optim.Adam(policy.parameters(), plan.rate)
    objective = Objective(beta=plan.beta)
    curve = []
    for step in range(plan.steps):
        grpo_step(
            policy, optimiser, table.train, lambda r: rewards(bench, r, plan.group), group=plan.group,
            objective=objective, epochs=plan.epochs,
        )  # fmt: skip
        if step % plan.look == 0 or step == plan.steps - 1:
            greedy = _mean([_finite(table, s, policy.greedy(s)) for s in table.train])
            curve.append(Point(bench.spent, greedy, _best(bench, table)))
    return policy, curve


def random_search(table: Table, budgets: Sequence[int], seed: int = 0) -> list[Point]:
    """The curve of random search: shapes take turns, each in its own random order."""
    draw, bench = random.Random(seed), Bench(table, seed)
    orders = {s: draw.sample(range(len(table.space)), len(table.space)) for s in table.train}
    turns = [(s, orders[s][k]) for k in range(len(table.space)) for s in table.train]
    curve, at = [], 0
    for budget in sorted(budgets):
        for shape, index in turns[at:budget]:
            bench.measure(shape, index)
        at = max(at, min(budget, len(turns)))
        curve.append(Point(bench.spent, math.nan, _best(bench, table)))
    return curve


def _best(bench: Bench, table: Table) -> float:
    """Mean regret of the fastest measured; a shape that was never measured has its worst configuration's."""
    found = []
    for shape in table.train:
        index = bench.fastest(shape)
        found.append(_worst(table, shape) if index is None else _finite(table, shape, index))
    return _mean(found)


def _finite(table: Table, shape: Shape, index: int) -> float:
    regret = table.regret(shape, index)
    return regret if math.isfinite(regret) else _worst(table, shape)


def _worst(table: Table, shape: Shape) -> float:
    return max(r for i in range(len(table.space)) if math.isfinite(r := table.regret(shape, i)))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


# --- what costs no measurement at a new shape ---------------------------------------------------


def selector(table: Table, shape: Shape) -> float:
    """Regret of the kernels' own selector; below zero where its choice lies outside the space and is
    better."""
    return table.selector[shape] / table.best(shape) - 1


def one_for_all(table: Table) -> int:
    """The configuration with the least mean logarithm of time over the training shapes."""
    scores = [_mean([math.log(table.time(s, i)) for s in table.train]) for i in range(len(table.space))]
    return min(range(len(scores)), key=scores.__getitem__)


def nearest(table: Table, shape: Shape) -> int:
    """The best configuration of the training shape whose features are nearest."""
    f = features([*table.train, shape])
    at = int((f[:-1] - f[-1]).norm(dim=1).argmin())
    return table.ranked(table.train[at])[0]


def autotuner(table: Table, shape: Shape) -> float | None:
    """Regret of the configuration that Triton's own benchmark ranks first; None where it was not run."""
    told = table.autotune.get(shape)
    known = [(t, i) for i, t in enumerate(told or []) if t is not None]
    return table.regret(shape, min(known)[1]) if known else None


def random_regret(table: Table, shape: Shape, budget: int, draws: int = 200) -> float:
    """Mean regret of the fastest of `budget` random configurations."""
    draw = random.Random(0)
    found = []
    for _ in range(draws):
        some = draw.sample(range(len(table.space)), min(budget, len(table.space)))
        found.append(_finite(table, shape, min(some, key=lambda i: table.time(shape, i))))
    return _mean(found)
