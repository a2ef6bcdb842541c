"""The torch path of the blocks against token loops, and against the kernels under Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lethe.ecg.recurrence import PlainMamba, PlainMamba3, rotate_pairs, selective_scan
from lethe.provenance import ROOT
from lethe.references import mamba3_rope, mamba3_scan

U32, U64 = 2.0**-24, 2.0**-53


def scan_operands(batch=2, length=9, width=3, n=4):
    torch.manual_seed(0)
    wide = {"u": torch.randn(batch, length, width), "dt": F.softplus(torch.randn(batch, length, width))}
    rest = {
        "A": -torch.rand(width, n),
        "B": torch.randn(batch, length, n),
        "C": torch.randn(batch, length, n),
    }
    return {name: t.double().requires_grad_() for name, t in (wide | rest).items()}


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_scan_and_its_adjoint_are_the_reference(length):
    operands = scan_operands(length=length)
    y = selective_scan(**operands)
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, list(operands.values()), dy)
    exact = {name: t.detach() for name, t in operands.items()}
    y64, final = mamba3_scan.forward_chunked_scan(**exact)
    g64 = mamba3_scan.backward_selective_scan(dy, **exact, dfinal=torch.zeros_like(final))
    # two orders of sums of at most batch * length * states terms, each product rounded a few times
    bound = 2 * (2 * length * 4 + 8) * U64
    assert (y - y64).abs().max() <= bound * y64.abs().max()
    for name, g in zip(operands, got, strict=True):
        assert (g - g64[name]).abs().max() <= bound * g64[name].abs().max().clamp(min=1), name


def test_gradcheck():
    assert torch.autograd.gradcheck(selective_scan, tuple(scan_operands(1, 4, 2, 2).values()))


def test_the_quadratic_form_is_the_head_scan():
    torch.manual_seed(1)
    layer = PlainMamba3(6, d_state=8, headdim=4).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    seen = {}
    layer.out_proj.register_forward_hook(lambda _, given, __: seen.update(y=given[0]))
    hidden = torch.randn(2, 7, 6, dtype=torch.float64)
    layer(hidden)
    z, x, B, C, step, rate, trap, angle = layer.in_proj(hidden).split(layer._split(), -1)
    heads = (2, 7, layer.nheads, 4)
    dt = F.softplus(step + layer.dt_bias).transpose(1, 2)
    tail = torch.where(rate >= 0, 1 + rate, 1 / (1 - rate.clamp(max=0)))
    A = (-tail).clamp(max=-layer.A_floor).transpose(1, 2)
    by_rank = (2, 7, 1, 1, 8)
    q, k = layer.C_norm(C).reshape(by_rank), layer.B_norm(B).reshape(by_rank)
    angles = angle[:, :, None].expand(-1, -1, layer.nheads, -1)
    inputs = mamba3_rope.HeadInputs(
        q, k, x.reshape(heads), A * dt, dt, layer.C_bias, layer.B_bias, angles, trap=trap.transpose(1, 2),
        D=layer.D, z=z.reshape(heads),
    )  # fmt: skip
    with torch.no_grad():
        out, _ = mamba3_rope.complex_scan_rope(inputs)
    exact = out.reshape(2, 7, -1)
    # decays from differences of sums of 7 steps, angles from sums of 7: their absolute rounding is relative
    # to sums of at most a few units; then products of 8 states and sums over 7 tokens
    bound = (4 * 7 + 2 * 8 + 16) * 8 * U64
    assert (seen["y"] - exact).abs().max() <= bound * exact.abs().max()


def test_a_rotation_keeps_lengths_and_what_it_does_not_cover():
    t, theta = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    turned = rotate_pairs(t, theta)
    torch.testing.assert_close(turned.norm(dim=-1), t.norm(dim=-1), rtol=16 * U64, atol=0)
    assert torch.equal(turned[:, 4:], t[:, 4:])


def test_what_the_torch_path_does_not_have_is_refused():
    hidden = torch.randn(1, 3, 4)
    with pytest.raises(ValueError, match="select='input'"):
        PlainMamba(4, d_state=2)(hidden)
    with pytest.raises(ValueError, match="one rank and one group"):
        PlainMamba3(4, d_state=4, headdim=4, mimo_rank=2)(hidden)


@pytest.fixture(scope="module")
def interpreted():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.ecg.interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("block", ["mamba", "mamba3"])
def test_backends_agree(interpreted, block):
    """Both sides round in float32 along chains of the same lengths, in different orders."""
    tokens, d_model, d_inner, n, functions = 4, 6, 12, 4, 10
    chain = 2 * tokens + d_model + 2 * d_inner + n + 2 * functions
    bound = 2 * chain * U32
    beyond = {name: e for name, e in interpreted[block].items() if not e <= bound}
    assert not beyond, f"beyond {bound:g}: {beyond}"


def test_a_classifier_goes_through_the_kernels_alone(interpreted):
    """Every block of a model on the kernels calls C5 once and C6 once."""
    calls = interpreted["calls"]
    assert calls == {"forward": calls["blocks"], "backward": calls["blocks"], "blocks": 2}
