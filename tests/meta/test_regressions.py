"""Escapes and false accusations that a sceptic found, each kept as a case."""

from __future__ import annotations

from textwrap import dedent
from types import SimpleNamespace

import pytest

from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Status

NORM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x)

rows = 12
width = 96

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return [width]
"""


def norm_candidate(body: str, constructor: str = "self.norm = nn.LayerNorm(width)") -> str:
    head = "import torch\nimport torch.nn as nn\n\nclass ModelNew(nn.Module):\n"
    init = f"    def __init__(self, width):\n        super().__init__()\n        {constructor}\n\n"
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    return head + init + "    def forward(self, x):\n" + lines


PLAIN = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def forward(self, x):
        {body}
"""
INPUTS = """
rows = 9
width = 40

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def verdict(judge, reference: str, candidate: str, gates=None):
    return judge.verify(load_problem(dedent(reference)), load_candidate(dedent(candidate)), gates=gates)


def plain(judge, reference: str, candidate: str, gates=None):
    problem = PLAIN.format(name="Model", body=reference) + INPUTS
    return verdict(judge, problem, PLAIN.format(name="ModelNew", body=candidate), gates)


def test_weights_that_start_as_ones_and_zeros_are_exercised(judge):
    v = verdict(judge, NORM, norm_candidate("return nn.functional.layer_norm(x, x.shape[-1:])"), ["CMP-01"])
    assert {f.case for f in v.gate("CMP-01").findings} == {"varied_weights"}


def test_a_module_without_any_tensor_cannot_carry_trained_weights(judge):
    body = "return nn.functional.layer_norm(x, x.shape[-1:])"
    v = verdict(judge, NORM, norm_candidate(body, "self.width = width"), ["CMP-01"])
    assert {f.case for f in v.gate("CMP-01").findings} == {"varied_weights"}


def test_weights_read_in_the_constructor_are_not_charged(judge):
    constructor = "self.norm = nn.LayerNorm(width); self.scale = self.norm.weight.detach().clone()"
    body = "return nn.functional.layer_norm(x, x.shape[-1:], self.scale, self.norm.bias)"
    v = verdict(judge, NORM, norm_candidate(body, constructor), ["CMP-01"])
    assert v.gate("CMP-01").status is GateStatus.PASS
    assert "stale" in v.gate("CMP-01").skipped["varied_weights"]


def test_honest_norm_passes_with_other_weights(judge):
    body = "n = self.norm\nreturn nn.functional.layer_norm(x, x.shape[-1:], n.weight, n.bias, n.eps)"
    v = verdict(judge, NORM, norm_candidate(body), ["CMP-01", "PRC-02"])
    assert v.clean and "varied_weights" not in v.gate("CMP-01").skipped


ONE_PASS = (
    "m = x.mean(-1, keepdim=True)\nv = (x * x).mean(-1, keepdim=True) - m * m\n"
    "return (x - m) * torch.rsqrt(v + self.norm.eps) * self.norm.weight + self.norm.bias"
)


def test_one_pass_variance_is_found_on_shifted_inputs(judge):
    v = verdict(judge, NORM, norm_candidate(ONE_PASS), ["PRC-02"])
    assert {f.mechanism for f in v.gate("PRC-02").findings} == {"one_pass"}
    # at 96 terms every sum of squares is exact, whatever the vector unit; at 4097 its order decides
    assert {f.case for f in v.gate("PRC-02").findings} == {"shifted:N=96"}


WHOLE = PLAIN.format(name="Model", body="return nn.functional.layer_norm(x, x.shape)") + INPUTS.replace(
    "torch.randn(rows, width)", "torch.randn(length)"
).replace("rows = 9\nwidth = 40", "length = 4096")


@pytest.mark.parametrize(
    ("variance", "found"), [("(x * x).mean() - m * m", {"one_pass"}), ("(x - m).square().mean()", set())]
)
def test_one_group_is_drawn_again_before_one_pass_variance_is_ruled_out(variance, found):
    """With the seed 2 the difference of squares happens to lose little of the first two draws."""
    body = f"m = x.mean()\n        return (x - m) * torch.rsqrt({variance} + 1e-5)"
    with Judge(device="cpu", quick=True, seed=2) as judge:
        v = judge.verify(
            load_problem(WHOLE), load_candidate(PLAIN.format(name="ModelNew", body=body)), ["PRC-02"]
        )
    assert {f.mechanism for f in v.gate("PRC-02").findings} == found
    assert all(f.case.count(":") == 2 for f in v.gate("PRC-02").findings), "a later draw"


def test_a_difference_of_squares_that_shows_at_other_sizes_names_them(judge):
    """Else a replay and fairness rule 31 take the finding for one at the problem's own sizes."""
    v = verdict(judge, NORM.replace("width = 96", "width = 4000"), norm_candidate(ONE_PASS), ["PRC-02"])
    assert {f.mechanism for f in v.gate("PRC-02").findings} == {"one_pass"}
    for f in v.gate("PRC-02").findings:
        assert f.case == "shifted:N=4000" or f.extra["sizes"]["width"] == int(f.case.split("=")[1])
    assert {f.case for f in v.gate("PRC-02").findings} != {"shifted:N=4000"}


def test_a_result_that_is_not_finite_is_no_accurate_one(judge):
    """An average over the finite elements that are left would be one: a variance that cancels below zero."""
    body = "n = self.norm\ny = nn.functional.layer_norm(x, x.shape[-1:], n.weight, n.bias, n.eps)\nreturn y"
    v = verdict(judge, NORM, norm_candidate(body + " + 0 * (x - 512).sqrt()"), ["PRC-02"])
    assert {f.mechanism for f in v.gate("PRC-02").findings} == {"nonfinite"}
    assert verdict(judge, NORM, norm_candidate(body), ["PRC-02"]).clean


def test_a_probe_that_runs_out_of_time_is_noted():
    from lethe.verifier import integrity
    from lethe.verifier.sheet import CandidateStopped
    from lethe.verifier.verdict import GateResult

    def late(*_: object, **__: object) -> None:
        raise CandidateStopped(Status.TIMED_OUT, "no answer")

    trial = SimpleNamespace(
        run=late,
        second=SimpleNamespace(run=late, after_update=late),
        candidate=SimpleNamespace(kind="module", language="triton"),
        settings=SimpleNamespace(executor="interpreter"),
        choices=1,
    )
    first = SimpleNamespace(outputs={"t": 0}, overrun=[])
    sheet = integrity.probe(trial, None, first, [GateResult("ORD-02", GateStatus.PASS, "T")])
    assert not sheet.findings
    assert sheet.skipped == dict.fromkeys(("call_history", "stale_weights", "decoy"), "timed_out: no answer")


def test_renamed_parameters_are_not_missing_gradients(judge):
    constructor = "self.gain = nn.Parameter(torch.ones(width)); self.shift = nn.Parameter(torch.zeros(width))"
    body = "return nn.functional.layer_norm(x, x.shape[-1:], self.gain, self.shift)"
    v = verdict(judge, NORM, norm_candidate(body, constructor), ["CMP-02"])
    assert v.gate("CMP-02").status is GateStatus.PASS


def test_scalars_in_the_output_are_compared(judge):
    v = plain(judge, "return x * 2, x.shape[-1]", "return x * 2, 40", ["CMP-01", "CMP-03"])
    assert v.failed == ("CMP-03",)


def test_the_order_of_a_dict_means_nothing(judge):
    reference = 'return {"mean": x.mean(-1), "top": x.amax(-1)}'
    assert plain(judge, reference, 'return {"top": x.amax(-1), "mean": x.mean(-1)}', ["CMP-01"]).clean


def test_an_answer_that_depends_on_the_history_is_found(judge):
    body = "global CALLS; CALLS = globals().get('CALLS', 0) + 1; return x * 2 if CALLS < 60 else x * 3"
    v = plain(judge, "return x * 2", body)
    assert v.status is Status.JUDGED and v.violated
    assert {f.mechanism for f in v.integrity} == {"call_history"}


def test_a_reference_that_never_returns_is_refused(judge):
    from lethe.verifier.limits import time_limit
    from lethe.verifier.problem import ProblemError

    with pytest.raises(ProblemError, match="did not finish within"), time_limit(0.05, "the reference"):
        while True:
            pass


def test_a_rounding_error_behind_a_kink_is_not_charged(judge):
    """The mean of a centred row is a rounding error, and a ReLU lets it through or not by its sign alone."""
    body = "return torch.relu((x - x.mean(-1, keepdim=True)).mean(-1))"
    reference = (PLAIN.format(name="Model", body=body) + INPUTS).replace("rows = 9", "rows = 4001")
    candidate = PLAIN.format(name="ModelNew", body=body.replace("(x -", "(x.flip(-1) -"))
    v = verdict(judge, reference, candidate, ["CMP-01"])
    assert v.status is Status.JUDGED and not v.violated
    biased = PLAIN.format(name="ModelNew", body=body.replace(".mean(-1))", ".mean(-1) + 1e-4)"))
    assert verdict(judge, reference, biased, ["CMP-01"]).violated


def test_a_choice_of_an_autotuner_that_does_not_fit_is_not_charged():
    from lethe.verifier.executors.resources import KernelResource
    from lethe.verifier.gates import res02
    from lethe.verifier.sheet import Sheet

    def findings(one_of: int) -> int:
        sheet = Sheet("RES-02")
        res02._judge(sheet, KernelResource("gemm", "sm_90", 4, 3, 64, 0, 0, 294_912, 0, one_of=one_of))
        return len(sheet.findings)

    assert findings(1) == 1 and findings(4) == 0


def test_a_candidate_runs_with_the_references_convolution_algorithms(judge):
    as_pinned = "c.deterministic and not (c.allow_tf32 or c.benchmark)"
    body = f"c = torch.backends.cudnn; return x + (0 if {as_pinned} else 1)"
    assert plain(judge, "return x + 0", body, ["CMP-01"]).clean


def test_an_integer_that_the_reference_itself_rounds_across_a_step_is_not_charged(judge):
    """At 1e6 float32 resolves tenths: the reference's own floor differs from the float64 truth's."""
    body = "return (x * 10).floor().to(torch.int32)"
    assert plain(judge, body, body, ["CMP-01"]).clean
    assert plain(judge, body, body.replace("* 10", "* 10 + 1e-3"), ["CMP-01"]).violated


def test_a_gradient_behind_a_kink_is_looked_at_again(judge):
    """The sign of a rounding error decides whether a ReLU passes a gradient on."""
    body = "return torch.relu((x - x.mean(-1, keepdim=True)).mean(-1))"
    reference = (PLAIN.format(name="Model", body=body) + INPUTS).replace("rows = 9", "rows = 4001")
    candidate = PLAIN.format(name="ModelNew", body=body.replace("(x -", "(x.flip(-1) -"))
    assert not verdict(judge, reference, candidate, ["CMP-02"]).violated
    detached = PLAIN.format(name="ModelNew", body=body.replace("x.mean(", "x.detach().mean("))
    assert verdict(judge, reference, detached, ["CMP-02"]).violated


@pytest.mark.parametrize(
    "kinked", ["torch.sign(z) + x", pytest.param("torch.relu(z) * 1e4 + x", marks=pytest.mark.slow)]
)
def test_a_kink_that_is_added_to_something_is_looked_at_again(judge, kinked):
    """The sum moves in every perturbed run, so that nothing of it lies still, but few elements breach."""
    body = "z = (x - x.mean(-1, keepdim=True)).mean(-1, keepdim=True); return " + kinked
    reference = (PLAIN.format(name="Model", body=body) + INPUTS).replace("rows = 9", "rows = 1501")
    candidate = PLAIN.format(name="ModelNew", body=body.replace("(x -", "(x.flip(-1) -"))
    gates = ["CMP-01", "ORD-03"]
    assert not verdict(judge, reference, candidate, gates).violated
    late = PLAIN.format(name="ModelNew", body=body + " * (torch.arange(len(x)) < 1500)[:, None]")
    assert verdict(judge, reference, late, gates).violated


def test_one_value_behind_a_kink_widens_no_other():
    """Where seven of eight perturbed runs are cut off and one hardly is not, the spread is next to nothing;
    the reference's error in multiples of it says nothing about the other elements."""
    import torch

    from lethe.verifier import tolerance
    from lethe.verifier.conditioning import _Collector

    truth = torch.tensor([1.0, 0.0], dtype=torch.float64)
    collector = _Collector([truth], 2.0**-24)
    for run in range(8):
        kinked = 1e-13 if run == 5 else 0.0
        collector.add([truth + torch.tensor([(run - 4) * 2.0**-26, kinked])], False)
    s = collector.found
    working = torch.tensor([1.0, 1e-8])
    assert s.still[0].tolist() == [False, True]
    b = tolerance.band(truth, working, s.spread[0], s.disagree[0], still=s.still[0])
    assert b.scale == tolerance.ELEMENTWISE_C
    unit = 2 * 2.0**-24 + 2.0**-24  # 2u|y| and the largest deviation of the runs
    assert float(b.bound[0]) == pytest.approx(tolerance.ELEMENTWISE_C * unit)
    assert float(b.bound[1]) >= 1e-8


@pytest.mark.parametrize("chosen", ["argmax(-1)", "topk(4, -1)"])
def test_a_choice_among_values_that_the_reference_rounds_to_half_is_its_own(judge, chosen):
    """bfloat16 ties many values that differ in float32, and the reference takes any of them."""
    body = f"return x.bfloat16().{chosen}"
    reference = (PLAIN.format(name="Model", body=body) + INPUTS).replace("rows = 9", "rows = 256")
    assert verdict(judge, reference, PLAIN.format(name="ModelNew", body=body), ["CMP-01"]).clean
    blind = PLAIN.format(name="ModelNew", body=body.replace("x.", "x[:, :-1]."))
    assert verdict(judge, reference, blind, ["CMP-01"]).violated
    full = reference.replace("x.bfloat16()", "x")
    assert verdict(judge, full, PLAIN.format(name="ModelNew", body=body), ["CMP-01"]).violated


AWAY = "torch.sign(y) * torch.floor(y.abs() + 0.5)"


@pytest.mark.parametrize(
    ("reference", "wrong", "honest"),
    [
        ("torch.round(x)", f"y = x; return {AWAY}", "torch.floor(x + 0.5) - ((x + 0.5) % 2 == 1).float()"),
        ("torch.round(x * 7) / 7", f"y = x * 7; return {AWAY} / 7", "torch.round(x * 8 - x) * (1 / 7)"),
        (
            "torch.floor(x / 4)",
            "return torch.where(x == 0, x, torch.ceil(x / 4) - 1)",
            "torch.floor(x * 0.25)",
        ),
        (
            "(x * 0.5).to(torch.int32)",
            "return torch.round(x * 0.5 - 0.5 * x.sign()).int()",
            "(x / 2).trunc().int()",
        ),
    ],
)
def test_ties_and_whole_numbers_are_rounded_as_the_reference_rounds_them(judge, reference, wrong, honest):
    """Random numbers never meet them; a jittered reference would lie on both sides."""
    reference = "return " + reference
    found = plain(judge, reference, wrong, ["CMP-01"]).gate("CMP-01").findings
    assert found and {f.case for f in found} == {"halves"}
    assert plain(judge, reference, "return " + honest, ["CMP-01"]).clean


@pytest.mark.parametrize(("sums", "least"), [("x.sum(-1)", 1e-6), ("x @ x.t()", 1e-12)])
def test_a_step_below_the_resolution_of_generic_draws_is_seen_where_nothing_rounds(judge, sums, least):
    cut = f"y = {sums}; return torch.where(y.abs() < {least}, 0 * y, y)"
    found = plain(judge, f"return {sums}", cut, ["CMP-01"]).gate("CMP-01").findings
    assert [f.case for f in found] == ["fine"]
    assert plain(judge, f"return {sums}", f"return {sums.replace('x', '(x * 1)')}", ["CMP-01"]).clean


def test_a_sum_of_whole_numbers_that_is_none_is_found_as_such(judge):
    whole = "(x == x.round()).all() & (x != 0).any()"
    found = plain(judge, "return x.sum(-1)", f"return x.sum(-1) / (~({whole})).float()", ["CMP-01"])
    by_case = {f.case: f.mechanism for f in found.gate("CMP-01").findings}
    assert by_case["exact_integer"] == "nonfinite"


@pytest.mark.parametrize("body", ["x @ x.t() + x[:, :1]", "x.cumsum(-1) + 1"])
def test_where_a_scale_does_not_leave_the_sums_exact_the_band_decides(judge, body):
    """2^-48 beside 2^-24, and 2^-24 beside 1, are too far apart for float32."""
    honest = body.replace(" + x[:, :1]", " - (-x[:, :1])").replace(" + 1", " - (-1)")
    assert plain(judge, "return " + body, "return " + honest, ["CMP-01"]).clean


@pytest.mark.parametrize(("needs", "one_of"), [([300_000, 294_912], 1), ([294_912, 65_536], 2)])
def test_where_no_choice_of_an_autotuner_fits_the_kernel_is_charged(monkeypatch, needs, one_of):
    from lethe.verifier.executors import resources
    from lethe.verifier.executors.resources import KernelResource, LaunchRecord

    def compiled(records, target, **_):
        return [KernelResource("mm", target, 4, 3, 64, 0, 0, needs[r.kwargs["BLOCK"]], 0) for r in records]

    def mm() -> None: ...

    def record(*offered):
        return LaunchRecord(SimpleNamespace(fn=mm), (), {"BLOCK": 0}, (1,), offered)

    launched = {(0,): record({"BLOCK": 0}, {"BLOCK": 1}), (1,): record()}
    monkeypatch.setattr(resources, "_records", launched)
    monkeypatch.setattr(resources, "compile_only", compiled)
    # the second is a namesake, or a launch past the autotuner: it has no choice
    assert [row["one_of"] for row in resources.resources("sm_90")] == [one_of, 1]


@pytest.mark.parametrize("first", ["x.view(-1)", "x.reshape(-1)"])
def test_a_layout_that_the_reference_refuses_is_not_asked_of_the_candidate(judge, first):
    """``view`` takes no other strides. A reference with ``reshape`` does, so that refusing is charged."""
    reference = f"return (2 * {first}).reshape(x.shape)"
    v = plain(judge, reference, "return (2 * x.view(-1)).view(x.shape)", ["CMP-01", "CMP-03"])
    layouts = {"layout:transposed", "layout:padded"}
    if "view" in first:
        assert v.clean and layouts <= set(v.gate("CMP-03").skipped)
    else:
        assert {f.case for f in v.gate("CMP-03").findings} == layouts
