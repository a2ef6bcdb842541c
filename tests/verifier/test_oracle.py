"""The reference's float64 run tells the truth, and its working-precision run is pinned."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lethe.verifier import oracle
from lethe.verifier.problem import OpSpec
from tests.verifier.references import reference, tensors

NAN, INF = math.nan, math.inf


def test_float64_result_keeps_more_than_float32_digits():
    inst = reference(lambda m, a, b: a @ b, (8, 64), (64, 8))
    a, b = inst.draw(1)
    truth, working = oracle.run_float64(inst, [a, b]), oracle.run_working(inst, [a, b])
    assert truth.dtype is torch.float64 and working.dtype is torch.float32
    assert torch.allclose(truth, a.double() @ b.double(), rtol=1e-14, atol=0)
    assert not torch.equal(truth, working.double())


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.float() * 3.0,
        lambda m, x: x.half().float() * 3.0,
        lambda m, x: x * torch.full((5,), 3.0, dtype=torch.float32),
        lambda m, x: x.to(torch.bfloat16).to(x.dtype) * 3.0,
        lambda m, x: (x * (x == x).float()) * 3.0,
        lambda m, x: torch.stack([x, x]).sum(0, dtype=torch.float32) * 1.5,
    ],
    ids=["float", "half", "constant", "bfloat16", "mask", "dtype-argument"],
)
def test_casts_inside_the_reference_do_not_round_the_truth(function):
    inst = reference(function, (4, 5))
    x = inst.draw(1)
    truth = oracle.run_float64(inst, x)
    assert truth.dtype is torch.float64
    assert torch.equal(truth, x[0].double() * 3.0)


def test_plain_tensor_attributes_and_parameters_are_widened_or_rounded_like_the_judged_dtype():
    inst = reference(lambda m, x: m.f(x) + m.shift, (3, 7), f=lambda: nn.Linear(7, 2))
    inst.module.shift = torch.tensor([0.1, 0.2])
    x = inst.draw(1)
    half = oracle.run_float64(inst, x, "float16")
    weight, bias = (p.detach().half().double() for p in (inst.module.f.weight, inst.module.f.bias))
    assert torch.allclose(
        half, F.linear(x[0].double(), weight, bias) + inst.module.shift.half().double(), rtol=1e-14
    )


def test_rms_norm_keeps_the_default_epsilon_of_the_working_precision():
    inst = reference(lambda m, x: F.rms_norm(x, (50,)), (4, 50))
    x = [1e-4 * inst.draw(1)[0]]
    assert torch.allclose(oracle.run_float64(inst, x), oracle.run_working(inst, x).double(), rtol=1e-5)


def test_neither_module_nor_inputs_are_changed():
    def grow(m, x):
        m.count += 1
        return x.add_(m.count)

    inst = reference(grow, (3,))
    inst.module.register_buffer("count", torch.zeros(()))
    x = inst.draw(1)
    before = x[0].clone()
    for run in (oracle.run_working, oracle.run_float64, oracle.zero_absorbing):
        run(inst, x)
    assert torch.equal(x[0], before) and float(inst.module.count) == 0


def test_hand_written_oracle_gets_float64_and_must_answer_in_it():
    def honest(x):
        assert x.dtype is torch.float64
        return 2 * x

    inst = reference(lambda m, x: 2 * x, (3,), spec=OpSpec("double", lambda x: 2 * x, list, oracle=honest))
    assert torch.equal(oracle.run_float64(inst, inst.draw(1)), 2 * inst.draw(1)[0].double())
    lazy = reference(lambda m, x: x, (3,), spec=OpSpec("lazy", lambda x: x, list, oracle=lambda x: x.float()))
    with pytest.raises(oracle.OracleError, match="float64"):
        oracle.run_float64(lazy, lazy.draw(1))


@pytest.mark.parametrize("run", [oracle.run_working, oracle.run_float64, oracle.zero_absorbing])
def test_a_raising_reference_is_a_typed_failure_of_one_sentence(run):
    inst = reference(lambda m, x: x @ x, (3, 4))
    with pytest.raises(oracle.ReferenceFailed) as e:
        run(inst, inst.draw(1))
    assert str(e.value).startswith("The reference raised in its ") and str(e.value).endswith(".")
    assert "\n" not in str(e.value)


def test_backends_are_pinned_recorded_and_restored():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    try:
        with oracle.pinned_backends() as record:
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            assert record["cudnn_allow_tf32"] is False and record["nnpack"] is False
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[0])
    assert torch.backends.cudnn.allow_tf32 == before[1]


def test_default_dtype_is_restored_even_if_the_reference_raises():
    inst = reference(lambda m, x: 1 / 0, (3,))
    with pytest.raises(oracle.ReferenceFailed):
        oracle.run_float64(inst, inst.draw(1))
    assert torch.get_default_dtype() is torch.float32


def test_gradients_are_named_by_floating_input_and_parameter():
    inst = reference(lambda m, i, x: m.f(x)[i] ** 2, f=lambda: nn.Linear(4, 3))
    x = [torch.tensor([0, 1]), torch.randn(5, 4)]
    up = [torch.randn(2, 3)]
    g = oracle.gradients(inst, x, up)
    assert set(g) == {"input:0", "param:f.weight", "param:f.bias"}
    assert all(t is not None and t.dtype is torch.float64 for t in g.values())
    y = F.linear(x[1].double(), inst.module.f.weight.double(), inst.module.f.bias.double())[:2]
    assert torch.allclose(g["param:f.bias"], (2 * y * up[0]).sum(0))
    assert torch.count_nonzero(g["input:0"][2:]) == 0


def test_gradient_of_an_unused_input_is_none_and_integer_outputs_carry_none():
    inst = reference(lambda m, x, y: (x * 2, x.argmax()), (3,), (3,))
    g = oracle.gradients(inst, inst.draw(1), [torch.ones(3), None])
    assert g["input:1"] is None and torch.equal(g["input:0"], torch.full((3,), 2.0, dtype=torch.float64))
    assert set(oracle.gradients(inst, inst.draw(1), [None, None]).values()) == {None}


def test_a_reference_that_writes_its_input_still_has_gradients():
    inst = reference(lambda m, x: x.mul_(3), (3,))
    assert torch.equal(
        oracle.gradients(inst, inst.draw(1), [torch.ones(3)])["input:0"], torch.full((3,), 3.0).double()
    )


class TestZeroAbsorbing:
    def absorbed(self, function, *inputs):
        return tensors(oracle.zero_absorbing(reference(function), list(inputs)))[0]

    def test_elementwise_product(self):
        got = self.absorbed(
            lambda m, a, b: a * b, torch.tensor([0.0, 2.0, 0.0]), torch.tensor([NAN, INF, INF])
        )
        assert torch.equal(got, torch.tensor([0.0, INF, 0.0], dtype=torch.float64))

    def test_diagonal_matmul_keeps_other_rows_finite(self):
        x = torch.ones(3, 3)
        x[1, 2] = NAN
        diagonal = torch.eye(3)
        assert oracle.run_float64(reference(lambda m, a, b: a @ b), [diagonal, x]).isnan().sum() == 3
        got = self.absorbed(lambda m, a, b: a @ b, diagonal, x)
        assert got.isnan().sum() == 1 and bool(got[1, 2].isnan())

    @pytest.mark.parametrize("bad", [NAN, INF, -INF], ids=["nan", "inf", "minus-inf"])
    @pytest.mark.parametrize(
        "function",
        [
            lambda m, a, b: a @ b,
            lambda m, a, b: torch.addmm(torch.ones(3), a, b),
            lambda m, a, b: a[None] @ b[None],
            lambda m, a, b: torch.mv(a, b[:, 0]),
            lambda m, a, b: F.conv1d(a[None], b[..., None], torch.ones(3)),
        ],
        ids=["mm", "addmm", "bmm", "mv", "conv"],
    )
    def test_without_zeros_it_agrees_with_the_oracle(self, function, bad):
        g = torch.Generator().manual_seed(1)
        a, b = torch.randn(3, 3, generator=g), torch.randn(3, 3, generator=g)
        a[1, 1] = bad
        expected = tensors(oracle.run_float64(reference(function), [a, b]))[0]
        assert torch.allclose(self.absorbed(function, a, b), expected, equal_nan=True)

    def test_opposite_infinities_make_nan(self):
        a = torch.tensor([[INF, -INF], [INF, 0.0]])
        got = self.absorbed(lambda m, a, b: a @ b, a, torch.ones(2, 1))
        assert bool(got[0, 0].isnan()) and float(got[1, 0]) == INF
