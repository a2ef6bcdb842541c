"""The kernels `scan` and `forward` for sm_100a, as compiled, in `lethe.ptx`: bounds as in test_sm90_scan."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM100
from lethe.kernels.gdn.sm100.lifecycle import lifecycle
from lethe.ptx import Fault, injection
from tests.kernels.gdn import sm90_scan_case as cases
from tests.kernels.gdn.test_sm90_forward import check as check_forward
from tests.kernels.gdn.test_sm90_scan import check


def load(dv=128, groups=2, erase=True, packed=False, direction="both", dk=128):
    return emulate.load(
        SM100, "scan", dk=dk, dv=dv, erase=erase, packed=packed, direction=direction, groups=groups
    )


def load_forward(io="float16", dv=128, erase=True, packed=False, saves=False, dk=128):
    return emulate.load(
        SM100, "forward", io=io, dk=dk, dv=dv, erase=erase, packed=packed, saves=saves, groups=1
    )


def test_three_chunks_under_two_schedules():
    check(load(), cases.draw(192), ("late", 3))


@pytest.mark.slow
def test_tensor_memory_has_one_life_and_nothing_lies_outside_of_it():
    found = lifecycle(load().ptx, 320)
    assert found == {"tmem_columns": 512, "violations": [], "undecided": []}


def test_tensor_memory_is_freed_behind_the_last_product_though_nobody_wants_the_final_state():
    scan, case = load(), cases.draw(64)
    wanted, unwanted = case.arrays(scan), case.arrays(scan) | {"final": None, "dS0": None}
    for arrays in (wanted, unwanted):
        scan.run(arrays, "late")
    assert all(np.array_equal(wanted[name], unwanted[name]) for name in ("S", "D"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dv", "groups", "erase", "packed"),
    [(128, 1, True, True), (64, 1, True, False), (128, 2, False, True), (128, 1, False, False)],
    ids=str,
)
def test_every_layout_is_right(dv, groups, erase, packed):
    cuts = (0, 1, 1, 130, 150) if packed else None
    case = cases.draw(length=150 if packed else 192, dv=dv, cuts=cuts, erase=erase)
    check(load(dv, groups, erase, packed), case, ("early", "late", 1))


@pytest.mark.slow
@pytest.mark.parametrize(("dv", "groups"), [(128, 2), (64, 1)])
def test_narrow_keys(dv, groups):
    check(load(dv, groups, dk=64), cases.draw(192, dv=dv, dk=64), ("early", 1))


@pytest.mark.slow
@pytest.mark.parametrize(("dv", "groups"), [(128, 2), (64, 1)])
def test_more_chunks_than_stages_under_twenty_schedules(dv, groups):
    check(load(dv, groups), cases.draw(64 * 5, dv=dv), ("early", "late", "reverse", *range(17)))


@pytest.mark.slow
def test_reverse_alone_gives_the_bits_of_both():
    case, both, alone = cases.draw(), load(), load(direction="reverse")
    expected = check(both, case)
    arrays = case.arrays(alone) | dict.fromkeys(("U", "S0", "S", "final"))
    alone.run(arrays)
    for name in ("D", "dS0"):
        assert np.array_equal(arrays[name], expected[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dv", "erase", "packed"), [(128, True, False), (64, True, True), (64, False, False)]
)
def test_outputs_join_the_scan(dv, erase, packed):
    cuts = (0, 70, 70, 200) if packed else None
    case = cases.draw(200 if packed else 192, heads=2, dv=dv, cuts=cuts, erase=erase)
    check_forward(load_forward("bfloat16", dv, erase, packed), case, ("early", "late", 3))


SYNCHRONISATION = (
    "dropped wait",
    "wrong phase",
    "dropped arrive",
    "dropped proxy fence",
    "dropped tcgen05 fence",
    "dropped wait::ld",
    "dropped wait::st",
    "dropped commit",
    "commit to another barrier",
    "every lane elected",
    "dropped dealloc",
    "early dealloc",
)


def spare(mutant, lines: list[str]) -> bool:
    """A fence before an arrival that has another one before it, nearer: dropping it changes nothing."""
    if "before_thread_sync" not in mutant.before:
        return False
    ahead = (
        line for line in lines[mutant.line :] if "before_thread_sync" in line or "mbarrier.arrive" in line
    )
    return "before_thread_sync" in next(ahead, "")


@pytest.mark.slow
@pytest.mark.parametrize("operator", SYNCHRONISATION)
def test_a_kernel_that_is_broken_in_one_line_is_noticed(operator, monkeypatch):
    """The first sites of each operator: by a fault, by other bits, or by the static checks."""
    scan, case = load(64, 1), cases.draw(192, dv=64)
    expected = check(scan, case)
    ptx, (launch,) = scan.ptx, scan.launches(case.arrays(scan))
    record = SimpleNamespace(name="scan", ptx=ptx, launch=launch)
    mutants = [m for m in injection.mutations(record) if m.operator == operator]
    mutants = [m for m in mutants if not spare(m, ptx.splitlines())]
    assert mutants
    for mutant in mutants:
        broken = mutant.apply(ptx)
        monkeypatch.setattr(type(scan), "ptx", property(lambda _, text=broken: text))
        noticed = False
        for schedule in ("early", "late", "reverse", 0, 1, 2):
            if noticed:
                break
            arrays = case.arrays(scan)
            try:
                scan.run(arrays, schedule, limit=injection.BUDGET)
            except Fault:
                noticed = True
            else:
                outputs = ("S", "D", "final", "dS0", "powers")
                noticed = any(arrays[n].tobytes() != expected[n].tobytes() for n in outputs)
        assert noticed or lifecycle(broken, launch.block[0])["violations"], mutant
