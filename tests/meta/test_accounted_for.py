"""What one gate leaves to another is charged there, or nothing is decided."""

from __future__ import annotations

import pytest

from lethe.evidence.fairness.innocent import kernel, kernelbench
from lethe.verifier.cascade import accounted_for
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.sheet import not_applicable
from lethe.verifier.verdict import Blame, GateResult, GateStatus, Reason

LEFT = {Reason.EARLIER_FAILURE}


def result(gate: str, status: GateStatus) -> GateResult:
    return GateResult(gate, status, "B")


def test_what_is_left_to_a_gate_that_passes_is_an_open_question():
    stepped = not_applicable("PRC-01", Reason.EARLIER_FAILURE, "no regime explains it")
    other = not_applicable("PRC-02", Reason.NOT_A_REDUCTION, "it has no carry")
    found = accounted_for([result("CMP-01", GateStatus.PASS), stepped, other], False, LEFT)
    assert [r.status for r in found] == [GateStatus.PASS, GateStatus.ERROR, GateStatus.NOT_APPLICABLE]
    assert found[1].whose is Blame.HARNESS and found[1].reason is Reason.EARLIER_FAILURE


def test_what_another_gate_or_probe_charges_stays_left_to_it():
    stepped = not_applicable("PRC-01", Reason.EARLIER_FAILURE, "no regime explains it")
    failed = [result("CMP-01", GateStatus.FAIL), stepped]
    assert accounted_for(failed, False, LEFT) == failed
    assert accounted_for([stepped], True, LEFT) == [stepped]


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def test_values_that_are_wrong_only_where_gradients_are_wanted_are_charged(judge):
    problem = kernelbench("2 * torch.tanh(x)", "torch.randn(rows, 33)", "rows = 20")
    body = "if x.requires_grad:\n    return 3 * torch.tanh(x) + x\nreturn 2 * torch.tanh(x)"
    verdict = judge.verify(load_problem(problem), load_candidate(kernel(body)), gates=["CMP-01", "CMP-02"])
    assert verdict.gate("CMP-01").status is GateStatus.PASS
    assert verdict.gate("CMP-02").status is GateStatus.FAIL


def test_gates_that_leave_a_failure_to_one_that_was_not_asked_for_decide_nothing(judge):
    problem = kernelbench("torch.tanh(x)", "torch.randn(rows, 33)", "rows = 20")
    body = "return torch.tanh(x) + 0 / (x[:, :1] * 0)"
    verdict = judge.verify(load_problem(problem), load_candidate(kernel(body)), gates=["EXC-02"])
    assert not verdict.clean and verdict.gate("EXC-02").status is GateStatus.ERROR
