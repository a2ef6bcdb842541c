"""The oracle of the gated linear recurrence: autograd, its members, packed sequences, what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from lethe.references import gdn_members
from lethe.references.gdn import GRADIENTS, gated_delta_rule_backward, gated_delta_rule_forward
from lethe.references.gdn_chunk import chunk_backward, chunk_forward
from lethe.references.gdn_reductions import REDUCTIONS
from tests.references.gdn_draws import draw, state, worst

RUNG = 1e-12
"""A rung of the ladder may differ from the one below by this, peak-normalised (float64, well-conditioned)."""


def adjoint_by_autograd(forward, x, S0, do, dfinal):
    leaves = {**{n: t.clone().requires_grad_() for n, t in x.items()}, "initial_state": S0.clone()}
    leaves["initial_state"].requires_grad_()
    initial = leaves["initial_state"]
    o, final = forward({n: t for n, t in leaves.items() if n != "initial_state"}, initial)
    found = torch.autograd.grad([o, final], list(leaves.values()), [do, dfinal])
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("gate", [0.1, 5.0])
def test_the_adjoint_equals_autograd(gate):
    x, S0 = draw(19, 6, 4, batch=2, heads=2, gate=gate), state(2, 2, 6, 4)
    o, final = gated_delta_rule_forward(**x, scale=0.7, initial_state=S0)
    do, dfinal = torch.randn_like(o), torch.randn_like(final)
    expected = adjoint_by_autograd(
        lambda leaves, S: gated_delta_rule_forward(**leaves, scale=0.7, initial_state=S), x, S0, do, dfinal
    )
    got = gated_delta_rule_backward(do, **x, scale=0.7, initial_state=S0, dfinal=dfinal)
    assert tuple(got) == GRADIENTS
    assert worst(got, expected) < 1e-14


def test_the_adjoint_is_the_derivative():
    """Central differences, which share nothing with autograd either."""
    x, S0 = draw(5, 3, 2), state(1, 1, 3, 2)
    o, final = gated_delta_rule_forward(**x, initial_state=S0)
    do, dfinal = torch.randn_like(o), torch.randn_like(final)
    got = gated_delta_rule_backward(do, **x, initial_state=S0, dfinal=dfinal)
    along = {n: torch.randn_like(t) for n, t in got.items()}

    def loss(step: float) -> torch.Tensor:
        moved = {n: t + step * along[n] for n, t in x.items()}
        y, end = gated_delta_rule_forward(**moved, initial_state=S0 + step * along["initial_state"])
        return (y * do).sum() + (end * dfinal).sum()

    h = 1e-5
    numeric = (loss(h) - loss(-h)) / (2 * h)
    exact = sum((got[n] * along[n]).sum() for n in got)
    assert abs(numeric - exact) <= 1e-7 * abs(exact)


@pytest.mark.parametrize("cuts", [[0, 5, 5, 12, 13], [0, 0, 13], [0, 13, 13]], ids=str)
def test_packed_sequences_are_the_sequences_one_by_one(cuts):
    x, cu = draw(13, 4, 3, heads=2), torch.tensor(cuts)
    sequences = len(cuts) - 1
    S0, dfinal = state(sequences, 2, 4, 3), state(sequences, 2, 4, 3, seed=2)
    o, final = gated_delta_rule_forward(**x, initial_state=S0, cu_seqlens=cu)
    do = torch.randn_like(o)
    got = gated_delta_rule_backward(do, **x, initial_state=S0, dfinal=dfinal, cu_seqlens=cu)
    for n, (first, last) in enumerate(pairwise(cuts)):
        if first == last:
            assert torch.equal(final[n], S0[n]) and torch.equal(got["initial_state"][n], dfinal[n])
            continue
        part, S = {name: t[:, first:last] for name, t in x.items()}, S0[n : n + 1]
        o_one, final_one = gated_delta_rule_forward(**part, initial_state=S)
        one = gated_delta_rule_backward(do[:, first:last], **part, initial_state=S, dfinal=dfinal[n : n + 1])
        assert torch.equal(o[:, first:last], o_one) and torch.equal(final[n], final_one[0])
        assert torch.equal(got["initial_state"][n], one.pop("initial_state")[0])
        for name, value in one.items():
            assert torch.equal(got[name][:, first:last], value), name


@pytest.mark.parametrize("name", ["q", "g", "initial_state"])
def test_it_refuses_other_dtypes_by_name(name):
    x = {**draw(3, 2, 2), "initial_state": state(1, 1, 2, 2)}
    x[name] = x[name].float()
    with pytest.raises(TypeError, match=rf"float64, but {name} is torch\.float32"):
        gated_delta_rule_forward(**x)


def test_it_refuses_what_would_broadcast():
    x = draw(4, 3, 2)
    with pytest.raises(ValueError, match="g has shape"):
        gated_delta_rule_forward(**{**x, "g": x["g"][..., :1]})
    with pytest.raises(ValueError, match="rise from 0 to L=4"):
        gated_delta_rule_forward(**x, cu_seqlens=torch.tensor([0, 3]))


def member_inputs(member: str, length: int, dk: int, dv: int) -> dict[str, torch.Tensor]:
    x = draw(length, dk, dv, batch=2, heads=2)
    step = F.softplus(x["v"][..., 0] - 1)
    pool = {
        **x,
        "a": x["g"].exp() if member == "gla" else x["g"][..., 0].exp(),
        "beta": x["b"][..., 0],
        "x": x["v"],
        "dt": step,
        "A": torch.tensor([-1.3, -0.2], dtype=torch.float64),
        "B": x["k"],
        "C": x["q"],
    }
    return {name: pool[name] for name in REDUCTIONS[member].arguments}


@pytest.mark.parametrize("member", REDUCTIONS)
def test_each_member_by_its_own_definition(member):
    """Outputs, final state and the gradient of every argument, against the general recurrence reduced."""
    m, S0, scale = member_inputs(member, 37, 8, 6), state(2, 2, 8, 6), 0.6
    own = getattr(gdn_members, member)
    skip = torch.tensor([0.7, -0.3], dtype=torch.float64)

    def defined(leaves, S):
        if member == "ssd":
            return own(**leaves, D=skip, S0=S)
        return own(**leaves, S0=S, scale=scale)

    def reduced(leaves, S):
        general = REDUCTIONS[member].general(leaves, scale)
        o, final = gated_delta_rule_forward(**vars(general), initial_state=S)
        return (o + skip[:, None] * leaves["x"], final) if member == "ssd" else (o, final)

    o, final = defined(m, S0)
    do, dfinal = torch.randn_like(o), torch.randn_like(final)
    o_general, final_general = reduced(m, S0)
    assert worst({"o": o_general, "final": final_general}, {"o": o, "final": final}) < RUNG
    expected = adjoint_by_autograd(defined, m, S0, do, dfinal)
    assert worst(adjoint_by_autograd(reduced, m, S0, do, dfinal), expected) < RUNG


@pytest.mark.parametrize(
    ("length", "dv", "gate"), [(192, 64, 1.0), (150, 128, 1.0), (37, 64, 0.1), (130, 128, 5.0)], ids=str
)
def test_chunks_equal_the_serial_oracle(length, dv, gate):
    """Second rung: dk = 128, chunk 64, ragged, initial and final state, every gradient."""
    x, S0 = draw(length, 128, dv, gate=gate), state(1, 1, 128, dv)
    o, final = gated_delta_rule_forward(**x, scale=128**-0.5, initial_state=S0)
    do, dfinal = torch.randn_like(o), torch.randn_like(final)
    expected = gated_delta_rule_backward(do, **x, scale=128**-0.5, initial_state=S0, dfinal=dfinal)
    o_chunk, final_chunk = chunk_forward(**x, scale=128**-0.5, initial_state=S0)
    got = chunk_backward(do, **x, scale=128**-0.5, initial_state=S0, dfinal=dfinal)
    assert worst({"o": o_chunk, "final": final_chunk}, {"o": o, "final": final}) < RUNG
    assert worst(got, expected) < RUNG


def test_packed_chunks_equal_the_serial_oracle():
    x, cu = draw(150, 16, 12, heads=2), torch.tensor([0, 70, 70, 134, 150])
    S0, dfinal = state(4, 2, 16, 12), state(4, 2, 16, 12, seed=2)
    o, final = gated_delta_rule_forward(**x, initial_state=S0, cu_seqlens=cu)
    do = torch.randn_like(o)
    expected = gated_delta_rule_backward(do, **x, initial_state=S0, dfinal=dfinal, cu_seqlens=cu)
    o_chunk, final_chunk = chunk_forward(**x, initial_state=S0, cu_seqlens=cu)
    assert worst({"o": o_chunk, "final": final_chunk}, {"o": o, "final": final}) < RUNG
    assert worst(chunk_backward(do, **x, initial_state=S0, dfinal=dfinal, cu_seqlens=cu), expected) < RUNG
