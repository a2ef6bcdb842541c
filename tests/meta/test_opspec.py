"""A plain pair of callables: nested outputs, several dtypes, a hand-written oracle, named sizes."""

from __future__ import annotations

import pytest
import torch

from lethe.verifier.judge import Judge
from lethe.verifier.problem import OpSpec, ProblemError, candidate_from_callable, problem_from_spec
from lethe.verifier.verdict import GateStatus
from tests.meta.kernels import callables


def reference_moments(x, weight):
    return {
        "moments": (x.mean(-1), x.var(-1, unbiased=False)),
        "weighted": (x * weight).sum(-1),
    }


def draw_moments(rows, width):
    return [torch.randn(rows, width), torch.randn(width)]


MOMENTS = OpSpec("moments", reference_moments, draw_moments, sizes={"rows": 12, "width": 80})


def reference_matmul(a, b):
    return a @ b


def draw_matmul(m, k, n):
    return [torch.randn(m, k), torch.randn(k, n)]


def oracle_matmul(a, b):
    assert a.dtype == b.dtype == torch.float64
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)


MATMUL = OpSpec(
    "matmul",
    reference_matmul,
    draw_matmul,
    sizes={"m": 12, "k": 96, "n": 10},
    oracle=oracle_matmul,
    dtypes=("float32", "float16", "bfloat16"),
)


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def verdict(judge, spec, function, gates=None):
    return judge.verify(problem_from_spec(spec), candidate_from_callable(function), gates=gates)


def test_honest_function_with_nested_outputs_is_clean(judge):
    v = verdict(judge, MOMENTS, callables.moments)
    assert v.clean, [(g.gate, g.detail, g.findings[:1]) for g in v.gates if g.status not in ("pass",)]
    assert v.gate("CMP-02").status is GateStatus.PASS
    assert v.gate("CMP-03").status is GateStatus.PASS


def test_a_list_for_a_tuple_is_no_breach(judge):
    assert verdict(judge, MOMENTS, callables.moments_as_a_list, ["CMP-01"]).clean


def test_an_ignored_input_is_found_in_value_and_gradient(judge):
    v = verdict(judge, MOMENTS, callables.moments_without_weight, ["CMP-01", "CMP-02"])
    assert v.failed == ("CMP-01", "CMP-02")
    assert {f.output for f in v.gate("CMP-01").findings} == {"out['weighted']"}
    missing = {f.output for f in v.gate("CMP-02").findings if f.mechanism == "missing_gradient"}
    assert missing == {"grad:input:1"}


def test_declared_dtypes_are_each_judged(judge):
    v = verdict(judge, MATMUL, callables.matmul, ["PRC-01"])
    measured = v.gate("PRC-01").measured
    assert v.clean and {"float32:error", "float16:error"} <= set(measured)


def test_narrow_operands_fail_where_they_are_narrower_than_declared(judge):
    v = verdict(judge, MATMUL, callables.half_inside, ["PRC-01"])
    found = {(f.case.split(":")[0], f.mechanism) for f in v.gate("PRC-01").findings}
    assert ("float32", "bfloat16") in found and not any(dtype == "bfloat16" for dtype, _ in found)


def test_the_oracle_decides_against_a_wrong_reference(judge):
    def skewed(a, b):
        return a @ b * 1.001

    spec = OpSpec("skewed", skewed, draw_matmul, sizes=MATMUL.sizes, oracle=oracle_matmul)
    assert verdict(judge, spec, callables.matmul, ["CMP-01"]).clean


def test_a_local_function_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="module level"):
        candidate_from_callable(lambda x: x)


def test_inputs_that_do_not_take_the_sizes_are_refused_in_one_sentence(judge):
    spec = OpSpec("bad", reference_matmul, list, sizes={"m": 3})
    v = judge.verify(problem_from_spec(spec), candidate_from_callable(callables.matmul))
    assert v.status == "reference_failed" and v.message
    with pytest.raises(ProblemError):
        raise ProblemError(v.message)
