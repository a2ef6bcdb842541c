"""C3 and C4 under the interpreter: SISO and MIMO, both pairings, both rules, cut sequences."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.mamba3.checked import assert_within, head_errors
from tests.kernels.mamba3.draws import head_operands

SERIAL, CHUNKED = {"mode": "serial"}, {"mode": "chunked", "chunk": 3}


@pytest.mark.parametrize("how", [SERIAL, CHUNKED], ids=["serial", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_siso(dtype, how):
    assert_within(head_errors(head_operands(1, 5, 2, 1, 6, 5, 2, dtype=dtype), state=True, **how), dtype)


@pytest.mark.parametrize("how", [SERIAL, CHUNKED], ids=["serial", "chunked"])
def test_mimo(how):
    errors = head_errors(head_operands(1, 5, 2, 2, 4, 3, 1, rank=2), pairwise=False, state=True, **how)
    assert_within(errors, torch.float32)


def test_euler_without_options():
    o = head_operands(2, 4, 2, 1, 4, 3, 2, trap=False)
    del o["D"], o["z"]
    assert_within(head_errors(o, **CHUNKED), torch.float32)


def test_two_blocks_of_channels():
    assert_within(head_errors(head_operands(1, 3, 1, 1, 4, 18, 2), **CHUNKED), torch.float32)


@pytest.mark.slow
def test_more_tokens_than_one_checkpoint():
    assert_within(head_errors(head_operands(1, 19, 1, 1, 4, 3, 2), **SERIAL), torch.float32)


def test_angles_may_be_shared_by_the_heads():
    from lethe.kernels.mamba3.head import head_scan

    o = head_operands(1, 4, 2, 1, 4, 3, 2)
    shared = o["angle"][:, :, :1].clone().requires_grad_()
    out, _ = head_scan(**(o | {"angle": shared.expand(-1, -1, 2, -1)}))
    again, _ = head_scan(**(o | {"angle": shared.detach().repeat(1, 1, 2, 1)}))
    assert torch.equal(out, again)
    assert torch.autograd.grad(out.sum(), shared)[0].shape == shared.shape


def test_refusals_name_the_argument():
    from lethe.kernels.mamba3.head import head_scan

    o = head_operands(1, 4, 2, 1, 4, 3, 2)
    with pytest.raises(TypeError, match=r"angle is torch\.float64"):
        head_scan(**(o | {"angle": o["angle"].double()}))
    with pytest.raises(ValueError, match=r"k_bias has shape \(1, 1, 4\), expected \(H=2, R=1, N=4\)"):
        head_scan(**(o | {"k_bias": o["k_bias"][:1]}))
    with pytest.raises(ValueError, match="between 1 and N/2 = 2 fit"):
        head_scan(**(o | {"angle": torch.randn(1, 4, 2, 3)}))
    with pytest.raises(ValueError, match="mimo_x, mimo_z and mimo_o go together"):
        head_scan(**o, mimo_x=torch.randn(2, 1, 3))
    with pytest.raises(ValueError, match="which the 3 groups of q do not divide"):
        head_scan(**(o | {"q": torch.randn(1, 4, 1, 3, 4)}))


def test_the_operators_are_registered_as_torch_wants_them():
    o = head_operands(1, 3, 1, 1, 4, 2, 1)
    angles = (o["angle"].requires_grad_(), o["dt"].requires_grad_(), None)
    torch.library.opcheck(torch.ops.lethe.mamba3_angles.default, angles)
    cos, sin, _ = torch.ops.lethe.mamba3_angles(o["angle"].detach(), o["dt"].detach(), None)
    tensors = [
        o["q"],
        o["k"],
        o["v"],
        o["adt"],
        o["dt"].detach(),
        torch.zeros_like(o["adt"]),
        o["q_bias"],
        o["k_bias"],
    ]
    tensors = [t.detach().requires_grad_() for t in (*tensors, cos, sin)]
    absent = [None] * 6
    torch.library.opcheck(torch.ops.lethe.mamba3_head.default, (*tensors, *absent, True, 2))
