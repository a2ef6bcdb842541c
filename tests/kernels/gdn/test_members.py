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


@pytest.mark.parametrize(
    ("member", "names", "extra"),
    [
        ("linear_attention", ("q", "k", "v"), "g"),
        ("linear_attention", ("q", "k", "v"), "w"),
        ("gla", ("q", "k", "v", "g"), "beta"),
        ("deltanet", ("q", "k", "v", "beta"), "g"),
        ("gdn", ("q", "k", "v", "decay", "beta"), "w"),
        ("kda", ("q", "k", "v", "g", "beta"), "b"),
        ("gdn2", ("q", "k", "v", "g", "b", "w"), "beta"),
    ],
)
def test_a_member_names_the_operator_that_has_more_gates(member, names, extra):
    x = operands(*names)
    with pytest.raises(TypeError, match=f"{member} has no gate {extra}; use gated_delta_rule"):
        getattr(family, member)(*x.values(), **{extra: x["q"]})
    with pytest.raises(TypeError, match=f"{member} has no argument 'output_final'"):
        getattr(family, member)(*x.values(), output_final=True)
    for name, broken in {"q": None, "v": x["v"].numpy(), names[-1]: 0.5}.items():
        given = [broken if n == name else t for n, t in x.items()]
        public = {"decay": "g"}.get(name, name)
        with pytest.raises(TypeError, match=f"^{public} must be a tensor; it is"):
            getattr(family, member)(*given)


def test_the_erase_gate_of_gdn2_is_called_b():
    x = operands("q", "k", "v", "g", "b", "w")
    with pytest.raises(TypeError, match=r"^b is torch\.float16; with q of torch\.float64"):
        family.gdn2(**x | {"b": x["b"].half()})
    with pytest.raises(ValueError, match=r"^b is on meta"):
        family.gdn2(**x | {"b": x["b"].to("meta")})


def ssd_inputs(dtype=torch.float32):
    """Batch 1, 10 tokens, 4 heads of 6, 2 groups of 5."""
    torch.manual_seed(0)
    named = {
        "x": torch.randn(1, 10, 4, 6),
        "dt": torch.rand(1, 10, 4),
        "A": -torch.rand(4) - 0.1,
        "B": torch.randn(1, 10, 2, 5),
        "C": torch.randn(1, 10, 2, 5),
        "D": 3 * torch.randn(4),
        "z": torch.randn(1, 10, 4, 6),
        "dt_bias": torch.rand(4),
        "initial_states": torch.randn(1, 4, 6, 5),
    }
    return {n: t.to(dtype) if n in ("x", "B", "C", "z") else t for n, t in named.items()}


@pytest.mark.parametrize(
    ("name", "wrong", "error", "sentence"),
    [
        ("x", lambda x: x["x"][0, 0], ValueError, r"x has shape \(4, 6\), expected \[B, L, H, P\]"),
        ("x", lambda x: x["x"][:, :0], ValueError, r"x has shape .* without an empty axis"),
        ("x", lambda x: x["x"].int(), TypeError, r"x is torch\.int32; choose"),
        ("dt", lambda x: x["dt"][..., :1], ValueError, r"dt has shape \(1, 10, 1\), expected \(1, 10, 4\)"),
        ("dt", lambda x: x["dt"][:, :1], ValueError, r"dt has shape \(1, 1, 4\)"),
        ("dt", lambda x: x["dt"].double(), TypeError, r"dt is torch\.float64; with x of torch\.float32"),
        ("A", lambda x: x["A"][:1], ValueError, r"A has shape \(1,\), expected \(4,\)"),
        ("A", lambda x: x["A"][0], ValueError, r"A has shape \(\), expected \(4,\)"),
        ("A", lambda x: -1.0, TypeError, r"A must be a tensor; it is of type float"),
        ("A", lambda x: -x["dt"], ValueError, r"A has shape \(1, 10, 4\)"),
        ("B", lambda x: x["B"][:, :, :0], ValueError, r"B has shape .* with G dividing H=4"),
        ("B", lambda x: x["B"][:, :5], ValueError, r"B has shape \(1, 5, 2, 5\), expected \(1, 10, G, N\)"),
        ("B", lambda x: x["B"][0, 0], ValueError, r"B has shape \(2, 5\)"),
        ("B", lambda x: x["B"].double(), TypeError, r"B is torch\.float64; with x of torch\.float32"),
        (
            "C",
            lambda x: x["C"][..., :3],
            ValueError,
            r"C has shape \(1, 10, 2, 3\), expected \(1, 10, 2, 5\)",
        ),
        ("D", lambda x: x["D"][:1], ValueError, r"D has shape \(1,\), expected \(4,\) or \(4, 6\)"),
        ("D", lambda x: torch.randn(1, 6), ValueError, r"D has shape \(1, 6\)"),
        ("D", lambda x: torch.randn(4, 1), ValueError, r"D has shape \(4, 1\)"),
        ("D", lambda x: 64, TypeError, r"D must be a tensor or None; it is the number 64 \(.*chunk_size"),
        ("z", lambda x: x["z"][..., :1], ValueError, r"z has shape \(1, 10, 4, 1\)"),
        ("z", lambda x: torch.randn(3, 10, 4, 6), ValueError, r"z has shape \(3, 10, 4, 6\)"),
        ("z", lambda x: x["z"].double(), TypeError, r"z is torch\.float64; .* must be torch\.float32$"),
        ("dt_bias", lambda x: x["dt_bias"][:1], ValueError, r"dt_bias has shape \(1,\), expected \(4,\)"),
        ("initial_states", lambda x: torch.zeros(3), ValueError, r"initial_states has shape \(3,\)"),
        ("initial_states", lambda x: x["initial_states"].half(), TypeError, r"initial_states is .*16"),
        ("z", lambda x: x["z"].to("meta"), ValueError, r"z is on meta, x is on cpu"),
        ("cu_seqlens", lambda x: [0, 10], TypeError, r"cu_seqlens must be a tensor or None"),
    ],
)
def test_ssd_names_its_own_arguments_and_broadcasts_nothing(name, wrong, error, sentence):
    x = ssd_inputs()
    with pytest.raises(error, match=f"^{sentence}"):
        family.ssd(**x | {name: wrong(x)})


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16], ids=str)
def test_ssd_rounds_once(io):
    """Half a unit of the result's own last place, and what float32 sums of a few terms lose before."""
    x = ssd_inputs(io)
    y, _ = family.ssd(**x, dt_softplus=True)
    exact, _ = family.ssd(**{n: t.double() for n, t in x.items()}, dt_softplus=True)
    assert y.dtype == io
    assert ((y.double() - exact).abs() <= torch.finfo(io).eps / 2 * exact.abs() + 1e-5).all()


def test_ssd_takes_steps_in_the_dtype_of_x():
    """Cast to float32 before anything is formed of them, and so with the same bits."""
    x = ssd_inputs(torch.bfloat16)
    low = {n: x[n].bfloat16() for n in ("dt", "A", "D", "dt_bias")}
    y, _ = family.ssd(**x | low, dt_softplus=True)
    assert torch.equal(y, family.ssd(**x | {n: t.float() for n, t in low.items()}, dt_softplus=True)[0])
