"""Each gate rejects the cheat that was written for it, by the right mechanism, and passes the honest twin."""

from __future__ import annotations

import pytest

from lethe.verifier.catalog import IDS
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Verdict
from tests.meta.cheats import CHEATS, Cheat


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu") as j:
        yield j


def judged(judge: Judge, cheat: Cheat, body: str) -> Verdict:
    return judge.verify(
        load_problem(cheat.problem()), load_candidate(cheat.candidate(body)), gates=[cheat.gate]
    )


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: f"{c.gate}-{c.id}")
def test_cheat_fails_at_its_gate(judge, cheat: Cheat):
    v = judged(judge, cheat, cheat.cheat)
    result = v.gate(cheat.gate)
    assert result.status is GateStatus.FAIL, (v.status, v.message, result)
    assert cheat.mechanism in {f.mechanism for f in result.findings}
    assert all(f.message and f.case for f in result.findings)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: f"{c.gate}-{c.id}")
def test_honest_twin_passes_it(judge, cheat: Cheat):
    v = judged(judge, cheat, cheat.honest)
    result = v.gate(cheat.gate)
    assert result.status is GateStatus.PASS, (v.status, v.message, result)


def test_every_gate_that_needs_no_compiler_has_a_cheat():
    assert {c.gate for c in CHEATS} == set(IDS) - {"RES-02"}
