"""`Mamba2Mixer` beyond its parameters: packed sequences, channels aside, gates, compiled training."""

from __future__ import annotations

import pytest

OPTIONS = {
    "norm after the gate": {},
    "norm before the gate": {"norm_before_gate": True},
    "gate in the recurrence": {"rmsnorm": False},
    "channels aside": {"d_ssm": 64},
    "skip per channel": {"D_has_hdim": True},
}


def layer(**options):
    import torch

    from lethe.kernels.ssd import Mamba2Mixer

    torch.manual_seed(0)
    return Mamba2Mixer(64, d_state=64, chunk_size=32, dtype=torch.float16, **options)


QUICK = ("norm after the gate", "gate in the recurrence")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OPTIONS]
)
def test_packed_sequences_do_not_see_each_other(name):
    """Three sequences in one batch, one of them empty, give what they give alone, up to the order in which
    the convolution adds its four taps and the tiles fall."""
    import torch

    mixer = layer(**OPTIONS[name])
    hidden = torch.randn(1, 37, 64).half()
    cuts = torch.tensor([0, 5, 5, 37], dtype=torch.int32)
    with torch.no_grad():
        packed = mixer(hidden, cu_seqlens=cuts).double()
        alone = torch.cat([mixer(hidden[:, :5]), mixer(hidden[:, 5:])], 1).double()
    # The convolution sums in another order, which some entries round otherwise in float16; the operands of
    # a dozen sums downstream carry it on.
    assert float((packed - alone).norm() / alone.norm()) < 12 * torch.finfo(torch.float16).eps


def test_packed_sequences_train_under_autocast():
    """Parameters in float32, activations in float16, as mixed precision has them."""
    import torch

    from lethe.kernels.ssd import Mamba2Mixer

    torch.manual_seed(0)
    mixer, hidden = Mamba2Mixer(64, d_state=64, chunk_size=32), torch.randn(1, 9, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        out = mixer(hidden, cu_seqlens=torch.tensor([0, 4, 9], dtype=torch.int32))
    out.float().square().mean().backward()
    assert out.dtype == torch.float16
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in mixer.parameters())


@pytest.mark.slow
def test_every_parameter_is_trained_under_compile():
    """One compiled step has the eager gradients of every parameter, and none is missing."""
    import torch

    mixer = layer()
    hidden = torch.randn(1, 20, 64).half()

    def loss(h):
        return mixer(h).float().square().mean()

    parameters = dict(mixer.named_parameters())
    eager = torch.autograd.grad(loss(hidden), list(parameters.values()))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(hidden), list(parameters.values()))
    for name, mine, theirs in zip(parameters, found, eager, strict=True):
        assert mine.any() and torch.equal(mine, theirs), name


def test_what_does_not_fit_is_said():
    import torch

    from lethe.kernels.ssd import Mamba2Mixer

    with pytest.raises(ValueError, match="d_ssm is 96"):
        Mamba2Mixer(64, d_ssm=96)
    with pytest.raises(ValueError, match="2 heads cannot be shared out to 3 groups"):
        Mamba2Mixer(64, ngroups=3)
    with pytest.raises(ValueError, match="d_ssm is 0"):
        Mamba2Mixer(64, d_ssm=0)
    with pytest.raises(ValueError, match="must be at least 1"):
        Mamba2Mixer(64, ngroups=0)
    with pytest.raises(ValueError, match="A_init_range is"):
        Mamba2Mixer(64, A_init_range=(-1, 1))
    with pytest.raises(ValueError, match="hidden has shape"):
        layer()(torch.zeros(1, 4, 32).half())
