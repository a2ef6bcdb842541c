"""What one gate leaves to another is charged there, or nothing is decided."""

from __future__ import annotations

import pytest

from lethe.evidence.fairness.innocent import kernel, kernelbench
from lethe.verifier.cascade import accounted_for, without_cascade
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.sheet import not_applicable
from lethe.verifier.verdict import Blame, Finding, GateResult, GateStatus, Reason

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


def test_a_part_of_a_product_that_underflows_is_no_fault(judge):
    """0.2^n leaves float32 after 60 factors: where a block's own product is 0, an infinity before the block
    makes it NaN, and an infinity in the order of the reference."""
    problem = kernelbench("x.cumprod(-1)", "0.2 * torch.randn(rows, width)", "rows = 4\nwidth = 320")
    blocks = "a, b = x[:, :160].cumprod(-1), x[:, 160:].cumprod(-1)\nreturn torch.cat([a, b * a[:, -1:]], -1)"
    minted = blocks.replace("return torch.cat(", "return 0 * x.amax(-1, keepdim=True) + torch.cat(")
    for body, failed in ((blocks, ()), (minted, ("EXC-01",))):
        v = judge.verify(load_problem(problem), load_candidate(kernel(body)), gates=["EXC-01"])
        assert v.failed == failed and v.gate("EXC-01").cases


def finding(case: str, ratio: float, mechanism: str = "value") -> Finding:
    return Finding(case, "B", mechanism, "", metric=ratio, bound=1.0)


def gate(name: str, *findings: Finding, cases: int = 9) -> GateResult:
    status = GateStatus.FAIL if findings else GateStatus.PASS
    return GateResult(name, status, "B", cases, findings)


@pytest.mark.parametrize(
    ("here", "left"),
    [
        (finding("shape:n=7:spike", 40.0), ()),
        (finding("shape:joint:m=3,n=7:spike", 40.0), ()),
        (finding("shape:rows:m=32769,n=7:spike:0", 40.0), ()),
        (finding("shape:n=7:spike", 1000.0), ("shape:n=7:spike",)),
        (finding("shape:n=7", 40.0), ("shape:n=7",)),
        (finding("layout:sliced", 40.0), ("layout:sliced",)),
        (finding("shape:n=7:spike", 1.0, "rejects"), ("shape:n=7:spike",)),
        (finding("shape:n=7:spike", 1.0, "nonfinite"), ("shape:n=7:spike",)),
    ],
)
def test_only_what_fails_about_as_far_at_home_is_taken_from_shapes(here, left):
    _, shapes = without_cascade([gate("CMP-01", finding("spike", 10.0)), gate("CMP-03", here)])
    assert tuple(f.case for f in shapes.findings) == left
    assert shapes.status is (GateStatus.FAIL if left else GateStatus.PASS)
    assert (here.case in shapes.skipped) is not bool(left)


def test_where_every_size_fails_as_its_own_does_nothing_is_known_of_sizes():
    wrong = [finding(f"shape:n={n}", 5.0) for n in (3, 5)] + [finding("layout:sliced", 5.0)]
    results = [gate("CMP-01", finding("normal:0", 4.0)), gate("CMP-03", *wrong, cases=3)]
    _, shapes = without_cascade(results)
    assert shapes.status is GateStatus.NOT_APPLICABLE and shapes.reason is Reason.EARLIER_FAILURE
    assert set(shapes.skipped) == {"shape:n=3", "shape:n=5", "layout:sliced"}
