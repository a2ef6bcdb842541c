"""Policies over launch parameters on small tables whose optimum is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lethe import provenance
from lethe.rl import config_rl
from lethe.rl.grpo import Objective
from lethe.rl.knob_policy import KnobPolicy
from lethe.rl.launch_space import Space
from lethe.rl.launch_table import Bench, Table, tables
from lethe.rl.train import grpo_step

SPACE = Space("C1", "scan", (("chunk", (0, 32, 64)), ("rows", (4, 8)), ("warps", (1, 2))))
TRAIN = ((1, 512, 256), (8, 512, 256), (1, 2048, 1024), (8, 2048, 1024))
HELD_OUT = ((4, 1024, 512),)


def made(spread=0.0):
    """Serial is best for wide shapes, chunks of 64 for narrow ones, 8 rows and 1 warp; a cell fails."""
    samples = {}
    for shape in (*TRAIN, *HELD_OUT):
        wide = shape[0] * shape[2] >= 2048
        cells = []
        for config in SPACE.configs():
            best = config["chunk"] == (0 if wide else 64)
            time = 100.0 * (1.0 if best else 2.0) * (1.0 if config["rows"] == 8 else 1.3) * config["warps"]
            fails = config == {"chunk": 32, "rows": 4, "warps": 2}
            cells.append([] if fails else [time * (1 + spread * k) for k in (-1, 0, 1)])
        samples[shape] = cells
    return Table(SPACE, samples, TRAIN, HELD_OUT, dict.fromkeys((*TRAIN, *HELD_OUT), 150.0))


def test_an_untrained_policy_chooses_uniformly():
    policy = KnobPolicy(SPACE, seed=3)
    p = policy.probabilities(TRAIN[0])
    assert torch.allclose(p, torch.full_like(p, 1 / len(SPACE)), rtol=1e-5)
    rollout = policy.sample(TRAIN, 4)
    assert torch.allclose(rollout.logps, policy.reference_logps(rollout), rtol=1e-5)
    assert [SPACE.index(tuple(row)) for row in rollout.tokens.tolist()] == list(rollout.answers)


def test_a_choice_never_depends_on_a_later_one():
    policy = KnobPolicy(SPACE)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    one, other = torch.tensor([[1, 0, 0]]), torch.tensor([[1, 1, 1]])
    here, there = (policy.logits(TRAIN[:1], picks) for picks in (one, other))
    assert torch.equal(here[0], there[0]) and torch.equal(here[1], there[1])
    assert not torch.equal(here[2], there[2]), "but on the earlier ones it does"


def test_probabilities_are_those_of_the_samples():
    policy = KnobPolicy(SPACE, seed=1)
    with torch.no_grad():
        policy.head[0].bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    p = policy.probabilities(TRAIN[0])
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    drawn = torch.bincount(torch.tensor(policy.sample(TRAIN[:1], 2000).answers), minlength=len(SPACE)) / 2000
    # five standard deviations of a binomial share
    assert ((drawn - p).abs() <= 5 * (p * (1 - p) / 2000).sqrt()).all()


def test_grpo_finds_the_best_configuration_of_each_shape():
    plan = config_rl.Plan(steps=40, rate=1e-2, look=39)
    policy, curve = config_rl.train(made(0.01), plan)
    assert curve[0].greedy > 0 and curve[-1].greedy == 0 and curve[-1].best == 0
    assert curve[-1].spent <= len(TRAIN) * len(SPACE)
    assert all(made().regret(s, policy.greedy(s)) == 0 for s in TRAIN)


def test_equal_seeds_train_equal_policies():
    plan = config_rl.Plan(steps=3, look=1)
    one, other = (config_rl.train(made(0.05), plan, seed=7)[1] for _ in range(2))
    assert one == other


def test_a_group_of_equal_rewards_changes_nothing():
    policy = KnobPolicy(SPACE)
    before = [p.clone() for p in policy.parameters()]
    optimiser = torch.optim.Adam(policy.parameters(), 0.1)
    grpo_step(
        policy, optimiser, TRAIN, lambda r: [1.0] * len(r.answers), group=4, objective=Objective(beta=0.1)
    )
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_failing_launch_earns_less_than_the_slowest_of_its_group():
    table = made()
    bench = Bench(table)
    policy = KnobPolicy(SPACE)
    sampled = policy.sample(TRAIN[:1], len(SPACE))
    rollout = replace(sampled, answers=list(range(len(SPACE))))
    earned = config_rl.rewards(bench, rollout, len(SPACE))
    fails = SPACE.index((1, 0, 1))
    assert all(map(math.isfinite, earned))
    assert earned[fails] == min(earned[:fails] + earned[fails + 1 :]) - 1.0


def test_a_cell_is_paid_once():
    bench = Bench(made())
    assert bench.measure(TRAIN[0], 3) == bench.measure(TRAIN[0], 3)
    assert bench.spent == 1 and bench.fastest(TRAIN[0]) == 3 and bench.fastest(TRAIN[1]) is None


def test_random_search_ends_at_the_optimum_when_it_has_tried_everything():
    table = made()
    everything = len(TRAIN) * len(SPACE)
    curve = config_rl.random_search(table, [4, 12, everything], seed=1)
    assert [p.spent for p in curve] == [4, 12, everything]
    assert curve[0].best >= curve[1].best >= curve[2].best == 0


def test_what_costs_no_measurement():
    table = made()
    assert config_rl.selector(table, TRAIN[0]) == 0.5
    assert config_rl.nearest(table, HELD_OUT[0]) in {table.ranked(s)[0] for s in TRAIN}
    assert config_rl.random_regret(table, TRAIN[0], len(SPACE)) == 0
    assert config_rl.autotuner(table, TRAIN[0]) is None, "it was not run there"
    times = [None] + [float(20 - i) for i in range(1, len(SPACE))]
    tuned = Table(SPACE, table.samples, TRAIN, HELD_OUT, table.selector, {TRAIN[0]: times})
    assert config_rl.autotuner(tuned, TRAIN[0]) == table.regret(TRAIN[0], len(SPACE) - 1)


def test_table_of_a_record_leaves_incomplete_shapes_out():
    cells = [[10.0, 11.0, 12.0]] * 11 + [None]
    own = {"us": [9.0, 9.5, 10.0]}
    rows = [
        {"op": "C1", "compiled": 12, "of": 12},
        {"op": "C1", "shape": [1, 512, 256], "us": cells, "selector": own, "errors": {"11": "no"}},
        {"op": "C1", "shape": [8, 512, 256], "skipped": "the time was spent"},
        {"op": "C1", "shape": [1, 512, 256], "autotune_us": [5.0] * 12},
    ]
    told = {"spaces": [SPACE.facts()], "shapes": [list(s) for s in TRAIN], "held_out": []}
    record = provenance.Measurement(
        experiment="launch_table", date="", device=provenance.Device("H200", "cuda"), versions={}, command="",
        parameters=told, samples=rows, script="", sources={},
    )  # fmt: skip
    table = tables(record)["C1"]
    assert table.train == (TRAIN[0],) and table.selector[TRAIN[0]] == 9.5
    assert table.time(TRAIN[0], 0) == 11.0 and table.time(TRAIN[0], 11) == math.inf
    assert table.scatter() == pytest.approx(2 / 11) and TRAIN[0] in table.autotune
