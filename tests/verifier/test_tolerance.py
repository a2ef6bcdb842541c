"""Bands accept every faithful float32 computation and reject narrower ones."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lethe.verifier import conditioning, oracle, precision, tolerance
from lethe.verifier.structure import map_tensors
from tests.verifier.references import KINDS, REFERENCES, reference, reordered, scaled, tensors

NAN, INF = math.nan, math.inf


class Judged:
    """Truth, working run, traits and bands of one case."""

    def __init__(self, inst, inputs, dtype="float32", **options):
        self.inst, self.inputs = inst, inputs
        self.operator = conditioning.profile_operator(inst, inst.draw(1))
        self.truth = tensors(oracle.run_float64(inst, inputs, dtype))
        self.working = tensors(oracle.run_working(inst, inputs, dtype))
        self.bands = tolerance.bands(
            inst, inputs, self.truth, self.working, operator=self.operator, dtype=dtype, **options
        )

    def ratio(self, value):
        return max(
            tolerance.compare(v, e, b).ratio for v, e, b in zip(value, self.truth, self.bands, strict=True)
        )

    def narrowed(self, kind):
        value = oracle.map_tensors(tolerance.narrowed_run(self.inst, self.inputs, kind), to_float32)
        return tensors(value)


def to_float32(t):
    return t.float() if t.is_floating_point() else t


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFERENCES)
def test_eager_and_reordered_float32_are_accepted(name, kind):
    inst = REFERENCES[name]()
    judged = Judged(inst, scaled(inst.draw(1), kind))
    usual = {"elementwise": 32, "normwise": 600, "gamma": 2}
    assert all(b.scale <= usual.get(b.kind, 1) for b in judged.bands), "the reference's own error decided"
    assert judged.ratio(judged.working) <= 1
    for chunk in (7, 64):
        assert judged.ratio(reordered(inst, judged.inputs, chunk)) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "softmax", "layernorm", "matmul", "conv", "attention", "cumsum"])
def test_half_runs_and_wider_inside_are_accepted_at_their_dtype(name, dtype):
    inst = REFERENCES[name]()
    half = map_tensors(inst.draw(1), lambda t: t.to(oracle.dtype_named(dtype)))
    judged = Judged(inst, half, dtype)
    inside = [t.to(oracle.dtype_named(dtype)) for t in tensors(oracle.run_working(inst, half, "float32"))]
    assert judged.ratio(judged.working) <= 1 and judged.ratio(inside) <= 1


@pytest.mark.parametrize("kind", ["tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["matmul", "linear", "attention", "lstm"])
def test_narrow_operands_of_contractions_are_rejected(name, kind):
    inst = REFERENCES[name]()
    judged = Judged(inst, inst.draw(1))
    assert judged.ratio(judged.narrowed(kind)) > 1


def test_an_error_a_thousand_times_eagers_is_rejected_nearly_everywhere():
    caught = 0
    for make in REFERENCES.values():
        inst = make()
        judged = Judged(inst, inst.draw(1))
        bad = []
        for w, e in zip(judged.working, judged.truth, strict=True):
            if w.is_floating_point():
                floor = 2.0**-24 * float(e.abs().median())
                worst = max(float((w.double() - e).abs().max()), floor)
                w = w.clone()
                w.view(-1)[w.abs().argmin() if w.dim() else 0] += 1000 * worst
            bad.append(w)
        caught += judged.ratio(bad) > 1
    assert caught >= 0.9 * len(REFERENCES)


class TestLegalOrders:
    """Every order of summation that IEEE arithmetic allows is inside the derived band."""

    LENGTHS = (16, 4096, 262_144)
    DRAWS = ("signed", "positive", "constant", "sorted", "sorted_signed")

    @staticmethod
    def draw(kind, n):
        x = np.random.default_rng(n).standard_normal(n)
        x = {
            "signed": x,
            "positive": abs(x),
            "constant": np.full(n, 0.1),
            "sorted": np.sort(abs(x))[::-1],
            "sorted_signed": np.sort(x),
        }[kind]
        return x.astype(np.float32)

    @staticmethod
    def orders(x):
        def sequential(v):
            return np.cumsum(v, dtype=np.float32)[-1]

        def pairwise(v):
            while len(v) > 1:
                v = np.append(v, np.float32(0)) if len(v) % 2 else v
                v = (v[0::2] + v[1::2]).astype(np.float32)
            return v[0]

        lanes = np.pad(x, (0, -len(x) % 256)).reshape(-1, 256).T
        return {
            "sequential": sequential(x),
            "backward": sequential(x[::-1]),
            "pairwise": pairwise(x),
            "blocked": pairwise(np.cumsum(lanes, axis=1, dtype=np.float32)[:, -1]),
        }

    def test_sums(self, capsys):
        worst, paper, seen = 0.0, Counter(), 0
        for n in self.LENGTHS:
            for kind in self.DRAWS:
                x = self.draw(kind, n)
                judged = Judged(reference(lambda m, x: x.sum(-1), (n,)), [torch.from_numpy(x)])
                published = tolerance.bands(
                    judged.inst, judged.inputs, judged.truth, judged.working, profile="paper", gate="ORD-01"
                )[0]
                for order, v in self.orders(x).items():
                    value = torch.tensor(float(v))
                    worst = max(worst, judged.ratio([value]))
                    paper[order] += tolerance.compare(value, judged.truth[0], published).ratio > 1
                    seen += 1
        with capsys.disabled():
            print(f"\nlegal orders: worst ratio {worst:.3g}; paper rejects {paper.total()} of {seen}")
        assert worst < 0.5
        assert paper["sequential"] >= 2 and paper.total() < seen / 2

    @pytest.mark.parametrize("kind", DRAWS)
    def test_fused_multiply_add_chain(self, kind):
        n = 2048
        a, b = self.draw(kind, n), self.draw(kind, n)[::-1].copy()
        judged = Judged(
            reference(lambda m, a, b: torch.dot(a, b), (n,), (n,)), [torch.from_numpy(a), torch.from_numpy(b)]
        )
        s = np.float32(0)
        for p in a.astype(np.float64) * b:
            s = np.float32(np.float64(s) + p)
        assert judged.ratio([torch.tensor(float(s))]) < 0.5


class TestConvolution:
    BT = (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    )
    G = (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    )
    AT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))

    def winograd(self, x, w):
        """F(4x4, 3x3) in float32; Lavin and Gray, arXiv:1509.09308, section 4.3."""
        bt, g, at = (torch.tensor(m, dtype=x.dtype) for m in (self.BT, self.G, self.AT))
        h, wd = x.shape[2] - 2, x.shape[3] - 2
        tiles = F.pad(x, (0, -wd % 4, 0, -h % 4)).unfold(2, 6, 4).unfold(3, 6, 4)
        y = at @ torch.einsum("nchwij,ocij->nohwij", bt @ tiles @ bt.T, g @ w @ g.T) @ at.T
        rows, columns = y.shape[2:4]
        return y.permute(0, 1, 2, 4, 3, 5).reshape(*y.shape[:2], 4 * rows, 4 * columns)[..., :h, :wd]

    @pytest.mark.parametrize("kind", ["normal", "constant", "mixed"])
    def test_winograd_is_legal_in_band_and_statistic_where_tf32_is_not(self, kind):
        g = torch.Generator().manual_seed(4)
        w = torch.randn(6, 32, 3, 3, generator=g) / 17
        inst = reference(lambda m, x: F.conv2d(x, m.w), (2, 32, 22, 26), w=w)
        judged = Judged(inst, scaled(inst.draw(1), kind))
        value = [self.winograd(judged.inputs[0], w)]
        assert judged.bands[0].kind == "normwise" and judged.ratio(value) <= 1

        def regime(v):
            return tolerance.precision_statistic(inst, judged.inputs, v, judged.truth, judged.working).regime

        assert regime(value) is None and regime(judged.narrowed("tf32")) == precision.ELEVEN_BITS


class TestPaper:
    @pytest.mark.parametrize(
        ("gate", "shape", "scale", "dtype", "message"),
        [
            ("CMP-01", (64, 128), 0.5, "float32", 4.308e-05),
            ("CMP-01", (64, 100), 0.5, "float32", 3.808e-05),
            ("CMP-01", (16, 128), 1.0, "float32", 2.154e-05),
            ("CMP-01", (10, 5), 0.5, "float32", 1.000e-05),
            ("ORD-01", (2, 3), 0.5, "float32", 1.166e-06),
            ("ORD-01", (1, 2), 0.5, "float32", 6.732e-07),
            ("PRC-01", (3, 4), 3.137, "float16", 3.137e-03),
            ("PRC-01", (3, 4), 3.141, "bfloat16", 3.141e-02),
            ("PRC-02", (3, 4), 3.1385, "float16", 6.277e-02),
        ],
    )
    def test_formula_reproduces_published_messages(self, gate, shape, scale, dtype, message):
        truth = torch.tensor([0.1, -scale], dtype=torch.float64)
        bound, _ = tolerance.paper_bound(truth, math.prod(shape), gate=gate, dtype=oracle.dtype_named(dtype))
        assert float(bound[0]) == pytest.approx(message, rel=5e-4)

    def test_calibrated_trips_lie_just_above_the_formula(self):
        """(2, 64, 32): ORD-01 tripped at 3.147e-05 and ORD-03 at 1.0245e-03 of the scale."""
        truth = torch.tensor([1.0], dtype=torch.float64)
        order = float(tolerance.paper_bound(truth, 2 * 64 * 32, gate="ORD-01")[0])
        relaxed = float(tolerance.paper_bound(torch.zeros(1, dtype=torch.float64), 4096, gate="ORD-03")[0])
        assert order < 3.147e-05 < 1.05 * order and relaxed < 1.0245e-03 < 1.05 * relaxed


class TestExactIntegers:
    def applies(self, function, *inputs, dtype="float32"):
        inst = reference(function, *[tuple(t.shape) for t in inputs])
        return tolerance.exact_integer_applies(
            conditioning.profile_operator(inst, inst.draw(1)), list(inputs), dtype
        )

    def test_binary_matmul_is_exact(self):
        a, b = torch.randint(0, 2, (5, 300)).float(), torch.randint(0, 2, (300, 4)).float()
        assert self.applies(lambda m, a, b: a @ b, a, b)
        assert self.applies(lambda m, a, b: a @ b, a, b, dtype="float16")

    def test_not_beyond_the_significand(self):
        a = torch.full((5, 3000), 2.0)
        assert not self.applies(lambda m, x: x.sum(-1), a, dtype="float16")
        assert not self.applies(lambda m, x: x.sum(-1), 1e7 * a)

    def test_not_for_fractions_means_random_weights_or_nonlinear(self):
        ones = torch.ones(5, 7)
        assert not self.applies(lambda m, x: x.sum(-1), 0.5 * ones)
        assert not self.applies(lambda m, x: x.mean(-1), ones)
        assert not self.applies(lambda m, x: x @ torch.full((7, 2), 0.3), ones)
        assert not self.applies(lambda m, x: (x * x).sum(-1), ones)


class TestCompare:
    def band(self, truth, bound=0.1):
        return tolerance.Band(
            torch.full(truth.shape, bound, dtype=torch.float64),
            truth.isfinite(),
            "elementwise",
            16.0,
            ~truth.isfinite(),
        )

    def test_the_worst_element_is_named(self):
        truth = torch.zeros(2, 3, dtype=torch.float64)
        value = torch.zeros(2, 3)
        value[1, 2], value[0, 1] = 0.25, -0.2
        c = tolerance.compare(value, truth, self.band(truth))
        assert (c.index, c.breaches, c.checked) == ((1, 2), 2, 6)
        assert (
            c.ratio == pytest.approx(2.5)
            and c.error == 0.25
            and c.expected == 0
            and c.got == 0.25
            and not c.within
        )

    def test_minted_and_swallowed(self):
        truth = torch.tensor([1.0, NAN, INF, -INF, 2.0], dtype=torch.float64)
        c = tolerance.compare(torch.tensor([NAN, 0.0, -INF, -INF, 2.0]), truth, self.band(truth))
        assert (c.ratio, c.minted, c.swallowed, c.finite) == (INF, 1, 2, False) and c.finite_mismatch

    def test_agreeing_nonfinites_are_within(self):
        truth = torch.tensor([NAN, INF], dtype=torch.float64)
        c = tolerance.compare(truth.float(), truth, self.band(truth))
        assert c.within and c.checked == 0 and not c.finite_mismatch

    def test_scalars_and_empty_tensors(self):
        truth = torch.tensor(1.0, dtype=torch.float64)
        assert tolerance.compare(torch.tensor(1.5), truth, self.band(truth)).index == ()
        empty = torch.empty(0, dtype=torch.float64)
        assert tolerance.compare(torch.empty(0), empty, self.band(empty)).within

    def test_another_shape_is_not_its_business(self):
        truth = torch.zeros(2, dtype=torch.float64)
        with pytest.raises(ValueError, match="shape"):
            tolerance.compare(torch.zeros(3), truth, self.band(truth))

    def test_zero_bound_is_met_by_equality_only(self):
        truth = torch.tensor([0.0, 1.0], dtype=torch.float64)
        assert tolerance.compare(truth.float(), truth, self.band(truth, 0.0)).within
        assert tolerance.compare(torch.tensor([0.0, 1.1]), truth, self.band(truth, 0.0)).ratio == INF


class TestSelections:
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [7.0, 0.0, 3.0, 7.0]])

    def ratio(self, function, index, x=None):
        judged = Judged(reference(function, (2, 4)), [self.x if x is None else x])
        return tolerance.compare(torch.tensor(index), judged.truth[-1], judged.bands[-1]).ratio

    def test_ties_are_free_and_other_values_are_not(self):
        assert self.ratio(lambda m, x: x.argmax(-1), [2, 3]) == 0
        assert self.ratio(lambda m, x: x.argmax(-1), [2, 2]) == INF

    def test_out_of_range_and_repeated_indices(self):
        assert self.ratio(lambda m, x: x.argmax(-1), [1, 4]) == INF
        assert self.ratio(lambda m, x: x.argmax(-1), [-3, 0]) == INF
        assert self.ratio(lambda m, x: x.topk(2)[1], [[2, 1], [3, 0]]) == 0
        assert self.ratio(lambda m, x: x.topk(2)[1], [[1, 1], [3, 0]]) == INF

    def test_flattened_and_kept_dimensions(self):
        assert self.ratio(lambda m, x: x.argmax(), 7) == 0
        assert self.ratio(lambda m, x: x.min(1, keepdim=True)[1], [[0], [1]]) == 0

    def test_near_ties_of_computed_values_are_free(self):
        x = torch.tensor([[1.0, 1.0 + 2**-23, 0.0, 0.5], [3.0, 1.0, 1.0, 1.0]])
        assert self.ratio(lambda m, x: (x * 3.3).argmax(-1), [0, 0], x) <= 1
        assert self.ratio(lambda m, x: (x * 3.3).argmax(-1), [3, 0], x) > 1

    def test_masks_are_exact_away_from_their_threshold(self):
        inst = reference(lambda m, x: x * 3 > 1, (400,))
        judged = Judged(inst, inst.draw(1))
        assert judged.ratio(judged.working) == 0
        assert judged.ratio([~judged.working[0]]) > 1


class TestPrecision:
    @pytest.mark.parametrize("name", ["matmul", "attention", "conv", "linear"])
    def test_tf32_is_told_from_every_faithful_order(self, name):
        inst = REFERENCES[name]()
        x = inst.draw(1)
        truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)

        def regime(value):
            return tolerance.precision_statistic(inst, x, value, truth, working).regime

        assert regime(tensors(working)) is None
        assert regime(reordered(inst, x, 3)) is None
        assert regime(tensors(tolerance.narrowed_run(inst, x, "tf32"))) == precision.ELEVEN_BITS
        assert regime(tensors(tolerance.narrowed_run(inst, x, "bfloat16"))) == "bfloat16"

    def test_elementwise_operators_are_narrowed_everywhere(self):
        inst = REFERENCES["softmax"]()
        x = inst.draw(1)
        truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)
        value = tensors(tolerance.narrowed_run(inst, x, "bfloat16"))
        assert tolerance.precision_statistic(inst, x, value, truth, working).regime == "bfloat16"

    def test_operators_that_round_nothing_are_undecidable(self):
        inst = reference(lambda m, x: x.argmax(-1), (4, 9))
        x = inst.draw(1)
        truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)
        assert not tolerance.precision_statistic(inst, x, tensors(working), truth, working).decidable

    @pytest.mark.parametrize(("kind", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
    def test_rounding_agrees_with_torch(self, kind, dtype):
        from lethe.verifier.precision import rounded

        x = torch.randn(2000, dtype=torch.float64) * torch.exp(6 * torch.randn(2000, dtype=torch.float64))
        x = x.float().double()
        assert torch.equal(rounded(x, kind), x.to(dtype).double())

    def test_unknown_regime(self):
        inst = REFERENCES["matmul"]()
        with pytest.raises(ValueError, match="fp8"):
            tolerance.narrowed_run(inst, inst.draw(1), "fp8")


class TestCarry:
    def points(self, carry, lengths=(64, 256, 1024, 4096)):
        found = []
        for n in lengths:
            inst = reference(lambda m, a, b: a @ b, (8, n), (n, 8))
            x = [t.abs() for t in inst.draw(1)]
            truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)
            value = tensors(working) if carry is None else tensors(tolerance.carried_run(inst, x, carry))
            found.append(tolerance.carry_point(inst, x, value, truth, working, n))
        return found

    @pytest.mark.parametrize("carry", [None, "float16", "bfloat16"])
    def test_the_carry_is_recognised(self, carry):
        sweep = tolerance.carry_sweep(self.points(carry))
        assert sweep.kind == carry and sweep.decidable == 4

    def test_half_inputs_with_a_wide_carry_are_honest(self):
        n = 2048
        inst = reference(lambda m, a, b: a @ b, (8, n), (n, 8))
        x = [t.abs().half() for t in inst.draw(1)]
        truth, working = oracle.run_float64(inst, x, "float16"), oracle.run_working(inst, x, "float16")
        wide = [t.half() for t in tensors(oracle.run_working(inst, x, "float32"))]
        narrow = [t.half() for t in tensors(tolerance.carried_run(inst, x, "bfloat16"))]
        honest = tolerance.carry_point(inst, x, wide, truth, working, n, dtype="float16", kinds=("bfloat16",))
        assert honest.value <= honest.threshold("bfloat16")
        guilty = tolerance.carry_point(
            inst, x, narrow, truth, working, n, dtype="float16", kinds=("bfloat16",)
        )
        assert guilty.value > guilty.threshold("bfloat16")

    def test_errors_of_a_narrow_carry_grow_with_the_length(self):
        assert tolerance.carry_sweep(self.points("float16")).growth > 0.4
        assert math.isnan(tolerance.carry_sweep([]).growth)

    def test_means_scans_and_loops_carry_too(self):
        def scan(m, x):
            h = torch.zeros_like(x[:, 0])
            for t in range(x.shape[1]):
                h = h + x[:, t]
            return h

        for function, recurrence in (
            (lambda m, x: x.mean(-1), False),
            (lambda m, x: x.cumsum(-1), False),
            (scan, True),
        ):
            inst = reference(function, (4, 300))
            x = [t.abs() for t in inst.draw(1)]
            value = tolerance.carried_run(inst, x, "bfloat16", recurrence=recurrence)
            assert float((value / oracle.run_float64(inst, x) - 1).abs().max()) > 2.0**-10


def test_structured_is_found_from_the_values():
    x = torch.randn(4, 50)
    assert not tolerance.structured([x, torch.arange(3)])
    for t in (x.abs(), x.sort(-1).values, torch.full((4, 50), -0.1), x.sign()):
        assert tolerance.structured([x, t])


def test_nearly_equal_values_repeat_their_errors_as_equal_ones_do():
    x = torch.randn(4, 50)
    assert not tolerance.repeating([x])
    assert tolerance.repeating([x, x.sign()]) and tolerance.repeating([x, 1e-4 * x - 5.0])
    assert not tolerance.repeating([x, 0.1 * x - 5.0])


def test_an_exponential_that_errs_alike_on_nearly_equal_arguments_is_allowed_for():
    """The divergence of two nearly uniform distributions cancels: an exponential two units too large
    everywhere moves it by its own error, although errors of random signs would average out."""

    def divergence(exp):
        def of(m, log_q, log_p):
            p, q = exp(log_p), exp(log_q)
            log_m = torch.log(0.5 * (p + q))
            return 0.5 * (p * (log_p - log_m) + q * (log_q - log_m)).sum() / len(p)

        return of

    draws = [(1e-4 * torch.randn(64, 1000)).log_softmax(-1) for _ in range(2)]
    inst = reference(divergence(torch.exp), (64, 1000), (64, 1000))
    too_large = reference(divergence(lambda x: x.exp() * (1 + 2.0**-23)), (64, 1000), (64, 1000))
    judged = Judged(inst, draws)
    value = oracle.run_float64(too_large, draws)
    assert tolerance.compare(value, judged.truth[0], judged.bands[0]).within
    assert not tolerance.compare(value + 1e-5, judged.truth[0], judged.bands[0]).within


def test_linear_operators_on_structured_input_get_gamma():
    inst = REFERENCES["matmul"]()
    assert Judged(inst, inst.draw(1)).bands[0].kind == "elementwise"
    assert Judged(inst, scaled(inst.draw(1), "constant")).bands[0].kind == "gamma"
    assert tolerance.gamma(2**24, 2.0**-24) == INF


def test_near_overflow_is_skipped():
    inst = reference(lambda m, x: 2 * x, (3,))
    judged = Judged(inst, [torch.tensor([1.0, 1e38, -1e38])])
    assert judged.bands[0].valid.tolist() == [True, False, False]


def test_elements_that_the_reference_itself_overflows_are_skipped():
    inst = reference(lambda m, x: (x * x).sum(-1).sqrt(), (3, 4))
    judged = Judged(inst, [torch.tensor([[1.0] * 4, [1e20] * 4, [3e18] * 4])])
    assert judged.bands[0].valid.tolist() == [True, False, False]


def test_a_worse_reference_widens_the_band_twofold():
    truth = torch.ones(3, dtype=torch.float64)
    working = torch.tensor([1.0, 1.0 + 2.0**-14, 1.0])
    b = tolerance.band(truth, working, torch.zeros(3, dtype=torch.float64))
    assert float(b.bound[0]) == pytest.approx(2 * 2.0**-14, rel=1e-6) and b.scale > tolerance.ELEMENTWISE_C


def test_half_outputs_of_a_float32_reference_are_judged_as_half():
    inst = reference(lambda m, x: (x * 1.1).half(), (200,))
    judged = Judged(inst, inst.draw(1))
    assert judged.working[0].dtype is torch.float16
    assert judged.ratio([(judged.inputs[0].double() * 1.1).half()]) <= 1


def test_bands_refuse_what_they_cannot_do():
    y = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="elementwise"):
        tolerance.band(y, None, y, kind="loose")
    with pytest.raises(ValueError, match="absolute"):
        tolerance.band(y, None, y, kind="gamma")
    with pytest.raises(ValueError, match="shape"):
        tolerance.band(y, torch.zeros(4), y)
