"""``wgmma.mma_async`` against matrices placed by the ISA's layout formulas; integers, so bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ptx import wgmma
from lethe.ptx.faults import Fault
from tests.ptx.cute_layout import SPAN, canonical

CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
A_AT, B_AT = 0x2000, 0x8000


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    words = values.astype(np.float32).view(np.uint32)
    return words if dtype == "tf32" else (words >> 16).astype(np.uint16)


def place(shared: np.ndarray, values: np.ndarray, dtype: str, mode: str, mn_major: bool, start: int) -> int:
    """Write a matrix [rows, K] in a canonical layout; returns its descriptor."""
    bits = bits_of(values, dtype)
    size, (rows, k) = bits.itemsize, values.shape
    if mn_major:
        stride = 128 if mode == "none" else SPAN[mode] * 128
        leading = 8 * rows * size if mode == "none" else stride * (k // 8)
    else:
        leading, stride = (128, 256) if mode == "none" else (16, SPAN[mode] * 128)
    where = canonical(mode, mn_major, rows, k, size, start, leading, stride)
    for byte in range(size):
        shared[where + byte] = bits >> 8 * byte & 0xFF
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | CODES[mode] << 62


def d_cell(thread: int, i: int) -> tuple[int, int]:
    """(row, column) of element i of a thread: figure "WGMMA .m64nNk16 register fragment layout for D"."""
    lane = thread % 32
    row = 16 * (thread // 32) + lane // 4 + (8 if i % 4 >= 2 else 0)
    return row, 8 * (i // 4) + 2 * (lane % 4) + (i & 1)


def a_cell(thread: int, i: int, dtype: str) -> tuple[int, int]:
    """(row, column) of element i of A in registers."""
    lane = thread % 32
    group, pair = 16 * (thread // 32) + lane // 4, lane % 4
    if dtype == "tf32":
        return group + (8 if i in (1, 3) else 0), pair + (4 if i >= 2 else 0)
    row = group + (8 if i in (2, 3, 6, 7) else 0)
    return row, 2 * pair + (i & 1) + (8 if i >= 4 else 0)


def read_d(d: np.ndarray, n: int) -> np.ndarray:
    """D [64, n] from fp32 registers uint32[4, 32, n / 2]."""
    out = np.full((64, n), np.nan, np.float32)
    flat = d.reshape(128, -1).view(np.float32)
    for thread in range(128):
        for i in range(n // 2):
            out[d_cell(thread, i)] = flat[thread, i]
    return out


class Case:
    """Random integer operands of one shape in shared memory."""

    def __init__(self, n: int, dtype: str, mode: str = "128B", a_mn: int = 0, b_mn: int = 0) -> None:
        rng = np.random.default_rng([n, a_mn, b_mn])
        self.k = 8 if dtype == "tf32" else 16
        self.shape = f"m64n{n}k{self.k}"
        self.a, self.b = (rng.integers(-8, 9, (rows, self.k)).astype(float) for rows in (64, n))
        self.shared = np.zeros(1 << 16, np.uint8)
        self.a_desc = place(self.shared, self.a, dtype, mode, bool(a_mn), A_AT)
        self.b_desc = place(self.shared, self.b, dtype, mode, bool(b_mn), B_AT)
        self.d = rng.integers(-99, 99, (4, 32, n // 2)).astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_extent(n: int) -> None:
    case = Case(n, "bf16")
    start = read_d(case.d, n)
    step = wgmma.plan(case.shape, "f32", "bf16", "bf16", case.a_desc, case.b_desc)
    assert step.d_registers == n // 2
    wgmma.execute(step, case.shared, None, case.d, scale_d=True)
    assert np.array_equal(read_d(case.d, n), start + case.a @ case.b.T)


@pytest.mark.parametrize("mode", CODES)
@pytest.mark.parametrize(
    ("dtype", "a_mn", "b_mn"),
    [(d, a, b) for d in ("f16", "bf16") for a in (0, 1) for b in (0, 1)] + [("tf32", 0, 0)],
)
def test_layouts_types_and_transposes(mode: str, dtype: str, a_mn: int, b_mn: int) -> None:
    case = Case(64, dtype, mode, a_mn, b_mn)
    step = wgmma.plan(case.shape, "f32", dtype, dtype, case.a_desc, case.b_desc, a_mn, b_mn)
    wgmma.execute(step, case.shared, None, case.d, scale_d=False)
    assert np.array_equal(read_d(case.d, 64), case.a @ case.b.T)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32"])
def test_a_in_registers(dtype: str) -> None:
    case = Case(40, dtype)
    bits = bits_of(case.a, dtype).astype(np.uint64)
    registers = np.zeros((128, 4), np.uint64)
    per = 1 if dtype == "tf32" else 2
    for thread in range(128):
        for i in range(4 * per):
            registers[thread, i // per] |= bits[a_cell(thread, i, dtype)] << np.uint64(16 * (i % per))
    step = wgmma.plan(case.shape, "f32", dtype, dtype, None, case.b_desc)
    wgmma.execute(step, case.shared, registers.astype(np.uint32).reshape(4, 32, 4), case.d, scale_d=False)
    assert np.array_equal(read_d(case.d, 40), case.a @ case.b.T)


@pytest.mark.parametrize("scale_a", [1, -1])
@pytest.mark.parametrize("scale_b", [1, -1])
def test_scales(scale_a: int, scale_b: int) -> None:
    case = Case(16, "f16")
    start = read_d(case.d, 16)
    step = wgmma.plan(case.shape, "f32", "f16", "f16", case.a_desc, case.b_desc)
    wgmma.execute(step, case.shared, None, case.d, True, scale_a, scale_b)
    assert np.array_equal(read_d(case.d, 16), start + scale_a * scale_b * (case.a @ case.b.T))


def test_fp16_accumulators_pack_two_columns_a_register() -> None:
    case = Case(24, "f16")
    rng = np.random.default_rng(0)
    start = rng.integers(-99, 99, (64, 24)).astype(np.float16)
    d = np.zeros((4, 32, 6), np.uint32)
    halves = d.view(np.uint16).reshape(128, 12)
    for thread in range(128):
        for i in range(12):
            halves[thread, i] = start[d_cell(thread, i)].view(np.uint16)
    step = wgmma.plan(case.shape, "f16", "f16", "f16", case.a_desc, case.b_desc)
    assert step.d_registers == 6
    wgmma.execute(step, case.shared, None, d, scale_d=True)
    expected = (start.astype(float) + case.a @ case.b.T).astype(np.float16)
    got = d.view(np.float16).reshape(128, 12)
    for thread in range(128):
        for i in range(12):
            assert got[thread, i] == expected[d_cell(thread, i)]


def test_fragment_of_d_is_a_bijection() -> None:
    for n in (8, 96, 256):
        cells = {d_cell(thread, i) for thread in range(128) for i in range(n // 2)}
        assert cells == {(row, column) for row in range(64) for column in range(n)}


@pytest.mark.parametrize(
    ("shape", "d", "dtype", "a", "tnsp_a", "tnsp_b", "kind"),
    [
        ("m64n12k16", "f32", "f16", True, 0, 0, "descriptor"),
        ("m64n264k16", "f32", "f16", True, 0, 0, "descriptor"),
        ("m64n64k8", "f32", "f16", True, 0, 0, "descriptor"),
        ("m64n64k16", "f32", "tf32", True, 0, 0, "descriptor"),
        ("m64n64k16", "f16", "bf16", True, 0, 0, "descriptor"),
        ("m64n64k8", "f32", "tf32", True, 1, 0, "descriptor"),
        ("m64n64k8", "f32", "tf32", True, 0, 1, "descriptor"),
        ("m64n64k16", "f32", "f16", False, 1, 0, "descriptor"),
        ("m128n64k16", "f32", "f16", True, 0, 0, "unsupported"),
        ("m64n64k32", "f32", "e4m3", True, 0, 0, "unsupported"),
    ],
)
def test_illegal_operations(
    shape: str, d: str, dtype: str, a: bool, tnsp_a: int, tnsp_b: int, kind: str
) -> None:
    with pytest.raises(Fault) as fault:
        wgmma.plan(shape, d, dtype, dtype, 1 << 62 if a else None, 1 << 62, tnsp_a, tnsp_b)
    assert fault.value.kind == kind


def test_mixed_inputs_and_scales_other_than_a_sign() -> None:
    with pytest.raises(Fault):
        wgmma.plan("m64n64k16", "f32", "f16", "bf16", 1 << 62, 1 << 62)
    case = Case(8, "f16")
    step = wgmma.plan(case.shape, "f32", "f16", "f16", case.a_desc, case.b_desc)
    with pytest.raises(Fault) as fault:
        wgmma.execute(step, case.shared, None, case.d, True, scale_a=0)
    assert fault.value.kind == "descriptor"


def test_operands_past_the_end_of_shared_memory() -> None:
    case = Case(64, "f16")
    step = wgmma.plan(case.shape, "f32", "f16", "f16", case.a_desc, case.b_desc)
    with pytest.raises(Fault) as fault:
        wgmma.execute(step, case.shared[: B_AT + 1024], None, case.d, scale_d=False)
    assert fault.value.kind == "bounds"
