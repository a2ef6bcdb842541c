"""The kernel `prep` for sm_100a, as compiled, in `lethe.ptx`: bounds as in test_sm90_prep."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM100
from lethe.kernels.gdn.sm100.lifecycle import lifecycle
from tests.kernels.gdn import test_sm90_prep as hopper
from tests.kernels.gdn.sm90_prep_case import PrepCase

TWENTY = ("early", "late", "reverse", *range(17))


def check(case: PrepCase, monkeypatch, schedules=("early",), rounded=True) -> None:
    """As for sm_90a, with kernels for sm_100a; tensor memory has one life of 256 columns, or none."""
    monkeypatch.setattr(hopper, "emulate", emulate)
    hopper.check(case, schedules, rounded)
    options = case.options
    products = options["erase"] != "none" or options["adjoint"]
    found = lifecycle(emulate.load(SM100, "prep", **options).ptx, 256)
    assert found == {"tmem_columns": 256 * products, "violations": [], "undecided": []}


def test_two_chunks_under_two_schedules(monkeypatch):
    check(PrepCase("gdn", "mild", length=100, dv=64), monkeypatch, ("late", 3))


@pytest.mark.slow
@pytest.mark.parametrize("dv", [64, 128])
@pytest.mark.parametrize("member", ["gdn2", "gdn"])
def test_twenty_schedules_give_the_same_bits(member, dv, monkeypatch):
    check(PrepCase(member, "mild", length=100, dv=dv, io="bfloat16"), monkeypatch, TWENTY)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["linear", "kda", "gla", "ssd", "deltanet"])
@pytest.mark.parametrize("dv", [64, 128])
def test_the_other_members(member, dv, monkeypatch):
    check(PrepCase(member, "mild", dv=dv), monkeypatch, ("early", 4))


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["strong", "mild", "none"])
@pytest.mark.parametrize(("dk", "dv"), [(64, 64), (64, 128), (128, 64)])
def test_gates_heads_and_sizes(gate, dk, dv, monkeypatch):
    check(PrepCase(gate=gate, dk=dk, dv=dv, batch=2, length=75), monkeypatch, ("early", "late"))


@pytest.mark.slow
def test_packed_sequences_and_a_block_too_steep_for_factors(monkeypatch):
    check(PrepCase(gate="mild", length=130, cuts=(0, 70, 70, 130), io="bfloat16"), monkeypatch)
    check(PrepCase(gate="strong", length=64, steeper=6.0), monkeypatch, rounded=False)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["gdn2", "ssd", "gdn"])
def test_for_the_forward_pass(member, monkeypatch):
    check(PrepCase(member, "mild", adjoint=False), monkeypatch, ("early", 6))
