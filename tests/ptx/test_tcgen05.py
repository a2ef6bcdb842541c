"""``tcgen05.mma`` and ``tcgen05.cp`` against matrices placed by the ISA's own layout formulas.

Operands are small integers, which every format holds exactly, so results are compared bit for bit; one test
with random values checks the stated bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lethe.ptx import tcgen05
from lethe.ptx.faults import Fault
from lethe.ptx.tmem import TensorMemory
from tests.ptx.cute_layout import SPAN, canonical

LAYOUT_CODES = {"none": 0, "128B_ATOM_32B": 1, "128B": 2, "64B": 4, "32B": 6}
TYPE_CODES = {"f16": 0, "bf16": 1, "tf32": 2}
A_AT, B_AT = 0x2000, 0x10000


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Bit patterns of values that the format holds exactly."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    words = values.astype(np.float32).view(np.uint32)
    return words if dtype == "tf32" else (words >> 16).astype(np.uint16)


def place(shared: np.ndarray, values: np.ndarray, dtype: str, mode: str, mn_major: bool, start: int) -> int:
    """Write a matrix [rows, K] in a canonical layout; returns its descriptor."""
    bits = bits_of(values, dtype)
    size, (rows, k) = bits.itemsize, values.shape
    if mn_major and mode == "none":
        leading, stride = 8 * rows * size, 128
    elif mn_major:
        stride = SPAN[mode] * 16 * (4 if mode == "128B_ATOM_32B" else 8)
        leading = stride * (k // (4 if mode == "128B_ATOM_32B" else 8))
    else:
        leading, stride = (128, 256) if mode == "none" else (16, SPAN[mode] * 128)
    where = canonical(mode, mn_major, rows, k, size, start, leading, stride)
    for byte in range(size):
        shared[where + byte] = bits >> 8 * byte & 0xFF
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | LAYOUT_CODES[mode] << 61


def idesc(m: int, n: int, dtype: str, d: str = "f32", a_mn: int = 0, b_mn: int = 0, neg: int = 0) -> int:
    """Instruction descriptor from the table of the ISA; `neg` bit 0 negates A, bit 1 negates B."""
    code = TYPE_CODES[dtype]
    fields = (d == "f32") << 4 | code << 7 | code << 10 | neg << 13 | a_mn << 15 | b_mn << 16
    return fields | n >> 3 << 17 | m >> 4 << 24


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(np.float64)


class Setup:
    """Shared memory with A and B in it, and a fully allocated tensor memory of random words."""

    def __init__(self, m: int, n: int, dtype: str, mode: str = "128B", a_mn: int = 0, b_mn: int = 0) -> None:
        rng = np.random.default_rng([m, n, a_mn, b_mn])
        k = 8 if dtype == "tf32" else 16
        self.shared = np.zeros(1 << 17, np.uint8)
        self.a, self.b = integers(rng, m, k), integers(rng, n, k)
        self.a_desc = place(self.shared, self.a, dtype, mode, bool(a_mn), A_AT)
        self.b_desc = place(self.shared, self.b, dtype, mode, bool(b_mn), B_AT)
        self.kind = "tf32" if dtype == "tf32" else "f16"
        self.tm = TensorMemory()
        self.tm.alloc(512)
        self.tm.data[...] = rng.integers(0, 1 << 32, self.tm.data.shape, dtype=np.uint32)

    def product(self) -> np.ndarray:
        return (self.a @ self.b.T).astype(np.float32)

    def plan(self, d: int, bits: int) -> tcgen05.Plan:
        return tcgen05.plan(self.kind, d, self.a_desc, self.b_desc, bits, a_in_tmem=False)


def lane_of(row: int, m: int, base: int) -> int:
    """Layout D for M = 128, Layout F for M = 64."""
    return row if m == 128 else base + [0, 32, 64, 96][row // 16] + row % 16


def read_d(tm: TensorMemory, m: int, n: int, base: int, column: int) -> np.ndarray:
    rows = [tm.data[lane_of(row, m, base), column : column + n] for row in range(m)]
    return np.stack(rows).view(np.float32)


def untouched(tm: TensorMemory, before: np.ndarray, m: int, n: int, base: int, column: int) -> bool:
    touched = np.zeros(before.shape, bool)
    for row in range(m):
        touched[lane_of(row, m, base), column : column + n] = True
    return bool((tm.data == before)[~touched].all() and np.array_equal(tm.written, touched))


@pytest.mark.parametrize("n", range(8, 257, 8))
@pytest.mark.parametrize("m", [64, 128])
def test_every_extent(m: int, n: int) -> None:
    case = Setup(m, n, "bf16")
    before = case.tm.data.copy()
    tcgen05.execute(case.plan(40, idesc(m, n, "bf16")), case.shared, case.tm, accumulate=False)
    assert np.array_equal(read_d(case.tm, m, n, 0, 40), case.product())
    assert untouched(case.tm, before, m, n, 0, 40)


MODES = [
    (mode, dtype, a_mn, b_mn)
    for mode in LAYOUT_CODES
    for dtype in TYPE_CODES
    for a_mn in (0, 1)
    for b_mn in (0, 1)
    if mode != "128B_ATOM_32B" or (dtype == "tf32" and a_mn and b_mn)
]


@pytest.mark.parametrize(("mode", "dtype", "a_mn", "b_mn"), MODES, ids=str)
@pytest.mark.parametrize("m", [64, 128])
def test_layouts_types_and_transposes(mode: str, dtype: str, a_mn: int, b_mn: int, m: int) -> None:
    case = Setup(m, 64, dtype, mode, a_mn, b_mn)
    step = case.plan(0, idesc(m, 64, dtype, a_mn=a_mn, b_mn=b_mn))
    tcgen05.execute(step, case.shared, case.tm, accumulate=False)
    assert np.array_equal(read_d(case.tm, m, 64, 0, 0), case.product())


@pytest.mark.parametrize("neg", range(4))
def test_negation(neg: int) -> None:
    case = Setup(128, 32, "f16")
    tcgen05.execute(case.plan(0, idesc(128, 32, "f16", neg=neg)), case.shared, case.tm, accumulate=False)
    sign = (-1) ** (neg & 1) * (-1) ** (neg >> 1)
    assert np.array_equal(read_d(case.tm, 128, 32, 0, 0), sign * case.product())


@pytest.mark.parametrize("scale", [0, 1, 3, 15])
@pytest.mark.parametrize("m", [64, 128])
def test_accumulation_and_its_scale(m: int, scale: int) -> None:
    case = Setup(m, 48, "f16")
    start = 2.0**15 * integers(np.random.default_rng(9), m, 48)
    for row in range(m):
        case.tm.data[lane_of(row, m, 0), 100:148] = start[row].astype(np.float32).view(np.uint32)
    case.tm.written[...] = True
    step = case.plan(100, idesc(m, 48, "f16"))
    tcgen05.execute(step, case.shared, case.tm, accumulate=True, scale_d=scale)
    expected = (case.product() + start * 2.0**-scale).astype(np.float32)
    assert np.array_equal(read_d(case.tm, m, 48, 0, 100), expected)


def test_two_half_height_accumulators_share_columns() -> None:
    case = Setup(64, 32, "f16")
    step = idesc(64, 32, "f16")
    tcgen05.execute(case.plan(0, step), case.shared, case.tm, accumulate=False)
    case.tm.data[0, 0] = 0x3F800000
    tcgen05.execute(case.plan(16 << 16, step), case.shared, case.tm, accumulate=False)
    assert np.array_equal(read_d(case.tm, 64, 32, 16, 0), case.product())
    assert case.tm.data[0, 0] == 0x3F800000
    assert case.tm.written[:, :32].all()


def test_fp16_results_sit_in_the_low_half_and_round_once() -> None:
    case = Setup(128, 16, "f16")
    step = case.plan(0, idesc(128, 16, "f16", d="f16"))
    tcgen05.execute(step, case.shared, case.tm, accumulate=False)
    tcgen05.execute(step, case.shared, case.tm, accumulate=True)
    cells = case.tm.data[:, :16]
    assert not (cells >> 16).any()
    expected = (2 * case.product()).astype(np.float16)
    assert np.array_equal(cells.astype(np.uint16).view(np.float16), expected)


@pytest.mark.parametrize("dtype", TYPE_CODES)
@pytest.mark.parametrize(("m", "base"), [(128, 0), (64, 0), (64, 16)])
def test_a_in_tensor_memory(m: int, base: int, dtype: str) -> None:
    case = Setup(m, 64, dtype)
    bits = bits_of(case.a, dtype)
    for row in range(m):
        for column in range(8):
            pair = (
                bits[row, 2 * column : 2 * column + 2] if dtype != "tf32" else bits[row, column : column + 1]
            )
            word = sum(int(x) << 16 * i for i, x in enumerate(pair))
            case.tm.data[lane_of(row, m, base), 300 + column] = word
            case.tm.written[lane_of(row, m, base), 300 + column] = True
    d, a = base << 16 | 64, base << 16 | 300
    step = tcgen05.plan(case.kind, d, a, case.b_desc, idesc(m, 64, dtype), a_in_tmem=True)
    assert step.a_chunks is None
    tcgen05.execute(step, case.shared, case.tm, accumulate=False)
    assert np.array_equal(read_d(case.tm, m, 64, base, 64), case.product())


def test_disabled_lanes_keep_what_they_had() -> None:
    for m in (64, 128):
        case = Setup(m, 16, "f16")
        before = case.tm.data.copy()
        disabled = np.zeros(128, bool)
        disabled[[0, 5, 33, 100]] = True
        step = case.plan(0, idesc(m, 16, "f16"))
        tcgen05.execute(step, case.shared, case.tm, accumulate=False, disabled=disabled)
        for row in range(m):
            lane = lane_of(row, m, 0)
            got = case.tm.data[lane, :16]
            expected = before[lane, :16] if disabled[lane] else case.product()[row].view(np.uint32)
            assert np.array_equal(got, expected)
            assert case.tm.written[lane, :16].all() == (not disabled[lane])


def test_tf32_ignores_the_low_bits_of_its_operands() -> None:
    case = Setup(128, 16, "tf32")
    case.shared.view(np.uint32)[A_AT // 4 : A_AT // 4 + 4096] |= 0x1FFF
    tcgen05.execute(case.plan(0, idesc(128, 16, "tf32")), case.shared, case.tm, accumulate=False)
    assert np.array_equal(read_d(case.tm, 128, 16, 0, 0), case.product())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_random_values_are_exact_sums_rounded_once(dtype: str) -> None:
    rng = np.random.default_rng(17)
    shared, tm = np.zeros(1 << 17, np.uint8), TensorMemory()
    tm.alloc(512)
    raw_a, raw_b = (rng.standard_normal((rows, 16)).astype(np.float32) for rows in (128, 32))
    mask = np.uint32(0xFFFF0000 if dtype == "bf16" else 0xFFFFE000)
    a, b = ((x.view(np.uint32) & mask).view(np.float32).astype(np.float64) for x in (raw_a, raw_b))
    a_desc, b_desc = place(shared, a, dtype, "64B", False, A_AT), place(shared, b, dtype, "64B", False, B_AT)
    c = rng.standard_normal((128, 32)).astype(np.float32)
    tm.data[:, :32] = c.view(np.uint32)
    tm.written[...] = True
    step = tcgen05.plan("f16", 0, a_desc, b_desc, idesc(128, 32, dtype), a_in_tmem=False)
    tcgen05.execute(step, shared, tm, accumulate=True)
    got = read_d(tm, 128, 32, 0, 0)
    for i in range(128):
        for j in range(32):
            exact = math.fsum([*(a[i] * b[j]).tolist(), float(c[i, j])])
            assert abs(float(got[i, j]) - exact) <= (2**-24 + 2**-40) * abs(exact) + 2**-45


def test_chunks_are_what_the_operands_occupy() -> None:
    case = Setup(128, 64, "bf16", "32B")
    step = case.plan(0, idesc(128, 64, "bf16"))
    assert step.a_chunks is not None
    assert sorted(step.a_chunks.reshape(-1).tolist()) == list(range(A_AT, A_AT + 128 * 32, 16))
    assert sorted(step.b_chunks.reshape(-1).tolist()) == list(range(B_AT, B_AT + 64 * 32, 16))
    assert step.d_region == (0, 128, 0, 64)


def test_accumulating_into_poison() -> None:
    case = Setup(128, 32, "f16")
    case.tm.written[:, :32] = True
    case.tm.written[77, 30] = False
    with pytest.raises(Fault, match="lane 77, column 30") as fault:
        tcgen05.execute(case.plan(0, idesc(128, 32, "f16")), case.shared, case.tm, accumulate=True)
    assert fault.value.kind == "poison"
    tcgen05.execute(case.plan(0, idesc(128, 32, "f16")), case.shared, case.tm, accumulate=False)


def test_poisoned_a_in_tensor_memory() -> None:
    case = Setup(128, 32, "f16")
    step = tcgen05.plan("f16", 0, 256, case.b_desc, idesc(128, 32, "f16"), a_in_tmem=True)
    with pytest.raises(Fault) as fault:
        tcgen05.execute(step, case.shared, case.tm, accumulate=False)
    assert fault.value.kind == "poison"


def test_an_accumulator_outside_the_allocation() -> None:
    case = Setup(128, 64, "f16")
    case.tm.dealloc(0, 512)
    case.tm.alloc(64)
    for column, kind in ((32, "tmem"), (64, "tmem"), (480, "bounds")):
        with pytest.raises(Fault) as fault:
            tcgen05.execute(case.plan(column, idesc(128, 64, "f16")), case.shared, case.tm, accumulate=False)
        assert fault.value.kind == kind


@pytest.mark.parametrize(
    ("m", "d", "a", "in_tmem", "bits", "kind"),
    [
        (128, 16 << 16, None, False, 0, "alignment"),
        (64, 8 << 16, None, False, 0, "alignment"),
        (64, 32 << 16, None, False, 0, "alignment"),
        (64, 16 << 16, 256, True, 0, "alignment"),
        (128, 0, 256, True, 1 << 15, "descriptor"),
        (128, 0, 0, False, 0, "descriptor"),
        (128, 0, None, False, 1 << 2, "unsupported"),
    ],
)
def test_illegal_operands(m: int, d: int, a: int | None, in_tmem: bool, bits: int, kind: str) -> None:
    case = Setup(m, 32, "f16")
    operand = case.a_desc if a is None else a
    with pytest.raises(Fault) as fault:
        tcgen05.plan("f16", d, operand, case.b_desc, idesc(m, 32, "f16") | bits, a_in_tmem=in_tmem)
    assert fault.value.kind == kind


def test_a_scale_outside_its_range() -> None:
    case = Setup(128, 32, "f16")
    with pytest.raises(Fault) as fault:
        tcgen05.execute(case.plan(0, idesc(128, 32, "f16")), case.shared, case.tm, True, scale_d=16)
    assert fault.value.kind == "descriptor"


@pytest.mark.parametrize("modifier", ["cta_group::2", "ws", "sp", "block_scale", "shift", "b6x16_p32"])
def test_what_is_not_modelled_is_refused(modifier: str) -> None:
    with pytest.raises(Fault, match=modifier) as fault:
        tcgen05.refuse(("mma", modifier, "kind::f16"))
    assert fault.value.kind == "unsupported"
    tcgen05.refuse(("mma", "cta_group::1", "kind::f16", "collector::a::lastuse"))


COPIES: list[tuple[str, str, int, int, Any]] = [
    ("128x256b", "", 128, 32, lambda row: [row]),
    ("128x128b", "", 128, 16, lambda row: [row]),
    ("4x256b", "", 4, 32, lambda row: [32 * row]),
    ("64x128b", "warpx2::02_13", 64, 16, lambda row: [row, row + 64]),
    ("64x128b", "warpx2::01_23", 64, 16, lambda row: [row + (row // 32) * 32, row + (row // 32) * 32 + 32]),
    ("32x128b", "warpx4", 32, 16, lambda row: [row, row + 32, row + 64, row + 96]),
]


@pytest.mark.parametrize(("shape", "multicast", "rows", "nbytes", "lanes"), COPIES, ids=lambda v: str(v)[:16])
def test_copies_from_shared_memory(shape: str, multicast: str, rows: int, nbytes: int, lanes: Any) -> None:
    shared, tm = np.zeros(1 << 16, np.uint8), TensorMemory()
    tm.alloc(64)
    values = np.random.default_rng(rows).integers(1, 1 << 16, (rows, nbytes // 2), dtype=np.uint64)
    padded = np.zeros((max(rows, 8), nbytes // 2))
    padded[:rows] = values
    where = canonical("none", False, max(rows, 8), nbytes // 2, 2, 0x1000, 128, 256)
    shared[where], shared[where + 1] = padded.astype(int) & 0xFF, padded.astype(int) >> 8
    desc = 0x1000 >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46
    mods = ("cp", "cta_group::1", shape, multicast) if multicast else ("cp", "cta_group::1", shape)
    tcgen05.cp_execute(tcgen05.cp_plan(shape, mods, 20, desc), shared, tm)
    words = (values[:, ::2] | values[:, 1::2] << np.uint64(16)).astype(np.uint32)
    expected = np.zeros((128, 512), bool)
    for row in range(rows):
        for lane in lanes(row):
            assert np.array_equal(tm.data[lane, 20 : 20 + nbytes // 4], words[row])
            expected[lane, 20 : 20 + nbytes // 4] = True
    assert np.array_equal(tm.written, expected)


@pytest.mark.parametrize(
    ("shape", "mods", "address", "kind"),
    [
        ("64x128b", (), 0, "unsupported"),
        ("128x256b", ("warpx4",), 0, "unsupported"),
        ("128x256b", ("cta_group::2",), 0, "unsupported"),
        ("128x256b", ("b8x16", "b6x16_p32"), 0, "unsupported"),
        ("128x256b", (), 1 << 16, "alignment"),
        ("4x256b", (), 32 << 16, "alignment"),
    ],
)
def test_illegal_copies(shape: str, mods: tuple[str, ...], address: int, kind: str) -> None:
    with pytest.raises(Fault) as fault:
        tcgen05.cp_plan(shape, mods, address, 0x100 | 1 << 46)
    assert fault.value.kind == kind
