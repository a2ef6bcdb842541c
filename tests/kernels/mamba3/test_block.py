"""C5, C6 and the two layers under the interpreter."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.mamba3.checked import assert_within, block_errors
from tests.kernels.mamba3.draws import block_operands, error

SERIAL, CHUNKED = {"mode": "serial"}, {"mode": "chunked", "chunk": 3}


@pytest.mark.parametrize("how", [SERIAL, CHUNKED], ids=["serial", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_values_and_gradients(dtype, how):
    assert_within(block_errors(block_operands(1, 7, 9, 5, dtype), **how), dtype)


def test_gradients_across_chunks():
    from lethe.kernels.mamba3 import scan_launch

    with mock.patch.object(scan_launch, "BACKWARD_TILE", scan_launch.Tile(2, 2, 4)):
        errors = block_errors(block_operands(2, 10, 3, 3), **CHUNKED)
    assert_within(errors, torch.float32)


@pytest.mark.parametrize("tile", [(2, 1, 4), (1, 2, 8)], ids=["one-lane", "lanes"])
def test_several_segments_a_chunk(tile):
    """The window of the convolution reaches back over segments and over chunks."""
    from lethe.kernels.mamba3 import scan_launch

    run, given = scan_launch.forward, scan_launch.Tile(*tile)
    with mock.patch.object(scan_launch, "forward", lambda operands, c: run(operands, c, given, True)):
        errors = block_errors(block_operands(2, 11, 3, 3), mode="chunked", chunk=4)
    assert_within(errors, torch.float32)


@pytest.mark.parametrize("taps", [1, 2, 3])
def test_shorter_windows(taps):
    assert_within(block_errors(block_operands(1, 5, 3, 2, taps=taps), **CHUNKED), torch.float32)


def test_trapezoidal_rule():
    o = block_operands(1, 6, 3, 2) | {"trap": torch.randn(1, 6, 3)}
    assert_within(block_errors(o, **CHUNKED), torch.float32)


def test_a_channel_mismatch_is_an_error_not_a_broadcast():
    from lethe.kernels.mamba3.scan import fused_block

    o = block_operands(1, 5, 6, 2)
    with pytest.raises(ValueError, match="x has 6 channels, conv_weight has 1"):
        fused_block(**(o | {"conv_weight": o["conv_weight"][:1]}))
    with pytest.raises(ValueError, match="x has 6 channels, conv_weight has 12"):
        fused_block(**(o | {"conv_weight": torch.randn(12, 4)}))
    with pytest.raises(ValueError, match=r"conv_weight has shape \(6, 5\)"):
        fused_block(**(o | {"conv_weight": torch.randn(6, 5)}))
    with pytest.raises(TypeError, match=r"conv_weight is torch\.float64"):
        fused_block(**(o | {"conv_weight": o["conv_weight"].double()}))
    with pytest.raises(ValueError, match=r"x must be \[B, L, D\]; it has shape \(5, 6\)"):
        fused_block(**(o | {"x": o["x"][0]}))
    with pytest.raises(ValueError, match="C is on meta, x is on cpu"):
        fused_block(**(o | {"C": o["C"].to("meta")}))


def _plain(layer, hidden):
    """The Mamba-1 layer from torch operators and a token loop."""
    x, z = layer.in_proj(hidden).chunk(2, -1)
    x = F.silu(layer.conv1d(x.mT)[..., : hidden.shape[1]]).mT
    low, B, C = layer.x_proj(x).split([layer.dt_rank, layer.d_state, layer.d_state], -1)
    dt = F.softplus(layer.dt_proj(low))
    h, rows = torch.zeros(hidden.shape[0], layer.d_inner, layer.d_state), []
    for t in range(hidden.shape[1]):
        h = torch.exp(dt[:, t, :, None] * layer.A) * h + (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        rows.append((h * C[:, t, None]).sum(-1))
    return layer.out_proj((torch.stack(rows, 1) + layer.D * x) * F.silu(z))


def test_the_layer_is_a_mamba_layer():
    from lethe.kernels.mamba3 import MambaBlock

    torch.manual_seed(0)
    layer, hidden = MambaBlock(6, d_state=3), torch.randn(2, 5, 6)
    got, exact = layer(hidden), _plain(layer, hidden)
    assert error(got, exact.double()) < 1e-5
    weight = torch.randn_like(got)
    ours = torch.autograd.grad((got * weight).sum(), list(layer.parameters()))
    theirs = torch.autograd.grad((exact * weight).sum(), list(layer.parameters()))
    for (name, _), a, b in zip(layer.named_parameters(), ours, theirs, strict=True):
        assert error(a, b.double()) < 1e-4, name


def test_the_fused_layer_trains():
    from lethe.kernels.mamba3 import MambaBlock

    torch.manual_seed(0)
    layer = MambaBlock(4, d_state=2, select="input")
    out = layer(torch.randn(1, 5, 4))
    out.sum().backward()
    assert out.shape == (1, 5, 4)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_no_update_makes_a_decay_exceed_one():
    """A rate stored as it is may drift above zero in training and overflow within a thousand tokens."""
    from lethe.kernels.mamba3 import MambaBlock
    from lethe.kernels.mamba3.block3 import heavy_tail

    layer = MambaBlock(4, d_state=2)
    with torch.no_grad():
        layer.A_log.add_(torch.randn_like(layer.A_log) * 40)
    assert (layer.A <= 0).all()
    raw = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4])
    assert ((-heavy_tail(raw)).clamp(max=-1e-4) <= -1e-4).all()


@pytest.mark.slow
def test_a_thousand_tokens_stay_finite():
    from lethe.kernels.mamba3.scan import selective_scan

    o = {"u": torch.ones(1, 1000, 1), "dt": torch.ones(1, 1000, 1), "B": torch.ones(1, 1000, 1)}
    y, final = selective_scan(**o, C=o["B"], A=torch.tensor([[-1e-3]]), mode="chunked", chunk=250)
    assert y.isfinite().all() and final.isfinite().all()
    grown, _ = selective_scan(**o, C=o["B"], A=torch.tensor([[0.5]]), mode="chunked", chunk=250)
    assert not grown[0, -1].isfinite().all()


@pytest.mark.parametrize("rank", [1, 2], ids=["siso", "mimo2"])
def test_the_mamba3_layer_trains_and_continues(rank):
    from lethe.kernels.mamba3 import Mamba3Block

    torch.manual_seed(0)
    layer = Mamba3Block(4, d_state=4, headdim=4, mimo_rank=rank)
    hidden = torch.randn(1, 5, 4)
    whole = layer(hidden)
    whole.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        first, state = layer.scan(hidden[:, :3])
        second, _ = layer.scan(hidden[:, 3:], state)
    assert error(torch.cat([first, second], 1), whole.detach().double()) < 1e-5


def test_layers_refuse_another_width():
    from lethe.kernels.mamba3 import Mamba3Block, MambaBlock

    with pytest.raises(ValueError, match="expected \\(B, L, d_model=4\\)"):
        MambaBlock(4, d_state=2)(torch.randn(1, 3, 5))
    with pytest.raises(ValueError, match="does not divide the inner width"):
        Mamba3Block(4, headdim=3)


def test_layers_refuse_sizes_below_one():
    from lethe.kernels.mamba3 import Mamba3Block, MambaBlock

    for layer in (MambaBlock, Mamba3Block):
        with pytest.raises(ValueError, match="inner_width is 0; it must be at least 1"):
            layer(4, expand=0)
    for name in ("d_model", "d_state", "dt_rank"):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            MambaBlock(**({"d_model": 4} | {name: 0}))
    for name in ("d_model", "d_state", "headdim", "ngroups", "mimo_rank"):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            Mamba3Block(**({"d_model": 4} | {name: 0}))
