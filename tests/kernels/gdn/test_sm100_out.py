"""The kernel `out` for sm_100a, as compiled, in `lethe.ptx`: bounds as in test_sm90_out."""

from __future__ import annotations

import pytest

from lethe.evidence.gdn_precision import MEMBERS, Case
from tests.kernels.gdn import sm90_out_case as cases

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM100
from lethe.kernels.gdn.sm100.lifecycle import lifecycle
from tests.kernels.gdn import test_sm90_out as hopper

TWENTY = ("early", "late", "reverse", *range(17))


def check(problem, monkeypatch, schedules=("early",), programs=1, block=16) -> None:
    """As for sm_90a, with kernels for sm_100a."""
    monkeypatch.setattr(hopper, "emulate", emulate)
    hopper.check(problem, schedules, programs, block)
    check_static(problem)


def check_static(problem) -> None:
    """Tensor memory has one life of 512 columns."""
    found = lifecycle(emulate.load(SM100, "out", **problem.options).ptx, 384)
    assert found == {"tmem_columns": 512, "violations": [], "undecided": []}


def test_two_heads_by_two_programs(monkeypatch):
    monkeypatch.setattr(hopper, "emulate", emulate)
    problem = cases.make(Case("deltanet", "none", "silu", 64, "fp16", 100, 2))
    hopper.check(problem, ("late", 3), programs=2)


@pytest.mark.slow
@pytest.mark.parametrize("dv", [64, 128])
@pytest.mark.parametrize("member", ["gdn2", "gdn"])
def test_twenty_schedules_give_the_same_bits(member, dv, monkeypatch):
    check(cases.make(Case(member, "mild", "silu", dv, "fp16", 100, 1)), monkeypatch, TWENTY)


@pytest.mark.slow
@pytest.mark.parametrize("dv", [64, 128])
@pytest.mark.parametrize("member", [m for m in MEMBERS if m not in ("gdn2", "gdn")])
def test_the_other_members(member, dv, monkeypatch):
    gate = "mild" if MEMBERS[member][0] else "none"
    check(cases.make(Case(member, gate, "silu", dv, "bf16", 100)), monkeypatch, ("early", 1), programs=3)


@pytest.mark.slow
def test_packed_sequences_and_gates_that_close_within_few_tokens(monkeypatch):
    check(cases.make(Case("gdn2", "mild", length=150, heads=1), (0, 70, 70, 150)), monkeypatch, programs=2)
    problem = cases.make(Case("gla", "strong", "silu", io="fp16", length=80, heads=1), decay=4.0, block=1)
    problem.x["g"][:, :, :, 16:64] /= 4.0
    problem.x["g"][:, 48:] *= 1e-3
    check(problem, monkeypatch, ("early", "late"), block=1)


@pytest.mark.slow
def test_where_nothing_is_written_and_nothing_comes_back_gradients_are_zero(monkeypatch):
    problem = cases.make(Case("gdn", "mild", length=80), change=hopper.silence)
    for power in problem.powers.values():
        power[:, 0] = 100
    monkeypatch.setattr(hopper, "emulate", emulate)
    found = problem.results(hopper.check(problem))
    assert all(bool((found[name][:, :, 0] == 0).all()) for name in problem.gradients)
