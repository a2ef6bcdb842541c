"""What `lethe.verify` is called with: a caller's mistake is an error in one sentence, never a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lethe
from lethe.verifier.judge import Judge
from lethe.verifier.replay import ReplayError, replay
from lethe.verifier.verdict import Status

REFERENCE = """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(8)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gates": "CMP-01"}, r"give a list such as \['CMP-01', 'EXC-01'\]"),
        ({"gates": []}, "or None for all"),
        ({"gates": ["CMP-01", "CMP-99"]}, "unknown gate 'CMP-99'"),
        ({"seed": "1"}, "seed is '1'; give a whole number"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 32}, "from 0 to 4294967295"),
    ],
)
def test_options_that_cannot_be_used(options, said):
    with pytest.raises(ValueError, match=said):
        Judge(device="cpu", **options)


def test_gates_may_be_written_small():
    with Judge(device="cpu", gates=["exc-01", "CMP-01"]) as judge:
        assert judge._options["gates"] == ("EXC-01", "CMP-01")


@pytest.mark.parametrize("candidate", ["no_such_kernel.py", "softmax", Path("no_such_kernel.py"), Path("/")])
def test_a_path_without_a_file_is_no_verdict(candidate):
    with pytest.raises(ValueError, match="there is no file"):
        lethe.verify(candidate, REFERENCE, device="cpu")


@pytest.mark.parametrize("candidate", [None, 3, ["kernel.py"]])
def test_what_is_no_program_at_all_is_named(candidate):
    with pytest.raises(TypeError, match="a candidate is a path, a source text, a function or a class, not"):
        lethe.verify(candidate, REFERENCE, device="cpu")


def test_a_text_that_is_no_program_is_a_verdict():
    assert lethe.verify("not\na program", REFERENCE, device="cpu").status is Status.MALFORMED_CANDIDATE


def test_a_recorded_verdict_without_options_cannot_be_replayed(tmp_path):
    kept = lethe.verify("not\na program", REFERENCE, device="cpu").to_dict() | {"options": []}
    (tmp_path / "verdict.json").write_text(json.dumps(kept))
    with pytest.raises(ReplayError, match="does not say how it was judged"):
        replay(tmp_path / "verdict.json")
