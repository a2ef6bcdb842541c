"""A candidate that refuses the sizes which the judge chose is judged at those of its problem."""

from __future__ import annotations

from textwrap import dedent

from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, load_candidate, load_problem
from lethe.verifier.settings import Budget
from lethe.verifier.verdict import GateStatus, Status

REFERENCE = """
import torch
import torch.nn as nn

rows = 64
width = 4096


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""
BYTES = 64 * 4096 * 4


def candidate(body: str) -> Candidate:
    head = "import torch\nimport torch.nn as nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    return load_candidate(head + "".join(f"        {line}\n" for line in dedent(body).splitlines()))


def judged(body: str, written_bytes: int = 16 * BYTES):
    budget = Budget(reference_bytes=BYTES // 4, written_bytes=written_bytes)
    with Judge(device="cpu", quick=True, budget=budget, gates=["CMP-01", "CMP-03", "RES-01"]) as judge:
        return judge.verify(load_problem(REFERENCE), candidate(body))


def test_a_candidate_that_takes_any_size_is_judged_at_the_smaller_ones():
    verdict = judged("return 2 * torch.sigmoid(2 * x) - 1")
    assert verdict.clean and verdict.sizes


def test_a_candidate_for_one_size_is_charged_by_the_shape_gate_alone():
    verdict = judged("assert x.shape == (64, 2048 * 2)\nreturn 2 * torch.sigmoid(2 * x) - 1")
    assert verdict.status is Status.JUDGED
    assert verdict.sizes == {}
    assert verdict.failed == ("CMP-03",)
    assert verdict.gate("CMP-01").status is GateStatus.PASS
    assert {f.mechanism for f in verdict.gate("CMP-03").findings} == {"rejects"}


def test_one_that_runs_nowhere_is_its_own_fault():
    verdict = judged("raise ValueError('never')")
    assert verdict.status is Status.RUN_FAILED and "never" in verdict.message


def test_one_whose_only_size_is_too_large_is_not_audited():
    verdict = judged("assert x.shape[1] == 2048 * 2\nreturn torch.tanh(x)", written_bytes=BYTES)
    assert verdict.status is Status.NOT_AUDITABLE
    assert "as written needs" in verdict.message and not verdict.violated
