"""The kernel `out` for sm_90a, as compiled, in `lethe.ptx`: right, and the same bits under every schedule.

Right: no further from float64 than 1.5 times the torch run that rounds the same operands, plus 2^-14, plus
the rounding of the stored value to the input dtype. The factor is for roundings that fall the other way and
powers of two that are chosen for 16 channels where the plan has one a tile, the addend for float32 sums of at
most 256 terms in another order and exp2 to 2^-22.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lethe.evidence.gdn_precision import MEMBERS, Case
from lethe.kernels.gdn.precision import ROUNDOFF
from tests.kernels.gdn import sm90_out_case as cases

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM90

SLACK = 2.0**-14


def run(problem, schedule="early", programs=1) -> dict:
    out = emulate.load(SM90, "out", **problem.options)
    arrays = problem.arrays(out, programs)
    out.run(arrays, schedule)
    return arrays


def check(problem, schedules=("early",), programs=1, block=16) -> dict:
    """Run, compare with float64 and between schedules; the arrays of the first run.

    `block` is of the rounded run: 1 where the decay within 16 tokens leaves float32."""
    first = None
    for schedule in schedules:
        arrays = run(problem, schedule, programs)
        first = first or arrays
        for name in problem.gradients:
            same = arrays[f"d{name}"].view(np.uint8), first[f"d{name}"].view(np.uint8)
            assert np.array_equal(*same), (schedule, name)
    exact, rounded, found = problem.expected(), problem.rounded(block), problem.results(first)
    for name in problem.gradients:
        stored = 0.0 if name == "g" else ROUNDOFF[problem.case.io]
        bound = 1.5 * cases.worst(rounded[name], exact[name]) + SLACK + stored
        assert np.isfinite(bound), name
        assert cases.worst(found[name], exact[name]) <= bound, name
    return first


def test_two_chunks_one_ragged_under_three_schedules():
    check(cases.make(Case("gdn2", "unit", io="fp16", length=100, heads=1)), ("early", "late", 3))


def test_packed_sequences_end_before_the_next_one_whatever_it_holds():
    problem = cases.make(Case("gdn2", "mild", length=150, heads=1), (0, 70, 70, 150))
    clean = check(problem, programs=2)
    for name in ("q", "k", "v", "g", "b", "w", "do"):
        problem.x[name][:, 70:] = float("nan")
    arrays = run(problem)
    for name in problem.gradients:
        pair = (a[f"d{name}"][:, :70].view(np.uint8) for a in (arrays, clean))
        assert np.array_equal(*pair), name


def test_a_nan_reaches_what_depends_on_it_and_no_further_than_its_eight_tokens():
    problem = cases.make(Case("gla", "mild", length=80))
    problem.x["q"][:, 20] = float("nan")
    found = problem.results(run(problem))
    assert found["g"][:, 24:].isfinite().all() and found["k"][:, 24:].isfinite().all()
    assert found["g"][:, :21].isnan().all() and found["k"][:, :20].isnan().all()


def test_a_nan_in_a_gate_reaches_no_earlier_query():
    """Within eight tokens, within sixteen, and in the second of a thread's two."""
    problem = cases.make(Case("gla", "mild", length=80))
    found = {}
    for head, token, channel in ((0, 21, 5), (1, 43, 70)):
        problem.x["g"][:, token, head, channel] = float("nan")
        found[head] = torch.zeros(80, 128, dtype=torch.bool)
        found[head][token:64, channel] = True
    dq = problem.results(run(problem))["q"]
    assert all(torch.equal(dq[0, :, head].isnan(), expected) for head, expected in found.items())


def test_arrivals_at_a_barrier_read_no_register():
    """ptxas let a count be overwritten before the barrier had read it (`out_values.arrive`)."""
    out = emulate.load(SM90, "out", **cases.make(Case("gla", "mild", length=80)).options)
    arrivals = [line for line in out.ptx.splitlines() if "mbarrier.arrive.shared" in line]
    assert arrivals and all(line.endswith("];") for line in arrivals)


def silence(x: dict) -> None:
    """Nothing is written and nothing comes back: in the first head at all, in the second within one chunk."""
    for name in ("v", "do"):
        x[name][:, :, 0], x[name][:, :64, 1] = 0.0, 0.0
    for name in ("initial_state", "dfinal"):
        x[name][:, 0] = 0.0
    x["initial_state"][:, 1] = 0.0


@pytest.mark.parametrize("member", ["gdn", "gla"])
def test_where_nothing_is_written_and_nothing_comes_back_gradients_are_zero(member):
    problem = cases.make(Case(member, "mild", length=80), change=silence)
    for power in problem.powers.values():
        power[:, 0] = 100  # as scan has it where all is zero
    found = problem.results(check(problem))
    assert all(bool((found[name][:, :, 0] == 0).all()) for name in problem.gradients)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["gdn2", "kda", "gdn"])
def test_rows_of_a_batch_end_before_the_next_one(member):
    check(cases.make(Case(member, "mild", io="fp16", length=200, heads=2), batch=2), ("early", 2), programs=2)


@pytest.mark.slow
@pytest.mark.parametrize("dv", [64, 128])
@pytest.mark.parametrize("io", ["fp16", "bf16"])
@pytest.mark.parametrize("member", MEMBERS)
def test_every_member(member, io, dv):
    gate = "mild" if MEMBERS[member][0] else "none"
    check(cases.make(Case(member, gate, "silu", dv, io, 100)), ("early", "reverse", 1), programs=3)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["gdn2", "gdn"])
@pytest.mark.parametrize("gate", ["strong", "none"])
def test_strong_decay_and_nearly_none(member, gate):
    check(cases.make(Case(member, gate, "silu", io="fp16", length=128, heads=1)))


@pytest.mark.slow
@pytest.mark.parametrize("decay", [2.5, 4.0, 40.0])
@pytest.mark.parametrize("member", ["gdn2", "gla"])
def test_gates_that_close_within_few_tokens(member, decay):
    problem = cases.make(Case(member, "strong", "silu", io="fp16", length=80, heads=1), decay=decay, block=1)
    problem.x["g"][:, :, :, 16:64] /= decay
    problem.x["g"][:, 48:] *= 1e-3
    check(problem, ("early", "late"), block=1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-9, 1e6])
def test_powers_hold_what_float16_does_not(size):
    check(cases.make(Case("gdn2", "mild", length=64, heads=1), size=size))
