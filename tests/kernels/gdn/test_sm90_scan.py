"""The kernel `scan` for sm_90a, as compiled, in `lethe.ptx`: right, and the same bits under every schedule.

Right: no further from float64 than 1.5 times the torch run that rounds the same operands, plus 2^-14. The
factor is for roundings that fall the other way, the addend for float32 sums of at most 128 terms in another
order (2^-17 a product, two a step, four steps).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.gdn import sm90_scan_case as cases

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM90

SLACK = 2.0**-14
OUTPUTS = ("S", "D", "powers", "final", "dS0")


def load(
    dv: int = 128,
    groups: int = 2,
    erase: bool = True,
    packed: bool = False,
    direction: str = "both",
    dk: int = 128,
):
    return emulate.load(
        SM90, "scan", dk=dk, dv=dv, erase=erase, packed=packed, direction=direction, groups=groups
    )


def check(scan, case, schedules=("early",)) -> dict:
    """Run, compare with float64 and between schedules; the arrays of the first run."""
    exact, rounded = case.expected(), case.rounded()
    first = None
    for schedule in schedules:
        arrays = case.arrays(scan)
        scan.run(arrays, schedule)
        first = first or arrays
        for name in OUTPUTS:
            assert np.array_equal(arrays[name].view(np.uint8), first[name].view(np.uint8)), (schedule, name)
    found = case.results(first)
    for name in cases.NAMES:
        bound = 1.5 * cases.worst(rounded[name], exact[name]) + SLACK
        assert cases.worst(found[name], exact[name]) <= bound, name
    return first


def test_two_chunks_right_under_three_schedules():
    check(load(), cases.draw(), ("early", "late", 3))


def test_packed_ragged_and_empty_sequences_of_two_heads():
    case = cases.draw(length=200, heads=2, cuts=(0, 70, 70, 200))
    arrays = check(load(packed=True), case)
    assert np.array_equal(arrays["final"][1], arrays["S0"][1])
    assert np.array_equal(arrays["dS0"][1], arrays["dfinal"][1])
    unused = sorted(set(range(case.P.shape[0])) - set(case.used))
    assert unused and (arrays["S"][unused].view(np.uint8) == 0xFF).all()


def test_without_erasure_and_without_given_states():
    check(load(dv=64, groups=1, erase=False), cases.draw(dv=64, erase=False, given=False))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-9, 3e7])
def test_powers_hold_what_float16_does_not(size):
    check(load(), cases.draw(size=size))


@pytest.mark.slow
@pytest.mark.parametrize("gate", [0.0, 5.0])
def test_no_decay_and_a_strong_one(gate):
    check(load(), cases.draw(length=192, gate=gate))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dv", "groups", "erase", "packed"),
    [(128, 1, True, True), (64, 1, True, False), (128, 2, False, True), (128, 1, False, False)],
    ids=str,
)
def test_every_layout_is_right(dv, groups, erase, packed):
    cuts = (0, 1, 130, 150) if packed else None
    case = cases.draw(length=150 if packed else 192, dv=dv, cuts=cuts, erase=erase)
    check(load(dv, groups, erase, packed), case, ("early", 1))


@pytest.mark.slow
@pytest.mark.parametrize(("dv", "groups"), [(128, 2), (64, 1)])
def test_narrow_keys(dv, groups):
    check(load(dv, groups, dk=64), cases.draw(192, dv=dv, dk=64), ("early", 1))


@pytest.mark.slow
def test_more_chunks_than_stages_under_ten_schedules():
    check(load(), cases.draw(length=64 * 5), ("early", "late", *range(8)))


@pytest.mark.slow
def test_reverse_alone_gives_the_bits_of_both():
    case, both, alone = cases.draw(), load(), load(direction="reverse")
    expected = check(both, case)
    arrays = case.arrays(alone) | dict.fromkeys(("U", "S0", "S", "final"))
    alone.run(arrays)
    for name in ("D", "dS0"):
        assert np.array_equal(arrays[name], expected[name])
    assert np.array_equal(arrays["powers"][..., 1], expected["powers"][..., 1])


@pytest.mark.slow
def test_not_a_number_stays_one_and_stays_where_it_belongs():
    scan, case = load(), cases.draw()
    arrays = case.arrays(scan)
    arrays["U"][1, 0, 3, 5] = np.nan
    arrays["maxima"][1, 0, 0] = np.nan
    scan.run(arrays)
    S, final = torch.from_numpy(arrays["S"]), torch.from_numpy(arrays["final"])
    assert S.isfinite().all() and final[0, 0, :, 5].isnan().all()
