"""Faults of tensor instructions: one line of a working kernel changed, and what that violates, by name.

The unchanged kernels run first, so that a fault is the doing of the change.  Silicon runs most of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ptx import Fault, tma
from tests.ptx import test_tcgen05, test_wgmma
from tests.ptx.tensor_kernels import (
    MBARRIER,
    TILE,
    aligned,
    alloc,
    copy_in,
    copy_out,
    dealloc,
    execute,
    mbarrier,
    own_lanes,
    registers,
    store_registers,
    wait,
)

CASE = test_tcgen05.Setup(128, 32, "f16")
IMAGE = CASE.shared[test_tcgen05.A_AT : test_tcgen05.A_AT + 0x10000].copy()
BITS = test_tcgen05.idesc(128, 32, "f16")
ISSUE = "tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd7, %rd8, %r13, %p3;"
COMMIT = f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+{MBARRIER}];"
LOAD = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(200, 32)}, [%r11];"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 64;"
ALLOCATE = f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+{16}], 64;"
GIVE_UP = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
MMA = f"""
{copy_in(0, IMAGE.size)}
{mbarrier()}
{alloc(64)}
{own_lanes()}
add.s32 %r12, %r3, {TILE};
sub.s32 %r12, %r12, {test_tcgen05.A_AT};
shr.s32 %r12, %r12, 4;
cvt.s64.s32 %rd6, %r12;
add.s64 %rd7, %rd6, {CASE.a_desc};
add.s64 %rd8, %rd6, {CASE.b_desc};
mov.b32 %r13, {BITS};
setp.ne.b32 %p3, %r0, %r0;
@!%p1 bra ISSUED;
{ISSUE}
{COMMIT}
ISSUED:
{wait()}
tcgen05.fence::after_thread_sync;
{LOAD}
tcgen05.wait::ld.sync.aligned;
{store_registers(1, 200, 32)}
{dealloc(64)}
"""

TCGEN05_FAULTS = [
    ("alloc of 48 columns", ALLOCATE, ALLOCATE.replace(", 64", ", 48"), "tmem"),
    ("alloc of 544 columns", ALLOCATE, ALLOCATE.replace(", 64", ", 544"), "tmem"),
    ("alloc after relinquish", GIVE_UP, GIVE_UP + ALLOCATE, "tmem"),
    ("relinquish twice", GIVE_UP, GIVE_UP * 2, "tmem"),
    ("columns that never come back", GIVE_UP, ALLOCATE.replace(", 64", ", 512"), "tmem"),
    ("leak", FREE, "", "tmem"),
    ("second allocation leaks", ALLOCATE, ALLOCATE * 2, "tmem"),
    ("dealloc of half", FREE, FREE.replace("64;", "32;"), "tmem"),
    ("dealloc twice", FREE, FREE * 2, "tmem"),
    ("dealloc before use", "ISSUED:", f"ISSUED:\n@%p2 {FREE}", "tmem race"),
    ("accumulates into poison", "setp.ne.b32 %p3", "setp.eq.b32 %p3", "poison"),
    ("accumulator past the allocation", "f16 [%r10]", "f16 [%r10+48]", "tmem"),
    ("accumulator past column 511", "f16 [%r10]", "f16 [%r10+496]", "bounds"),
    ("accumulator at lane 16", "f16 [%r10]", "f16 [%r10+1048576]", "alignment"),
    ("load of columns nobody wrote", "b32 {%r200", "b32 {%r200", "poison"),
    ("load of another warp's lanes", "%r1, 21;", "%r1, 20;", "bounds"),
    ("B with reserved bits", f"%rd6, {CASE.b_desc}", f"%rd6, {CASE.b_desc | 1 << 53}", "descriptor"),
    ("B without the fixed bit", f"%rd6, {CASE.b_desc}", f"%rd6, {CASE.b_desc & ~(1 << 46)}", "descriptor"),
    ("B with layout type 3", f"%rd6, {CASE.b_desc}", f"%rd6, {CASE.b_desc | 1 << 61}", "descriptor"),
    ("A past shared memory", f"%rd6, {CASE.a_desc}", f"%rd6, {CASE.a_desc + 0x2000}", "bounds"),
    ("B where nobody wrote", f"%rd6, {CASE.b_desc}", f"%rd6, {CASE.b_desc + 0x400}", "poison"),
    ("types that do not combine", f"%r13, {BITS}", f"%r13, {BITS | 1 << 7}", "descriptor"),
    ("tf32 descriptor for kind::f16", f"%r13, {BITS}", f"%r13, {BITS | 2 << 7 | 2 << 10}", "descriptor"),
    ("M of 256", f"%r13, {BITS}", f"%r13, {BITS + (8 << 24)}", "unsupported"),
    ("sparse", f"%r13, {BITS}", f"%r13, {BITS | 4}", "unsupported"),
    ("pair of CTAs", "mma.cta_group::1", "mma.cta_group::2", "unsupported"),
    ("weight stationary", "tcgen05.mma.cta", "tcgen05.mma.ws.cta", "unsupported"),
    ("kind::i8", "kind::f16", "kind::i8", "unsupported"),
    ("shift", ISSUE, "tcgen05.shift.cta_group::1.down [%r10];" + ISSUE, "unsupported"),
    ("A and D in different lanes", "[%r10], %rd7", "[%r10], [%r14]", "alignment"),
]  # fmt: skip


def change(name: str, old: str, new: str) -> str:
    """The kernel with one change; a few faults need a line of their own."""
    if name == "load of columns nobody wrote":
        return MMA.replace("[%r11];\ntcgen05.wait::ld", "[%r11+16];\ntcgen05.wait::ld")
    if name == "A and D in different lanes":
        new = "[%r10], [%r10+1048576]"
    assert MMA.count(old) >= 1
    return MMA.replace(old, new)


@pytest.mark.parametrize("schedule", ["early", "late", 3])
def test_the_unchanged_mma_kernel_is_right(schedule: str | int) -> None:
    out = np.zeros((128, 32), np.float32)
    execute(MMA, [IMAGE, out], schedule=schedule)
    assert np.array_equal(out, CASE.product())


@pytest.mark.parametrize("schedule", ["early", "late"])
@pytest.mark.parametrize(("name", "old", "new", "kind"), TCGEN05_FAULTS, ids=[f[0] for f in TCGEN05_FAULTS])
def test_tcgen05_faults(name: str, old: str, new: str, kind: str, schedule: str) -> None:
    with pytest.raises(Fault) as fault:
        execute(change(name, old, new), [IMAGE, np.zeros((128, 32), np.float32)], schedule=schedule)
    assert fault.value.kind in kind.split()


BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
TAKE_OVER = f"""
{"".join(f"mov.b32 %r{200 + i}, 0;" for i in range(32))}
tcgen05.st.sync.aligned.32x32b.x32.b32 [%r11], {registers(200, 32)};
tcgen05.wait::st.sync.aligned;
{BEFORE}
bar.sync 0;
{AFTER}
"""
FENCED = MMA.replace(own_lanes(), own_lanes() + TAKE_OVER)


def taken_over(old: str, new: str) -> str:
    """The kernel that stores before it multiplies, with one change between the two."""
    assert old in TAKE_OVER
    return FENCED.replace(TAKE_OVER, TAKE_OVER.replace(old, new))


FENCE_FAULTS = [
    ("stores not published", taken_over(BEFORE, ""), "missing-fence", "before_thread_sync of warp 1"),
    ("stores not taken over", taken_over(AFTER, ""), "missing-fence", "after_thread_sync of warp 0"),
    ("result not taken over", FENCED.replace(f"{AFTER}\n{LOAD}", LOAD), "missing-fence", "follows its wait"),
    ("stores without a barrier", taken_over("bar.sync 0;", ""), "race", "overwrites TMEM"),
    (
        "dealloc without a barrier",
        MMA.replace(dealloc(64), dealloc(64).replace("bar.sync 0;", "")),
        "race",
        "dealloc frees TMEM",
    ),
]


@pytest.mark.parametrize("schedule", ["early", "late", "reverse", 3])
@pytest.mark.parametrize("text", [FENCED, MMA.replace(AFTER, "")], ids=["fenced", "without any fence"])
def test_fences_that_suffice(text: str, schedule: str | int) -> None:
    """A kernel without any tcgen05.fence, as Triton and CuTe emit, is not held to them."""
    out = np.zeros((128, 32), np.float32)
    execute(text, [IMAGE, out], schedule=schedule)
    assert np.array_equal(out, CASE.product())


@pytest.mark.parametrize(("name", "text", "kind", "message"), FENCE_FAULTS, ids=[f[0] for f in FENCE_FAULTS])
def test_fence_faults(name: str, text: str, kind: str, message: str) -> None:
    with pytest.raises(Fault, match=message) as fault:
        execute(text, [IMAGE, np.zeros((128, 32), np.float32)])
    assert fault.value.kind == kind


TENSOR = aligned(np.arange(64 * 40, dtype=np.uint16).reshape(40, 64))
MAP = aligned(tma.encode("u16", TENSOR.ctypes.data, (64, 40), (128,), (64, 8), swizzle="128B"))
WIDE = aligned(tma.encode("u16", TENSOR.ctypes.data, (64, 99), (128,), (64, 8), swizzle="128B"))
FLIPPED = aligned(tma.encode("u16", TENSOR.ctypes.data, (64, 40), (128,), (64, 8), swizzle="128B_ATOM_64B"))
COPY = f"""
{mbarrier()}
@!%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3+{MBARRIER}], 1024;
add.s32 %r11, %r3, {TILE};
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
  [%r11], [%rd10, {{0, 32}}], [%r3+{MBARRIER}];
ISSUED:
{wait()}
{copy_out(1, 1024)}
"""

TMA_FAULTS = [
    ("misaligned tile", f"%r3, {TILE}", f"%r3, {TILE + 16}", MAP, "alignment"),
    ("tile past shared memory", f"%r3, {TILE}", f"%r3, {(128 << 10) - 512}", MAP, "bounds"),
    ("no tensor map", "", "", aligned(np.zeros(128, np.uint8)), "descriptor"),
    ("map larger than the allocation", "{0, 32}", "{0, 64}", WIDE, "bounds"),
    ("swizzle that is not modelled", "", "", FLIPPED, "unsupported"),
    ("fewer coordinates than dimensions", "{0, 32}", "{0}", MAP, "unsupported"),
    ("rank of another map", "2d", "3d", MAP, "unsupported"),
    ("multicast", "complete_tx::bytes", "complete_tx::bytes.multicast::cluster", MAP, "unsupported"),
    ("im2col", ".tile", ".im2col", MAP, "unsupported"),
    ("too few bytes expected", "], 1024;", "], 512;", MAP, "deadlock"),
    ("too many bytes expected", "], 1024;", "], 1040;", MAP, "deadlock"),
    ("read before the wait", wait(), "", MAP, "race"),
]


def test_the_unchanged_copy_is_right() -> None:
    out = np.zeros((8, 64), np.uint16)
    execute(COPY, [MAP, out, TENSOR])
    assert sorted(out.reshape(-1).tolist()) == sorted(TENSOR[32:].reshape(-1).tolist())


@pytest.mark.parametrize(("name", "old", "new", "tmap", "kind"), TMA_FAULTS, ids=[f[0] for f in TMA_FAULTS])
def test_tensor_copy_faults(name: str, old: str, new: str, tmap: np.ndarray, kind: str) -> None:
    assert old in COPY
    with pytest.raises(Fault) as fault:
        execute(COPY.replace(old, new), [tmap, np.zeros((8, 64), np.uint16), TENSOR], schedule="late")
    assert fault.value.kind == kind


HOPPER = test_wgmma.Case(32, "f16")
HOPPER_IMAGE = HOPPER.shared[test_wgmma.A_AT : test_wgmma.A_AT + 0x8000].copy()
START = "wgmma.fence.sync.aligned;"
FINISH = "wgmma.wait_group.sync.aligned 0;"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"
WGMMA = f"""
{copy_in(0, HOPPER_IMAGE.size)}
add.s32 %r12, %r3, {TILE};
sub.s32 %r12, %r12, {test_wgmma.A_AT};
shr.s32 %r12, %r12, 4;
cvt.s64.s32 %rd6, %r12;
add.s64 %rd7, %rd6, {HOPPER.a_desc};
add.s64 %rd8, %rd6, {HOPPER.b_desc};
setp.ne.b32 %p3, %r0, %r0;
{"".join(f"mov.b32 %r{100 + i}, 0;" for i in range(16))}
{START}
{MULTIPLY} {registers(100, 16)}, %rd7, %rd8, %p3, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
{FINISH}
{store_registers(1, 100, 16)}
"""

WGMMA_FAULTS = [
    ("reserved bits", f"%rd6, {HOPPER.b_desc}", f"%rd6, {HOPPER.b_desc | 1 << 55}", "descriptor"),
    ("B where nobody wrote", f"%rd6, {HOPPER.b_desc}", f"%rd6, {HOPPER.b_desc + 0x800}", "poison"),
    ("B past shared memory", f"%rd6, {HOPPER.b_desc}", f"%rd6, {HOPPER.b_desc + 0x2000}", "bounds"),
    ("shape of another type", "m64n32k16.f32.f16", "m64n32k8.f32.f16", "descriptor"),
    ("scale of 2", "%p3, 1, 1,", "%p3, 2, 1,", "descriptor"),
    ("registers of another N", "m64n32k16", "m64n64k16", "unsupported"),
    ("result before the wait", FINISH, "", "missing-wait"),
    ("operands not published", "fence.proxy.async.shared::cta;", "", "missing-fence"),
    ("no fence", START, "", "missing-fence"),
    ("accumulator written after the fence", START, START + "mov.b32 %r103, 0;", "missing-fence"),
    (
        "written accumulator moved into place",
        START,
        START + "mov.b32 %r99, 0; mov.b32 %r103, %r99;",
        "missing-fence",
    ),
]
AGAIN = f"""wgmma.commit_group.sync.aligned;
{FINISH}
"""


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        ("", ""),
        ("mov.b32 %r99, %r103; mov.b32 %r103, %r99;", ""),
        (f"mov.b32 %r103, 0; {START}", ""),
        ("mov.b32 %r103, 0;", "missing-fence"),
        ("add.s32 %r99, %r103, 0; mov.b32 %r103, %r99;", "missing-fence"),
    ],
    ids=["same accumulator", "renamed", "fenced", "written", "computed and moved"],
)
def test_second_wgmma_on_an_accumulator(between: str, kind: str) -> None:
    """PTX ISA 9.7.15.7.1: only accesses by other instructions need a fence; moves are ptxas's to remove."""
    second = f"{between}\n{MULTIPLY} {registers(100, 16)}, %rd7, %rd8, %p3, 1, 1, 0, 0;\n{AGAIN}"
    text = WGMMA.replace(f"{FINISH}\n", f"{FINISH}\n{second}")
    arrays = [HOPPER_IMAGE, np.zeros((128, 16), np.uint32)]
    if kind:
        with pytest.raises(Fault) as fault:
            execute(text, arrays, target="sm_90a", schedule="late")
        assert fault.value.kind == kind
    else:
        execute(text, arrays, target="sm_90a", schedule="late")


def test_the_unchanged_wgmma_kernel_is_right() -> None:
    out = np.zeros((128, 16), np.uint32)
    execute(WGMMA, [HOPPER_IMAGE, out], target="sm_90a", schedule="late")
    assert np.array_equal(test_wgmma.read_d(out.reshape(4, 32, 16), 32), HOPPER.a @ HOPPER.b.T)


@pytest.mark.parametrize(("name", "old", "new", "kind"), WGMMA_FAULTS, ids=[f[0] for f in WGMMA_FAULTS])
def test_wgmma_faults(name: str, old: str, new: str, kind: str) -> None:
    assert old in WGMMA
    with pytest.raises(Fault) as fault:
        arrays = [HOPPER_IMAGE, np.zeros((128, 16), np.uint32)]
        execute(WGMMA.replace(old, new), arrays, target="sm_90a", schedule="late")
    assert fault.value.kind == kind
