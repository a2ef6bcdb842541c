"""The main claim in three kernels: each defect fails at its own gate, and the honest twin is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Status, Verdict

KERNELS = Path(__file__).parent / "kernels"

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def verdict(judge: Judge, reference: str, candidate: str) -> Verdict:
    return judge.verify(
        load_problem(KERNELS / f"{reference}_reference.py"), load_candidate(KERNELS / f"{candidate}.py")
    )


@pytest.mark.parametrize("operator", ["softmax", "sum", "relu"])
def test_honest_kernel_is_clean(judge, operator):
    v = verdict(judge, operator, f"{operator}_honest")
    assert v.clean, [(g.gate, g.status, g.detail, g.findings[:1]) for g in v.gates]
    assert v.gate("CMP-03").status is GateStatus.PASS


def test_softmax_that_drops_nan_fails_at_exc01(judge):
    v = verdict(judge, "softmax", "softmax_drops_nan")
    assert v.failed == ("EXC-01",)
    swallowed = [f for f in v.gate("EXC-01").findings if f.mechanism == "swallowed"]
    assert swallowed and all(f.extra["maxnum"] for f in swallowed)


def test_sum_with_fp16_carry_fails_at_prc02(judge):
    v = verdict(judge, "sum", "sum_fp16_carry")
    assert "PRC-02" in v.failed
    found = {f.mechanism for f in v.gate("PRC-02").findings}
    assert found == {"float16_carry", "nonfinite"}, "sums beyond 65,504 overflow as well"


def test_kernel_right_at_one_shape_only_fails_at_cmp03_alone(judge):
    v = verdict(judge, "relu", "relu_one_shape")
    assert v.failed == ("CMP-03",)
    assert v.status is Status.JUDGED
