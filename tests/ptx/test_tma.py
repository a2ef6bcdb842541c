"""TMA tensor copies against loops over elements, and the swizzle patterns as tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lethe.ptx import tma
from lethe.ptx.faults import Fault

BASE = 0x4000
NUMPY = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16,
}  # fmt: skip

# 16-byte granule of a 128-byte row in which logical granule 0..7 lands (PTX ISA, "Swizzling modes")
PATTERNS = {
    "none": [[0, 1, 2, 3, 4, 5, 6, 7]] * 8,
    "32B": [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]] * 4,
    "64B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
    ]
    * 2,
    "128B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ],
    "128B_ATOM_32B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ]
    * 2,
}


def memory(data: np.ndarray) -> Callable[[int, int], np.ndarray]:
    """A global memory that holds `data` at BASE."""

    def fetch(address: int, nbytes: int) -> np.ndarray:
        start = address - BASE
        if start < 0 or start + nbytes > data.nbytes:
            raise Fault("bounds", f"{address:#x}+{nbytes}")
        return data.reshape(-1).view(np.uint8)[start : start + nbytes]

    return fetch


def tensor(dtype: str, dims: Sequence[int], pad: int, seed: int = 0) -> tuple[np.ndarray, tuple[int, ...]]:
    """Random bytes holding a tensor whose rows are padded; returns (uint8[...], strides)."""
    size = np.dtype(NUMPY[dtype]).itemsize
    strides, pitch = [], dims[0] * size
    for n in dims[1:]:
        pitch = (pitch + pad + 15) // 16 * 16
        strides.append(pitch)
        pitch *= n
    data = np.random.default_rng(seed).integers(0, 256, pitch + 64, dtype=np.uint8)
    return data, tuple(strides)


def by_loops(
    data: np.ndarray, tmap: tma.TensorMap, coords: Sequence[int], fill: bytes
) -> tuple[bytes, list[int | None]]:
    """The tile of a load, element by element; and the offset of every element, None outside the tensor."""
    out, where = [], []
    size = tmap.element_bytes
    for position in itertools.product(*(range(n) for n in reversed(tmap.tile))):
        index = [c + i * s for c, i, s in zip(coords, position[::-1], tmap.element_strides, strict=True)]
        if any(not 0 <= x < n for x, n in zip(index, tmap.shape, strict=True)):
            out.append(fill)
            where.append(None)
            continue
        offset = index[0] * size + sum(x * s for x, s in zip(index[1:], tmap.strides, strict=True))
        out.append(data[offset : offset + size].tobytes())
        where.append(offset)
    return b"".join(out), where


BOXES = [
    ("1d", "f32", (50,), (16,), (1,), [(0,), (40,), (-8,), (50,), (-16,), (-300,)]),
    ("2d", "f16", (40, 9), (16, 4), (1, 1), [(0, 0), (8, 2), (32, 7), (-4, -1), (40, 0), (0, 9), (3, 3)]),
    ("3d strided", "u8", (64, 11, 5), (32, 6, 3), (1, 2, 2), [(0, 0, 0), (16, -3, -1), (48, 7, 3)]),
    ("4d", "s32", (12, 5, 4, 3), (8, 3, 2, 2), (1, 1, 3, 1), [(0, 0, 0, 0), (-4, 3, -2, 2), (8, -1, 2, -1)]),
    ("5d", "u64", (6, 4, 3, 3, 2), (4, 3, 2, 2, 2), (1, 2, 1, 1, 1), [(0, 0, 0, 0, 0), (4, -2, 2, -1, 1)]),
]


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "box", "steps", "places"), BOXES, ids=[b[0] for b in BOXES]
)
def test_load_equals_loops(
    name: str, dtype: str, dims: Any, box: Any, steps: Any, places: list[tuple[int, ...]]
) -> None:
    data, strides = tensor(dtype, dims, 20)
    tmap = tma.decode(tma.encode(dtype, BASE, dims, strides, box, steps))
    for coords in places:
        expected, _ = by_loops(data, tmap, coords, bytes(tmap.element_bytes))
        assert tma.load_tile(tmap, coords, memory(data)).tobytes() == expected


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "box", "steps", "places"), BOXES, ids=[b[0] for b in BOXES]
)
def test_store_writes_the_elements_inside_and_nothing_else(
    name: str, dtype: str, dims: Any, box: Any, steps: Any, places: list[tuple[int, ...]]
) -> None:
    data, strides = tensor(dtype, dims, 20)
    tmap = tma.decode(tma.encode(dtype, BASE, dims, strides, box, steps))
    tile = np.random.default_rng(1).integers(0, 256, tmap.box_bytes, dtype=np.uint8)
    for coords in places:
        target, expected = data.copy(), data.copy()
        tma.store_tile(tmap, coords, tile, memory(target))
        _, where = by_loops(data, tmap, coords, bytes(tmap.element_bytes))
        for i, offset in enumerate(where):
            if offset is not None:
                size = tmap.element_bytes
                expected[offset : offset + size] = tile[i * size : (i + 1) * size]
        assert np.array_equal(target, expected)


def test_a_load_outside_the_tensor_touches_no_memory() -> None:
    tmap = tma.decode(tma.encode("f16", BASE, (40, 9), (80,), (16, 4)))

    def fetch(address: int, nbytes: int) -> np.ndarray:
        raise AssertionError("global memory was read")

    assert not tma.load_tile(tmap, (40, 0), fetch).any()
    tma.store_tile(tmap, (0, -4), np.ones(128, np.uint8), fetch)


def test_a_map_larger_than_the_allocation_is_out_of_bounds() -> None:
    data, _ = tensor("f16", (40, 9), 0)
    tmap = tma.decode(tma.encode("f16", BASE, (40, 99), (80,), (16, 4)))
    with pytest.raises(Fault) as fault:
        tma.load_tile(tmap, (0, 96), memory(data))
    assert fault.value.kind == "bounds"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_nan_fill(dtype: str) -> None:
    size = 2 if dtype == "bf16" else np.dtype(NUMPY[dtype]).itemsize
    data = np.zeros(64 * size, np.uint8)
    tmap = tma.decode(tma.encode(dtype, BASE, (24,), (), (16,), fill="nan"))
    tile = tma.load_tile(tmap, (16,), memory(data))
    if dtype == "bf16":
        values = (tile.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = tile.view(NUMPY[dtype])
    assert not values[:8].any()
    assert np.isnan(values[8:]).all()


def test_shadow_reads_use_the_given_outside_byte() -> None:
    tmap = tma.decode(tma.encode("f32_ftz", BASE, (8,), (), (16,), fill="nan"))
    shadow = np.zeros(32, np.uint8)
    shadow[4:8] = 1
    tile = tma.load_tile(tmap, (0,), memory(shadow), outside=1)
    assert tile.tolist() == [0] * 4 + [1] * 4 + [0] * 24 + [1] * 32


def test_tf32_and_ftz_elements_are_converted() -> None:
    bits = np.array([0x3F800FFF, 0x3F801000, 0x3F803000, 0x00000001, 0x807FFFFF, 0x7F800000], np.uint32)
    data = np.concatenate([bits, np.zeros(10, np.uint32)])
    expected = {
        "tf32": [0x3F800000, 0x3F800000, 0x3F804000, 0, 0x80800000, 0x7F800000],
        "f32_ftz": [0x3F800FFF, 0x3F801000, 0x3F803000, 0, 0x80000000, 0x7F800000],
        "tf32_ftz": [0x3F800000, 0x3F800000, 0x3F804000, 0, 0x80000000, 0x7F800000],
    }
    for dtype, values in expected.items():
        tmap = tma.decode(tma.encode(dtype, BASE, (16,), (), (16,)))
        assert tma.load_tile(tmap, (0,), memory(data)).view(np.uint32)[:6].tolist() == values


@pytest.mark.parametrize("mode", PATTERNS)
def test_swizzle_patterns(mode: str) -> None:
    span = 128 if mode.startswith("128B") or mode == "none" else int(mode[:-1])
    tmap = tma.decode(tma.encode("u8", BASE, (256, 256), (256,), (span, 16 * 128 // span), swizzle=mode))
    chunks = tma.shared_chunks(tmap, 0x1800)
    offsets = np.asarray(chunks) - 0x1800
    for i in range(tmap.box_bytes // 16):
        row, granule = divmod(i, 8)
        assert offsets[i] == 128 * row + 16 * PATTERNS[mode][row % 8][granule]
    assert sorted(offsets.tolist()) == list(range(0, tmap.box_bytes, 16))


@pytest.mark.parametrize("row", range(8))
def test_the_pattern_follows_the_absolute_address(row: int) -> None:
    tmap = tma.decode(tma.encode("u8", BASE, (256, 256), (256,), (128, 8), swizzle="128B"))
    base = 0x2000 + 128 * row
    offsets = np.asarray(tma.shared_chunks(tmap, base)) - base
    expected = [128 * r + 16 * PATTERNS["128B"][(row + r) % 8][g] for r in range(8) for g in range(8)]
    assert offsets.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "op", "rule"),
    [
        ("f32", "add", np.add),
        ("f16", "add", np.add),
        ("f16", "min", np.minimum),
        ("f16", "max", np.maximum),
        ("u32", "add", np.add),
        ("s32", "min", np.minimum),
        ("s64", "max", np.maximum),
        ("u64", "add", np.add),
        ("u32", "and", np.bitwise_and),
        ("u64", "or", np.bitwise_or),
        ("s32", "xor", np.bitwise_xor),
        ("u32", "inc", lambda old, new: np.where(old >= new, 0, old + 1)),
        ("u32", "dec", lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
    ],
)
def test_reductions(dtype: str, op: str, rule: Callable[[Any, Any], Any]) -> None:
    rng = np.random.default_rng(5)
    kind = np.dtype(NUMPY[dtype])
    old, new = (rng.integers(0, 20, (4, 16)).astype(kind) for _ in range(2))
    old[1, :3], new[1, :3] = (7, 8, 0), (7, 7, 7)
    data = old.copy()
    tmap = tma.decode(tma.encode(dtype, BASE, (16, 4), (16 * kind.itemsize,), (32 // kind.itemsize, 2)))
    columns = 32 // kind.itemsize
    tile = new[1:3, :columns].copy()
    tma.store_tile(tmap, (0, 1), tile.reshape(-1).view(np.uint8), memory(data), reduce=op)
    expected = old.copy()
    expected[1:3, :columns] = rule(old[1:3, :columns], tile)
    assert np.array_equal(data, expected)


def test_bf16_reduction_rounds_once() -> None:
    old, new = np.full(8, 0x4380, np.uint16), np.full(8, 0x3F80, np.uint16)
    data = old.copy()
    tmap = tma.decode(tma.encode("bf16", BASE, (8,), (), (8,)))
    tma.store_tile(tmap, (0,), new.view(np.uint8), memory(data), reduce="add")
    assert data.tolist() == [0x4380] * 8
    tma.store_tile(tmap, (0,), np.full(8, 0x4040, np.uint16).view(np.uint8), memory(data), reduce="add")
    assert data.tolist() == [0x4382] * 8


@pytest.mark.parametrize(("dtype", "op"), [("f32", "min"), ("f64", "add"), ("bf16", "and"), ("s32", "inc")])
def test_undefined_reductions_are_refused(dtype: str, op: str) -> None:
    tmap = tma.decode(tma.encode(dtype, BASE, (8,), (), (8,)))
    data = np.zeros(64, np.uint8)
    with pytest.raises(Fault) as fault:
        tma.store_tile(tmap, (0,), np.zeros(tmap.box_bytes, np.uint8), memory(data), reduce=op)
    assert fault.value.kind == "unsupported"


def test_misuse_is_refused() -> None:
    tmap = tma.decode(tma.encode("f16", BASE, (64, 64), (128,), (64, 8), swizzle="128B"))
    with pytest.raises(Fault, match="128-byte aligned") as fault:
        tma.shared_chunks(tmap, 0x1010)
    assert fault.value.kind == "alignment"
    with pytest.raises(Fault, match="coordinates"):
        tma.load_tile(tmap, (0, 0, 0), memory(np.zeros(8192, np.uint8)))
    narrow = tma.decode(tma.encode("f16", BASE, (64, 64), (128,), (32, 8), swizzle="128B"))
    with pytest.raises(Fault) as fault:
        tma.shared_chunks(narrow, 0x1000)
    assert fault.value.kind == "unsupported"
    for mode in ("128B_ATOM_64B", "128B_ATOM_32B_FLIP_8B"):
        wide = tma.decode(tma.encode("f16", BASE, (64, 64), (128,), (64, 8), swizzle=mode))
        with pytest.raises(Fault, match=mode) as fault:
            tma.shared_chunks(wide, 0x1000)
        assert fault.value.kind == "unsupported"


@pytest.mark.parametrize("modifier", ["multicast::cluster", "im2col", "tile::gather4", "cta_group::2"])
def test_modes_that_are_not_modelled_are_refused(modifier: str) -> None:
    with pytest.raises(Fault, match=modifier) as fault:
        tma.refuse(("async", "bulk", "tensor", "2d", "shared::cluster", "global", modifier))
    assert fault.value.kind == "unsupported"
    tma.refuse(("async", "bulk", "tensor", "2d", "shared::cta", "global", "tile", "L2::cache_hint"))
