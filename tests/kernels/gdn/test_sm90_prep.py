"""The kernel `prep` for sm_90a, as compiled, in `lethe.ptx`: right, and the same bits under every schedule.

Right: the root mean square of the errors no more than 1.2 times that of the torch run that rounds the same
operands (the kernel's reference rows are those of `prep_intra`, so that single roundings fall otherwise),
and the largest error no more than 1.5 times its largest plus 2^-12, half of what one rounding to float16
can cost the largest value. Both have 2^-18 for float32 sums of 128 terms and for exp2 (2^-22 of arguments
up to 2^9).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM90
from tests.kernels.gdn.sm90_prep_case import PrepCase, mean, worst

HALF_ROUNDING, SLACK = 2.0**-12, 2.0**-18
VALUES = torch.finfo(torch.float32).tiny


def run(case: PrepCase, schedules=("early",), change=None) -> dict:
    """The arrays after the first schedule; every other one must give the same bits."""
    prep = emulate.load(SM90, "prep", **case.options)
    outputs = [a.name for a in prep.variant.arguments if a.output]
    first = None
    for schedule in schedules:
        arrays = case.arrays(prep)
        if change is not None:
            change(arrays)
        prep.run(arrays, schedule)
        first = first or arrays
        for name in outputs:
            if arrays[name] is not None:
                assert arrays[name].tobytes() == first[name].tobytes(), (schedule, name)
    return first


def compare(case: PrepCase, arrays: dict, rounded: bool = True) -> None:
    """Every output against float64, bounded by the rounded run (by 2^-10 without one), and the maxima."""
    exact, found = case.expected(), case.results(arrays)
    plan = case.expected(rounded=True) if rounded else None
    for name, value in found.items():
        if exact[name].abs().max() < VALUES:
            assert value.abs().max() <= VALUES, name
            continue
        if not rounded:
            assert worst(value, exact[name]) <= 2.0**-10, name
            continue
        assert worst(value, exact[name]) <= 1.5 * worst(plan[name], exact[name]) + HALF_ROUNDING + SLACK, name
        assert mean(value, exact[name]) <= 1.2 * mean(plan[name], exact[name]) + SLACK, name
    maxima = torch.from_numpy(arrays["maxima"].copy()).double()[case.used]
    for column, name in ((0, "U"), (1, "Kt"), *([(2, "P")] * case.adjoint)):
        assert torch.allclose(maxima[..., column], exact[name].abs().amax((-2, -1)), rtol=2e-3), name
    assert not maxima[..., 3].any()


def check(case: PrepCase, schedules=("early",), rounded: bool = True) -> dict:
    """Run and compare."""
    arrays = run(case, schedules)
    compare(case, arrays, rounded)
    return arrays


def test_two_chunks_the_last_ragged_under_four_schedules():
    case = PrepCase()
    arrays = check(case, ("early", "late", "reverse", 5))
    past = ~case.tokens
    for name in ("Kt", "W", "U"):
        rows = torch.from_numpy(arrays[name].astype(np.float32))[case.used].transpose(1, 2)
        assert not rows[past].any(), name


def test_packed_sequences_with_an_empty_one_write_no_other_slot():
    case = PrepCase(gate="mild", length=130, cuts=(0, 70, 70, 130), io="bfloat16")
    arrays = check(case)
    unused = sorted(set(range(case.at.tokens.shape[0])) - set(case.used))
    assert unused and (arrays["P"][unused].view(np.uint8) == 0xFF).all()


@pytest.mark.parametrize("member", ["gdn", "linear"])
def test_one_gate_a_head_and_none_at_all(member):
    check(PrepCase(member, "mild"), ("early", 3))


def test_a_block_too_steep_for_factors_is_formed_by_pairs():
    """The plan's middle row overflows there, so that there is no rounded run to compare with."""
    check(PrepCase(gate="strong", length=64, steeper=6.0), rounded=False)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["kda", "gla", "ssd", "deltanet"])
@pytest.mark.parametrize("dv", [64, 128])
def test_the_other_members(member, dv):
    check(PrepCase(member, "mild", dv=dv, io="bfloat16"), ("early", 4))


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["strong", "mild", "none"])
@pytest.mark.parametrize("dk", [64, 128])
def test_gates_heads_and_sizes(gate, dk):
    check(PrepCase(gate=gate, dk=dk, dv=64, batch=2, heads=2, length=75), ("early", "late"))


@pytest.mark.slow
@pytest.mark.parametrize("member", ["gdn2", "ssd", "gdn"])
def test_for_the_forward_pass(member):
    check(PrepCase(member, "mild", adjoint=False), ("early", 6))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-9, 1e7])
def test_units_of_v_and_do_do_not_matter(size):
    """With bfloat16 inputs far outside float16 the stored bits are those of inputs of size one."""
    case = PrepCase(gate="mild", length=64, io="bfloat16")
    plain = run(case)
    power = int(np.log2(size))
    case.drawn["v"] = torch.ldexp(case.drawn["v"], torch.tensor(power))
    case.drawn["do"] = torch.ldexp(case.drawn["do"], torch.tensor(-power))
    other = run(case)
    for name in ("U", "P", "W", "Kt", "A", "T"):
        assert plain[name].tobytes() == other[name].tobytes(), name


@pytest.mark.slow
def test_nan_stays_within_its_chunk_and_head():
    case = PrepCase(gate="mild", heads=2)

    def poison(arrays: dict) -> None:
        arrays["g"][0, 20, 0, 7] = np.nan

    plain, other = run(case), run(case, change=poison)
    assert np.isnan(other["Kt"][0, 0]).any() and np.isnan(other["P"][0, 0]).any()
    for name in ("Kt", "W", "U", "P", "A", "T", "a", "decay", "maxima"):
        same = plain[name].view(np.uint8) == other[name].view(np.uint8)
        assert same[1:].all() and same[0, 1].all(), name
