"""Each member under its own name, against its own definition: outputs, states and every gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lethe.kernels import gdn as family
from lethe.references import gdn_members as definitions
from tests.references.gdn_draws import draw, state, worst

SCALE, BOUND = 0.4, 1e-12


def operands(*names: str) -> dict[str, torch.Tensor]:
    x = draw(100, 16, 12, batch=2, heads=2)
    pool = {**x, "beta": x["b"][..., 0], "decay": x["g"][..., 0]}
    return {name: pool[name] for name in names}


MEMBERS = {
    "linear_attention": (("q", "k", "v"), lambda q, k, v, S: definitions.linear(q, k, v, S, scale=SCALE)),
    "gla": (
        ("q", "k", "v", "g"),
        lambda q, k, v, g, S: definitions.gla(q, k, v, g.exp(), S, scale=SCALE),
    ),
    "deltanet": (
        ("q", "k", "v", "beta"),
        lambda q, k, v, beta, S: definitions.deltanet(q, k, v, beta, S, scale=SCALE),
    ),
    "gdn": (
        ("q", "k", "v", "decay", "beta"),
        lambda q, k, v, g, beta, S: definitions.gdn(q, k, v, g.exp(), beta, S, scale=SCALE),
    ),
    "kda": (
        ("q", "k", "v", "g", "beta"),
        lambda q, k, v, g, beta, S: definitions.kda(q, k, v, g, beta, S, scale=SCALE),
    ),
    "gdn2": (
        ("q", "k", "v", "g", "b", "w"),
        lambda q, k, v, g, b, w, S: definitions.gdn2(q, k, v, g, b, w, S, scale=SCALE),
    ),
}


def run(function, inputs, S0, do, dfinal):
    leaves = [t.clone().requires_grad_() for t in (*inputs.values(), S0)]
    o, final = function(*leaves)
    found = torch.autograd.grad([o, final], leaves, [do, dfinal])
    named = dict(zip((*inputs, "initial_state"), found, strict=True))
    return {"o": o.detach(), "final": final.detach(), **named}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_equals_its_definition(member):
    names, definition = MEMBERS[member]
    length = 40 if member == "gdn2" else 100
    inputs = {n: t[:, :length] for n, t in operands(*names).items()}
    S0, dfinal = state(2, 2, 16, 12), state(2, 2, 16, 12, seed=2)
    do = torch.randn(2, length, 2, 12, dtype=torch.float64)

    def ours(*leaves):
        return getattr(family, member)(
            *leaves[:-1], scale=SCALE, initial_state=leaves[-1], output_final_state=True
        )

    assert worst(run(ours, inputs, S0, do, dfinal), run(definition, inputs, S0, do, dfinal)) < BOUND


def test_ssd_equals_its_definition_with_groups_bias_skip_and_gate():
    torch.manual_seed(0)
    f64 = {"dtype": torch.float64}
    batch, length, heads, groups, width, n = 2, 100, 4, 2, 6, 5
    inputs = {
        "x": torch.randn(batch, length, heads, width, **f64),
        "dt": torch.randn(batch, length, heads, **f64),
        "A": -torch.rand(heads, **f64) - 0.1,
        "B": torch.randn(batch, length, groups, n, **f64),
        "C": torch.randn(batch, length, groups, n, **f64),
        "D": torch.randn(heads, **f64),
        "z": torch.randn(batch, length, heads, width, **f64),
        "dt_bias": torch.randn(heads, **f64),
    }
    h0, dfinal = torch.randn(2, batch, heads, width, n, **f64)
    do = torch.randn_like(inputs["x"])

    def ours(x, dt, A, B, C, D, z, dt_bias, h):
        return family.ssd(
            x,
            dt,
            A,
            B,
            C,
            D,
            z,
            dt_bias=dt_bias,
            dt_softplus=True,
            initial_states=h,
            return_final_states=True,
        )

    def definition(x, dt, A, B, C, D, z, dt_bias, h):
        wide = [t.repeat_interleave(heads // groups, 2) for t in (B, C)]
        y, final = definitions.ssd(x, F.softplus(dt + dt_bias), A, *wide, D, h.mT)
        return y * F.silu(z), final.mT

    assert worst(run(ours, inputs, h0, do, dfinal), run(definition, inputs, h0, do, dfinal)) < BOUND


@pytest.mark.parametrize(
    ("member", "names", "wrong"),
    [
        ("gla", ("q", "k", "v", "decay"), "g has shape"),
        ("gdn", ("q", "k", "v", "g", "beta"), "g has shape"),
        ("deltanet", ("q", "k", "v", "b"), "beta has shape"),
        ("kda", ("q", "k", "v", "g", "b"), "beta has shape"),
        ("gdn2", ("q", "k", "v", "g", "b", "beta"), "w has shape"),
    ],
)
def test_a_member_refuses_the_gates_of_another(member, names, wrong):
    with pytest.raises(ValueError, match=wrong):
        getattr(family, member)(*operands(*names).values())
