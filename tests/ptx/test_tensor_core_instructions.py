"""Tensor-core instructions one at a time on the machine: operands in the right places, under every schedule.

The expected values come from the layout formulas of the other tests of this folder.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx import test_fragments, test_tcgen05, test_tmem, test_wgmma
from tests.ptx.tensor_kernels import (
    MBARRIER,
    TILE,
    alloc,
    copy_in,
    copy_out,
    dealloc,
    execute,
    load_registers,
    mbarrier,
    own_lanes,
    registers,
    store_registers,
    synchronise,
    wait,
)

schedules = pytest.mark.parametrize("schedule", ["early", "late", 1, 2])


@pytest.mark.parametrize(("shape", "dtype"), test_fragments.SHAPES)
def test_mma_sync(shape: str, dtype: str) -> None:
    k = int(shape[6:])
    rng = np.random.default_rng(k)
    a, b, c = (rng.integers(-8, 9, s).astype(float) for s in ((16, k), (k, 8), (16, 8)))
    a_cells = [[test_fragments.a_cell(t, i, k, dtype) for i in range(k // 2)] for t in range(32)]
    b_cells = [[test_fragments.b_cell(t, i, k, dtype) for i in range(k // 4)] for t in range(32)]
    c_cells = [[test_fragments.c_cell(t, i) for i in range(4)] for t in range(32)]
    words = [
        test_fragments.pack(matrix, cells, kind)
        for matrix, cells, kind in ((a, a_cells, dtype), (b, b_cells, dtype), (c, c_cells, "f32"))
    ]
    out = np.zeros((32, 4), np.uint32)
    na, nb = words[0].shape[1], words[1].shape[1]
    body = load_registers(0, 20, na) + load_registers(1, 30, nb) + load_registers(2, 40, 4)
    body += (
        f"mma.sync.aligned.{shape}.row.col.f32.{dtype}.{dtype}.f32 "
        f"{registers(50, 4)}, {registers(20, na)}, {registers(30, nb)}, {registers(40, 4)};\n"
    )
    execute(body + store_registers(3, 50, 4), [*words, out], threads=32, target="sm_90a")
    assert np.array_equal(out, test_fragments.pack(a @ b + c, c_cells, "f32"))


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix_and_stmatrix(num: int, trans: bool) -> None:
    image = np.random.default_rng(num).integers(0, 1 << 16, (4, 8, 8), dtype=np.uint16)
    regs, back = np.zeros((32, num), np.uint32), np.zeros((4, 8, 8), np.uint16)
    form = f"sync.aligned.m8n8.x{num}{'.trans' if trans else ''}.shared.b16"
    body = copy_in(0, 512, 32) + copy_in(2, 512, 32, TILE + 512)
    body += f"shl.b32 %r11, %r2, 4;\nadd.s32 %r11, %r11, %r3;\nadd.s32 %r11, %r11, {TILE};\n"
    body += f"ldmatrix.{form} {registers(20, num)}, [%r11];\n" + store_registers(1, 20, num)
    body += f"stmatrix.{form} [%r11+512], {registers(20, num)};\nbar.sync 0;\n"
    body += copy_out(2, 512, 32, TILE + 512)
    execute(body, [image, regs, back], threads=32, target="sm_90a")
    for matrix in range(num):
        for t in range(32):
            cells = [(t // 4, 2 * (t % 4) + e) for e in range(2)]
            low, high = (int(image[matrix][cell[::-1] if trans else cell]) for cell in cells)
            assert regs[t, matrix] == low | high << 16
    assert np.array_equal(back[:num], image[:num])
    assert not back[num:].any()


# one 32x32b store fills the 128 columns that the largest of these loads touch
LD_ST = [
    (shape, num, packed)
    for shape, num in test_tmem.FRAGMENTS
    for packed in (False, True)
    if num in (1, 4, 32) and (2 if packed else 1) * int(test_tmem.fragment(shape, num)[1].max()) < 128
]


@pytest.mark.parametrize(("shape", "num", "packed"), LD_ST)
def test_tensor_memory_loads_and_stores(shape: str, num: int, packed: bool) -> None:
    """Store rows with 32x32b, load with another shape; the late schedule is the harshest."""
    lanes, cols = test_tmem.fragment(shape, num)
    count, per = cols.shape[1], 2 if packed else 1
    width = 1 << (per * (int(cols.max()) + 1) - 1).bit_length()
    rng = np.random.default_rng(num)
    cells = rng.integers(0, 1 << 32, (128, width), dtype=np.uint32)
    out = np.zeros((128, count), np.uint32)
    split = f", {per * num}" if shape == "16x32bx2" else ""
    form = f"{shape}.x{num}{'.pack::16b' if packed else ''}.b32"
    body = f"""
{alloc()}
{own_lanes()}
{load_registers(0, 20, width)}
tcgen05.st.sync.aligned.32x32b.x{width}.b32 [%r11], {registers(20, width)};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.{form} {registers(200, count)}, [%r11]{split};
tcgen05.wait::ld.sync.aligned;
{store_registers(1, 200, count)}
{dealloc()}
"""
    execute(body, [cells, out], schedule="late")
    for warp in range(4):
        quarter, got = cells[32 * warp : 32 * warp + 32], out[32 * warp : 32 * warp + 32]
        if packed:
            expected = (quarter[lanes, 2 * cols] & 0xFFFF) | quarter[lanes, 2 * cols + 1] << 16
        else:
            expected = quarter[lanes, cols]
        assert np.array_equal(got, expected)


def image_of(case: test_tcgen05.Setup) -> np.ndarray:
    """Everything the operands occupy, at its shared offset relative to A_AT."""
    return case.shared[test_tcgen05.A_AT : test_tcgen05.A_AT + 0x18000].copy()


def mma_body(case: test_tcgen05.Setup, bits: int, form: str, a: str, tail: str = "") -> str:
    """Issue one MMA with descriptors relocated to where the image lands in shared memory."""
    at = test_tcgen05.A_AT
    return f"""
add.s32 %r12, %r3, {TILE};
sub.s32 %r12, %r12, {at};
shr.s32 %r12, %r12, 4;
cvt.s64.s32 %rd6, %r12;
add.s64 %rd7, %rd6, {case.a_desc};
add.s64 %rd8, %rd6, {case.b_desc};
mov.b32 %r13, {bits};
{tail}
@!%p1 bra ISSUED;
tcgen05.mma.cta_group::1.kind::{form} [%r10], {a}, %rd8, %r13, %p3;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+{MBARRIER}];
ISSUED:
{wait()}
tcgen05.fence::after_thread_sync;
"""


@schedules
@pytest.mark.parametrize(
    ("m", "dtype", "mode", "mn"), [(128, "f16", "128B", 0), (64, "bf16", "64B", 1), (128, "tf32", "32B", 0)]
)
def test_tcgen05_mma_from_shared_memory(m: int, dtype: str, mode: str, mn: int, schedule: str | int) -> None:
    case = test_tcgen05.Setup(m, 32, dtype, mode, mn, mn)
    bits = test_tcgen05.idesc(m, 32, dtype, a_mn=mn, b_mn=mn)
    shape, count = ("32x32b.x32", 32) if m == 128 else ("16x256b.x4", 16)
    image, out = image_of(case), np.zeros((128, count), np.uint32)
    body = f"""
{copy_in(0, image.size)}
{mbarrier()}
{alloc(32)}
{mma_body(case, bits, case.kind, "%rd7", "setp.ne.b32 %p3, %r0, %r0;")}
{own_lanes()}
tcgen05.ld.sync.aligned.{shape}.b32 {registers(200, count)}, [%r11];
tcgen05.wait::ld.sync.aligned;
{store_registers(1, 200, count)}
{dealloc(32)}
"""
    execute(body, [image, out], schedule=schedule)
    product = case.product()
    if m == 128:
        assert np.array_equal(out.view(np.float32), product)
        return
    lanes, cols = test_tmem.fragment("16x256b", 4)
    for warp in range(4):
        got = out[32 * warp : 32 * warp + 32].view(np.float32)
        assert np.array_equal(got, product[16 * warp : 16 * warp + 16][lanes, cols])


@schedules
def test_tcgen05_mma_from_tensor_memory_accumulates(schedule: str | int) -> None:
    case = test_tcgen05.Setup(128, 32, "bf16")
    image, out = image_of(case), np.zeros((128, 32), np.uint32)
    a_words = test_tcgen05.bits_of(case.a, "bf16").view(np.uint32)
    start = np.random.default_rng(4).integers(-50, 50, (128, 32)).astype(np.float32)
    body = f"""
{copy_in(0, image.size)}
{mbarrier()}
{alloc(64)}
{own_lanes()}
{load_registers(2, 20, 8)}
{load_registers(3, 100, 32)}
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r11+40], {registers(20, 8)};
tcgen05.st.sync.aligned.32x32b.x32.b32 [%r11], {registers(100, 32)};
tcgen05.wait::st.sync.aligned;
{synchronise()}
add.s32 %r14, %r10, 40;
{mma_body(case, test_tcgen05.idesc(128, 32, "bf16"), "f16", "[%r14]", "setp.eq.b32 %p3, %r0, %r0;")}
tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(200, 32)}, [%r11];
tcgen05.wait::ld.sync.aligned;
{store_registers(1, 200, 32)}
{dealloc(64)}
"""
    execute(body, [image, out, a_words, start], schedule=schedule)
    assert np.array_equal(out.view(np.float32), start + case.product())


@schedules
@pytest.mark.parametrize(
    ("shape", "multicast", "rows", "nbytes", "lanes"), test_tcgen05.COPIES, ids=lambda v: str(v)[:14]
)
def test_tcgen05_copies(shape, multicast, rows, nbytes, lanes, schedule) -> None:  # type: ignore[no-untyped-def]
    words = np.random.default_rng(rows).integers(1, 1 << 32, (rows, nbytes // 4), dtype=np.uint32)
    where = test_tcgen05.canonical("none", False, max(rows, 8), nbytes // 4, 4, 0, 128, 256)
    image = np.zeros(4096, np.uint8)
    for byte in range(4):
        image[where[:rows] + byte] = words >> 8 * byte & 0xFF
    out = np.zeros((128, 8), np.uint32)
    desc = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46
    form = f"{shape}.{multicast}" if multicast else shape
    body = f"""
{copy_in(0, 4096)}
{mbarrier()}
{alloc(32)}
{own_lanes()}
{"".join(f"mov.b32 %r{20 + i}, 0;" for i in range(8))}
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r11], {registers(20, 8)};
tcgen05.wait::st.sync.aligned;
{synchronise()}
add.s32 %r12, %r3, {TILE};
shr.u32 %r12, %r12, 4;
cvt.u64.u32 %rd6, %r12;
add.s64 %rd6, %rd6, {desc};
@!%p1 bra ISSUED;
tcgen05.cp.cta_group::1.{form} [%r10], %rd6;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+{MBARRIER}];
ISSUED:
{wait()}
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(30, 8)}, [%r11];
tcgen05.wait::ld.sync.aligned;
{store_registers(1, 30, 8)}
{dealloc(32)}
"""
    execute(body, [image, out], schedule=schedule)
    expected = np.zeros_like(out)
    for row in range(rows):
        for lane in lanes(row):
            expected[lane, : nbytes // 4] = words[row]
    assert np.array_equal(out, expected)


WGMMAS = [
    ("SS", "f16", "128B", (0, 0)),
    ("SS", "bf16", "64B", (1, 1)),
    ("SS", "f16", "32B", (0, 1)),
    ("SS", "tf32", "none", (0, 0)),
    ("RS", "bf16", "128B", (0, 0)),
    ("RS", "f16", "32B", (0, 1)),
    ("RS", "tf32", "64B", (0, 0)),
]


@schedules
@pytest.mark.parametrize(("source", "dtype", "mode", "tnsp"), WGMMAS, ids=lambda v: str(v))
def test_wgmma_mma_async(
    source: str, dtype: str, mode: str, tnsp: tuple[int, int], schedule: str | int
) -> None:
    from_registers = source == "RS"
    n = 32
    case = test_wgmma.Case(n, dtype, mode, *tnsp)
    image = case.shared[test_wgmma.A_AT :].copy()
    start, out = case.d.reshape(128, n // 2).copy(), np.zeros((128, n // 2), np.uint32)
    bits, per = test_wgmma.bits_of(case.a, dtype).astype(np.uint64), 1 if dtype == "tf32" else 2
    fragment = np.zeros((128, 4), np.uint64)
    for thread in range(128):
        for i in range(4 * per):
            fragment[thread, i // per] |= bits[test_wgmma.a_cell(thread, i, dtype)] << np.uint64(
                16 * (i % per)
            )
    flips = "" if dtype == "tf32" else f", {tnsp[1]}" if from_registers else f", {tnsp[0]}, {tnsp[1]}"
    a = registers(20, 4) if from_registers else "%rd7"
    body = f"""
{copy_in(0, image.size)}
{load_registers(2, 20, 4)}
{load_registers(3, 100, n // 2)}
add.s32 %r12, %r3, {TILE};
sub.s32 %r12, %r12, {test_wgmma.A_AT};
shr.s32 %r12, %r12, 4;
cvt.s64.s32 %rd6, %r12;
add.s64 %rd7, %rd6, {case.a_desc if case.a_desc < 1 << 63 else case.a_desc - (1 << 64)};
add.s64 %rd8, %rd6, {case.b_desc if case.b_desc < 1 << 63 else case.b_desc - (1 << 64)};
setp.eq.b32 %p3, %r0, %r0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.{case.shape}.f32.{dtype}.{dtype}
  {registers(100, n // 2)}, {a}, %rd8, %p3, 1, -1{flips};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{store_registers(1, 100, n // 2)}
"""
    before = test_wgmma.read_d(case.d, n)
    execute(body, [image, out, fragment.astype(np.uint32), start], target="sm_90a", schedule=schedule)
    assert np.array_equal(test_wgmma.read_d(out.reshape(4, 32, -1), n), before - case.a @ case.b.T)
