"""The functions of the fairness rules; how each changes a verdict is in ``tests/evidence/fairness``."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lethe.verifier import comparison, conditioning, fairness, inputs, oracle, sites, tolerance
from lethe.verifier.fairness import RULES
from lethe.verifier.problem import ProblemError
from lethe.verifier.verdict import CANDIDATE_FAULTS, RULES_VERSION, Finding, Status
from tests.verifier.references import reference, tensors

NAN, INF = math.nan, math.inf


def profile(function, *shapes, **parts):
    inst = reference(function, *shapes, **parts)
    return conditioning.profile_operator(inst, inst.draw(1))


def judged(function, inputs, **parts):
    """Instance, oracle's first output, its working run, its band."""
    inst = reference(function, *[tuple(t.shape) for t in inputs], **parts)
    truth, working = tensors(oracle.run_float64(inst, inputs)), tensors(oracle.run_working(inst, inputs))
    operator = conditioning.profile_operator(inst, inst.draw(1))
    band = tolerance.bands(inst, inputs, truth, working, operator=operator)[0]
    return inst, truth[0], working[0], band


def test_the_table_is_complete():
    assert sorted(RULES) == list(range(1, 48))
    assert len({r.name for r in RULES.values()}) == 47
    assert all(
        (callable(r.predicate) and r.statement and find_spec(r.where)) or r.where == "lethe.evidence"
        for r in RULES.values()
    )


def test_01_a_reference_that_rejects_the_input_decides_nothing():
    inst = reference(lambda m, x: torch.linalg.inv(x), (3, 3))
    with pytest.raises(oracle.ReferenceFailed) as e:
        oracle.run_float64(inst, [torch.zeros(3, 3)])
    assert RULES[1].predicate(e.value) and not RULES[1].predicate(torch.zeros(3))


def test_02_an_atomic_sum_whose_reference_varies_too():
    a = [torch.tensor([0.1, NAN])]
    assert RULES[2].predicate([a, [torch.tensor([0.1 + 2e-8, NAN])]])
    assert not RULES[2].predicate([a, [torch.tensor([0.1, NAN])], [torch.tensor([0.1, -NAN])]])


def test_03_a_dropout_kernel_with_its_own_generator():
    assert RULES[3].predicate(profile(lambda m, x: F.dropout(x, 0.5, True), (20,)))
    assert not RULES[3].predicate(profile(lambda m, x: 2 * x, (20,)))


def test_04_a_log_of_zero_that_agrees():
    value, expected = torch.tensor([-INF, NAN, INF, 1.0]), torch.tensor([-INF, NAN, -INF, NAN])
    assert RULES[4].predicate(value, expected).tolist() == [True, True, False, False]


def test_05_a_nan_with_another_payload():
    a = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    bits = [int(b) for b in RULES[5].predicate(a).view(torch.int32)]
    assert len(set(bits)) == 1 and len({int(b) for b in a.view(torch.int32)}) == 3


def test_06_the_sign_of_an_infinity_counts_but_of_nan_does_not():
    assert RULES[6].predicate(torch.tensor([INF, INF, -NAN]), torch.tensor([-INF, INF, NAN])).tolist() == [
        True,
        False,
        False,
    ]


def test_07_an_additive_mask_kernel_and_a_nan_behind_the_mask():
    hidden = torch.tensor([False, True, False])
    inst = reference(lambda m, x: x.masked_fill(hidden, -INF).softmax(-1), (3,))
    x = inst.draw(1)[0]
    behind, before = x.clone(), x.clone()
    behind[1], before[0] = NAN, NAN
    clean = tensors(oracle.run_float64(inst, [x]))
    assert RULES[7].predicate(clean, tensors(oracle.run_float64(inst, [behind])))
    assert not RULES[7].predicate(clean, tensors(oracle.run_float64(inst, [before])))


def test_08_a_norm_whose_square_overflows_in_float32_only():
    inst = reference(lambda m, x: (x * x).sum(-1).sqrt(), (2, 3))
    x = [torch.tensor([[1e30, 1.0, 1.0], [NAN, 1.0, 1.0]])]
    truth, working = tensors(oracle.run_float64(inst, x))[0], tensors(oracle.run_working(inst, x))[0]
    assert truth[0].isfinite() and working[0].isinf()
    assert RULES[8].predicate(truth, working).tolist() == [False, True]


def test_09_a_scaled_norm_near_overflow():
    x = torch.tensor([1e38, 1e36, INF], dtype=torch.float64)
    assert RULES[9].predicate(torch.float32) == torch.finfo(torch.float32).max / 16
    assert tolerance.chargeable(x, None, None, torch.float32).tolist() == [False, True, False]


def test_10_a_sequential_sum_of_sorted_data_is_legal():
    x = torch.linspace(-1, 1, 60_001)
    inst, truth, working, band = judged(lambda m, x: x.sum(-1), [x])
    value = x.cpu().numpy().cumsum(dtype="float32")[-1]
    published = tolerance.bands(inst, [x], [truth], [working], profile="paper", gate="ORD-01")[0]
    assert tolerance.compare(torch.tensor(float(value)), truth, published).ratio > 1
    assert tolerance.compare(torch.tensor(float(value)), truth, band).within
    assert RULES[10].predicate("derived") and not RULES[10].predicate("paper")


def test_11_a_sequential_sum_of_a_constant():
    n = 100_000
    x = torch.full((n,), 0.1)
    _, truth, working, band = judged(lambda m, x: x.sum(-1), [x])
    value = torch.tensor(float(x.numpy().cumsum(dtype="float32")[-1]))
    own_error = tolerance.band(truth, working, torch.zeros_like(truth))
    assert (
        not tolerance.compare(value, truth, own_error).within and tolerance.compare(value, truth, band).within
    )
    assert RULES[11].predicate([x]) and not RULES[11].predicate([torch.randn(50)])


def test_12_a_half_kernel_that_computes_in_float32():
    inst = reference(lambda m, x: x.softmax(-1), (4, 60))
    x = [inst.draw(1)[0].half()]
    truth, working = oracle.run_float64(inst, x, "float16"), oracle.run_working(inst, x, "float16")
    better = [t.double() for t in tensors(truth)]
    s = tolerance.precision_statistic(inst, x, better, truth, working, dtype="float16")
    assert s.value <= s.threshold and s.regime is None
    assert RULES[12].predicate("float16") == 2.0**-11
    assert RULES[12].predicate("float32", torch.float16) == 2.0**-11, "the output's own dtype may be coarser"


def test_13_a_reference_that_ran_in_tf32_cannot_charge_precision():
    with oracle.pinned_backends() as pinned:
        assert RULES[13].predicate(pinned)
    assert not RULES[13].predicate({**pinned, "cudnn_allow_tf32": True}) and not RULES[13].predicate({})


def test_14_an_exponential_kernel_that_flushes_subnormals():
    assert not RULES[14].predicate(profile(lambda m, x: x.exp(), (9,)))
    assert RULES[14].predicate(profile(lambda m, x: 0.5 * x + 1, (9,)))
    assert fairness.flush_is_imposed(profile(lambda m, x: x / x.exp(), (9,)))
    assert not fairness.flush_is_imposed(profile(lambda m, x: 0.5 * x, (9,)))


def test_15_a_relu_that_returns_minus_zero():
    assert not RULES[15].predicate(profile(lambda m, x: x.relu() + 0.0, (9,)))
    assert not RULES[15].predicate(profile(lambda m, x: x.relu().clone(), (9,)))
    assert not RULES[15].predicate(profile(lambda m, x: x.max(-1)[0], (3, 9)))
    assert not RULES[15].predicate(profile(lambda m, x: torch.where(x > 0, x, 0.0), (9,)))
    assert RULES[15].predicate(profile(lambda m, x: x.abs(), (9,)))
    assert RULES[15].predicate(profile(lambda m, x: -x.mT.contiguous(), (3, 9)))


def test_16_an_argmax_that_returns_the_last_of_equals():
    x = torch.tensor([[1.0, 3.0, 3.0]])
    _, _, _, band = judged(lambda m, x: x.argmax(-1), [x])
    assert RULES[16].predicate(band.selected)
    assert comparison.compare_selection(torch.tensor([2]), band.selected).within
    assert not comparison.compare_selection(torch.tensor([0]), band.selected).within


def test_17_an_operator_declared_to_update_its_input():
    assert (
        RULES[17].predicate(0, (0,), ())
        and RULES[17].predicate(1, (), {1})
        and not RULES[17].predicate(0, (1,), ())
    )


def test_18_a_transpose_kernel_that_returns_a_view_like_its_reference():
    assert RULES[18].predicate(["input:0"], {"input:0"}) == []
    assert RULES[18].predicate(["input:0", "out[1]"], {"out[1]"}) == ["input:0"]


def test_19_a_width_that_the_reference_refuses():
    failed = oracle.ReferenceFailed("The reference raised.")
    assert not RULES[19].predicate(failed) and not RULES[19].predicate(ProblemError("refused"))
    assert RULES[19].predicate(torch.ones(2)) and not RULES[19].predicate(None, [torch.empty(0, 3)])


def test_20_a_kernel_that_refuses_a_shape_aloud():
    assert RULES[20].predicate(Status.RUN_FAILED) and not RULES[20].predicate(Status.JUDGED)
    assert not RULES[20].predicate(Status.CRASHED), "a dead process said nothing"


def test_21_a_kernel_beside_a_neighbour_that_holds_all_the_memory():
    assert RULES[21].predicate(Status.OUT_OF_MEMORY) and RULES[21].predicate(Status.TIMED_OUT)
    assert not RULES[21].predicate(Status.JUDGED)
    assert not RULES[21].predicate(Status.COMPILE_FAILED), "a refusal by the compiler is loud"


def test_22_a_breach_by_a_hair_is_drawn_again():
    looks = RULES[22].predicate
    assert looks(1.2, False) == 1 and looks(0.9, False) == looks(40.0, False) == looks(0.9, True) == 0
    assert looks(40.0, True) > 1


def test_23_weights_count_as_equal_by_value_whatever_their_names():
    w = torch.randn(3, 4)
    ours = {"w": w, "b": torch.zeros(4)}
    assert RULES[23].predicate(ours, {"w": w, "b": torch.zeros(4)})
    assert RULES[23].predicate(ours, {"packed": w.T.contiguous()}), "transposed, and zeros need no namesake"
    assert not RULES[23].predicate(ours, {"w": torch.randn(3, 4)})
    assert not RULES[23].predicate(ours, {"w": w[0]}), "by broadcast it would have fitted"


def test_24_a_kernel_that_tunes_itself_on_its_first_calls():
    assert [RULES[24].predicate(call, 2) for call in range(5)] == [False, False, True, True, True]


def test_25_an_operator_that_ignores_its_input():
    ones = [torch.ones(3)]
    assert RULES[25].predicate([torch.empty(0, 4)]) and RULES[25].predicate([])
    assert RULES[25].predicate(ones, [torch.ones(3)])
    assert not RULES[25].predicate(ones) and not RULES[25].predicate(ones, [torch.zeros(3)])


def test_26_a_failure_that_a_fresh_process_does_not_show():
    assert RULES[26].predicate([True, True])
    assert not RULES[26].predicate([True]) and not RULES[26].predicate([True, False, True])


def test_27_the_false_rejection_rate_has_an_upper_bound():
    rate, upper = RULES[27].predicate(0, 299)
    assert rate == 0 and upper == pytest.approx(0.01, rel=0.01), "the rule of three"
    assert RULES[27].predicate(2, 100)[1] == pytest.approx(0.0616, rel=0.01)
    assert RULES[27].predicate(0, 0) == (0.0, 1.0)


def test_28_a_verdict_of_other_rules_is_not_compared():
    assert RULES[28].predicate(RULES_VERSION) and not RULES[28].predicate("2019.01")


def test_29_a_convolution_is_judged_by_its_norm():
    convolution = profile(lambda m, x: m.c(x), (1, 2, 6, 6), c=lambda: nn.Conv2d(2, 2, 3))
    product = profile(lambda m, a, b: a @ b, (4, 4), (4, 4))
    assert RULES[29].predicate(convolution) and not RULES[29].predicate(product)
    assert not RULES[29].predicate(None)


def test_30_a_triangular_product_that_skips_its_zeros():
    x = torch.ones(3, 3)
    x[2, 1] = INF
    inst = reference(lambda m, a, b: torch.tril(a) @ b, (3, 3), (3, 3))
    truth = tensors(oracle.run_float64(inst, [torch.ones(3, 3), x]))[0]
    absorbing = tensors(oracle.zero_absorbing(inst, [torch.ones(3, 3), x]))[0]
    skipped = torch.zeros(3, 3, dtype=torch.bool)
    skipped[:2, 1] = True
    assert torch.equal(RULES[30].predicate(truth, absorbing), skipped)


def test_31_a_kernel_without_a_tail_mask_fails_shapes_only():
    assert RULES[31].predicate({"CMP-03", "PRC-02"}, set(), {"CMP-01"})
    assert RULES[31].predicate({"CMP-03", "PRC-02"}, {"EXC-01"}, {"CMP-01"}), (
        "a swallowed NaN is another matter"
    )
    assert not RULES[31].predicate({"CMP-03", "PRC-02"}, {"ORD-01"}, {"CMP-01"}), "wrong at its own sizes too"
    assert not RULES[31].predicate({"PRC-02"}, set(), {"CMP-01"}), "no other size is known to be wrong"
    assert not RULES[31].predicate({"CMP-03"}, set(), {"RES-01"}), "no value is known to be right"


def test_32_a_program_that_the_interpreter_cannot_run():
    assert RULES[32].predicate(Status.EXECUTOR_FAILED) and not RULES[32].predicate(Status.RUN_FAILED)


def test_33_a_kernel_that_relies_on_a_triangular_or_symmetric_input():
    x = torch.randn(4, 4)
    zeros = torch.ones(4, 4).triu(1).bool()
    triangle = RULES[33].predicate(x, inputs.Domain("real", "any", zeros=zeros))
    assert torch.equal(triangle, x.tril())
    symmetric = RULES[33].predicate(x, inputs.Domain("real", "any", symmetric=True))
    assert torch.equal(symmetric, symmetric.mT) and torch.equal(symmetric.triu(), x.triu())
    assert torch.equal(RULES[33].predicate(x, inputs.Domain("real", "any")), x)


def test_34_a_reference_that_counts_its_calls():
    out = [torch.ones(2)]
    assert RULES[34].predicate(out, out, {"calls": torch.tensor(0)}, {"calls": torch.tensor(1)})
    assert RULES[34].predicate(out, [torch.zeros(2)], {}, {})
    assert not RULES[34].predicate(out, [torch.ones(2)], {"w": torch.ones(1)}, {"w": torch.ones(1)})


def test_35_a_kernel_that_holds_the_width_as_its_own_constant():
    assert RULES[35].predicate is sites.hard_coded_sizes
    assert RULES[35].predicate("width = 128\nBLOCK = 32\n", {"width": 193}, {"width": 128}) == {"width": 193}
    assert RULES[35].predicate("N = 128\n", {"width": 193}, {"width": 128}) == {}
    assert RULES[35].predicate("width = 64\n", {"width": 193}, {"width": 128}) == {}


def test_36_a_sum_that_overflows_on_its_way_in_another_order():
    x = torch.tensor([[3e38, 3e38, -3e38, -3e38], [1.0, 1.0, 1.0, 1.0]])
    expected = x.double().sum(-1)
    value = torch.tensor([INF, INF])
    assert RULES[36].predicate(value, expected, x.double().abs().sum(-1), torch.float32).tolist() == [
        True,
        False,
    ]


def test_37_an_oracle_that_ran_into_the_judges_own_limit():
    assert RULES[37].predicate(Status.HARNESS_FAILED) and RULES[37].predicate(Status.REFERENCE_FAILED)
    assert not RULES[37].predicate(Status.TIMED_OUT) and not RULES[37].predicate(Status.EXECUTOR_FAILED)
    assert {s for s in Status if not RULES[37].predicate(s) and not RULES[32].predicate(s)} == set(
        CANDIDATE_FAULTS
    ), "every end has exactly one who answers for it"


def test_40_an_answer_that_is_wrong_from_the_start_has_no_history():
    assert RULES[40].predicate(False) and not RULES[40].predicate(True)


class TestRule38:
    def test_gelu_in_tanh_form_is_recognised(self):
        x = [torch.randn(500)]
        inst, truth, _, band = judged(lambda m, x: F.gelu(x), x)
        alternative = tensors(oracle.tanh_form(inst, x))[0]
        assert RULES[38].predicate(F.gelu(x[0], approximate="tanh"), truth, alternative, band)
        assert not RULES[38].predicate(F.gelu(x[0]), truth, alternative, band), (
            "nothing needs to be explained"
        )
        assert not RULES[38].predicate(1.01 * F.gelu(x[0]), truth, alternative, band)

    @pytest.mark.parametrize(
        ("exact", "spelling"),
        [
            (lambda x: torch.expm1(x), lambda x: torch.exp(x) - 1),
            (lambda x: torch.log1p(x.abs()), lambda x: torch.log(1 + x.abs())),
            (lambda x: torch.tanh(x), lambda x: 2 * torch.sigmoid(2 * x) - 1),
            (lambda x: F.elu(x), lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
            (lambda x: F.softplus(x), lambda x: torch.log(1 + torch.exp(x))),
            (lambda x: x.abs() ** 1.7, lambda x: torch.exp2(1.7 * torch.log2(x.abs()))),
        ],
        ids=["expm1", "log1p", "tanh", "elu", "softplus", "pow"],
    )
    def test_other_spellings_are_within_the_band(self, exact, spelling):
        x = torch.randn(2000, generator=torch.Generator().manual_seed(1))
        x[:1000] *= 1e-3
        x[1000:1200] *= 20
        _, truth, _, band = judged(lambda m, x: exact(x), [x])
        assert tolerance.compare(spelling(x), truth, band).within


def test_rule_39_passes_over_what_stops_but_not_what_ends_the_process() -> None:
    from lethe.verifier.verdict import Status

    passed_over = RULES[39].predicate
    assert passed_over(Status.COMPILE_FAILED) and passed_over(Status.RUN_FAILED)
    assert passed_over(Status.TIMED_OUT) and not passed_over(Status.CRASHED)


def test_41_an_infinity_where_the_reference_adds_both_infinities_up():
    value = torch.tensor([INF, -INF, INF, INF, 0.0])
    expected, undecided = (
        torch.tensor([NAN, NAN, NAN, 1.0, NAN]),
        torch.tensor([True, True, False, True, True]),
    )
    assert RULES[41].predicate(value, expected, undecided).tolist() == [True, True, False, False, False]


def test_42_an_error_that_a_regime_would_not_make():
    explains = RULES[42].predicate
    assert explains(1e-3, 2e-3) and explains(1e-3, 2e-3, True)
    assert not explains(3e-3, 2e-3), "larger than the regime makes one"
    assert not explains(1e-3, 2e-3, False), "there where the regime makes none"


def test_43_what_no_order_of_summation_brings_about():
    found = {m: Finding("normal:0", "B", m, "") for m in ("value", "nonfinite", "shape", "structure")}
    assert [m for m, f in found.items() if RULES[43].predicate(f)] == ["value"]


def test_44_a_gradient_behind_values_that_are_wrong():
    assert RULES[44].predicate([])
    assert not RULES[44].predicate([Finding("gradient:0", "B", "value", "")])


def test_46_a_draw_that_fails_at_home_as_well():
    alike = RULES[46].predicate
    assert alike(30.0, [2.0, 20.0]) and alike(64.0, [1.0])
    assert not alike(65.0, [1.0]) and not alike(2.0, []), "far worse there, and right at home"
    inf = float("inf")
    assert alike(inf, [inf]) and not alike(inf, [1e6]), "not finite there alone"
    assert not alike(5.0, [inf]) and alike(5.0, [inf, 1.0]), "not finite at home hides no other fault"


def test_47_bits_that_a_library_chose():
    chose = RULES[47].predicate
    assert chose(True, True)
    assert not chose(False, True), "no product or convolution: every bit is the kernel's own"
    assert not chose(True, False), "a value that is wrong there"


def test_rule_45_asks_whether_the_sizes_explain_a_failure() -> None:
    explain = RULES[45].predicate
    assert explain({"normal:0", "sorted"}, {"sorted"}), "one draw is right as written"
    assert not explain({"normal:0"}, {"normal:0"}) and not explain({"normal:0"}, {"normal:0", "zeros"})
    assert explain({"normal:0"}, None), "nobody knows"
