"""The kernel `forward` for sm_90a, as compiled, in `lethe.ptx`: outputs, states, the same bits every time.

Bounds as in test_sm90_scan: 1.5 times the torch run that rounds the same operands, plus 2^-14; the outputs
also half an ulp of the dtype that they are stored in.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lethe.kernels.gdn.precision import ROUNDOFF
from tests.kernels.gdn import sm90_scan_case as cases

pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")

from lethe.kernels.gdn import emulate
from lethe.kernels.gdn.architecture import SM90

SLACK = 2.0**-14
OUTPUTS = ("o", "final", "powers")


def load(
    io: str = "float16",
    dv: int = 128,
    erase: bool = True,
    packed: bool = False,
    saves: bool = False,
    dk: int = 128,
):
    return emulate.load(
        SM90, "forward", io=io, dk=dk, dv=dv, erase=erase, packed=packed, saves=saves, groups=1
    )


def check(kernel, case: cases.Case, schedules=("early",)) -> dict:
    """Run, compare with float64 and the bits between schedules; the arrays of the first run."""
    first, saves, io = None, kernel.variant.options["saves"], kernel.variant.options["io"]
    for schedule in schedules:
        arrays = case.arrays(kernel) | ({} if saves else {"S": None})
        kernel.run(arrays, schedule)
        first = first or arrays
        for name in OUTPUTS:
            assert np.array_equal(arrays[name].view(np.uint8), first[name].view(np.uint8)), (schedule, name)
    o = torch.from_numpy(first["o"])
    found = {"o": (o.view(torch.bfloat16) if io == "bfloat16" else o).double()}
    found["final"] = torch.from_numpy(first["final"]).double()
    exact, rounded = case.expected(), case.rounded()
    stored = {"o": ROUNDOFF["bf16" if io == "bfloat16" else "fp16"], "final": 0.0}
    for name, x in found.items():
        bound = 1.5 * cases.worst(rounded[name], exact[name]) + SLACK + stored[name]
        assert cases.worst(x, exact[name]) <= bound, name
    return first


def test_two_chunks_under_three_schedules():
    check(load(), cases.draw(), ("early", "late", 3))


def test_packed_ragged_rows_of_bfloat16_end_where_the_sequence_does():
    check(load("bfloat16", dv=64, packed=True), cases.draw(200, heads=2, dv=64, cuts=(0, 70, 70, 200)))


@pytest.mark.slow
@pytest.mark.parametrize("length", [150, 64 * 5])
def test_a_ragged_batch_and_more_chunks_than_stages(length):
    check(load(), cases.draw(length), ("early", "late", *range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("erase", [True, False])
def test_saved_states_are_those_of_the_scan(erase):
    case, kernel = cases.draw(erase=erase), load(erase=erase, saves=True)
    arrays = check(kernel, case, ("early", "late"))
    scan = emulate.load(SM90, "scan", dk=128, dv=128, erase=erase, packed=False, direction="both", groups=2)
    expected = case.arrays(scan)
    scan.run(expected)
    assert np.array_equal(arrays["S"], expected["S"])
    assert np.array_equal(arrays["powers"][..., 0], expected["powers"][..., 0])


@pytest.mark.slow
def test_outputs_without_erasure_or_given_states():
    check(load(erase=False), cases.draw(192, erase=False, given=False))


@pytest.mark.slow
def test_powers_are_undone():
    check(load("bfloat16"), cases.draw(size=1e7))


@pytest.mark.slow
def test_narrow_keys():
    check(load(dk=64), cases.draw(dk=64))
