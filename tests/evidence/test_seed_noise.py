"""Differences that other seeds explain, and differences that they do not."""

from __future__ import annotations

import math
import random

import pytest

from lethe.evidence import gdn_training_judged as judging
from lethe.evidence import seed_noise
from lethe.evidence.gdn_gpu_training import CONTROL, DROPPED, LEARNT, LONG, NATIVE, TORCH, plan
from lethe.evidence.sequence_tasks import TASKS


@pytest.mark.parametrize(
    ("share", "freedom", "t"),
    [(0.5, 1, 1.0), (0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.99, 3, 5.8409), (0.9, 4, 2.1318),
     (0.95, 7, 2.3646), (0.99, 10, 3.1693), (0.999, 11, 4.4370), (0.95, 120, 1.9799)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(share, freedom, t):
    assert seed_noise.student(share, freedom) == pytest.approx(t, abs=6e-5)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_a_share_outside_of_zero_to_one_is_refused(share):
    with pytest.raises(ValueError, match="not between 0 and 1"):
        seed_noise.student(share, 3)


def test_another_draw_of_seeds_is_rejected_as_often_as_is_said(monkeypatch):
    """3,000 pairs of normal draws; the bounds are four standard deviations of that binomial."""
    monkeypatch.setattr(seed_noise, "ERROR", 0.2)
    r, seeds, trials = random.Random(0), 4, 3000
    quantile = seed_noise.student(0.9, seeds - 1)
    monkeypatch.setattr(seed_noise, "student", lambda share, freedom: quantile)
    draws = ([[r.gauss(3.0, 2.0) for _ in range(seeds)] for _ in range(2)] for _ in range(trials))
    rejected = sum(not seed_noise.compare(*pair, comparisons=2).within for pair in draws)
    assert abs(rejected / trials - 0.1) < 4 * math.sqrt(0.1 * 0.9 / trials)


def test_distances_are_in_spreads():
    found = seed_noise.compare([1.0, 2.0, 3.0], [3.0, 4.0, 5.0])
    assert (found.reference, found.candidate, found.spread, found.apart) == (2.0, 4.0, 1.0, 2.0)
    assert found.allowed == pytest.approx(9.9248 * math.sqrt(2 / 3), abs=1e-3) and found.within
    assert not seed_noise.compare([1.0, 2.0, 3.0], [11.0, 12.0, 13.0]).within


def test_what_is_not_finite_or_has_no_spread_is_never_noise():
    assert not seed_noise.compare([1.0, 2.0], [1.0, math.nan]).within
    assert not seed_noise.compare([1.0, math.inf], [1.0, 2.0]).within
    assert not seed_noise.compare([1.0, 1.0], [1.0, 1.0]).within
    for pair in ([[1.0], [1.0]], [[1.0, 2.0], [1.0]]):
        with pytest.raises(ValueError, match="two at least"):
            seed_noise.compare(*pair)


# --- trainings ----------------------------------------------------------------------------------


def line(backend: str, by: float = 0.0, member: str = "gdn", **other) -> dict:
    """Curves of four seeds that fall from 4 to 1 and end 0.1 apart; `by` is added to them."""
    curve = [4.0 - 3.0 * i / 29 for i in range(30)]
    losses = [[x + by + 0.1 * seed for x in curve] for seed in range(4)]
    row = {
        "kind": "training", "member": member, "backend": backend, "steps": 300, "length": 128, "batch": 4,
        "seeds": 4, "dv": 64, "losses": dict.fromkeys(TASKS, losses), "memoryless": dict.fromkeys(TASKS, 3.0),
        "non_finite": {"losses": 0, "gradients": 0}, "learnt": dict.fromkeys(TASKS, True), "as_asked": True,
    }  # fmt: skip
    return row | other


@pytest.mark.parametrize(
    ("native", "holds"),
    [
        (line(NATIVE, by=0.05), True),
        (line(NATIVE, by=9.0), False),
        (line(NATIVE, learnt=dict.fromkeys(TASKS, False)), False),
        (line(NATIVE, non_finite={"losses": 0, "gradients": 1}), False),
        (line(NATIVE, as_asked=False), False),
        (line(NATIVE, losses=dict.fromkeys(TASKS, [[3.0, None]] * 4)), False),
        (line(DROPPED, by=9.0, learnt=dict.fromkeys(TASKS, False)), True),
        (line(DROPPED, by=0.05), False),
        (line(DROPPED, by=9.0, as_asked=False), False),
    ],
)
def test_a_training_holds_if_all_of_it_does_and_the_control_if_it_is_noticed(native, holds):
    found = judging.judged([native, line(TORCH)])
    assert [one.task for one in found] == list(TASKS)
    assert all(one.holds is holds for one in found), found
    assert not judging.uncompared([native, line(TORCH)])


def test_one_part_of_a_curve_is_enough_to_be_rejected():
    """The same end, learnt much later; and the same area under the curve, with another end."""
    late, other = line(NATIVE), line(NATIVE)
    late["losses"] = {t: [[9.0] * 27 + c[27:] for c in curves] for t, curves in late["losses"].items()}
    other["losses"] = {
        t: [[x - 1.0 for x in c[:27]] + [x + 9.0 for x in c[27:]] for c in curves]
        for t, curves in other["losses"].items()
    }
    for row, part in ((late, "curve"), (other, "end")):
        for one in judging.judged([row, line(TORCH)]):
            assert [name for name, compared in one.parts.items() if not compared.within] == [part]
            assert not one.holds


def test_lines_are_compared_with_torch_of_the_same_training_alone():
    rows = [
        line(NATIVE),
        line(NATIVE, steps=4000),
        line(NATIVE, member="kda"),
        line(TORCH),
        line(TORCH, steps=4000),
        line(TORCH, member="gla"),
        {"kind": "training", "member": "ssd", "backend": NATIVE, "error": "no luck"},
        {"kind": "end", "why": "the time was over"},
    ]
    assert [(j.title, j.native["steps"]) for j in judging.judged(rows)[:: len(TASKS)]] == [
        ("gdn", 300),
        ("gdn", 4000),
    ]
    assert judging.uncompared(rows) == [rows[2], rows[5], rows[6]]


def test_error_is_shared_among_all_comparisons():
    assert len(plan()) * len(TASKS) * 2 == judging.COMPARISONS and LONG in plan()
    (one, _) = judging.judged([line(NATIVE), line(TORCH)])
    share = 1 - seed_noise.ERROR / judging.COMPARISONS
    assert one.parts["end"].allowed == pytest.approx(seed_noise.student(share, 3) * math.sqrt(2 / 4))
    assert CONTROL.member in {training.member for training in plan()} and 0 < LEARNT < 1
