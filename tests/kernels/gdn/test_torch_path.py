"""The torch path where g is steep or -inf, its outputs, and the precision that autocast must not touch."""

from __future__ import annotations

import math

import pytest
import torch

from lethe.kernels import gdn as family
from lethe.kernels.gdn import torch_path
from lethe.references.gdn import gated_delta_rule_forward
from tests.references.gdn_draws import draw, state, worst

INF = float("inf")
WIDTHS = {"gdn2": ("channel", "bw"), "kda": ("channel", "b"), "gdn": ("head", "b"), "gla": ("channel", "")}


def inputs(member, dtype, length=64, dk=8, dv=8, gate=0.2):
    """q, k, v, g and the gates of a member; those that are one number a head are [B, L, H]."""
    x = draw(length, dk, dv, gate=gate)
    width, gates = WIDTHS[member]
    named = {name: x[name] for name in "qkv"}
    named["g"] = x["g"] if width == "channel" else x["g"][..., 0]
    if gates:
        named["b"] = x["b"] if gates == "bw" else x["b"][..., 0] / 2
    if gates == "bw":
        named["w"] = x["w"]
    return {name: t.to(dtype) for name, t in named.items()}


def ours(member, x, S0):
    return getattr(family, member)(*x, initial_state=S0, output_final_state=True, backend="torch")


def token_by_token(member, x, S0):
    q, k, v, g, *gates = x
    wide = [t if t.dim() == 4 else t[..., None].expand_as(k) for t in (g, *gates)]
    b = wide[1] if len(wide) > 1 else torch.zeros_like(k)
    w = gates[1] if len(gates) > 1 else gates[0][..., None].expand_as(v) if gates else torch.ones_like(v)
    return gated_delta_rule_forward(q, k, v, wide[0], b, w, initial_state=S0, scale=q.shape[3] ** -0.5)


def everything(function, member, x, S0, seed=0):
    leaves = {name: t.clone().requires_grad_() for name, t in {**x, "S0": S0}.items()}
    *rest, start = leaves.values()
    o, final = function(member, rest, start)
    r = torch.Generator().manual_seed(seed)
    do, dfinal = (torch.randn(t.shape, generator=r, dtype=torch.float64).to(t.dtype) for t in (o, final))
    found = torch.autograd.grad([o, final], list(leaves.values()), [do, dfinal])
    return {"o": o.detach(), "final": final.detach(), **dict(zip(leaves, found, strict=True))}


def error(member, x, S0):
    exact = {name: t.double() for name, t in x.items()}
    return worst(everything(ours, member, x, S0), everything(token_by_token, member, exact, S0.double()))


def test_the_floor_is_the_logarithm_of_zero():
    for dtype, expected in ((torch.float32, -104.28), (torch.float64, -745.44)):
        floor = torch.tensor(torch_path.floor(dtype), dtype=dtype)
        assert float(floor) == pytest.approx(expected, abs=0.01)
        assert floor.exp() == 0 and (floor + 1.0).exp() > 0


def test_a_reset_keeps_what_follows_it():
    """One sum over the chunk gave [1, 1, 2] at -1e9, and was off by 5e-3 at -1e5."""
    one = torch.ones(1, 3, 1, 1)
    for steep in (-1e3, -1e5, -1e9, -3e38, -INF):
        g = torch.tensor([0.0, steep, -1.0]).reshape(1, 3, 1).requires_grad_()
        o, _ = family.gated_delta_rule(one, one, one, g)
        (dg,) = torch.autograd.grad(o[0, 2].sum(), g)
        assert o.flatten().tolist() == pytest.approx([1.0, 1.0, 1.0 + math.exp(-1)], abs=2e-7)
        assert dg.flatten().tolist() == pytest.approx([0.0, 0.0, math.exp(-1)], abs=2e-7)


@pytest.mark.parametrize("member", WIDTHS)
@pytest.mark.parametrize("steep", [-1e3, -1e9, -3e38, -INF], ids=str)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-11)], ids=["float32", "float64"]
)
def test_steep_tokens_anywhere_in_a_chunk(member, steep, dtype, bound):
    """Outputs, states and every gradient. float32 rounds products of 64 terms; float64 the exponents, by
    less than 64 units of 2^-43 or so for a few steep tokens (`torch_path`)."""
    x = inputs(member, dtype, length=100)
    for t in (0, 5, 6, 31, 32, 63, 70):
        x["g"][:, t] = steep
    if x["g"].dim() == 4:
        x["g"][:, 20, :, ::2] = steep
    assert error(member, x, state(1, 1, 8, 8).to(dtype)) < bound


@pytest.mark.parametrize("member", WIDTHS)
def test_a_chunk_full_of_steep_tokens(member):
    """Decays between -700 and 0 nats in any order: the largest sums that there are."""
    x = inputs(member, torch.float32)
    r = torch.Generator().manual_seed(3)
    steep = -700 * torch.rand(x["g"].shape, generator=r)
    x["g"] = torch.where(torch.rand(x["g"].shape, generator=r) < 0.5, steep, x["g"])
    assert error(member, x, state(1, 1, 8, 8).float()) < 2e-6


@pytest.mark.parametrize("member", WIDTHS)
@pytest.mark.parametrize("nats", [5, 14])
@pytest.mark.parametrize("length", [1, 64, 100])
def test_dg_where_everything_decays_fast(member, nats, length):
    """Terms of dg that cancel were float32: 0.1 of the largest dg was lost at 14 nats a token."""
    x = inputs(member, torch.float32, length)
    x["g"] = -nats - x["g"].abs() * nats
    assert error(member, x, state(1, 1, 8, 8).float()) < 3e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", [0, 1], ids=["o", "final"])
def test_outputs_may_be_changed_in_place(dtype, which):
    x = [torch.randn(1, 20, 1, 4).to(dtype).requires_grad_() for _ in range(3)]
    found = family.linear_attention(*x, output_final_state=True)
    assert found[which]._base is None and found[which].is_contiguous()
    assert found[which].untyped_storage().nbytes() == found[which].nbytes
    found[which].add_(1)
    found[which].float().sum().backward()
    assert x[2].grad is not None


def leaves_of(member):
    """float32 arguments of any member, with gradients."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 70, 2, 8)
    k, g, b = torch.nn.functional.normalize(k, dim=-1), -torch.rand(1, 70, 2, 8), torch.rand(1, 70, 2, 8)
    one = (g[..., 0], b[..., 0])
    given = {
        "linear_attention": (q, k, v),
        "gla": (q, k, v, g),
        "deltanet": (q, k, v, one[1]),
        "gdn": (q, k, v, *one),
        "kda": (q, k, v, g, one[1]),
        "gdn2": (q, k, v, g, b, b),
        "ssd": (v, one[1], -torch.rand(2), k, q, torch.randn(2), q),
    }[member]
    return [t.clone().requires_grad_() for t in given]


@pytest.mark.parametrize("mode", ["recompute", "save"])
@pytest.mark.parametrize("member", ["linear_attention", "gla", "deltanet", "gdn", "kda", "gdn2", "ssd"])
def test_autocast_reaches_neither_pass(member, mode):
    """The same bits outside and inside, backward inside too."""
    found = []
    for enabled in (False, True):
        x = leaves_of(member)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            o, _ = getattr(family, member)(*x, mode=mode)
            grads = torch.autograd.grad(o.square().sum(), x)
        found.append((o.detach(), *grads))
    for outside, inside in zip(*found, strict=True):
        assert outside.dtype == inside.dtype and torch.equal(outside, inside)
