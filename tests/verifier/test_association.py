"""Which NaN of a reference an infinity may stand for: the distributive law, and where it ends."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from lethe.verifier import association, births, oracle
from tests.verifier.references import reference, tensors

NAN, INF = math.nan, math.inf
SIGNS = torch.tensor([1.0, -1.0, 2.0, -2.0])


def undecided(function, clean, **infinite):
    """The mask of the first output, with values at the given places: ``row_column=value``."""
    x = clean.clone()
    for place, value in infinite.items():
        x[tuple(int(i) for i in place.removeprefix("at_").split("_"))] = value
    inst = reference(function, tuple(clean.shape))
    assert bool(tensors(oracle.run_float64(inst, [x]))[0].isnan().any()), "nothing to ask about"
    return association.undecided(inst, [x], [clean])[0].tolist()


X = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (x.unsqueeze(-1) * SIGNS).sum((-1, -2)),
        lambda m, x: (x @ torch.stack([SIGNS, -SIGNS], -1)).mean(-1),
        lambda m, x: (
            F.linear(x, SIGNS.expand(3, 4) * SIGNS[:3, None]).sum(-1).logsumexp(0, keepdim=True) + x[:, 0]
        ),
        lambda m, x: x[:, 0] * 2 - x[:, 0],
        lambda m, x: (x[:, 0] * 2).sub_(x[:, 0]).relu(),
    ],
    ids=["sum", "matmul-mean", "logsumexp", "sub", "in-place"],
)
def test_one_infinity_that_a_sum_meets_with_both_signs(function):
    assert undecided(function, X, at_0_0=INF)[0] is True
    assert undecided(function, X, at_0_0=-INF)[0] is True


def test_only_the_elements_whose_nan_was_born_in_a_sum():
    def both(m, x):
        return torch.stack([x[:, 0] - x[:, 0], x[:, 0] * 0.0, x[:, 0] / x[:, 0]], -1).double() + 1

    assert undecided(both, X, at_1_0=INF) == [[False] * 3, [True, False, False]]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.mul(0.0).sum(-1),
        lambda m, x: x.softmax(-1).sum(-1),
        lambda m, x: F.layer_norm(x, (4,)).sum(-1),
        lambda m, x: (c := x - x.mean(-1, keepdim=True)) / c.square().mean(-1, keepdim=True).sqrt(),
        lambda m, x: (
            (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, True)
        ),
        lambda m, x: torch.sin(x).sum(-1),
    ],
    ids=["zero-times", "softmax", "layer-norm", "norm", "spelled-softmax", "domain"],
)
def test_a_nan_born_elsewhere_stays_nan(function):
    assert not torch.tensor(undecided(function, X, at_0_0=INF)).any()


def test_two_infinities_that_meet_stay_nan_in_every_spelling():
    def function(m, x):
        return (x * SIGNS).sum(-1).maximum(x.sum(-1))

    assert undecided(function, X, at_0_0=INF, at_0_1=INF) == [False, False]


def test_two_infinities_each_of_which_cancels_alone():
    assert undecided(lambda m, x: (x * 2).sum(-1) - x.sum(-1), X, at_0_0=INF, at_0_1=INF) == [True, False]


def test_a_row_of_more_infinities_than_are_tried_is_left_open():
    x = torch.ones(1, association.MOST_SOURCES + 2)
    signs = torch.ones(x.shape[-1])
    signs[::2] = -1
    places = {f"at_0_{k}": INF for k in range(x.shape[-1])}
    assert undecided(lambda m, v: (v * signs).sum(-1), x, **places) == [True]


def test_nothing_is_left_open_beside_a_nan():
    assert undecided(lambda m, x: x[:, 0] - x[:, 0], X, at_0_0=INF, at_1_0=NAN) == [False, False]


def test_a_sum_does_not_turn_a_nan_that_reaches_it_into_an_infinity():
    x = X.clone()
    x[0, 0], x[1, 0] = INF, NAN
    inst = reference(lambda m, x: x.sum(-1) - x[:, 0], (2, 4))
    out = tensors(births.born_as(inst, [x], INF))[0]
    assert out[0] == INF and out[1].isnan()
