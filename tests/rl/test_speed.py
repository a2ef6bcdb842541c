"""The judge's clock: what is slower, what is faster, and what is wrong while it is timed."""

from __future__ import annotations

import pytest

from lethe.audit import house
from lethe.rl.speed import Speed, Stopwatch, timeable
from lethe.verifier.problem import Candidate

KERNEL = "reduction_sum__cpp"
CALL = "_lib.sum_mid(x.data_ptr(), out.data_ptr(), b, d, w)"


def edited(candidate, new):
    assert CALL in candidate.source
    return Candidate("edited", candidate.source.replace(CALL, new), candidate.language)


def test_only_native_kernels_are_timed():
    rows = house.load()
    assert timeable(rows.get(KERNEL).candidate) and not timeable(rows.get("reduction_sum__a").candidate)


def test_speed_survives_its_facts():
    for speed in (Speed((1.0, 1.25, 0.5)), Speed((), valid=False, reason="a wrong value")):
        assert Speed.of(speed.facts()) == speed


def test_nothing_measured_is_not_fast():
    assert Speed(()).ratio == 0.0 and not Speed(()).faster


@pytest.mark.slow
def test_a_kernel_that_works_forty_times_is_slower_and_one_that_is_wrong_is_not_valid():
    row = house.load().get(KERNEL)
    slow = edited(row.candidate, f"[{CALL} for _ in range(40)]")
    memo = edited(row.candidate, f"{CALL}\n        out.mul_(1.001)")
    with Stopwatch(rounds=5) as watch:
        behind = watch.compare(row.problem, slow, row.candidate)
        ahead = watch.compare(row.problem, row.candidate, slow)
        wrong = watch.compare(row.problem, memo, row.candidate)
        gone = watch.compare(row.problem, edited(row.candidate, "raise RuntimeError"), row.candidate)
    assert behind.valid and not behind.faster and behind.ratio < 1 < ahead.ratio
    assert not wrong.valid and "while it was timed" in wrong.reason
    assert not gone.valid and "run_failed" in gone.reason
