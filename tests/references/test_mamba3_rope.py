"""The Mamba-3 head oracle: against autograd, against complex numbers, against attention, cut in two."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from lethe.references.mamba3_rope import HeadInputs, HeadState, complex_scan_rope, mimo_backward, rotate


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def head(rank: int = 1, trapezoidal: bool = True, pairwise: bool = True) -> HeadInputs:
    torch.manual_seed(rank)
    b, length, h, g, n, p, s = 2, 7, 4, 2, 8, 3, 3
    dt = F.softplus(draw(b, h, length) - 1)
    mimo = {name: draw(h, rank, p) for name in ("mimo_x", "mimo_z", "mimo_o")} if rank > 1 else {}
    return HeadInputs(
        q=draw(b, length, rank, g, n), k=draw(b, length, rank, g, n), v=draw(b, length, h, p),
        adt=-dt * torch.rand(b, h, length, dtype=torch.float64), dt=dt, q_bias=draw(h, rank, n),
        k_bias=draw(h, rank, n), angle=draw(b, length, h, s), D=draw(h),
        trap=draw(b, h, length) if trapezoidal else None, z=draw(b, length, h, p), pairwise=pairwise, **mimo,
    )  # fmt: skip


def state(rank: int = 1) -> HeadState:
    return HeadState(
        torch.rand(2, 4, 3, dtype=torch.float64), draw(2, 4, 3, 8), draw(2, 4, rank, 8), draw(2, 4, rank, 3)
    )


def close(a: torch.Tensor, b: torch.Tensor, bound: float = 1e-12) -> bool:
    return bool((a - b).abs().max() <= bound * b.abs().max().clamp(min=1.0))


@pytest.mark.parametrize("begin", ["zero", "given-state"])
@pytest.mark.parametrize("pairwise", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize("trapezoidal", [True, False], ids=["trapezoidal", "euler"])
@pytest.mark.parametrize("rank", [1, 4], ids=["siso", "mimo4"])
def test_backward_equals_autograd(rank, trapezoidal, pairwise, begin):
    inputs = head(rank, trapezoidal, pairwise)
    leaves = {name: value.requires_grad_() for name, value in inputs.tensors().items()}
    live = dataclasses.replace(inputs, **leaves)
    first = state(rank) if begin == "given-state" else None
    if first is not None:
        starts = {"theta0": first.theta, "S0": first.S, "k0": first.k, "x0": first.x}
        leaves = leaves | {name: value.requires_grad_() for name, value in starts.items()}
    out, final = complex_scan_rope(live, first)
    dout, dS = torch.randn_like(out), torch.randn_like(final.S)
    expected = torch.autograd.grad([out, final.S], list(leaves.values()), [dout, dS], materialize_grads=True)
    with torch.no_grad():
        got = mimo_backward(dout, live, first, dS)
    assert set(got) == set(leaves)
    for name, reference in zip(leaves, expected, strict=True):
        assert close(got[name], reference), name


def test_rotation_is_multiplication_by_a_complex_number():
    t, theta = draw(5, 8), draw(5, 4)
    turned = torch.view_as_complex(t.reshape(5, 4, 2).contiguous()) * torch.polar(
        torch.ones_like(theta), theta
    )
    assert close(rotate(t, theta, True), torch.view_as_real(turned).reshape(5, 8))
    halves = torch.complex(t[:, :4], t[:, 4:]) * torch.polar(torch.ones_like(theta), theta)
    assert close(rotate(t, theta, False), torch.cat([halves.real, halves.imag], -1))


def test_siso_equals_decayed_attention():
    """The state-free form: a causal quadratic sum with the key weights moved one token ahead."""
    i = head()
    assert i.trap is not None and i.D is not None and i.z is not None
    theta = torch.cumsum(math.pi * torch.tanh(i.angle) * i.dt.mT[..., None], 1)
    wide = [t[:, :, 0].repeat_interleave(2, 2) for t in (i.q, i.k)]
    q = rotate(wide[0] + i.q_bias[:, 0], theta, True).transpose(1, 2)
    k = rotate(wide[1] + i.k_bias[:, 0], theta, True).transpose(1, 2)
    lam = torch.sigmoid(i.trap)
    late = F.pad((i.dt * (1 - lam))[..., 1:], (0, 1))
    c = i.adt.cumsum(-1)
    gap = (c[..., :, None] - c[..., None, :]).exp().tril()
    weight = (i.dt * lam + late)[..., None, :] - torch.diag_embed(late)
    y = ((q @ k.mT) * gap * weight) @ i.v.transpose(1, 2)
    expected = (y.transpose(1, 2) + i.D[:, None] * i.v) * F.silu(i.z)
    assert close(complex_scan_rope(i)[0], expected)


def test_unit_projections_make_rank_one_mimo_siso():
    i = head()
    ones = torch.ones(4, 1, 3, dtype=torch.float64)
    assert close(
        complex_scan_rope(dataclasses.replace(i, mimo_x=ones, mimo_z=ones, mimo_o=ones))[0],
        complex_scan_rope(i)[0],
    )


@pytest.mark.parametrize("rank", [1, 2], ids=["siso", "mimo2"])
def test_a_sequence_may_be_cut_anywhere(rank):
    i = head(rank)
    whole, end = complex_scan_rope(i)
    by_time = {"q": 1, "k": 1, "v": 1, "z": 1, "angle": 1, "adt": 2, "dt": 2, "trap": 2}

    def part(begin: int, length: int) -> HeadInputs:
        cut = {name: getattr(i, name).narrow(axis, begin, length) for name, axis in by_time.items()}
        return dataclasses.replace(i, **cut)

    head_out, middle = complex_scan_rope(part(0, 4))
    tail_out, final = complex_scan_rope(part(4, 3), middle)
    assert close(torch.cat([head_out, tail_out], 1), whole)
    assert close(final.S, end.S) and close(final.theta, end.theta)


def test_other_dtypes_are_refused_by_name():
    i = head()
    with pytest.raises(TypeError, match=r"float64, but angle is torch\.float32"):
        complex_scan_rope(dataclasses.replace(i, angle=i.angle.float()))
    with pytest.raises(TypeError, match=r"float64, but dout is torch\.float32"):
        mimo_backward(i.v.float(), i)
