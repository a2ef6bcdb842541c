"""The oracles against the official PyTorch references, evaluated in float64.

LETHE_MAMBA_SSM names a checkout of state-spaces/mamba (all tests) or its source archive on PyPI (those of the
selective scan); see `official_functions`.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lethe.references.mamba3_block import BlockInputs, causal_conv, fused_block_forward
from lethe.references.mamba3_rope import HeadInputs, HeadState, complex_scan_rope, mimo_backward
from lethe.references.mamba3_scan import backward_selective_scan, forward_chunked_scan
from tests.references.official_functions import functions as from_official
from tests.references.official_functions import located, widen

BOUND = 1e-12
SISO, MIMO = "tests/ops/triton/test_mamba3_siso.py", "tests/ops/tilelang/test_mamba3_mimo.py"
SCAN, STEP = "mamba_ssm/ops/selective_scan_interface.py", "mamba_ssm/ops/triton/selective_state_update.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return located(tmp_path_factory.mktemp("official"))


@pytest.fixture
def double(monkeypatch):
    widen(monkeypatch)


def functions(root: Path, file: str, *names: str) -> dict[str, Any]:
    """The functions `names` of one official file."""
    return from_official(root, (file, names))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(ours: torch.Tensor, theirs: torch.Tensor, bound: float = BOUND) -> bool:
    assert ours.shape == theirs.shape and theirs.dtype == torch.float64
    return bool((ours - theirs).abs().max() <= bound * theirs.abs().max().clamp(min=1.0))


def scan_operands() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    b, length, d, n = 2, 9, 5, 3
    return {
        "u": draw(b, length, d), "dt": F.softplus(draw(b, length, d)), "A": -torch.exp(draw(d, n)),
        "B": draw(b, length, n), "C": draw(b, length, n), "D": draw(d),
    }  # fmt: skip


def across(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(1, 2)


def test_scan_values_and_gradients(root, double):
    """C1 and C2 against `selective_scan_ref` and autograd through it."""
    reference = functions(root, SCAN, "selective_scan_ref")["selective_scan_ref"]
    o = {k: t.requires_grad_() for k, t in scan_operands().items()}
    y, last = reference(
        across(o["u"]),
        across(o["dt"]),
        o["A"],
        across(o["B"]),
        across(o["C"]),
        o["D"],
        return_last_state=True,
    )
    ours, final = forward_chunked_scan(**{k: t.detach() for k, t in o.items()})
    assert close(ours, across(y)) and close(final, last)
    dy, dlast = draw(*ours.shape), draw(*final.shape)
    expected = torch.autograd.grad([across(y), last], list(o.values()), [dy, dlast])
    got = backward_selective_scan(dy, **{k: t.detach() for k, t in o.items()}, dfinal=dlast)
    for name, g in zip(o, expected, strict=True):
        assert close(got[name], g), name


def test_scan_one_token_at_a_time(root, double):
    """C1 against `selective_state_update_ref`, the official decoding step."""
    step = functions(root, STEP, "selective_state_update_ref")["selective_state_update_ref"]
    o = scan_operands()
    state = torch.zeros(2, 5, 3, dtype=torch.float64)
    rows = [
        step(state, o["u"][:, t], o["dt"][:, t], o["A"], o["B"][:, t], o["C"][:, t], o["D"]) for t in range(9)
    ]
    ours, final = forward_chunked_scan(**o)
    assert close(ours, torch.stack(rows, 1)) and close(final, state)


def test_fused_block(root, double):
    """C5 against `selective_scan_ref` with its gate, bias and softplus, behind torch's own convolution."""
    reference = functions(root, SCAN, "selective_scan_ref")["selective_scan_ref"]
    o = scan_operands()
    inputs = BlockInputs(
        x=o["u"], dt=draw(2, 9, 5), A=o["A"], B=o["B"], C=o["C"], D=o["D"], z=draw(2, 9, 5),
        conv_weight=draw(5, 4), conv_bias=draw(5), dt_bias=draw(5),
    )  # fmt: skip
    padded = F.conv1d(across(inputs.x), inputs.conv_weight[:, None], inputs.conv_bias, padding=3, groups=5)
    conv = padded[..., :9]
    assert close(causal_conv(inputs.x, inputs.conv_weight, inputs.conv_bias), across(conv))
    y = reference(
        F.silu(conv), across(inputs.dt), inputs.A, across(inputs.B), across(inputs.C), inputs.D,
        z=across(inputs.z), delta_bias=inputs.dt_bias, delta_softplus=True,
    )  # fmt: skip
    assert close(fused_block_forward(inputs), across(y))


def head(rank: int) -> HeadInputs:
    torch.manual_seed(rank)
    b, length, h, g, n, p, s = 2, 7, 4, 2, 8, 3, 3
    dt = F.softplus(draw(b, h, length) - 1)
    mimo = {name: draw(h, rank, p) for name in ("mimo_x", "mimo_z", "mimo_o")} if rank > 1 else {}
    return HeadInputs(
        q=draw(b, length, rank, g, n), k=draw(b, length, rank, g, n), v=draw(b, length, h, p),
        adt=-dt * torch.rand(b, h, length, dtype=torch.float64), dt=dt, q_bias=draw(h, rank, n),
        k_bias=draw(h, rank, n), angle=draw(b, length, h, s), D=draw(h), trap=draw(b, h, length),
        z=draw(b, length, h, p), **mimo,
    )  # fmt: skip


def start(rank: int) -> HeadState:
    return HeadState(
        torch.rand(2, 4, 3, dtype=torch.float64), draw(2, 4, 3, 8), draw(2, 4, rank, 8), draw(2, 4, rank, 3)
    )


def official_head(root: Path, i: HeadInputs, state: HeadState | None) -> tuple[torch.Tensor, Any]:
    """The official step reference of the inputs' rank."""
    if i.mimo_x is None:
        step = functions(root, SISO, "mamba3_siso_step_ref")["mamba3_siso_step_ref"]
        first = None if state is None else (state.theta, state.S, state.k[:, :, 0], state.x[:, :, 0])
        return step(
            i.q[:, :, 0], i.k[:, :, 0], i.v, i.adt, i.dt, i.trap, i.q_bias[:, 0], i.k_bias[:, 0], i.angle,
            i.D, i.z, first,
        )  # fmt: skip
    step = functions(root, MIMO, "mamba3_MIMO_step_ref")["mamba3_MIMO_step_ref"]
    first = None if state is None else (state.theta, state.S, state.k, state.x)
    return step(
        i.q, i.k, i.v, i.adt, i.dt, i.trap, i.q_bias, i.k_bias, i.angle, i.mimo_x, i.mimo_o, i.D, i.z,
        i.mimo_z, first,
    )  # fmt: skip


@pytest.mark.parametrize("begin", ["zero", "given-state"])
@pytest.mark.parametrize("rank", [1, 2], ids=["siso", "mimo2"])
def test_head_values_and_gradients(root, double, rank, begin):
    """C4 and C3 against the official step references, trapezoidal, and autograd through them."""
    i = head(rank)
    leaves = {name: t.requires_grad_() for name, t in i.tensors().items()}
    live = dataclasses.replace(i, **leaves)
    state = start(rank) if begin == "given-state" else None
    expected, final = official_head(root, live, state)
    ours, end = complex_scan_rope(dataclasses.replace(i, **{k: t.detach() for k, t in leaves.items()}), state)
    assert close(ours, expected) and close(end.S, final[1])
    assert close(end.k.reshape(final[2].shape), final[2]) and close(end.x.reshape(final[3].shape), final[3])
    gap = torch.remainder(end.theta - final[0] + math.pi, 2 * math.pi) - math.pi
    assert gap.abs().max() < BOUND
    dout, dS = draw(*ours.shape), draw(*end.S.shape)
    theirs = torch.autograd.grad([expected, final[1]], list(leaves.values()), [dout, dS])
    with torch.no_grad():
        got = mimo_backward(dout, live, state, dS)
    for name, g in zip(leaves, theirs, strict=True):
        assert close(got[name], g), name


def test_head_against_the_attention_form(root, double):
    """C4 against the official quadratic reference, which sums angles and decays over the whole sequence."""
    reference = functions(root, SISO, "_segsum", "mamba3_siso_fwd_ref")["mamba3_siso_fwd_ref"]
    i, state = head(1), start(1)
    first = (state.theta, state.S, state.k[:, :, 0], state.x[:, :, 0])
    expected, final = reference(
        i.q[:, :, 0], i.k[:, :, 0], i.v, i.adt, i.dt, i.trap, i.q_bias[:, 0], i.k_bias[:, 0], i.angle, i.D,
        i.z, first, dtype=torch.float64,
    )  # fmt: skip
    ours, end = complex_scan_rope(i, state)
    assert close(ours, expected) and close(end.S, final[1])


def test_euler_is_the_official_rule_with_an_open_gate(root, double):
    """The official code knows the trapezoidal rule alone; a gate of exactly one makes it Euler's."""
    i = head(1)
    open_gate = dataclasses.replace(i, trap=torch.full_like(i.dt, 40.0))
    expected, _ = official_head(root, open_gate, None)
    assert close(complex_scan_rope(dataclasses.replace(i, trap=None))[0], expected)
