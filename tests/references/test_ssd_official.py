"""The SSD oracle against mamba-ssm's PyTorch references in float64, values and gradients.

``ssd_chunk_scan_combined_ref`` works by chunks; ``ssd_selective_scan`` hands each channel to the selective
scan, a token at a time, and knows the clamp. Neither knows an initial state, cut sequences or final states;
the state passing does, so its reference is held against the oracle's states.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from lethe.references.ssd import ssd_backward, ssd_reference, step_of
from tests.references.official_functions import functions, located, widen
from tests.references.ssd_draws import close, draw, leaves, operands

FOLDER = "mamba_ssm/ops/triton/"
COMBINED = (
    (FOLDER + "ssd_combined.py", ("ssd_chunk_scan_combined_ref", "ssd_selective_scan")),
    (FOLDER + "ssd_chunk_state.py", ("chunk_state_ref",)),
    (FOLDER + "ssd_state_passing.py", ("state_passing_ref",)),
    (FOLDER + "ssd_chunk_scan.py", ("chunk_scan_ref",)),
)
SCAN = ("mamba_ssm/ops/selective_scan_interface.py", ("selective_scan_ref",))
CHUNK = 3
"""Divides the nine tokens: the official chunk reference scans whole chunks only."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return located(tmp_path_factory.mktemp("official"))


@pytest.fixture
def official(root, monkeypatch) -> dict[str, Any]:
    """The official functions; `ssd_selective_scan` finds the selective scan's own reference in its import."""
    found = functions(root, *COMBINED, SCAN)
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["mamba_ssm.ops.selective_scan_interface"].selective_scan_fn = found["selective_scan_ref"]
    widen(monkeypatch)
    return found


def compare(o: dict[str, Any], theirs: torch.Tensor, live: dict[str, torch.Tensor]) -> None:
    """Values, and gradients of ours by hand against theirs by autograd."""
    ours = ssd_reference(**o)
    assert close(ours, theirs)
    dy = draw(*ours.shape)
    expected = torch.autograd.grad(theirs, list(live.values()), dy)
    with torch.no_grad():
        got = ssd_backward(dy, **o)
    for name, reference in zip(live, expected, strict=True):
        assert close(got[name], reference), name


@pytest.mark.parametrize("variant", ["plain", "skip-gate", "skip-by-channel"])
def test_the_chunk_form(official, variant):
    o = operands(variant)
    o |= {"dt_bias": draw(6), "dt_softplus": True}
    live = leaves(o)
    compare(o, official["ssd_chunk_scan_combined_ref"](**o, chunk_size=CHUNK), live)


@pytest.mark.parametrize("variant", ["plain", "softplus-bias", "clamped", "skip-gate", "skip-by-channel"])
def test_the_selective_scan_form(official, variant):
    o = operands(variant)
    live = leaves(o)
    compare(o, official["ssd_selective_scan"](**o), live)


def test_states_between_chunks(official):
    """The state after each chunk, from an initial one, against the official state passing."""
    o = operands("everything")
    step = step_of(o["dt"], o["dt_bias"], True, o["dt_limit"]).transpose(1, 2).unflatten(-1, (-1, CHUNK))
    log_decay = (step * o["A"][:, None, None]).cumsum(-1)
    states = official["chunk_state_ref"](o["B"], o["x"], step, log_decay)
    passed, final = official["state_passing_ref"](
        states.flatten(-2), log_decay[..., -1], o["initial_states"].flatten(-2)
    )
    entering = o["initial_states"]
    for c in range(3):
        assert close(passed[:, c], entering.flatten(-2))
        span = slice(c * CHUNK, (c + 1) * CHUNK)
        part = {k: v[:, span] if k in ("x", "dt", "B", "C", "z") else v for k, v in o.items()}
        _, entering = ssd_reference(**(part | {"initial_states": entering}), return_final_states=True)
    assert close(final, entering.flatten(-2))
