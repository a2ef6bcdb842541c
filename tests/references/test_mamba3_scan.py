"""The scan and block oracles: against autograd, against a quadratic form, and what they refuse."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lethe.references.mamba3_block import BlockInputs, causal_conv, fused_block_backward, fused_block_forward
from lethe.references.mamba3_scan import backward_selective_scan, forward_chunked_scan


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def operands(batch: int = 2, length: int = 9, width: int = 3, n: int = 4) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "u": draw(batch, length, width),
        "dt": F.softplus(draw(batch, length, width) - 1),
        "A": -torch.exp(draw(width, n)),
        "B": draw(batch, length, n),
        "C": draw(batch, length, n),
        "D": draw(width),
        "trap": draw(batch, length, width),
        "initial_state": draw(batch, width, n),
    }


def close(a: torch.Tensor, b: torch.Tensor, bound: float = 1e-13) -> bool:
    return bool((a - b).abs().max() <= bound * b.abs().max().clamp(min=1.0))


def quadratic(o: dict[str, torch.Tensor]) -> torch.Tensor:
    """y_t = sum_s C_t exp(A (c_t - c_s)) kappa_s u_s B_s, with the diagonal weighted by lam dt alone."""
    dt, A, u = o["dt"], o["A"], o["u"]
    lam = torch.sigmoid(o["trap"]) if "trap" in o else torch.ones_like(dt)
    late = F.pad((dt * (1 - lam))[:, 1:], (0, 0, 0, 1))
    c = dt.cumsum(1)
    y = torch.zeros_like(u)
    for t in range(u.shape[1]):
        for s in range(t + 1):
            weight = (lam * dt)[:, s] + (late[:, s] if s < t else 0.0)
            decay = torch.exp((c[:, t] - c[:, s])[..., None] * A)
            y[:, t] += weight * u[:, s] * (decay * o["C"][:, t, None] * o["B"][:, s, None]).sum(-1)
        if "initial_state" in o:
            y[:, t] += (torch.exp(c[:, t, :, None] * A) * o["initial_state"] * o["C"][:, t, None]).sum(-1)
    return y + o["D"] * u


@pytest.mark.parametrize("rule", ["euler", "trapezoidal"])
def test_scan_equals_its_quadratic_form(rule):
    o = operands()
    if rule == "euler":
        del o["trap"]
    y, _ = forward_chunked_scan(**o)
    assert close(y, quadratic(o))


@pytest.mark.parametrize("rule", ["euler", "trapezoidal"])
def test_scan_backward_equals_autograd(rule):
    o = operands()
    if rule == "euler":
        del o["trap"]
    leaves = {name: value.requires_grad_() for name, value in o.items()}
    y, final = forward_chunked_scan(**leaves)
    dy, dfinal = torch.randn_like(y), torch.randn_like(final)
    expected = torch.autograd.grad([y, final], list(leaves.values()), [dy, dfinal])
    with torch.no_grad():
        got = backward_selective_scan(dy, **leaves, dfinal=dfinal)
    assert set(got) == set(leaves)
    for name, reference in zip(leaves, expected, strict=True):
        assert close(got[name], reference), name


def test_a_scan_may_be_cut_anywhere():
    o = operands()
    del o["trap"]
    whole, final = forward_chunked_scan(**o)
    first = {k: v[:, :5] if k in ("u", "dt", "B", "C") else v for k, v in o.items()}
    second = {k: v[:, 5:] if k in ("u", "dt", "B", "C") else v for k, v in o.items()}
    head, middle = forward_chunked_scan(**first)
    tail, end = forward_chunked_scan(**(second | {"initial_state": middle}))
    assert close(torch.cat([head, tail], 1), whole) and close(end, final)


def test_a_saturated_trapezoid_is_euler():
    o = operands()
    o["trap"] = torch.full_like(o["dt"], 60.0)
    with_gate, _ = forward_chunked_scan(**o)
    del o["trap"]
    assert close(with_gate, forward_chunked_scan(**o)[0])


def block() -> BlockInputs:
    torch.manual_seed(1)
    b, length, d, n, k = 2, 7, 3, 4, 4
    return BlockInputs(
        x=draw(b, length, d), dt=draw(b, length, d), A=-torch.exp(draw(d, n)), B=draw(b, length, n),
        C=draw(b, length, n), D=draw(d), z=draw(b, length, d), conv_weight=draw(d, k), conv_bias=draw(d),
        dt_bias=draw(d),
    )  # fmt: skip


def test_convolution_equals_torch():
    inputs = block()
    padded = F.pad(inputs.x.transpose(1, 2), (3, 0))
    expected = F.conv1d(padded, inputs.conv_weight[:, None], inputs.conv_bias, groups=3).transpose(1, 2)
    assert close(causal_conv(inputs.x, inputs.conv_weight, inputs.conv_bias), expected)


@pytest.mark.parametrize("rule", ["euler", "trapezoidal"])
def test_block_backward_equals_autograd(rule):
    inputs = block()
    trap = draw(*inputs.x.shape).requires_grad_() if rule == "trapezoidal" else None
    leaves = BlockInputs(*(t.requires_grad_() for t in inputs))
    out = fused_block_forward(leaves, trap=trap)
    dout = torch.randn_like(out)
    names = [*leaves._fields, *(["trap"] if trap is not None else [])]
    expected = torch.autograd.grad(out, [*leaves, *([trap] if trap is not None else [])], dout)
    with torch.no_grad():
        got = fused_block_backward(dout, leaves, trap=trap)
    assert set(got) == set(names)
    for name, reference in zip(names, expected, strict=True):
        assert close(got[name], reference), name


def test_block_forward_equals_torch_operators():
    i = block()
    u = F.silu(F.conv1d(F.pad(i.x.mT, (3, 0)), i.conv_weight[:, None], i.conv_bias, groups=3).mT)
    y = quadratic({"u": u, "dt": F.softplus(i.dt + i.dt_bias), "A": i.A, "B": i.B, "C": i.C, "D": i.D})
    assert close(fused_block_forward(i), y * F.silu(i.z))


def test_other_dtypes_are_refused_by_name():
    o = operands()
    with pytest.raises(TypeError, match=r"float64, but B is torch\.float32"):
        forward_chunked_scan(**(o | {"B": o["B"].float()}))
    with pytest.raises(TypeError, match=r"float64, but dy is torch\.float16"):
        backward_selective_scan(o["u"].half(), **o)
    with pytest.raises(TypeError, match=r"float64, but z is torch\.bfloat16"):
        fused_block_forward(block()._replace(z=block().z.bfloat16()))


def test_a_channel_mismatch_is_an_error_not_a_broadcast():
    inputs = block()
    with pytest.raises(ValueError, match="x has 3 channels, conv_weight has 1"):
        fused_block_forward(inputs._replace(conv_weight=inputs.conv_weight[:1]))
    with pytest.raises(ValueError, match="A has shape"):
        forward_chunked_scan(**(operands() | {"A": -torch.ones(1, 4, dtype=torch.float64)}))
