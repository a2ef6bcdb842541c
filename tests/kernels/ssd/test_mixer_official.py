"""`Mamba2Mixer` in the official layer's place: the same parameters by name, start values and function."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lethe.references.mamba2_layer import EPSILON, mamba2_layer, shapes
from tests.kernels.ssd import standin

ABSENT = importlib.util.find_spec("lethe.kernels.ssd") is None
pytestmark = pytest.mark.skipif(ABSENT, reason="lethe.kernels.ssd is absent")

LAYERS: dict[str, dict[str, Any]] = {
    "one group": {"d_model": 64, "d_state": 64},
    "three groups": {"d_model": 96, "d_state": 64, "ngroups": 3},
    "128 states": {"d_model": 64, "d_state": 128, "d_conv": 3},
}
DEFAULTS = {"d_model": 64}
SLACK = 3.0
"""The mixer may round in other places than eager torch in bf16 does, and as often again on the way back."""
DRAWS = 5


def built(options: dict[str, Any], device: str = "cpu") -> Any:
    import lethe.kernels.ssd as package

    if not hasattr(package, "Mamba2Mixer"):
        pytest.skip("lethe.kernels.ssd has no Mamba2Mixer")
    torch.manual_seed(0)
    return package.Mamba2Mixer(**options).to(device)


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_state_dict_is_the_official_one(name):
    """Names and shapes, and a strict load both ways."""
    options = LAYERS[name]
    layer = built(options)
    official = {k: torch.randn(*shape) for k, shape in shapes(**options).items()}
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == shapes(**options)
    layer.load_state_dict(official, strict=True)
    assert all(torch.equal(v, official[k]) for k, v in layer.state_dict().items())


def test_the_defaults_are_those_announced():
    """The official ones: 128 states, 4 taps, expansion 2, 64 channels a head, one group."""
    announced = {"d_state": 128, "d_conv": 4, "expand": 2, "headdim": 64, "ngroups": 1}
    found = {k: tuple(v.shape) for k, v in built(DEFAULTS).state_dict().items()}
    assert found == shapes(64, **announced)


def test_it_starts_as_the_official_layer_does():
    """Steps between 1e-3 and 0.1, rates between 1 and 16, skip and norm of one; none of them decays."""
    layer = built({"d_model": 1024})
    step = F.softplus(layer.dt_bias.detach().double())
    rate = torch.exp(layer.A_log.detach().double())
    assert bool((step > 0.999e-3).all() and (step < 0.1001).all()) and float(step.std()) > 1e-3
    assert bool((rate >= 1 - 1e-6).all() and (rate <= 16 + 1e-4).all()) and float(rate.std()) > 1
    assert bool((layer.D == 1).all()) and bool((layer.norm.weight == 1).all())
    assert all(getattr(p, "_no_weight_decay", False) for p in (layer.dt_bias, layer.A_log, layer.D))


def eager(u: torch.Tensor, p: dict[str, torch.Tensor], ngroups: int) -> torch.Tensor:
    """The layer in torch's own bfloat16, an operator at a time: the error that its dtype costs anyway."""
    heads, conv = p["A_log"].shape[0], p["conv1d.weight"].shape[0]
    inner, length = 64 * heads, u.shape[1]
    z, mixed, dt = F.linear(u, p["in_proj.weight"]).split([inner, conv, heads], -1)
    taps = p["conv1d.weight"].shape[2]
    weight, bias = p["conv1d.weight"], p["conv1d.bias"]
    mixed = F.conv1d(mixed.mT, weight, bias, padding=taps - 1, groups=conv)[..., :length].mT
    x, B, C = F.silu(mixed).split([inner, (conv - inner) // 2, (conv - inner) // 2], -1)
    y = standin.ssd(
        x.unflatten(-1, (heads, 64)), dt, -torch.exp(p["A_log"].float()), B.unflatten(-1, (ngroups, -1)),
        C.unflatten(-1, (ngroups, -1)), D=p["D"].float(), dt_bias=p["dt_bias"].float(), dt_softplus=True,
    )  # fmt: skip
    assert isinstance(y, torch.Tensor)
    gated = (y.flatten(2) * F.silu(z)).float().unflatten(-1, (ngroups, -1))
    normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + EPSILON)
    return F.linear((normed.flatten(-2) * p["norm.weight"].float()).to(u.dtype), p["out_proj.weight"])


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    gap = float((got.detach().double() - exact).norm() / exact.norm())
    return gap if math.isfinite(gap) else math.inf


def errors(layer: Any, options: dict[str, Any], batch: int, length: int, device: str) -> dict[str, Any]:
    """Relative RMS of the output and of every gradient: the mixer's, and eager torch's, against float64.

    The largest of `DRAWS` draws on both sides: a gradient of one number a head is nearly exact by chance in
    some draws, and then says nothing about what bfloat16 costs.
    """
    drawn = [one_draw(layer, options, batch, length, device) for _ in range(DRAWS)]
    return {name: tuple(max(d[name][i] for d in drawn) for i in (0, 1)) for name in drawn[0]}


def one_draw(layer: Any, options: dict[str, Any], batch: int, length: int, device: str) -> dict[str, Any]:
    u = torch.randn(batch, length, options["d_model"], device=device).bfloat16()
    dout = torch.randn_like(u)
    groups = options.get("ngroups", 1)
    names = [name for name, _ in layer.named_parameters()]
    wide = {k: v.detach().double().requires_grad_() for k, v in layer.named_parameters()}
    u64 = u.double().requires_grad_()
    exact = mamba2_layer(u64, wide, ngroups=groups)
    truth = torch.autograd.grad(exact, [u64, *wide.values()], dout.double())
    narrow = {k: v.detach().clone().requires_grad_() for k, v in layer.named_parameters()}
    live, alive = u.clone().requires_grad_(), u.clone().requires_grad_()
    base, out = eager(live, narrow, groups), layer(alive)
    usual = torch.autograd.grad(base, [live, *narrow.values()], dout)
    ours = torch.autograd.grad(out, [alive, *(dict(layer.named_parameters())[k] for k in names)], dout)
    found = {"out": (relative(out, exact.detach()), relative(base, exact.detach()))}
    for name, a, b, t in zip(["u", *names], ours, usual, truth, strict=True):
        found[name] = (relative(a, t), relative(b, t))
    return found


def assert_as_good_as_eager(found: dict[str, Any]) -> None:
    worse = {name: pair for name, pair in found.items() if not pair[0] <= SLACK * pair[1]}
    assert not worse, f"(mixer, eager): {worse}"


def test_values_and_gradients_in_bf16():
    """Small, under the interpreter; parameters are rounded to bf16 first, so that all three see the same."""
    options = LAYERS["one group"]
    layer = built(options).bfloat16()
    assert_as_good_as_eager(errors(layer, options, 1, 35, "cpu"))


def test_what_the_mixer_is_held_against_stays_on_its_device():
    """On a device without memory: both oracles of the GPU's test make every tensor where the operands are."""
    options = LAYERS["three groups"]
    u = torch.empty(2, 70, options["d_model"], device="meta", dtype=torch.bfloat16, requires_grad=True)
    names = shapes(**options)
    narrow = {k: torch.empty(*s, device="meta", dtype=u.dtype, requires_grad=True) for k, s in names.items()}
    wide = {k: v.detach().double() for k, v in narrow.items()}
    found = eager(u, narrow, 3)
    gradients = torch.autograd.grad(found, [u, *narrow.values()], torch.empty_like(found))
    exact = mamba2_layer(u.detach().double(), wide, ngroups=3)
    assert {t.device.type for t in (found, exact, *gradients)} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(LAYERS))
def test_values_and_gradients_on_a_gpu(name):
    options = LAYERS[name]
    layer = built(options, "cuda").bfloat16()
    assert_as_good_as_eager(errors(layer, options, 2, 200, "cuda"))


def test_a_later_token_changes_no_earlier_one():
    layer = built(LAYERS["one group"]).bfloat16()
    u = torch.randn(1, 35, 64).bfloat16()
    changed = u.clone()
    changed[:, 33:] += 1
    with torch.no_grad():
        first, second = layer(u), layer(changed)
    assert torch.equal(first[:, :33], second[:, :33]) and not torch.equal(first[:, 33:], second[:, 33:])
