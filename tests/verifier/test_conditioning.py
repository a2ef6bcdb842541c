"""The spread estimates rounding where there is rounding, and traits are found without names."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lethe.verifier import conditioning, oracle, profiling
from tests.verifier.references import REFERENCES, reference, reordered, tensors

U = 2.0**-24


def spread_of(inst, inputs, **options):
    return conditioning.spread(inst, inputs, oracle.run_float64(inst, inputs), U, **options)


def test_same_seed_same_spread_and_another_seed_another():
    inst = REFERENCES["layernorm"]()
    x = inst.draw(1)
    a, b, c = (spread_of(inst, x, seed=s).spread[0] for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_the_global_random_state_is_left_alone():
    inst = REFERENCES["matmul"]()
    x = inst.draw(1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    spread_of(inst, x)
    conditioning.profile_operator(inst, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_copies_move_by_the_input_rounding_alone():
    inst = reference(lambda m, x: x.transpose(0, 1).contiguous().relu(), (20, 30))
    x = inst.draw(1)
    y = oracle.run_float64(inst, x)
    assert bool((spread_of(inst, x).spread[0] <= U * y.abs() * (1 + 1e-7)).all())


def test_zeros_stay_zeros_without_nan():
    inst = REFERENCES["l2norm"]()
    found = spread_of(inst, [torch.zeros(8, 200)])
    assert float(found.spread[0].max()) == 0 and not bool(found.disagree[0].any())


def test_cancellation_shows_in_the_spread():
    inst = reference(lambda m, x: (x + 1000.0) - 1000.0, (500,))
    x = inst.draw(1)
    assert 0.25 < float(spread_of(inst, x).spread[0].median()) / (1000 * U) < 2


@pytest.mark.parametrize(
    ("growth", "expected"), [("random", 64.0), ("worst", 512.0), ("rss", 64 * (1 / 64 + 1))]
)
def test_sums_grow_as_the_rounding_model_says(growth, expected):
    inst = reference(lambda m, x: x.sum(-1), (50, 4096))
    x = [torch.ones(50, 4096)]
    relative = spread_of(inst, x, growth=growth).spread[0] / (4096 * U)
    assert 0.6 * expected < float(relative.max()) <= 1.05 * expected + 2


def test_overflow_neighbourhood_is_not_conclusive():
    inst = reference(lambda m, x: (x * x).mean(-1), (4, 64))
    x = inst.draw(1)[0]
    x[1] *= 1e19
    found = spread_of(inst, [x])
    assert found.disagree[0].tolist() == [False, True, False, False]


def test_an_overflow_that_a_selection_drops_does_not_matter():
    inst = reference(lambda m, x: F.softplus(x), (50,))
    x = [torch.linspace(-300, 300, 50)]
    assert not bool(spread_of(inst, x).disagree[0].any())


def test_a_cast_inside_the_reference_widens_the_spread_to_its_dtype():
    x = [torch.randn(200)]
    plain = spread_of(reference(lambda m, x: 2 * x), x).spread[0]
    cast = spread_of(reference(lambda m, x: 2 * x.half().float()), x).spread[0]
    assert float((cast / plain).median()) > 1000


@pytest.mark.parametrize("name", [n for n in REFERENCES if n not in ("topk", "maxpool")])
def test_float32_gradients_lie_within_their_spread(name):
    inst = REFERENCES[name]()
    x = inst.draw(1)
    g = torch.Generator().manual_seed(2)
    up = [torch.randn(t.shape, generator=g) for t in tensors(oracle.run_working(inst, x))]
    truth = oracle.gradients(inst, x, up)
    working = oracle.gradients(inst, x, up, "float32")
    found = conditioning.gradient_spread(inst, x, up, truth, U, k=4)
    assert set(found) == {n for n, t in truth.items() if t is not None}
    for n, s in found.items():
        error = (working[n].double() - truth[n]).abs()
        unit = 2 * U * truth[n].abs() + s.spread[0] + 2.0**-126
        assert float((error / unit).max()) < 16, n


class TestAbsoluteTerms:
    def test_subtractions_add_up(self):
        inst = reference(lambda m, a, b: 2.0 * (a - b) - a, (5,), (5,))
        a, b = inst.draw(1)
        terms = conditioning.absolute_terms(inst, [a, b])
        assert torch.allclose(terms.absolute[0], (2 * (a.abs() + b.abs()) + a.abs()).double())

    def test_matmul_and_its_length(self):
        inst = REFERENCES["matmul"]()
        a, b = inst.draw(1)
        terms = conditioning.absolute_terms(inst, [a, b])
        assert torch.allclose(terms.absolute[0], a.double().abs() @ b.double().abs()) and terms.length == 200

    @pytest.mark.parametrize("name", ["softmax", "gelu", "maxpool", "layernorm"])
    def test_other_operators_have_none(self, name):
        inst = REFERENCES[name]()
        assert conditioning.absolute_terms(inst, inst.draw(1)) is None

    @pytest.mark.parametrize("name", ["matmul", "linear", "conv", "sum", "cumsum"])
    def test_float32_error_obeys_gamma(self, name):
        inst = REFERENCES[name]()
        x = [t.abs() for t in inst.draw(1)]
        terms, truth = conditioning.absolute_terms(inst, x), tensors(oracle.run_float64(inst, x))[0]
        for chunk in (3, 64):
            error = (reordered(inst, x, chunk)[0].double() - truth).abs()
            n = terms.length + 2
            assert bool((error <= n * U / (1 - n * U) * terms.absolute[0]).all())


TRAITS = {
    "gelu": "",
    "softmax": "selects normalises",
    "layernorm": "normalises",
    "l2norm": "normalises",
    "matmul": "linear contraction sum_of_products integer_preserving",
    "linear": "linear contraction sum_of_products",
    "conv": "linear contraction convolution sum_of_products",
    "lstm": "contraction",
    "sum": "linear sum_of_products integer_preserving",
    "cumsum": "linear sum_of_products integer_preserving",
    "mse": "sum_of_products",
    "maxpool": "affine_or_copy selects integer_preserving",
    "topk": "selects integer_preserving",
}
ALL_TRAITS = (
    "linear",
    "affine_or_copy",
    "convolution",
    "contraction",
    "selects",
    "normalises",
    "sum_of_products",
    "integer_preserving",
    "stochastic",
)


@pytest.mark.parametrize("name", TRAITS)
def test_traits(name):
    inst = REFERENCES[name]()
    found = conditioning.profile_operator(inst, inst.draw(1))
    assert {t for t in ALL_TRAITS if getattr(found, t)} == set(TRAITS[name].split())


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("softmax", 300),
        ("layernorm", 200),
        ("matmul", 200),
        ("conv", 55),
        ("gelu", 1),
        ("sum", 300),
        ("variance", 300),
    ],
)
def test_reduction_length(name, length):
    inst = REFERENCES[name]()
    assert conditioning.profile_operator(inst, inst.draw(1)).reduction_length == length


def test_a_loop_over_steps_counts_as_a_reduction():
    def scan(m, a, b):
        h = torch.zeros_like(b[:, 0])
        for t in range(b.shape[1]):
            h = a[:, t] * h + b[:, t]
        return h

    inst = reference(scan, (2, 40, 3), (2, 40, 3))
    assert conditioning.profile_operator(inst, inst.draw(1)).reduction_length == 40


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x: 2 * x + 1, True),
        (lambda m, x: F.leaky_relu(x), True),
        (lambda m, x: x.clamp(-1, 1), True),
        (lambda m, x: x * x, False),
        (lambda m, x: torch.tanh(x), False),
        (lambda m, x: F.hardswish(x), False),
        (lambda m, x: x.sum(-1), False),
    ],
    ids=["affine", "leaky-relu", "clamp", "square", "tanh", "hardswish", "sum"],
)
def test_affine_or_copy(function, expected):
    inst = reference(function, (6, 50))
    assert conditioning.profile_operator(inst, inst.draw(1)).affine_or_copy is expected


def test_discrete_outputs_and_structural_zeros():
    inst = reference(lambda m, x: (x > 0, (3 * x).floor(), x.tril(), x.argmax(-1)), (9, 9))
    found = conditioning.profile_operator(inst, inst.draw(1))
    assert found.discrete_outputs == [True, True, False, True]
    assert torch.equal(found.structural_zeros[2], torch.ones(9, 9).triu(1).bool())


def test_dropout_is_stochastic_only_while_it_draws():
    drawing = reference(lambda m, x: F.dropout(x, 0.5, training=True), (40,))
    idle = reference(lambda m, x: m.d(x), (40,), d=lambda: nn.Dropout())
    assert conditioning.profile_operator(drawing, drawing.draw(1)).stochastic
    assert not conditioning.profile_operator(idle, idle.draw(1)).stochastic


def test_index_outputs_know_what_they_select_from():
    inst = reference(lambda m, x: (x.topk(3), x.argmax(), (x + 1).max(0)[1].unsqueeze(0)), (4, 6))
    found = profiling.selections(inst, inst.draw(1))
    assert [None if s is None else (s.op, s.dim) for s in found] == [
        None,
        ("topk", -1),
        ("argmax", None),
        ("max", 0),
    ]


def test_slack_of_a_selection_is_zero_on_inputs_and_positive_on_computed_values():
    for function, exact in ((lambda m, x: x.argmax(-1), True), (lambda m, x: (x @ x.t()).argmax(-1), False)):
        inst = reference(function, (7, 30))
        x = inst.draw(1)
        source = profiling.selections(inst, x)[0].source
        slack = conditioning.source_spread(inst, x, 0, source, U)
        assert slack.shape == source.shape and (float(slack.max()) == 0) is exact


def test_large_networks_run_fewer_times():
    calls = []

    def deep(m, x):
        calls.append(1)
        for _ in range(200):
            x = x * 1.01
        return x

    inst = reference(deep, (3,))
    x = inst.draw(1)
    truth = oracle.run_float64(inst, x)
    calls.clear()
    conditioning.spread(inst, x, truth, U)
    assert len(calls) == conditioning.RUNS_LARGE


def test_smallest_follows_the_dtype():
    assert conditioning.smallest(torch.float32) == torch.finfo(torch.float32).tiny
    assert conditioning.smallest(torch.float16) == math.ldexp(1, -24)
