"""Tensor memory: allocation lifetime, fragments of ``tcgen05.ld``/``st``, poison and lane quarters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lethe.ptx import tmem
from lethe.ptx.faults import Fault
from lethe.ptx.tmem import Allocation, TensorMemory
from tests.ptx.cute_layout import offsets


def written(seed: int = 0) -> TensorMemory:
    """All 512 columns allocated and filled with random words."""
    tm = TensorMemory()
    assert tm.alloc(512) == 0
    tm.data[...] = np.random.default_rng(seed).integers(0, 1 << 32, tm.data.shape, dtype=np.uint32)
    tm.written[...] = True
    return tm


def fragment(shape: str, num: int) -> tuple[np.ndarray, np.ndarray]:
    """(lanes, columns) [32, R] from the copy traits of CUTLASS, which count bits.

    (thread, value) -> bit of a tile of 16 or 32 lanes, whose rows are `width` bits: 32 to 256, `num` times.
    """
    unit = {"32x32b": 32, "16x64b": 64, "16x128b": 128, "16x256b": 256, "16x32bx2": 64}[shape]
    width = unit * num
    thread: Any
    value: Any
    if shape == "32x32b":
        thread, value = ((32,), (width,)), ((num,), (32,))
    elif shape == "16x64b":
        thread, value = ((2, 2, 8), (8 * width, 32, width)), ((num,), (64,))
    elif shape == "16x128b":
        thread, value = ((4, 8), (32, width)), ((2, num), (8 * width, 128))
    elif shape == "16x256b":
        thread, value = ((4, 8), (64, width)), ((2, 2, num), (32, 8 * width, 256))
    else:
        thread, value = ((16, 2), (width, 32 * num)), ((num,), (32,))
    bits = offsets(*thread)[:, None] + offsets(*value)[None, :]
    return bits // width, bits % width // 32


FRAGMENTS = [
    (shape, num)
    for shape, most in (("32x32b", 128), ("16x64b", 128), ("16x128b", 64), ("16x256b", 32), ("16x32bx2", 128))
    for num in (1, 2, 4, 8, 16, 32, 64, 128)
    if num <= most
]


@pytest.mark.parametrize(("shape", "num"), FRAGMENTS)
def test_load_follows_the_fragment_tables(shape: str, num: int) -> None:
    tm = written()
    lanes, cols = fragment(shape, num)
    base_lane, base_col = 64 + (16 if shape.startswith("16") else 0), 32
    split = num if shape == "16x32bx2" else None
    got = tmem.load(tm, base_lane << 16 | base_col, shape, num, 2, offset=split)
    assert np.array_equal(got, tm.data[base_lane + lanes, base_col + cols])


@pytest.mark.parametrize(("shape", "num"), FRAGMENTS)
def test_store_then_load_is_the_identity_and_every_cell_is_hit_once(shape: str, num: int) -> None:
    tm = TensorMemory()
    tm.alloc(512)
    split = num if shape == "16x32bx2" else None
    values = np.arange(1, 32 * fragment(shape, num)[0].shape[1] + 1, dtype=np.uint32).reshape(32, -1)
    tmem.store(tm, 96 << 16, shape, num, 3, values, offset=split)
    assert np.array_equal(tmem.load(tm, 96 << 16, shape, num, 3, offset=split), values)
    area = tmem.region(96 << 16, shape, num, split)
    inside = np.zeros_like(tm.written)
    inside[area[0] : area[1], area[2] : area[3]] = True
    assert np.array_equal(tm.written, inside)
    assert np.array_equal(np.sort(tm.data[inside]), np.sort(values.reshape(-1)))


@pytest.mark.parametrize(("shape", "num"), [f for f in FRAGMENTS if f[1] <= 16])
def test_packed_loads_join_the_low_halves_of_two_columns(shape: str, num: int) -> None:
    tm = written(1)
    lanes, cols = fragment(shape, num)
    split = 2 * num if shape == "16x32bx2" else None
    got = tmem.load(tm, 5, shape, num, 0, pack16=True, offset=split)
    low, high = tm.data[lanes, 5 + 2 * cols], tm.data[lanes, 6 + 2 * cols]
    assert np.array_equal(got, (low & 0xFFFF) | high << 16)


@pytest.mark.parametrize(("shape", "num"), [f for f in FRAGMENTS if f[1] <= 16])
def test_unpacked_stores_are_the_inverse_of_packed_loads(shape: str, num: int) -> None:
    tm = TensorMemory()
    tm.alloc(512)
    registers = fragment(shape, num)[0].shape[1]
    values = np.random.default_rng(2).integers(0, 1 << 32, (32, registers), dtype=np.uint32)
    split = 2 * num if shape == "16x32bx2" else None
    tmem.store(tm, 0, shape, num, 0, values, unpack16=True, offset=split)
    assert np.array_equal(tmem.load(tm, 0, shape, num, 0, pack16=True, offset=split), values)
    assert not (tm.data >> 16).any()


def test_half_split_places_the_upper_threads_elsewhere() -> None:
    tm = written(3)
    got = tmem.load(tm, 16 << 16 | 8, "16x32bx2", 4, 0, offset=100)
    assert np.array_equal(got[:16], tm.data[16:32, 8:12])
    assert np.array_equal(got[16:], tm.data[16:32, 108:112])


@pytest.mark.parametrize("warp", range(8))
@pytest.mark.parametrize("lane", [0, 16, 32, 48, 64, 80, 96, 112])
def test_a_warp_sees_its_own_quarter_only(warp: int, lane: int) -> None:
    tm = written()
    for shape in ("32x32b", "16x64b"):
        own = lane // 32 == warp % 4 and (shape == "16x64b" or lane % 32 == 0)
        if own:
            tmem.load(tm, lane << 16, shape, 1, warp)
            continue
        with pytest.raises(Fault) as fault:
            tmem.load(tm, lane << 16, shape, 1, warp)
        assert fault.value.kind == "bounds"


@pytest.mark.parametrize(("shape", "num"), [("16x256b", 64), ("16x128b", 128), ("32x32b", 3), ("8x32b", 1)])
def test_shapes_that_do_not_exist(shape: str, num: int) -> None:
    with pytest.raises(Fault) as fault:
        tmem.load(written(), 0, shape, num, 0)
    assert fault.value.kind == "unsupported"


def test_half_split_needs_its_offset() -> None:
    with pytest.raises(Fault, match="half-split"):
        tmem.load(written(), 0, "16x32bx2", 1, 0)


def test_poison_names_the_cell() -> None:
    tm = written()
    tm.written[33, 7] = False
    with pytest.raises(Fault, match="lane 33, column 7") as fault:
        tmem.load(tm, 32 << 16, "32x32b", 8, 1)
    assert fault.value.kind == "poison"
    tmem.load(tm, 32 << 16 | 8, "32x32b", 8, 1)


def test_poison_of_the_upper_column_of_a_packed_load() -> None:
    tm = written()
    tm.written[2, 1] = False
    with pytest.raises(Fault, match="lane 2, column 1"):
        tmem.load(tm, 0, "32x32b", 1, 0, pack16=True)


def test_columns_past_the_end() -> None:
    with pytest.raises(Fault) as fault:
        tmem.load(written(), 510, "32x32b", 4, 0)
    assert fault.value.kind == "bounds"


@pytest.mark.parametrize("columns", [32, 64, 128, 256, 512])
def test_allocation_sizes(columns: int) -> None:
    tm = TensorMemory()
    for expected in range(0, 512, columns):
        assert tm.alloc(columns) == expected
    assert tm.alloc(32) is None
    assert tm.leaks() == [Allocation(c, columns) for c in range(0, 512, columns)]


@pytest.mark.parametrize("columns", [0, 1, 16, 31, 33, 48, 96, 384, 513, 544, 1024, -32])
def test_illegal_allocation_sizes(columns: int) -> None:
    with pytest.raises(Fault) as fault:
        TensorMemory().alloc(columns)
    assert fault.value.kind == "tmem"


def test_a_full_memory_blocks_until_columns_come_back() -> None:
    tm = TensorMemory()
    first, second = tm.alloc(256), tm.alloc(128)
    assert (first, second) == (0, 256)
    assert tm.alloc(256) is None
    assert tm.alloc(128) == 384
    tm.dealloc(0, 256)
    assert tm.alloc(256) == 0


def test_use_before_allocation_and_after_deallocation() -> None:
    tm = TensorMemory()
    values = np.zeros((32, 1), np.uint32)
    with pytest.raises(Fault, match="live allocation") as fault:
        tmem.store(tm, 0, "32x32b", 1, 0, values)
    assert fault.value.kind == "tmem"
    tm.alloc(32)
    tmem.store(tm, 31, "32x32b", 1, 0, values)
    with pytest.raises(Fault) as fault:
        tmem.store(tm, 32, "32x32b", 1, 0, values)
    assert fault.value.kind == "tmem"
    tm.dealloc(0, 32)
    with pytest.raises(Fault) as fault:
        tmem.load(tm, 31, "32x32b", 1, 0)
    assert fault.value.kind == "tmem"


def test_columns_are_poison_again_after_reallocation() -> None:
    tm = TensorMemory()
    tm.alloc(32)
    tmem.store(tm, 0, "32x32b", 1, 0, np.ones((32, 1), np.uint32))
    tm.dealloc(0, 32)
    tm.alloc(32)
    with pytest.raises(Fault) as fault:
        tmem.load(tm, 0, "32x32b", 1, 0)
    assert fault.value.kind == "poison"


def test_an_access_may_not_span_two_allocations() -> None:
    tm = TensorMemory()
    tm.alloc(32)
    tm.alloc(32)
    with pytest.raises(Fault) as fault:
        tmem.store(tm, 28, "32x32b", 8, 0, np.zeros((32, 8), np.uint32))
    assert fault.value.kind == "tmem"


@pytest.mark.parametrize(("address", "columns"), [(0, 64), (32, 32), (64, 64), (1 << 16, 32), (0, 48)])
def test_a_deallocation_names_one_live_allocation(address: int, columns: int) -> None:
    tm = TensorMemory()
    tm.alloc(32)
    with pytest.raises(Fault) as fault:
        tm.dealloc(address, columns)
    assert fault.value.kind == "tmem"


def test_double_deallocation() -> None:
    tm = TensorMemory()
    tm.alloc(64)
    tm.dealloc(0, 64)
    with pytest.raises(Fault) as fault:
        tm.dealloc(0, 64)
    assert fault.value.kind == "tmem"


def test_relinquish_ends_allocation_for_good() -> None:
    tm = TensorMemory()
    tm.alloc(512)
    tm.relinquish()
    with pytest.raises(Fault, match="twice") as fault:
        tm.relinquish()
    assert fault.value.kind == "tmem"
    tm.dealloc(0, 512)
    with pytest.raises(Fault, match="relinquish") as fault:
        tm.alloc(512)
    assert fault.value.kind == "tmem"
    assert tm.leaks() == []


def test_reset_starts_a_new_cta() -> None:
    tm = written()
    tm.relinquish()
    tm.reset()
    assert tm.leaks() == []
    assert not tm.written.any()
    assert tm.alloc(512) == 0
