"""``mma.sync``, ``ldmatrix``, ``stmatrix``: the per-thread formulas of the ISA, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ptx import fragments
from lethe.ptx.faults import Fault

Cell = tuple[int, int]


def a_cell(lane: int, i: int, k: int, dtype: str) -> Cell:
    group, thread = lane >> 2, lane % 4
    if dtype == "tf32":
        return group + (8 if i % 2 else 0), thread + (4 if i >= 2 else 0)
    if k == 8:
        return group + (8 if i >= 2 else 0), thread * 2 + (i & 1)
    row = group if i in (0, 1, 4, 5) else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_cell(lane: int, i: int, k: int, dtype: str) -> Cell:
    group, thread = lane >> 2, lane % 4
    if dtype == "tf32":
        return thread + 4 * i, group
    return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group


def c_cell(lane: int, i: int) -> Cell:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def bits_of(value: float, dtype: str) -> int:
    if dtype == "f16":
        return int(np.float16(value).view(np.uint16))
    word = int(np.float32(value).view(np.uint32))
    return word >> 16 if dtype == "bf16" else word


def pack(matrix: np.ndarray, cells: list[list[Cell]], dtype: str) -> np.ndarray:
    """Registers uint32[32, r] of the listed cells, two 16-bit elements each, the first in the low half."""
    per = 2 if dtype in ("f16", "bf16") else 1
    out = np.zeros((32, len(cells[0]) // per), np.uint32)
    for lane, row in enumerate(cells):
        for i, cell in enumerate(row):
            out[lane, i // per] |= np.uint32(bits_of(float(matrix[cell]), dtype) << 16 * (i % per))
    return out


SHAPES = [
    ("m16n8k16", "f16"), ("m16n8k16", "bf16"), ("m16n8k8", "f16"), ("m16n8k8", "bf16"), ("m16n8k8", "tf32"),
    ("m16n8k4", "tf32"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("warps", [1, 3])
def test_mma_sync(shape: str, dtype: str, warps: int) -> None:
    k = int(shape[6:])
    rng = np.random.default_rng([k, warps])
    a, b, c = (rng.integers(-8, 9, (warps, *s)).astype(float) for s in ((16, k), (k, 8), (16, 8)))
    a_cells = [[a_cell(lane, i, k, dtype) for i in range(k // 2)] for lane in range(32)]
    b_cells = [[b_cell(lane, i, k, dtype) for i in range(k // 4)] for lane in range(32)]
    c_cells = [[c_cell(lane, i) for i in range(4)] for lane in range(32)]
    got = fragments.mma_sync(
        shape,
        ("f32", dtype, dtype, "f32"),
        np.stack([pack(x, a_cells, dtype) for x in a]),
        np.stack([pack(x, b_cells, dtype) for x in b]),
        np.stack([pack(x, c_cells, "f32") for x in c]),
    )
    expected = np.stack([pack(x, c_cells, "f32") for x in a @ b + c])
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("types", [("f16", "f16"), ("f16", "f32"), ("f32", "f16")], ids="-".join)
@pytest.mark.parametrize("k", [8, 16])
def test_mma_sync_with_half_accumulators(types: tuple[str, str], k: int) -> None:
    d_type, c_type = types
    rng = np.random.default_rng(k)
    a, b, c = (rng.integers(-8, 9, s).astype(float) for s in ((16, k), (k, 8), (16, 8)))
    a_cells = [[a_cell(lane, i, k, "f16") for i in range(k // 2)] for lane in range(32)]
    b_cells = [[b_cell(lane, i, k, "f16") for i in range(k // 4)] for lane in range(32)]
    c_cells = [[c_cell(lane, i) for i in range(4)] for lane in range(32)]
    got = fragments.mma_sync(
        f"m16n8k{k}",
        (d_type, "f16", "f16", c_type),
        pack(a, a_cells, "f16")[None],
        pack(b, b_cells, "f16")[None],
        pack(c, c_cells, c_type)[None],
    )
    assert np.array_equal(got[0], pack(a @ b + c, c_cells, d_type))


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_the_formulas_cover_every_element_once(shape: str, dtype: str) -> None:
    k = int(shape[6:])
    for cells, rows, columns in (
        ([a_cell(lane, i, k, dtype) for lane in range(32) for i in range(k // 2)], 16, k),
        ([b_cell(lane, i, k, dtype) for lane in range(32) for i in range(k // 4)], k, 8),
        ([c_cell(lane, i) for lane in range(32) for i in range(4)], 16, 8),
    ):
        assert len(cells) == rows * columns
        assert set(cells) == {(r, c) for r in range(rows) for c in range(columns)}


@pytest.mark.parametrize(
    ("shape", "types"),
    [
        ("m16n8k32", ("f32", "f16", "f16", "f32")),
        ("m16n8k16", ("f32", "f16", "bf16", "f32")),
        ("m16n8k16", ("f16", "bf16", "bf16", "f16")),
        ("m16n8k16", ("f32", "tf32", "tf32", "f32")),
        ("m16n8k4", ("f32", "f16", "f16", "f32")),
        ("m16n8k8", ("f16", "tf32", "tf32", "f32")),
        ("m8n8k4", ("f32", "f16", "f16", "f32")),
    ],
    ids=str,
)
def test_combinations_outside_the_table(shape: str, types: tuple[str, str, str, str]) -> None:
    zero = np.zeros((1, 32, 4), np.uint32)
    with pytest.raises(Fault) as fault:
        fragments.mma_sync(shape, types, zero, zero[..., :2], zero)
    assert fault.value.kind == "unsupported"


def test_wrong_register_counts() -> None:
    zero = np.zeros((1, 32, 4), np.uint32)
    with pytest.raises(Fault, match="B has 4 registers, expected 2"):
        fragments.mma_sync("m16n8k16", ("f32", "f16", "f16", "f32"), zero, zero, zero)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix(num: int, trans: bool) -> None:
    """Thread t holds row t / 4, elements 2 (t mod 4) and the next; with .trans a column instead of a row."""
    values = np.random.default_rng(num).integers(0, 1 << 16, (2, num, 8, 8), dtype=np.uint16)
    got = fragments.ldmatrix(values.view(np.uint8), trans)
    assert got.shape == (2, 32, num)
    for warp in range(2):
        for matrix in range(num):
            for t in range(32):
                first, second = (t // 4, 2 * (t % 4)), (t // 4, 2 * (t % 4) + 1)
                if trans:
                    first, second = first[::-1], second[::-1]
                low, high = (int(values[warp, matrix][cell]) for cell in (first, second))
                assert got[warp, t, matrix] == low | high << 16


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix_undoes_ldmatrix(num: int, trans: bool) -> None:
    rows = np.random.default_rng(num).integers(0, 256, (3, num, 8, 16), dtype=np.uint8)
    assert np.array_equal(fragments.stmatrix(fragments.ldmatrix(rows, trans), trans), rows)


def test_ldmatrix_feeds_mma_sync() -> None:
    """A row-major A by .x4, a row-major B [k, n] by .x2.trans: the idiom of every Ampere kernel."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 9, (16, 16)).astype(float), rng.integers(-8, 9, (16, 8)).astype(float)
    tiles = [a[:8, :8], a[8:, :8], a[:8, 8:], a[8:, 8:]]
    a_rows = np.stack(tiles).astype(np.float16).view(np.uint8)[None]
    b_rows = np.stack([b[:8], b[8:]]).astype(np.float16).view(np.uint8)[None]
    d = fragments.mma_sync(
        "m16n8k16",
        ("f32", "f16", "f16", "f32"),
        fragments.ldmatrix(a_rows, False),
        fragments.ldmatrix(b_rows, True),
        np.zeros((1, 32, 4), np.uint32),
    )
    for lane in range(32):
        for i in range(4):
            assert d[0, lane].view(np.float32)[i] == (a @ b)[c_cell(lane, i)]
