"""Axes of a problem, the sizes it is tried at, and shrinking it."""

from __future__ import annotations

import warnings

import pytest
import torch

from lethe.verifier import shrink as shrinking
from lethe.verifier.probe import Prober
from lethe.verifier.problem import OpSpec, ProblemError, instantiate, load_problem, problem_from_spec
from lethe.verifier.reference import run_reference
from lethe.verifier.shapes import (
    DEARER,
    MANY_BUDGET,
    MAX_CASES,
    WIDE_CASES,
    ShapeCase,
    SizeModel,
    shape_cases,
    shrink,
    size_model,
)
from tests.verifier.problem_sources import LINEAR, ROWS, rows

GROUPED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)

batch_size = 2
groups = 6
channels = 24
length = 50
kernel_size = 3

def get_inputs():
    return [torch.rand(batch_size, channels, length)]

def get_init_inputs():
    return [groups, channels]
"""

READS_VALUES = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(1, 2, 3)[1].item()

    def forward(self, x):
        return x[x[:, 0].argsort()] * self.scale

batch_size = 4
width = 16

def get_inputs():
    return [torch.rand(batch_size, width)]
"""


def model_of(source: str) -> SizeModel:
    return size_model(load_problem(source))


def roles(model: SizeModel) -> dict[str, str]:
    return {a.label: a.role for a in model.axes}


def test_axes_and_their_roles() -> None:
    model = model_of(LINEAR)
    assert roles(model) == {"batch_size": "batch", "in_features": "width", "out_features": "features"}
    assert model.varied == ("in_features",)
    assert [a.parameters for a in model.axes] == [False, True, True]


def test_a_site_that_moves_no_input_is_no_size() -> None:
    model = model_of(GROUPED)
    assert roles(model) == {"batch_size": "batch", "channels": "width", "length": "width"}
    assert model.fixed == {"groups": "no input dimension moves", "kernel_size": "no input dimension moves"}


def test_a_hidden_width_is_an_axis_and_a_kernel_size_is_none() -> None:
    layers = "nn.Sequential(nn.Linear(in_features, hidden), nn.Linear(hidden, 9))"
    source = LINEAR.replace("nn.Linear(in_features, out_features)", layers).replace("out_features", "hidden")
    assert roles(model_of(source))["hidden"] == "features"
    convolution = "nn.Conv1d(in_features, 8, out_features, padding='same')"
    source = LINEAR.replace("nn.Linear(in_features, out_features)", convolution).replace(
        "torch.rand(batch_size, in_features)", "torch.rand(batch_size, in_features, 40)"
    )
    assert "out_features" in model_of(source).fixed


def test_sizes_that_must_be_equal_are_no_batch() -> None:
    source = rows("torch.rand(rows, rows), torch.rand(rows)", "a * b", "a, b").replace("rows", "batch_size")
    assert roles(model_of(source)) == {"batch_size": "width"}


def test_divisibility_is_found_and_kept() -> None:
    problem = load_problem(GROUPED)
    model = size_model(problem)
    (channels,) = [a for a in model.axes if a.label == "channels"]
    assert channels.step == 6
    assert all(v % 6 == 0 and v // 6 % 2 for v in list(channels.near(131))[:3])
    for case in shape_cases(problem, model):
        assert case.sizes.get("channels", 24) % 6 == 0


def test_equal_literals_are_moved_together_when_none_moves_alone() -> None:
    source = rows("torch.rand(20, 20), torch.rand(20)", "a @ a.mT + b", "a, b")
    model = model_of(source)
    assert {a.names for a in model.axes} == {("get_inputs#0", "get_inputs#1", "get_inputs#2")} or model.varied
    assert any(len(a.names) > 1 for a in model.axes)


HINGE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, predictions, targets):
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))

batch_size = 12
input_shape = (1,)

def get_inputs():
    return [torch.randn(batch_size, *input_shape), torch.randint(0, 2, (batch_size, 1)).float() * 2 - 1]

def get_init_inputs():
    return []
"""


def test_a_one_that_only_broadcasting_lets_grow_is_no_size() -> None:
    model = model_of(HINGE)
    assert roles(model) == {"batch_size": "batch"}
    assert model.fixed["input_shape[0]"] == "written as 1, it makes inputs differ that are written alike"
    assert model.fixed["get_inputs#1"] == "a 1 inside an expression is part of the form"


def test_a_column_stays_a_column() -> None:
    model = model_of(rows("torch.rand(rows, 24), torch.rand(24, 1)", "a @ b", "a, b"))
    assert model.fixed["get_inputs#2"] == "a 1 inside an expression is part of the form"


def test_a_batch_of_one_may_grow() -> None:
    source = rows("torch.rand(rows, 24), torch.rand(rows, 24)", "a * b", "a, b")
    assert roles(model_of(source.replace("rows = 16", "rows = 1")))["rows"] == "batch"


def test_a_one_in_the_shape_of_a_bias_is_no_size() -> None:
    """At other values the sum below runs over rows that only broadcasting makes."""
    pooled = "x.mean((2, 3), keepdim=True) + self.bias"
    source = f"""
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, bias_shape):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        return ({pooled}).logsumexp(1, keepdim=True).sum((2, 3))

batch_size = 6
channels = 4
height, width = 8, 8
bias_shape = (channels, 1, 1)

def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]

def get_init_inputs():
    return [bias_shape]
"""
    model = model_of(source)
    assert set(roles(model)) == {"batch_size", "channels", "height", "width"}
    assert model.fixed["bias_shape[1]"] == "written as 1, it moves no input dimension"


def test_a_count_of_inputs_or_layers_is_no_size() -> None:
    source = LINEAR.replace(
        "self.proj = nn.Linear(in_features, out_features)",
        ("self.proj = nn.Sequential(*[nn.Linear(in_features, in_features) for _ in range(out_features)])"),
    )
    model = model_of(source)
    assert "out_features" in model.fixed


def test_cases_are_odd_above_a_tile_and_varied_jointly() -> None:
    problem = load_problem(ROWS)
    cases = shape_cases(problem, size_model(problem))
    ids = [c.id for c in cases]
    assert 6 <= len(cases) <= MAX_CASES and len(set(ids)) == len(ids)
    assert ids[0] == "joint:batch_size=7,width=193"
    assert {"batch_size=1", "width=1", "width=13", "width=41", "joint:batch_size=2,width=2049"} <= set(ids)
    assert {c.moves for c in cases} == {"batch", "width", "joint"}
    widths = [c.sizes.get("width", 40) for c in cases]
    assert min(widths) < 40 < max(widths)


@pytest.mark.parametrize("tile", [2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
def test_a_row_ends_one_past_a_tile_and_one_before_one(tile: int) -> None:
    problem = load_problem(LINEAR)
    cases = shape_cases(problem, size_model(problem))
    remainders = {c.sizes[name] % tile for c in cases for name in c.sizes if name == "in_features"}
    assert {1 % tile, tile - 1} <= remainders


WRITTEN = "rows = 16\nwidth = 24"
COLUMNS = rows("torch.randn(rows, depth, width)", "x.amin(1)").replace(
    WRITTEN, "rows = 5\ndepth = 40\nwidth = 40"
)
"""The axis that is reduced is neither the longest nor the last."""


def longer_than_a_tile(cases: list[ShapeCase]) -> list[tuple[str, int]]:
    return [(n, v) for c in cases for n, v in c.sizes.items() if v > 1024]


def test_every_axis_is_once_longer_than_a_tile() -> None:
    problem = load_problem(COLUMNS)
    model = size_model(problem)
    assert {a.label: a.reduced for a in model.axes} == {"rows": False, "depth": True, "width": False}
    cases = shape_cases(problem, model)
    assert ("depth", 4097) in longer_than_a_tile(cases) and ("width", 4097) in longer_than_a_tile(cases)
    assert len(cases) <= MAX_CASES + 1
    tight = shape_cases(problem, model, budget=model.facts.cost + 2049 * 6)
    assert ("depth", 2049) in longer_than_a_tile(tight) and ("depth", 4097) not in longer_than_a_tile(tight)
    small = load_problem(COLUMNS.replace("= 40", "= 6"))
    assert not longer_than_a_tile(shape_cases(small, size_model(small), budget=1000))


def test_no_more_than_two_axes_are_that_long_and_a_reduced_one_comes_first() -> None:
    problem = load_problem(
        rows("torch.randn(a, b, c, d)", "x.sum(2)").replace(WRITTEN, "a = 3\nb = 30\nc = 7\nd = 40")
    )
    model = size_model(problem)
    few = [n for n, v in longer_than_a_tile(shape_cases(problem, model, limit=6)) if n != "d"]
    assert few == ["c", "b"]
    assert len(shape_cases(problem, model)) <= MAX_CASES + WIDE_CASES


def test_a_case_past_a_tile_draws_another_kind_and_may_cost_twice_as_much() -> None:
    problem = load_problem(ROWS)
    model = size_model(problem)
    budget = model.facts.cost
    past = [c for c in shape_cases(problem, model, budget=budget) if c.also]
    assert past and all(c.cost <= DEARER * budget for c in past)
    assert any(c.cost > budget for c in past)
    assert {c.also for c in past} == {"sorted", "spike"}


def test_a_large_batch_is_tried_above_a_tile() -> None:
    problem = load_problem(LINEAR)
    cases = shape_cases(problem, size_model(problem))
    assert any(c.sizes.get("batch_size") == 131 for c in cases)


def test_more_rows_than_16_bits_count_are_tried_at_a_width_that_is_tried_anyway() -> None:
    problem = load_problem(LINEAR)
    model = size_model(problem)
    few = shape_cases(problem, model)
    *same, last = shape_cases(problem, model, many=True)
    assert same == few and {c.sizes["out_features"] for c in few if c.refusable} == {4097}
    assert last.refusable and 2**15 < last.sizes["batch_size"] < 2**16
    assert last.cost <= MANY_BUDGET
    small = load_problem(ROWS.replace("batch_size = 6", "batch_size = 3"))
    assert not any(c.refusable for c in shape_cases(small, size_model(small), many=True))


def test_every_case_runs_on_the_reference() -> None:
    problem = load_problem(GROUPED)
    for case in shape_cases(problem, size_model(problem)):
        instance = instantiate(problem, case.sizes)
        assert bool(run_reference(instance, instance.draw(3)).isfinite().all()), case.id


def test_sizes_where_the_reference_is_not_finite_are_left_out() -> None:
    problem = load_problem(rows("torch.randn(rows, width)", "x.var(dim=-1)"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = shape_cases(problem, size_model(problem))
    assert cases and all(c.sizes.get("width") != 1 for c in cases)


def test_the_budget_bounds_every_case() -> None:
    problem = load_problem(ROWS)
    model = size_model(problem)
    for case in shape_cases(problem, model, budget=3000):
        assert case.cost <= max(3000, model.facts.cost) * (DEARER if case.also else 1)
    assert len(shape_cases(problem, model, limit=3)) == 3


def test_cases_start_from_the_base_sizes() -> None:
    problem = load_problem(ROWS)
    base = {"batch_size": 3}
    cases = shape_cases(problem, size_model(problem, base), base)
    assert {c.sizes["batch_size"] for c in cases if "batch_size" not in c.id} == {3}


def test_a_reference_without_sizes_has_no_cases() -> None:
    problem = load_problem(rows("torch.rand(len('four'))"))
    model = size_model(problem)
    assert not model.axes and shape_cases(problem, model) == []


def test_operators_given_as_callables_have_axes_too() -> None:
    spec = OpSpec(
        "sum", lambda x: x.sum(-1), lambda n, width: [torch.randn(n, width)], {"n": 4, "width": 300}
    )
    problem = problem_from_spec(spec)
    model = size_model(problem)
    assert roles(model) == {"n": "batch", "width": "width"}
    assert "joint:n=7,width=193" in [c.id for c in shape_cases(problem, model)]


def test_a_reference_that_reads_values_is_probed_for_real() -> None:
    problem = load_problem(READS_VALUES)
    model = size_model(problem)
    assert model.prober.way in ("module", "real")
    assert model.varied == ("width",)
    branching = load_problem(rows("torch.rand(rows, width)", "x * 2 if x.sum() > 0 else x"))
    assert Prober(branching).way == "real"
    with pytest.raises(ProblemError, match="more than the"):
        Prober(branching).run({"rows": 10_000_000})


def test_a_probe_counts_work_without_data() -> None:
    facts = Prober(load_problem(LINEAR)).run({"batch_size": 2**30})
    assert facts.outputs == ((2**30, 24),)
    assert facts.flops == 2 * 2**30 * 48 * 24
    assert facts.peak_bytes >= 4 * 2**30 * (48 + 24)


def test_a_recurrent_layer_is_probed_in_one_step() -> None:
    def source(steps: int) -> str:
        return (
            LINEAR.replace("nn.Linear(in_features, out_features)", "nn.LSTM(in_features, out_features, 2)")
            .replace("return self.proj(x)", "return self.proj(x)[0]")
            .replace("torch.rand(batch_size, in_features)", f"torch.rand({steps}, batch_size, in_features)")
        )

    facts = Prober(load_problem(source(5000))).run({})
    assert facts.outputs == ((5000, 16, 24),) and facts.calls < 50
    assert facts.flops == 2 * 5000 * 16 * 4 * 24 * (48 + 24 + 24 + 24)


HUGE = (
    rows("torch.rand(rows, width)", "x.softmax(-1)")
    .replace("rows = 16", "rows = 65536")
    .replace("width = 24", "width = 65536")
)


def test_what_fits_is_left_as_written() -> None:
    found = shrink(load_problem(ROWS))
    assert found.sizes == {} and found.reason == "" and found.fits
    assert found.elements_before == found.elements_after


def test_huge_inputs_are_shrunk_without_being_drawn() -> None:
    found = shrink(load_problem(HUGE), 0.5, 64 << 20)
    assert found.fits and "needs 34360 MB of 67" in found.reason
    assert set(found.sizes) == {"rows", "width"} and all(v % 2 and v >= 131 for v in found.sizes.values())
    assert found.elements_after < 1e7 < found.elements_before


def test_a_cost_budget_serves_slow_executors() -> None:
    found = shrink(load_problem(HUGE), max_cost=100_000)
    assert found.fits and found.elements_after < 100_000
    assert all(v >= 33 for v in found.sizes.values())


@pytest.mark.parametrize("speed", [150.0, 300.0])
def test_a_reference_that_the_count_misjudges_is_shrunk_by_a_fixed_step(
    monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """Twice as slow a machine judges at the same sizes."""

    def seconds(problem: object, sizes: dict[str, int], device: str) -> tuple[float, str]:
        return sizes.get("width", 4096) / speed, ""

    monkeypatch.setattr(shrinking, "_run_once", seconds)
    source = rows("torch.rand(rows, width)").replace("width = 24", "width = 4096")
    found = shrink(load_problem(source), 1.5)
    assert found.fits and "runs far beyond 1.5 s" in found.reason
    assert found.sizes == {"rows": 9, "width": 257}


def test_sizes_do_not_depend_on_a_clock_near_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem(rows("torch.rand(rows, width)").replace("width = 24", "width = 4096"))
    for elapsed in (0.1, 1.0, 4.0):
        monkeypatch.setattr(shrinking, "_run_once", lambda *_, t=elapsed: (t, ""))
        found = shrink(problem, 1.0)
        assert found.fits and found.sizes == {} and found.reason == ""


def test_a_first_run_that_pays_for_the_device_shrinks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 0.01])
    monkeypatch.setattr(shrinking, "_run_once", lambda problem, sizes, device: (next(times), ""))
    found = shrink(load_problem(rows("torch.rand(rows, width)")), 1.0)
    assert found.sizes == {} and found.seconds == 0.01


def test_a_step_that_makes_the_output_constant_is_taken_back() -> None:
    forward = "(x * (torch.arange(x.shape[1], device=x.device) >= 200)).cumsum(-1)"
    source = rows("torch.rand(rows, width)", forward).replace("width = 24", "width = 1024")
    problem = load_problem(source)
    found = shrink(problem, max_cost=40_000)
    instance = instantiate(problem, found.sizes)
    assert found.fits and float(run_reference(instance, instance.draw(0)).max()) > 0


def test_an_output_that_is_always_constant_is_said_to_be() -> None:
    source = rows("torch.rand(rows, width)", "x * 0").replace("width = 24", "width = 4096")
    assert "constant at every size tried" in shrink(load_problem(source), max_cost=50_000).reason


def test_what_cannot_fit_says_so_and_stays_above_a_tile() -> None:
    found = shrink(load_problem(HUGE), max_cost=10)
    assert not found.fits and found.sizes == {"rows": 3, "width": 33}
