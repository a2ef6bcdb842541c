"""The layer's reference against the official module's own code, its names against the official ones."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lethe.references.mamba2_layer import mamba2_layer, shapes
from tests.references.official_functions import functions, located, widen
from tests.references.ssd_draws import close

MODULE = "mamba_ssm/modules/mamba2.py"
REFERENCES = (
    ("mamba_ssm/ops/triton/ssd_combined.py", ("ssd_chunk_scan_combined_ref",)),
    ("mamba_ssm/ops/triton/ssd_chunk_state.py", ("chunk_state_ref",)),
    ("mamba_ssm/ops/triton/ssd_state_passing.py", ("state_passing_ref",)),
    ("mamba_ssm/ops/triton/ssd_chunk_scan.py", ("chunk_scan_ref",)),
    ("mamba_ssm/ops/triton/layernorm_gated.py", ("rms_norm_ref",)),
)
LAYERS: dict[str, dict[str, Any]] = {
    "usual": {"d_model": 8, "d_state": 4, "headdim": 4},
    "groups": {"d_model": 12, "d_state": 3, "headdim": 4, "ngroups": 3},
    "skip by channel": {"d_model": 8, "d_state": 4, "headdim": 8, "D_has_hdim": True},
    "norm first": {"d_model": 8, "d_state": 4, "headdim": 4, "norm_before_gate": True},
    "no norm": {"d_model": 8, "d_state": 4, "headdim": 4, "rmsnorm": False},
    "biases": {"d_model": 8, "d_state": 4, "headdim": 4, "bias": True, "conv_bias": False, "expand": 3},
}
FORWARD = ("headdim", "ngroups", "norm_before_gate")
LENGTH = 6


def drawn(**options: Any) -> dict[str, torch.Tensor]:
    """Parameters of a layer in float64."""
    torch.manual_seed(len(options))
    named = {k: v for k, v in options.items() if k != "norm_before_gate"}
    return {name: 0.5 * torch.randn(*shape, dtype=torch.float64) for name, shape in shapes(**named).items()}


def called(u: torch.Tensor, state: dict[str, torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    return mamba2_layer(u, state, **{k: v for k, v in options.items() if k in FORWARD})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return located(tmp_path_factory.mktemp("official"))


@pytest.fixture
def layer_class(root, monkeypatch):
    """The official class on its plain path, with the official references in its kernels' places."""
    found = functions(root, *REFERENCES)
    einops = pytest.importorskip("einops", reason="the official layer uses einops")
    norm = found["rms_norm_ref"]

    class Norm(nn.Module):
        def __init__(self, width, eps, norm_before_gate, group_size, device=None, dtype=None):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
            self.options = {"eps": eps, "norm_before_gate": norm_before_gate, "group_size": group_size}

        def forward(self, y, z):
            return norm(y, self.weight, None, z=z, **self.options)

    def scan(*args, seq_idx=None, cu_seqlens=None, return_final_states=False, **options):
        del options["return_varlen_states"]
        return found["ssd_chunk_scan_combined_ref"](*args, **options)

    tree = ast.parse((root / MODULE).read_text(encoding="utf-8"))
    body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Mamba2"]
    space: dict[str, Any] = {
        "torch": torch, "nn": nn, "F": F, "math": math, "rearrange": einops.rearrange,
        "repeat": einops.repeat, "RMSNormGated": Norm, "PyTorchModelHubMixin": object,
        "causal_conv1d_fn": None, "mamba_chunk_scan_combined": scan,
    }  # fmt: skip
    exec(compile(ast.Module(body, []), MODULE, "exec"), space)
    widen(monkeypatch)
    return space["Mamba2"]


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_official_layer(layer_class, name):
    """Names, shapes, order; values; every parameter's gradient."""
    options = LAYERS[name]
    layer = layer_class(**options, chunk_size=3, use_mem_eff_path=False).double()
    state = drawn(**options)
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {
        k: tuple(v.shape) for k, v in state.items()
    }
    assert list(layer.state_dict()) == list(state)
    layer.load_state_dict(state)
    u = torch.randn(2, LENGTH, options["d_model"], dtype=torch.float64)
    live = {k: v.requires_grad_() for k, v in state.items()}
    ours, theirs = called(u, live, options), layer(u)
    assert close(ours, theirs)
    dout = torch.randn_like(ours)
    got = torch.autograd.grad(ours, list(live.values()), dout)
    expected = torch.autograd.grad(theirs, [dict(layer.named_parameters())[k] for k in live], dout)
    for parameter, a, b in zip(live, got, expected, strict=True):
        assert close(a, b), parameter


def test_the_names_and_shapes_of_a_known_layer():
    """Of state-spaces/mamba2-130m: d_model 768, 128 states, 24 heads of 64 channels, one group."""
    assert shapes(768) == {
        "dt_bias": (24,), "A_log": (24,), "D": (24,), "in_proj.weight": (3352, 768),
        "conv1d.weight": (1792, 1, 4), "conv1d.bias": (1792,), "norm.weight": (1536,),
        "out_proj.weight": (768, 1536),
    }  # fmt: skip


def test_a_later_token_changes_no_earlier_one():
    options = LAYERS["groups"]
    state = drawn(**options)
    u = torch.randn(1, LENGTH, options["d_model"], dtype=torch.float64)
    changed = u.clone()
    changed[:, 4:] += 1
    first, second = called(u, state, options), called(changed, state, options)
    assert torch.equal(first[:, :4], second[:, :4])
    assert bool((first[:, 4:] != second[:, 4:]).any(-1).all())


def test_what_does_not_fit_is_refused():
    options = LAYERS["usual"]
    state = drawn(**options)
    u = torch.randn(1, 2, 8, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"conv1d_weight is torch\.float32"):
        called(u, state | {"conv1d.weight": state["conv1d.weight"].float()}, options)
    with pytest.raises(ValueError, match=r"in_proj\.weight has shape"):
        called(u, state | {"in_proj.weight": state["in_proj.weight"][1:]}, options)
