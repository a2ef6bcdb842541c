"""A candidate that refuses the sizes which the judge chose, or is wrong there only, is judged at those of its
problem (fairness rule 45)."""

from __future__ import annotations

from textwrap import dedent

import pytest

from lethe.audit.floor import channels
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, load_candidate, load_problem
from lethe.verifier.settings import Budget
from lethe.verifier.verdict import GateStatus, Reason, Status

REFERENCE = """
import torch
import torch.nn as nn

rows = 16
width = 1024


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""
BYTES = 16 * 1024 * 4


def candidate(body: str) -> Candidate:
    head = "import torch\nimport torch.nn as nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    return load_candidate(head + "".join(f"        {line}\n" for line in dedent(body).splitlines()))


def judged(body: str, written_bytes: int = 16 * BYTES, gates=("CMP-01", "CMP-03", "RES-01")):
    budget = Budget(reference_bytes=BYTES // 4, written_bytes=written_bytes)
    with Judge(device="cpu", quick=True, budget=budget, gates=gates) as judge:
        return judge.verify(load_problem(REFERENCE), candidate(body))


def floor(verdict):
    """The channels of the tolerance-free floor that speak against a verdict."""
    found = [{**f, "gate": g["gate"]} for g in verdict.to_dict()["gates"] for f in g["findings"]]
    return set(channels(verdict.status, found, [], substituted=bool(verdict.sizes)))


def test_a_candidate_that_takes_any_size_is_judged_at_the_smaller_ones():
    verdict = judged("return 2 * torch.sigmoid(2 * x) - 1")
    assert verdict.clean and verdict.sizes


def test_a_candidate_for_one_size_is_charged_by_the_shape_gate_alone():
    verdict = judged("assert x.shape == (16, 512 * 2)\nreturn 2 * torch.sigmoid(2 * x) - 1")
    assert verdict.status is Status.JUDGED
    assert verdict.sizes == {}
    assert verdict.failed == ("CMP-03",)
    assert verdict.gate("CMP-01").status is GateStatus.PASS
    assert {f.mechanism for f in verdict.gate("CMP-03").findings} == {"rejects"}


def test_one_that_runs_nowhere_is_its_own_fault():
    verdict = judged("raise ValueError('never')")
    assert verdict.status is Status.RUN_FAILED and "never" in verdict.message


def test_one_whose_only_size_is_too_large_is_not_audited():
    verdict = judged("assert x.shape[1] == 512 * 2\nreturn torch.tanh(x)", written_bytes=BYTES)
    assert verdict.status is Status.NOT_AUDITABLE
    assert "as written needs" in verdict.message and not verdict.violated


NO_TAIL = "y = torch.tanh(x)\ny[:, x.shape[1] // 64 * 64 :] = 0\nreturn y"
ONE_SHAPE = """y = torch.zeros(16, 512 * 2)
y[: x.shape[0], : x.shape[1]] = torch.tanh(x)[:16, : 512 * 2]
return y"""


def test_one_that_is_wrong_elsewhere_only_is_charged_by_the_shape_gate_alone():
    verdict = judged(NO_TAIL)
    assert verdict.failed == ("CMP-03",) and verdict.sizes == {}
    assert verdict.gate("CMP-01").status is GateStatus.PASS
    chosen = [f.case for f in verdict.gate("CMP-03").findings if f.case.endswith(":normal:0")]
    assert len(chosen) == 1 and chosen[0].startswith("shape:") and "width=" in chosen[0]


def test_one_that_is_wrong_elsewhere_on_some_draws_only_is_treated_alike():
    tail = "y[:, x.shape[1] // 64 * 64 :] = 0"
    verdict = judged(f"y = torch.tanh(x)\nif bool((x.diff(dim=1) >= 0).all()):\n    {tail}\nreturn y")
    assert verdict.failed == ("CMP-03",) and verdict.sizes == {}
    assert any(f.case.endswith(":sorted") for f in verdict.gate("CMP-03").findings)


def test_the_gates_that_are_asked_make_no_difference():
    swallows = "torch.nan_to_num(torch.tanh(x)) if x.shape[1] != 512 * 2 else torch.tanh(x)"
    body = f"y = {swallows}\ny[:, x.shape[1] // 64 * 64 :] = 0\nreturn y"
    assert judged(body, gates=("EXC-01",)).clean


def test_another_shape_at_sizes_that_the_judge_chose_is_in_no_floor_before_the_gates():
    verdict = judged(ONE_SHAPE)
    assert verdict.failed == ("CMP-03",) and verdict.sizes == {}
    assert floor(verdict) == {"shape"}


def test_another_shape_at_every_size_is_found_at_the_sizes_written():
    verdict = judged("return torch.tanh(x)[:, 1:]")
    assert "CMP-01" in verdict.failed and verdict.sizes == {}
    assert "pre_gate" in floor(verdict)


def test_one_that_is_wrong_at_every_size_stays_where_it_was():
    verdict = judged("return 1.5 * torch.tanh(x)")
    assert "CMP-01" in verdict.failed and verdict.sizes


@pytest.mark.parametrize("body", [NO_TAIL, ONE_SHAPE], ids=["tail", "shape"])
def test_where_the_written_sizes_are_too_large_only_the_shape_gate_applies(body):
    verdict = judged(body, written_bytes=BYTES)
    assert verdict.status is Status.JUDGED and verdict.failed == ("CMP-03",) and verdict.sizes
    for gate in ("CMP-01", "RES-01"):
        assert verdict.gate(gate).reason is Reason.BUDGET
        assert "as written needs" in verdict.gate(gate).detail
    assert "pre_gate" not in floor(verdict)


def test_one_whose_process_ends_at_other_sizes_is_judged_as_written():
    body = "import os\nif x.shape[1] != 512 * 2:\n    os.abort()\nreturn torch.tanh(x)"
    verdict = judged(body)
    assert verdict.status is Status.JUDGED and verdict.failed == ("CMP-03",) and verdict.sizes == {}


def test_one_that_raises_as_written_is_its_own_fault_there():
    body = "if x.shape[1] == 512 * 2:\n    raise ValueError('as written')\nreturn x"
    verdict = judged(body)
    assert verdict.status is Status.RUN_FAILED and verdict.sizes == {}
