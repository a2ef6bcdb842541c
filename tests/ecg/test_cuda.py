"""On a GPU: the blocks on the kernels against torch operators, and a captured step against an eager one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lethe.ecg.model import SIZES, build
from lethe.ecg.parallel import World
from lethe.ecg.ptbxl import load
from lethe.ecg.recipe import Recipe
from lethe.ecg.synthetic import generate
from lethe.ecg.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BLOCKS = pytest.mark.parametrize("block", ["mamba", "mamba3"])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return load(generate(tmp_path_factory.mktemp("records"), 120)).standardised()


@BLOCKS
def test_backends_agree(block):
    """A classifier's logits; float32 rounds about `layers` times the longest sum of 250 tokens."""
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    kernels, plain = (build(SIZES[block], b, device).eval() for b in ("kernels", "torch"))
    plain.load_state_dict(kernels.state_dict())
    signal = torch.randn(4, 12, 1000, device=device)
    with torch.no_grad():
        ours, theirs = kernels(signal), plain(signal)
    bound = 2 * SIZES[block].layers * 250 * 2.0**-24
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize(
    ("precision", "u"),
    [("fp32", 2.0**-24), ("tf32", 2.0**-11), ("bf16", 2.0**-9)],
    ids=["fp32", "tf32", "bf16"],
)
@BLOCKS
def test_a_captured_step_is_an_eager_one(records, block, precision, u):
    """Where the weights stay as they are, both see the same losses; at a usual rate the captured one learns.

    A loss moves by at most what the largest logit does. Each layer rounds its stream about eight times, and
    logits of an untrained model are below four.
    """
    shape = replace(SIZES[block], layers=2)
    recipe = Recipe(epochs=2, batch=32, precision=precision, lr=1e-9)
    at = World(torch.device("cuda", 0))
    eager, still = (train(shape, recipe, records, at, graph=g) for g in (False, True))
    moved = train(shape, replace(recipe, lr=2e-2, warmup=0.0), records, at, graph=True)
    assert eager.non_finite == still.non_finite == moved.non_finite == 0 and eager.backend == "kernels"
    bound = 4 * 8 * (shape.layers + 1) * u
    gaps = [abs(a - b) for a, b in zip(eager.losses, still.losses, strict=True)]
    assert max(gaps) <= bound
    assert moved.losses[0] == pytest.approx(still.losses[0], abs=bound)
    assert moved.losses[-1] != pytest.approx(still.losses[-1], abs=1e-3)
