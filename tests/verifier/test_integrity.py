"""What the probes beyond the twelve contracts charge, and what they leave to the contracts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Verdict
from tests.verifier.problem_sources import rows

TUNED = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({{"BLOCK": b}}) for b in {blocks}], key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        double[({programs},)](x, y, x.numel())
        return y
"""
PROGRAMS = "triton.cdiv(x.numel(), 128)"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    torch.set_num_threads(1)
    with Judge(device="cpu", quick=True) as running:
        yield running


def tuned(judge: Judge, blocks: list[int], programs: str = PROGRAMS) -> Verdict:
    problem = load_problem(rows("torch.randn(9, 30)", "x * 2"))
    source = TUNED.format(blocks=blocks, programs=programs)
    return judge.verify(problem, load_candidate(source), gates=["CMP-01"])


def test_where_the_first_configuration_is_wrong_the_verdict_says_which_others_are(judge: Judge) -> None:
    verdict = tuned(judge, [64, 128, 32, 256])
    (gate,) = verdict.gates
    assert gate.status is GateStatus.FAIL
    for f in gate.findings:
        assert f.extra["configurations"] == ["double: configuration 0 of 4 (BLOCK=64)"]
        assert "configuration 0 of 4 (BLOCK=64)" in f.message
    (found,) = verdict.integrity
    assert found.mechanism == "configuration" and found.extra["configuration"] == 0
    assert found.extra["wrong"] == [0, 2] and found.extra["right"] == [1, 3]
    assert found.message.endswith("wrong under 0, 2, right under 1, 3")


def test_every_wrong_configuration_is_named_beside_a_right_first(judge: Judge) -> None:
    verdict = tuned(judge, [128, 64, 256, 32])
    assert verdict.gates[0].status is GateStatus.PASS
    (found,) = verdict.integrity
    assert found.extra["configuration"] == 1
    assert found.extra["wrong"] == [1, 3] and found.extra["right"] == [2]


@pytest.mark.parametrize(("blocks", "programs"), [([64, 32], PROGRAMS), ([64], PROGRAMS)])
def test_where_no_configuration_is_right_the_choice_is_not_charged(judge, blocks, programs) -> None:
    verdict = tuned(judge, blocks, programs)
    assert verdict.gates[0].status is GateStatus.FAIL and not verdict.integrity


def test_a_kernel_without_a_choice_names_none(judge: Judge) -> None:
    verdict = tuned(judge, [64])
    assert all("configurations" not in f.extra for f in verdict.gates[0].findings)
