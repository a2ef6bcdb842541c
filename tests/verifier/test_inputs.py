"""Draws of every kind, the structure they keep, and values and layouts put into them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lethe.verifier import inputs
from lethe.verifier.domains import Domain
from lethe.verifier.inputs import IllegalDraw, describe, draw, integer_state
from lethe.verifier.placement import PLACEMENTS
from lethe.verifier.problem import Instance, ProblemError, instantiate, load_problem
from lethe.verifier.reference import placed_alike, run_reference
from tests.verifier.problem_sources import LINEAR, rows


def instance_of(expression: str, forward: str = "x * 2", names: str = "x") -> Instance:
    return instantiate(load_problem(rows(expression, forward, names)))


def domain_of(expression: str, forward: str = "x * 2") -> Domain:
    return describe(instance_of(expression, forward))[0]


GENERIC = "torch.rand(rows, width)"
DOMAINS = {
    "uniform is generic": ("torch.rand(rows, width)", "real", "any"),
    "normal": ("torch.randn(rows, width) * 3", "real", "any"),
    "exponential": ("torch.randn(rows, width).exp()", "real", "positive"),
    "relu": ("F.relu(torch.randn(rows, width))", "real", "nonnegative"),
    "squares": ("(lambda t: t * t)(torch.randn(rows, width))", "real", "positive"),
    "uniform away from zero": ("torch.rand(8 * rows, 8 * width) + 0.5", "real", "positive"),
    "log decay": ("F.logsigmoid(torch.randn(rows, width))", "real", "negative"),
    "gate": ("torch.sigmoid(torch.randn(rows, width))", "unit", "positive"),
    "softmax": ("torch.rand(rows, width).softmax(0)", "probability", "positive"),
    "log softmax": ("torch.randn(rows, width).log_softmax(-1)", "log_probability", "negative"),
    "signs": ("torch.randint(0, 2, (rows, width)).float() * 2 - 1", "binary", "any"),
    "whole numbers": ("torch.randint(0, 9, (rows, width)).float()", "integral", "any"),
    "ones": ("torch.ones(rows, width)", "fixed", "any"),
    "additive mask": (
        "torch.zeros(rows, width).masked_fill(torch.rand(rows, width) > 0.5, -torch.inf)",
        "masked",
        "any",
    ),
    "indices": ("torch.randint(0, 9, (rows,))", "index", "any"),
    "boolean mask": ("torch.rand(rows, width) > 0.5", "boolean", "any"),
}


@pytest.mark.parametrize(("expression", "kind", "sign"), DOMAINS.values(), ids=DOMAINS)
def test_the_domain_is_found(expression: str, kind: str, sign: str) -> None:
    d = domain_of(expression)
    assert (d.kind, d.sign) == (kind, sign)


def test_a_generic_input_is_positive_where_the_reference_needs_it() -> None:
    assert domain_of(GENERIC, "(x + 1e-3).log()").sign in ("positive", "nonnegative")
    assert domain_of(GENERIC, "x.relu()").sign == "any"


def test_the_dimension_of_probabilities_and_the_range_of_indices_are_found() -> None:
    assert domain_of("torch.rand(rows, width).softmax(0)").dim == 0
    assert domain_of("torch.randint(0, 9, (200,))").values == (0.0, 8.0)


def test_triangles_and_symmetry_are_found() -> None:
    triangle = domain_of("torch.rand(rows, rows).tril()")
    assert triangle.zeros is not None and torch.equal(triangle.zeros, ~torch.ones(16, 16).tril().bool())
    symmetric = domain_of("(lambda t: t + t.T)(torch.rand(rows, rows))")
    assert symmetric.symmetric and symmetric.zeros is None
    assert domain_of("torch.rand(rows, width).sort(-1).values").ascending


def test_a_number_of_inputs_that_varies_is_a_problem() -> None:
    instance = instance_of("*[torch.rand(3)] * int(torch.randint(1, 9, ()))", "x[0]", "*x")
    with pytest.raises(ProblemError, match="the number of inputs differs"):
        describe(instance)


@pytest.mark.parametrize("kind", inputs.KINDS)
def test_every_kind_repeats_by_seed_and_keeps_shape_and_dtype(kind: str) -> None:
    instance = instance_of(f"{GENERIC}, torch.randn(width, rows)", "x @ y", "x, y")
    a, b = draw(instance, kind, 5), draw(instance, kind, 5)
    own = draw(instance, "normal", 5)
    for x, y, z in zip(a, b, own, strict=True):
        assert torch.equal(x, y) and x.shape == z.shape and x.dtype == z.dtype
    if kind != "normal":
        assert not all(torch.equal(x, z) for x, z in zip(a, own, strict=True))
    assert bool(run_reference(instance, a).isfinite().all())


def one(kind: str, expression: str = GENERIC, forward: str = "x * 2") -> Tensor:
    return draw(instance_of(expression, forward), kind, 1)[0]


def test_what_the_kinds_look_like() -> None:
    assert not one("zeros").any()
    hot = one("one_hot")
    assert torch.equal(hot.sum(-1), torch.ones(16)) and int((hot != 0).sum()) == 16
    assert (
        float(one("large").abs().max())
        > 5e3
        > float(one("normal").abs().max())
        > float(one("small").abs().max())
    )
    mixed = one("mixed").abs()
    assert float(mixed.max() / mixed.min()) > 1e6 and bool((one("mixed") < 0).any())
    assert len(one("constant").unique()) == 1
    ordered = one("sorted")
    assert bool((ordered.diff(dim=0) >= 0).all()) and bool((ordered.diff(dim=1) >= 0).all())
    assert bool((one("one_signed", "torch.randn(rows, width)") >= 0).all())
    assert set(one("exact_integer").unique().tolist()) == {-1.0, 0.0, 1.0}
    assert 0.8 < float((one("sparse") == 0).float().mean()) < 0.97
    shifted = one("shifted").double()
    assert 500 < float(shifted.mean() / shifted.std()) < 2000


@pytest.mark.parametrize("dim", [0, 1, None])
def test_cancelling_sums_cancel_along_every_dimension(dim: int | None) -> None:
    x = one("cancelling").double()
    total, absolute = (x.sum(), x.abs().sum()) if dim is None else (x.sum(dim), x.abs().sum(dim))
    assert float((total.abs() / absolute).max()) < 0.02
    assert float(total.abs().min()) > 0


def test_only_one_of_several_inputs_cancels() -> None:
    instance = instance_of(f"{GENERIC}, torch.rand(width, rows)", "x @ y", "x, y")
    x, y = draw(instance, "cancelling", 1)
    own = instance.draw(1)
    assert not torch.equal(x, own[0]) and torch.equal(y, own[1])


def test_which_changes_one_input_alone() -> None:
    instance = instance_of(f"{GENERIC}, torch.randint(0, 3, (rows,)), {GENERIC}", "x + z", "x, y, z")
    own = instance.draw(3)
    x, y, z = draw(instance, "large", 3, which=2)
    assert torch.equal(x, own[0]) and torch.equal(y, own[1]) and not torch.equal(z, own[2])
    with pytest.raises(IllegalDraw, match="inputs of kind index are kept"):
        draw(instance, "large", 3, which=1)
    with pytest.raises(IllegalDraw, match="there is no such input"):
        draw(instance, "large", 3, which=9)


def test_an_input_passed_twice_stays_one() -> None:
    instance = instance_of(f"*[{GENERIC}] * 2", "x + y", "x, y")
    x, y = draw(instance, "mixed", 1)
    assert torch.equal(x, y)


KEPT = {
    "triangle": ("torch.rand(rows, rows).triu()", lambda t: torch.equal(t, t.triu())),
    "symmetry": ("(lambda t: t + t.T)(torch.rand(rows, rows))", lambda t: torch.equal(t, t.T)),
    "probability": (
        "torch.rand(rows, width).softmax(-1)",
        lambda t: torch.allclose(t.sum(-1), torch.ones(16)) and t.min() >= 0,
    ),
    "log probability": (
        "torch.rand(rows, width).log_softmax(0)",
        lambda t: torch.allclose(t.exp().sum(0), torch.ones(24)),
    ),
    "unit": ("torch.rand(rows, width).sigmoid()", lambda t: t.min() > 0 and t.max() < 1),
    "positive": ("torch.randn(rows, width).exp()", lambda t: t.min() > 0),
    "nonnegative": ("torch.randn(rows, width).abs()", lambda t: t.min() >= 0),
    "negative": ("F.logsigmoid(torch.randn(rows, width))", lambda t: t.max() < 0),
    "signs": (
        "torch.randint(0, 2, (rows, width)).float() * 2 - 1",
        lambda t: set(t.unique().tolist()) <= {-1.0, 1.0},
    ),
    "order": ("torch.rand(rows, width).cumsum(-1)", lambda t: bool((t.diff(dim=-1) >= 0).all())),
    "mask": (
        "torch.zeros(rows, width).masked_fill(torch.rand(rows, width) > 0.5, -torch.inf)",
        lambda t: set(t.unique().tolist()) == {0.0, -math.inf},
    ),
    "whole numbers": (
        "torch.randint(0, 9, (rows, width)).float()",
        lambda t: bool((t == t.round()).all()) and t.max() < 9,
    ),
}


@pytest.mark.parametrize(("expression", "holds"), KEPT.values(), ids=KEPT)
def test_structure_is_kept_by_every_kind(expression: str, holds: object) -> None:
    instance = instance_of(expression)
    drawn = 0
    for kind in inputs.KINDS:
        try:
            (x,) = draw(instance, kind, 2)
        except IllegalDraw:
            continue
        drawn += 1
        assert bool(holds(x)), kind  # type: ignore[operator]
    assert drawn >= 1


def test_values_that_overflow_the_reference_are_scaled_down_or_refused() -> None:
    x = one("large", GENERIC, "x.exp()")
    assert 2 < float(x.abs().max()) < 100
    with pytest.raises(IllegalDraw, match="does not stay finite"):
        one("zeros", GENERIC, "x / x.norm(dim=-1, keepdim=True)")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of draw 'weird'"):
        one("weird")


def test_integer_weights_make_a_linear_operator_exact() -> None:
    instance = instantiate(load_problem(LINEAR))
    instance.module.load_state_dict(integer_state(instance.module, 3))
    (x,) = draw(instance, "exact_integer", 4)
    out = run_reference(instance, [x])
    w, b = instance.module.proj.weight, instance.module.proj.bias
    assert torch.equal(out.double(), x.double() @ w.double().T + b.double())
    assert set(w.unique().tolist()) == {-1.0, 0.0, 1.0}


def test_integer_weights_are_refused_where_buffers_hold_fractions() -> None:
    module = nn.BatchNorm1d(3)
    assert set(integer_state(module, 0)) == set(module.state_dict())
    assert module.running_mean is not None
    module.running_mean.fill_(0.5)
    with pytest.raises(IllegalDraw, match="running_mean holds fractions"):
        integer_state(module, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "+inf", "-inf"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_nonfinites_are_placed_where_asked(value: float, placement: str) -> None:
    instance = instance_of("torch.randn(rows, 200)")
    own = instance.draw(0)
    (x,) = inputs.place_nonfinite(instance, own, 0, value, placement)
    at = (~x.isfinite()).nonzero().tolist()
    expected = {
        "first": [[0, 0]],
        "last": [[15, 199]],
        "interior": [[8, 0]],
        "whole_row": [[8, j] for j in range(200)],
        "tile_edges": [[0, 15], [1, 16], [2, 31], [3, 32], [4, 63], [5, 64], [6, 127], [7, 128]],
    }
    assert at == expected[placement]
    assert bool(own[0].isfinite().all())
    assert torch.equal(x.nan_to_num(9, 9, 9), torch.where(x.isfinite(), own[0], 9.0))


def test_structural_zeros_hold_no_nonfinites_and_symmetry_is_kept() -> None:
    triangle = instance_of("torch.rand(rows, rows).triu(1)")
    for placement in PLACEMENTS:
        (x,) = inputs.place_nonfinite(triangle, triangle.draw(0), 0, math.nan, placement)
        assert bool(x.isnan().any()) and not bool(x.isnan().tril().any()), placement
    symmetric = instance_of("(lambda t: t + t.T)(torch.rand(rows, rows))")
    for value in (math.nan, math.inf):
        (x,) = inputs.place_nonfinite(symmetric, symmetric.draw(0), 0, value, "whole_row")
        assert torch.equal(x.isfinite(), x.isfinite().T) and int((~x.isfinite()).sum()) == 31


ILLEGAL = {
    "infinity in probabilities": (
        "torch.rand(rows, width).softmax(-1)",
        math.inf,
        "infinity is no probability",
    ),
    "minus infinity in positives": ("torch.randn(rows, width).exp()", -math.inf, "the input is positive"),
    "infinity in negatives": ("F.logsigmoid(torch.randn(rows, width))", math.inf, "the input is negative"),
    "nan in a mask": (
        "torch.zeros(rows).masked_fill(torch.rand(rows) > 0.5, -torch.inf)",
        math.nan,
        "kind masked hold no such",
    ),
    "nan in labels": ("torch.randint(0, 2, (rows,)).float()", math.nan, "kind binary hold no such value"),
    "nan in sorted": ("torch.rand(rows, width).cumsum(-1)", math.nan, "the input is sorted"),
    "indices": ("torch.randint(0, 9, (rows,))", math.nan, "no such floating input"),
    "empty": ("torch.rand(0, width)", math.nan, "the input is empty"),
    "no edge": ("torch.rand(3, 4)", math.nan, "no row or tensor longer than 16"),
}


@pytest.mark.parametrize(("expression", "value", "message"), ILLEGAL.values(), ids=ILLEGAL)
def test_nonfinites_outside_the_domain_are_refused(expression: str, value: float, message: str) -> None:
    instance = instance_of(expression)
    with pytest.raises(IllegalDraw, match=message):
        inputs.place_nonfinite(instance, instance.draw(0), 0, value, "tile_edges")


def test_subnormals_fill_even_rows_and_mix_into_odd_ones() -> None:
    instance = instance_of("torch.randn(rows, width)")
    own = instance.draw(0)
    (x,) = inputs.place_subnormals(instance, own, 0)
    subnormal = (x.abs() < 2.0**-126) & (x != 0)
    assert bool(subnormal[::2].all()) and subnormal[1::2].float().mean() == 0.5
    assert torch.equal(x.sign(), own[0].sign())
    with pytest.raises(IllegalDraw, match="kind unit hold no subnormals"):
        gate = instance_of("torch.rand(rows, width).sigmoid()")
        inputs.place_subnormals(gate, gate.draw(0), 0)


def test_layouts_hold_the_same_values_in_other_strides() -> None:
    own = [torch.randn(3, 4, 5), {"i": torch.arange(6)}, torch.rand(4) > 0.5, 2.5]
    found = dict(inputs.layouts(own))
    assert list(found) == ["transposed", "sliced", "padded", "offset"]
    strides = {name: v[0].stride() for name, v in found.items()}
    assert strides == {
        "transposed": (20, 1, 4),
        "sliced": (40, 10, 2),
        "padded": (40, 10, 1),
        "offset": (20, 5, 1),
    }
    for variant in found.values():
        assert (
            torch.equal(variant[0], own[0])
            and torch.equal(variant[1]["i"], own[1]["i"])
            and variant[3] == 2.5
        )
        assert torch.equal(variant[2], own[2])
    assert found["offset"][0].storage_offset() == 3
    between = found["sliced"][0].as_strided((119,), (1,))[1::2]
    assert bool(between.isnan().all())


def test_the_edges_of_tiles_are_taken_in_rows_that_are_read() -> None:
    instance = instance_of("torch.randn(rows, 40)")
    unread = torch.zeros(16, 40, dtype=torch.bool)
    unread[::2] = True
    unread[:, 16] = True
    own = instance.draw(0)
    (x,) = inputs.place_nonfinite(instance, own, 0, float("nan"), "tile_edges", unread)
    assert x.isnan().nonzero().tolist() == [[1, 15], [5, 31], [7, 32]]
    unread[:] = torch.arange(40) != 3
    with pytest.raises(IllegalDraw, match="reads none of those"):
        inputs.place_nonfinite(instance, own, 0, float("nan"), "tile_edges", unread)


def test_images_and_volumes_also_come_with_their_channels_last() -> None:
    own = [torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5, 6), torch.randn(2, 3, 4)]
    image, volume, row = dict(inputs.layouts(own))["channels_last"]
    assert image.stride() == (60, 1, 15, 3) and volume.stride() == (360, 1, 90, 18, 3) and row is own[2]
    assert torch.equal(image, own[0]) and torch.equal(volume, own[1])
    assert "channels_last" not in dict(inputs.layouts([torch.randn(2, 1, 4, 5), torch.randn(7)]))


def test_layouts_of_one_input_alone() -> None:
    own = [torch.randn(3, 4), torch.randn(3, 4)]
    for _, (x, y) in inputs.layouts(own, which=1):
        assert x is own[0] and y is not own[1]
    assert [name for name, _ in inputs.layouts([torch.randn(7)])] == ["sliced", "offset"]


STATEFUL = """
import torch
import torch.nn as nn

rows = 4
width = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.randn(rows, width)
        self.register_buffer("calls", torch.zeros(()))
        self.count = 0

    def forward(self, x):
        self.hidden = torch.tanh(self.hidden + x)
        self.calls += 1
        self.count += 1
        return self.hidden


def get_inputs():
    return [torch.rand(rows, width)]
"""


def test_drawing_leaves_the_reference_as_it_was_built() -> None:
    """A hidden state that is a plain attribute moves with every call: the truth of one draw would start where
    another draw left it, and the candidate is built anew."""
    instance = instantiate(load_problem(STATEFUL))
    fresh = instantiate(load_problem(STATEFUL)).module
    for kind in inputs.KINDS:
        try:
            draw(instance, kind, 5)
        except IllegalDraw:
            continue
    assert torch.equal(instance.module.hidden, fresh.hidden)
    assert float(instance.module.calls) == 0 and instance.module.count == 0


def test_asking_for_the_domain_leaves_the_reference_as_it_was_built() -> None:
    instance = instantiate(load_problem(STATEFUL))
    assert describe(instance)[0].sign == "any", "signs were tried on the reference"
    assert instance.module.count == 0


def test_drawn_inputs_are_not_written_by_a_reference_that_works_in_place() -> None:
    drawn = draw(instance_of("torch.randn(rows, width)", "x.mul_(0)"), "large", 5)[0]
    assert float(drawn.abs().max()) > 0


@pytest.mark.parametrize("view", [lambda t: t.mT, lambda t: t[..., ::2], lambda t: t[1:, 2:]])
def test_a_copy_keeps_the_layout(view) -> None:
    t = view(torch.randn(4, 6))
    copy = placed_alike(t)
    assert torch.equal(copy, t) and copy.stride() == t.stride()
    assert copy.storage_offset() == t.storage_offset() and copy.data_ptr() != t.data_ptr()
