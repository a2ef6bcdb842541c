"""The compile matrix: all six kernels fit every architecture, found without a GPU."""

from __future__ import annotations

import dataclasses
import math

import pytest

from lethe.kernels.mamba3.plan import HEAD, SCAN, choose_plan

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def resources():
    from lethe.kernels.mamba3 import resources

    return resources


@pytest.mark.parametrize("kernel", ["C1", "C4"])
def test_a_forward_kernel_fits_a_hopper(resources, kernel):
    rows = resources.needs(kernel, 90, 4)
    assert rows and all(row.exceeds() == [] and row.tmem_columns == 0 for row in rows), rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", ["C1", "C2", "C3", "C4", "C5", "C6"])
def test_every_kernel_fits_everywhere(resources, kernel):
    for target in resources.TARGETS:
        for warps in resources.WARPS:
            rows = resources.needs(kernel, target, warps)
            assert rows and all(row.exceeds() == [] and row.tmem_columns == 0 for row in rows), rows


def test_limits_are_held(resources):
    roomy = resources.Need("C1", "f", "sm_120", 4, 128, 0, 0, 48 * 1024, 0)
    assert roomy.exceeds() == []
    assert len(dataclasses.replace(roomy, shared_bytes=100 * 1024).exceeds()) == 1
    assert len(dataclasses.replace(roomy, tmem_columns=544).exceeds()) == 1
    assert len(dataclasses.replace(roomy, registers=255, num_warps=16).exceeds()) == 1


def test_no_kernel_uses_dot(resources):
    for kernel in resources.KERNELS:
        for function, _ in resources.specialisations(kernel, 4):
            assert "tl.dot" not in function.src and "atomic" not in function.src, function


@pytest.mark.parametrize("bounds", [SCAN, HEAD], ids=["scan", "head"])
@pytest.mark.parametrize(
    ("fill", "length", "mode", "chunks"),
    [
        (0.4, 4096, "chunked", None),
        (1.0, 4096, "serial", 1),
        (0.4, 16, "serial", 1),
        (0, 4096, "chunked", 128),
    ],
    ids=["few-programs", "enough-programs", "short", "one-program"],
)
def test_the_selector(fill, length, mode, chunks, bounds):
    """`fill` is the share of the programs that a serial scan needs."""
    tiles = max(1, math.ceil(fill * bounds.starved * 132))
    chosen = choose_plan(tiles, length, 132, bounds=bounds)
    assert chosen.mode == mode and chunks in (None, chosen.chunks), chosen
    assert chosen.chunk * chosen.chunks >= length
    assert mode == "serial" or 32 <= chosen.chunk <= bounds.longest


@pytest.mark.parametrize(("tiles", "mode"), [(128, "chunked"), (256, "serial")])
def test_heads_have_bounds_of_their_own(tiles, mode):
    """Both sides were measured on a device of 132 multiprocessors; the scan needs more programs."""
    assert choose_plan(tiles, 2048, 132, bounds=HEAD).mode == mode
    assert choose_plan(tiles, 2048, 132).mode == "chunked"


def test_the_selector_obeys_and_refuses():
    assert choose_plan(512, 100, 132, mode="chunked", chunk=30).chunks == 4
    assert choose_plan(1, 100, 132, mode="serial").chunks == 1
    with pytest.raises(ValueError, match="chunk is 0"):
        choose_plan(1, 100, 132, chunk=0)
