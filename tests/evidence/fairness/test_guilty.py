"""What the rules must not excuse, and honest kernels that the judge once charged by mistake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lethe.evidence.fairness.innocent import kernel, kernelbench, reading
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem

VALUES = "torch.randn(rows, width)"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with Judge(device="cpu", quick=True) as running:
        yield running
    torch.set_num_threads(before)


def judged(judge: Judge, problem: str, candidate: str, *gates: str) -> str:
    return reading(judge.verify(load_problem(problem), load_candidate(candidate), gates=gates))


class TestSignedZero:
    """Rule 15 excuses -0 only where the operator leaves it open."""

    @pytest.mark.parametrize("body", ["x.mT", "-x", "torch.cat([x, x])"])
    def test_a_copy_that_loses_the_sign_of_zero_is_charged(self, judge, body):
        problem = kernelbench(body, VALUES)
        assert judged(judge, problem, kernel(f"{body} + 0.0"), "EXC-02") == "FAIL EXC-02 zero_sign"
        assert judged(judge, problem, kernel(body), "EXC-02") == "clean"

    def test_a_selection_may_return_either_zero(self, judge):
        problem = kernelbench("x.amax(-1)", VALUES)
        assert "zero_sign" not in judged(judge, problem, kernel("x.amax(-1) + 0.0"), "CMP-01", "EXC-02")


class TestReassociation:
    """Rule 36 explains infinities by overflowing partial sums; an infinite input is no partial sum."""

    PROBLEM = kernelbench("x.sum(-1)", VALUES)

    def test_a_lost_sign_of_an_infinite_term_is_charged(self, judge):
        lost = kernel("torch.where(x.isinf(), x.abs(), x).sum(-1)")
        assert judged(judge, self.PROBLEM, lost, "EXC-01") == "FAIL EXC-01 wrong_sign"

    def test_a_compensated_sum_that_makes_nan_of_infinity_is_charged(self, judge):
        body = """total = lost = torch.zeros(x.shape[0])
for t in range(x.shape[1]):
    term = x[:, t] - lost
    now = total + term
    lost, total = (now - total) - term, now
return total"""
        assert judged(judge, self.PROBLEM, kernel(body), "CMP-01", "EXC-01") == "FAIL EXC-01 nan_for_inf"


class TestDistribution:
    """Rule 41 leaves open which infinities meet in a sum, not what two of them make of each other."""

    SIGNS = "(torch.arange(x.shape[-1]) % 2 * 2 - 1)"
    PROBLEM = kernelbench(
        f"torch.maximum((x * {SIGNS}).sum(-1), x.sum(-1))",
        "torch.randn(rows, width)",
        "rows = 40\nwidth = 10",
    )

    def test_a_maximum_that_drops_the_nan_of_two_infinities_is_charged(self, judge):
        drops = kernel(f"torch.fmax((x * {self.SIGNS}).sum(-1), x.sum(-1))")
        assert judged(judge, self.PROBLEM, drops, "EXC-01") == "FAIL EXC-01 inf_for_nan"

    def test_an_infinity_for_a_norm_of_infinity_is_charged(self, judge):
        """(x - mean) / std of one infinity is NaN however the sums are associated."""
        problem = kernelbench(
            "(c := x - x.mean(-1, keepdim=True)) / (c.square().mean(-1, keepdim=True) + 1e-5).sqrt()", VALUES
        )
        body = """c = x - x.mean(-1, keepdim=True)
var = torch.fmax(x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square(), torch.zeros(()))
return c / (var + 1e-5).sqrt()"""
        assert judged(judge, problem, kernel(body), "EXC-01") == "FAIL EXC-01 inf_for_nan"


def test_a_narrow_carry_at_short_rows_is_not_passed_off_as_a_tile_boundary(judge):
    """Rule 31: PRC-02 sees this carry at longer rows only, but its values are wrong at its own width too."""
    problem = kernelbench("x.sum(-1)", VALUES, "rows = 4\nwidth = 32")
    body = """total = torch.zeros(x.shape[:-1], dtype=torch.float16)
for part in x.split(8, -1):
    total = (total.float() + part.sum(-1)).half()
return total.float()"""
    found = judged(judge, problem, kernel(body), "CMP-01", "CMP-03", "PRC-02")
    assert "PRC-02 float16_carry" in found and "CMP-01 value" in found


def test_an_ignored_layout_does_not_hide_that_other_sizes_are_wrong(judge):
    """Rule 31: the sum drops the tail at other widths, and reads every layout as if it were the usual one."""
    problem = kernelbench("x.sum(-1)", VALUES, "rows = 4\nwidth = 32")
    body = (
        "whole = x.as_strided(x.shape, (x.shape[1], 1))\nreturn whole[..., : x.shape[-1] // 32 * 32].sum(-1)"
    )
    found = judged(judge, problem, kernel(body), "CMP-01", "CMP-03", "PRC-02")
    assert found == "FAIL CMP-03 nonfinite, CMP-03 value"


def test_a_kernel_that_raises_where_its_reference_raises_is_not_charged(judge):
    """Rule 1 was asked after the candidate had been charged with its exception."""
    expression = "torch.linalg.cholesky(x @ x.mT + n * torch.eye(n))"
    problem = kernelbench(expression, "torch.randn(n, n)", "n = 6")
    twin = kernel(f"n = x.shape[-1]\nreturn {expression}")
    assert judged(judge, problem, twin, "CMP-01", "EXC-01") == "clean"


def test_a_result_of_one_element_may_have_any_stride(judge):
    """A batch of one: ``y[:, -1]`` has shape (1,) and the stride of a row, which is contiguous."""
    problem = kernelbench("x.sum(-1)", VALUES, "rows = 1\nwidth = 40")
    last = kernel("x.double().cumsum(-1).float()[..., -1]")
    assert judged(judge, problem, last, "CMP-01", "ORD-02") == "clean"


def test_large_floats_are_not_taken_for_whole_numbers(judge):
    """Every float32 from 2^23 on is whole, so the domain is real and EXC-01 applies."""
    problem = kernelbench("x.amax(-1)", "1e9 * torch.randn(rows, width)")
    wrong = kernel("torch.nan_to_num(x, nan=-1e30).amax(-1)")
    assert "EXC-01 swallowed" in judged(judge, problem, wrong, "CMP-01", "EXC-01")
