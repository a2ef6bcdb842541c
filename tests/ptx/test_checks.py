"""Every check of the machine: a tiny kernel that trips it, and its twin, one edit away, that does not.

The prologue of ``tensor_kernels.text`` gives ``%r0`` thread, ``%r1`` warp, ``%r2`` lane, ``%r3`` shared
memory, ``%p1`` thread 0, ``%p2`` warp 0 and one global pointer, ``%rd10``, to 4096 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from lethe.ptx import Fault
from tests.ptx.tensor_kernels import aligned, execute


@dataclass(frozen=True)
class Case:
    """``bad`` must raise ``kind`` with a message that matches ``message``; ``good`` must not raise."""

    name: str
    kind: str
    message: str
    bad: str
    good: str
    schedule: str | int = "early"
    threads: int = 128
    shared: int = 64 << 10


INIT = "@%p1 mbarrier.init.shared.b64 [%r3], {count};\nbar.sync 0;\n"
WAIT = """
{label}: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], {parity};
@%p3 bra {label}_DONE;
bra {label};
{label}_DONE:
"""
ALLOC = """
@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+16], {columns};
bar.sync 0;
ld.shared.b32 %r20, [%r3+16];
"""
FREE = "bar.sync 0;\n@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, {columns};\n"
RELINQUISH = "@%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
LANES = "shl.b32 %r21, %r1, 21;\nadd.s32 %r22, %r20, %r21;\n"
BULK_IN = (
    "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {expected};\n"
    "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r3+1024], [%rd10], 256, [%r3];\n"
)
BULK_OUT = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd10], [%r3+1024], 512;\n"
COMMIT = "@%p1 cp.async.bulk.commit_group;\n"
DRAIN = "@%p1 cp.async.bulk.wait_group 0;\n"
FILL = "shl.b32 %r4, %r0, 2;\nadd.s32 %r5, %r3, %r4;\nst.shared.b32 [%r5+1024], %r0;\n"
PUBLISH = "fence.proxy.async.shared::cta;\nbar.sync 0;\n"

# A 128 x 16 and a 16 x 16 fp16 operand, both in the first 4 KiB of one buffer, no swizzle.
OPERANDS = """
mov.b32 %r30, 0;
shl.b32 %r4, %r0, 4;
ZERO: add.s32 %r5, %r3, %r4;
st.shared.v4.b32 [%r5+1024], {%r30, %r30, %r30, %r30};
add.s32 %r4, %r4, 2048;
setp.lt.u32 %p4, %r4, 4096;
@%p4 bra ZERO;
"""
DESCRIPTORS = """
add.s32 %r31, %r3, 1024;
shr.u32 %r31, %r31, 4;
cvt.u64.u32 %rd1, %r31;
or.b64 %rd1, %rd1, 0x0000401000080000;
mov.b32 %r32, {idesc:#x};
setp.ne.b32 %p5, %r30, %r30;
"""
IDESC = 1 << 4 | (16 >> 3) << 17 | (128 >> 4) << 24
MMA = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd1, %rd1, %r32, %p5;\n"
MMA_COMMIT = "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];\n"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r40}, [%r22];\n"
KEEP = (
    "shl.b32 %r4, %r0, 2;\ncvt.u64.u32 %rd2, %r4;\nadd.s64 %rd2, %rd2, %rd10;\nst.global.b32 [%rd2], %r40;\n"
)


def mma_kernel(publish: str = PUBLISH, wait: bool = True, idesc: int = IDESC, after: str = "") -> str:
    """alloc, zero operands, one MMA, commit, wait, read back, free."""
    return (
        ALLOC.format(columns=32)
        + INIT.format(count=1)
        + OPERANDS
        + publish
        + DESCRIPTORS.format(idesc=idesc)
        + MMA
        + after
        + MMA_COMMIT
        + (WAIT.format(label="W", parity=0) if wait else "")
        + LANES
        + LOAD
        + "tcgen05.wait::ld.sync.aligned;\n"
        + KEEP
        + FREE.format(columns=32)
    )


STORE_AT = "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd1, %rd10;\nst.global.b32 [%rd1+{at}], %r0;\n"
LOCAL = ".local .align 4 .b8 depot[16];\nmov.b32 %r4, depot;\nst.local.b32 [%r4+{at}], %r0;\n"

TWO_LOADS = (
    "@%p1 mbarrier.init.shared.b64 [%r3+8], 1;\n"
    + INIT.format(count=1)
    + BULK_IN.format(expected=256)
    + BULK_IN.format(expected=256).replace("[%r3]", "[%r3+8]").replace("1024", "2048")
)
READ_BOTH = "ld.shared.b32 %r4, [%r3+1024];\nld.shared.b32 %r5, [%r3+2048];\n"

CASES = [
    Case("global-bounds", "bounds", "p0.*outside", STORE_AT.format(at=3600), STORE_AT.format(at=3584)),
    Case(
        "shared-bounds",
        "bounds",
        "shared",
        "st.shared.b32 [%r3+65536], %r0;\n",
        "st.shared.b32 [%r3+65532], %r0;\n",
    ),
    Case("shared-null", "bounds", "shared", "st.shared.b32 [0], %r0;\n", "st.shared.b32 [1024], %r0;\n"),
    Case("local-bounds", "bounds", "local", LOCAL.format(at=16), LOCAL.format(at=12)),
    Case(
        "param-bounds",
        "bounds",
        "parameter of 8",
        "ld.param.u64 %rd1, [p0+4];\n",
        "ld.param.u32 %r4, [p0+4];\n",
    ),
    Case(
        "shared-poison",
        "poison",
        "nobody wrote",
        "ld.shared.b32 %r4, [%r3+4];\n",
        "st.shared.b32 [%r3+4], %r0;\nbar.sync 0;\nld.shared.b32 %r4, [%r3+4];\n",
    ),
    Case(
        "register-poison",
        "poison",
        "%r9 is read before",
        "@%p1 mov.b32 %r9, 7;\nadd.s32 %r8, %r9, 1;\n",
        "@%p1 mov.b32 %r9, 7;\n@%p1 add.s32 %r8, %r9, 1;\n",
    ),
    Case(
        "tmem-poison",
        "poison",
        "tcgen05.ld",
        ALLOC.format(columns=32)
        + LANES
        + LOAD
        + "tcgen05.wait::ld.sync.aligned;\n"
        + FREE.format(columns=32),
        ALLOC.format(columns=32)
        + LANES
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\ntcgen05.wait::st.sync.aligned;\n"
        + LOAD
        + "tcgen05.wait::ld.sync.aligned;\n"
        + FREE.format(columns=32),
    ),
    Case(
        "mbarrier-uninitialised",
        "mbarrier",
        "no mbarrier was initialised",
        "@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n",
        INIT.format(count=1) + "@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n",
    ),
    Case(
        "mbarrier-too-many-arrivals",
        "mbarrier",
        "arrivals, only",
        INIT.format(count=1) + "@%p1 mbarrier.arrive.shared.b64 _, [%r3], 2;\n",
        INIT.format(count=2) + "@%p1 mbarrier.arrive.shared.b64 _, [%r3], 2;\n",
    ),
    Case("mbarrier-count", "mbarrier", "count 0", INIT.format(count=0), INIT.format(count=1)),
    Case(
        "mbarrier-alignment",
        "alignment",
        "8-byte",
        "@%p1 mbarrier.init.shared.b64 [%r3+4], 1;\n",
        "@%p1 mbarrier.init.shared.b64 [%r3+8], 1;\n",
    ),
    Case(
        "mbarrier-bytes-missing",
        "deadlock",
        "256 bytes missing",
        INIT.format(count=1) + BULK_IN.format(expected=512) + WAIT.format(label="W", parity=0),
        INIT.format(count=1) + BULK_IN.format(expected=256) + WAIT.format(label="W", parity=0),
    ),
    Case(
        "mbarrier-bytes-too-many",
        "deadlock",
        "128 bytes too many",
        INIT.format(count=1) + BULK_IN.format(expected=128) + WAIT.format(label="W", parity=0),
        INIT.format(count=1) + BULK_IN.format(expected=256) + WAIT.format(label="W", parity=0),
    ),
    Case(
        "mbarrier-phase",
        "deadlock",
        "parity 1: phase 1 .parity 1., 1 of 1 arrivals pending",
        INIT.format(count=1)
        + BULK_IN.format(expected=256)
        + WAIT.format(label="W", parity=0)
        + WAIT.format(label="V", parity=1),
        INIT.format(count=1)
        + BULK_IN.format(expected=256)
        + WAIT.format(label="W", parity=0)
        + WAIT.format(label="V", parity=0),
    ),
    Case(
        "barrier-deadlock",
        "deadlock",
        "barrier 1, 96 of 128 threads",
        "@%p2 bra OUT;\nbar.sync 1, 128;\nOUT:\n",
        "@%p2 bra OUT;\nbar.sync 1, 96;\nOUT:\n",
    ),
    Case(
        "barrier-count",
        "barrier",
        "thread count",
        "@%p2 bra OUT;\nbar.sync 1, 128;\nOUT: bar.sync 1, 64;\n",
        "@%p2 bra OUT;\nbar.sync 1, 96;\nOUT: bar.sync 2, 128;\n",
    ),
    Case("barrier-number", "barrier", "16", "bar.sync 16;\n", "bar.sync 15;\n"),
    Case(
        "tmem-leak",
        "tmem",
        "not freed",
        ALLOC.format(columns=32),
        ALLOC.format(columns=32) + FREE.format(columns=32),
    ),
    Case(
        "tmem-columns",
        "tmem",
        "48",
        ALLOC.format(columns=48) + FREE.format(columns=48),
        ALLOC.format(columns=64) + FREE.format(columns=64),
    ),
    Case(
        "tmem-budget",
        "tmem",
        "blocks for ever",
        ALLOC.format(columns=512) + ALLOC.format(columns=32).replace("%r20", "%r19"),
        ALLOC.format(columns=256)
        + ALLOC.format(columns=256).replace("%r20", "%r19")
        + FREE.format(columns=256)
        + FREE.format(columns=256).replace("%r20", "%r19"),
    ),
    Case(
        "tmem-alloc-after-relinquish",
        "tmem",
        "relinquish",
        RELINQUISH + ALLOC.format(columns=32) + FREE.format(columns=32),
        ALLOC.format(columns=32) + RELINQUISH + FREE.format(columns=32),
    ),
    Case(
        "tmem-double-relinquish",
        "tmem",
        "relinquish",
        ALLOC.format(columns=32) + RELINQUISH + RELINQUISH + FREE.format(columns=32),
        ALLOC.format(columns=32) + RELINQUISH + FREE.format(columns=32),
    ),
    Case(
        "tmem-use-after-free",
        "tmem",
        "tcgen05.st",
        ALLOC.format(columns=32) + LANES + FREE.format(columns=32) + "bar.sync 0;\n"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\ntcgen05.wait::st.sync.aligned;\n",
        ALLOC.format(columns=32) + LANES + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\n"
        "tcgen05.wait::st.sync.aligned;\n" + FREE.format(columns=32),
    ),
    Case(
        "tmem-lanes-of-another-warp",
        "bounds",
        "may touch lanes",
        ALLOC.format(columns=32)
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r0};\n"
        + FREE.format(columns=32),
        ALLOC.format(columns=32) + LANES + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\n"
        "tcgen05.wait::st.sync.aligned;\n" + FREE.format(columns=32),
    ),
    Case(
        "vector-alignment",
        "alignment",
        "16 bytes",
        "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd10+8];\n",
        "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd10+16];\n",
    ),
    Case(
        "bulk-size",
        "alignment",
        "multiple of 16",
        FILL + PUBLISH + BULK_OUT.replace("512", "500") + COMMIT + DRAIN,
        FILL + PUBLISH + BULK_OUT + COMMIT + DRAIN,
    ),
    Case("instruction-descriptor", "descriptor", "", mma_kernel(idesc=IDESC | 7 << 7), mma_kernel()),
    Case(
        "tensor-map",
        "descriptor",
        "",
        INIT.format(count=1) + "mov.b32 %r4, 0;\n@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile"
        ".mbarrier::complete_tx::bytes "
        "[%r3+1024], [%rd10, {%r4, %r4}], [%r3];\n",
        INIT.format(count=1) + BULK_IN.format(expected=256) + WAIT.format(label="W", parity=0),
    ),
    Case(
        "shuffle-divergence",
        "divergence",
        "lanes that are not here",
        "setp.lt.u32 %p3, %r2, 16;\n@!%p3 bra OUT;\nshfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;\nOUT:\n",
        "setp.lt.u32 %p3, %r2, 16;\n@!%p3 bra OUT;\nshfl.sync.bfly.b32 %r4, %r0, 1, 31, 65535;\nOUT:\n",
    ),
    Case(
        "barrier-divergence",
        "divergence",
        "16 of the 32 live lanes",
        "setp.lt.u32 %p3, %r2, 16;\n@!%p3 bra OUT;\nbar.sync 0;\nOUT:\n",
        "setp.lt.u32 %p3, %r2, 16;\n@!%p3 bra OUT;\nOUT: bar.sync 0;\n",
    ),
    Case(
        "alloc-divergence",
        "divergence",
        "1 of 32 lanes",
        ALLOC.format(columns=32).replace("@%p2", "@%p1") + FREE.format(columns=32),
        ALLOC.format(columns=32) + FREE.format(columns=32),
    ),
    Case(
        "missing-wait-ld",
        "missing-wait",
        "%r40 is used before tcgen05.wait::ld",
        mma_kernel().replace("tcgen05.wait::ld.sync.aligned;\n", ""),
        mma_kernel(),
    ),
    Case(
        "missing-commit-wait", "race", "in flight from", mma_kernel(wait=False), mma_kernel(), schedule="late"
    ),
    Case(
        "missing-fence-mma", "missing-fence", "tcgen05.mma", mma_kernel(publish="bar.sync 0;\n"), mma_kernel()
    ),
    Case(
        "missing-fence-bulk",
        "missing-fence",
        "bulk store",
        FILL + "bar.sync 0;\n" + BULK_OUT + COMMIT + DRAIN,
        FILL + PUBLISH + BULK_OUT + COMMIT + DRAIN,
    ),
    Case(
        "fence-by-another-thread-before-the-barrier",
        "missing-fence",
        "bulk store",
        FILL + "@%p1 fence.proxy.async.shared::cta;\nbar.sync 0;\n" + BULK_OUT + COMMIT + DRAIN,
        FILL + "bar.sync 0;\n@%p1 fence.proxy.async.shared::cta;\n" + BULK_OUT + COMMIT + DRAIN,
    ),
    Case(
        "store-source-reused",
        "race",
        "still read",
        FILL + PUBLISH + BULK_OUT + COMMIT + "bar.sync 0;\n" + FILL + DRAIN,
        FILL
        + PUBLISH
        + BULK_OUT
        + COMMIT
        + DRAIN.replace("wait_group", "wait_group.read")
        + "bar.sync 0;\n"
        + FILL,
        schedule="late",
    ),
    Case(
        "load-not-waited",
        "race",
        "still being filled",
        INIT.format(count=1) + BULK_IN.format(expected=256) + "ld.shared.b32 %r4, [%r3+1024];\n",
        INIT.format(count=1)
        + BULK_IN.format(expected=256)
        + WAIT.format(label="W", parity=0)
        + "ld.shared.b32 %r4, [%r3+1024];\n",
        schedule="late",
    ),
    Case(
        "operand-refilled",
        "race",
        "still read",
        mma_kernel(after="bar.sync 0;\nst.shared.b32 [%r3+1024], %r0;\n"),
        mma_kernel().replace(KEEP, KEEP + "bar.sync 0;\nst.shared.b32 [%r3+1024], %r0;\n"),
        schedule="late",
    ),
    Case(
        "store-not-waited-at-exit",
        "missing-wait",
        "wait_group",
        FILL + PUBLISH + BULK_OUT + COMMIT,
        FILL + PUBLISH + BULK_OUT + COMMIT + DRAIN,
    ),
    Case(
        "wait-on-the-wrong-mbarrier",
        "race",
        "before a wait for phase 0 of mbarrier",
        TWO_LOADS + WAIT.format(label="W", parity=0).replace("[%r3]", "[%r3+8]") + READ_BOTH,
        TWO_LOADS
        + WAIT.format(label="W", parity=0)
        + WAIT.format(label="V", parity=0).replace("[%r3]", "[%r3+8]")
        + READ_BOTH,
    ),
    Case(
        "accumulator-read-before-commit",
        "race",
        "before a wait for the commit",
        mma_kernel(wait=False),
        mma_kernel(),
    ),
    Case(
        "refill-before-the-reader-is-done",
        "race",
        "read by warp 1 is not ordered",
        INIT.format(count=1)
        + BULK_IN.format(expected=256)
        + WAIT.format(label="W", parity=0)
        + "ld.shared.b32 %r4, [%r3+1024];\n"
        + BULK_IN.format(expected=256)
        + WAIT.format(label="V", parity=1),
        INIT.format(count=1)
        + BULK_IN.format(expected=256)
        + WAIT.format(label="W", parity=0)
        + "ld.shared.b32 %r4, [%r3+1024];\nbar.sync 0;\n"
        + BULK_IN.format(expected=256)
        + WAIT.format(label="V", parity=1),
        threads=64,
    ),
    Case(
        "bytes-announced-at-exit",
        "mbarrier",
        "128 bytes missing",
        INIT.format(count=1) + "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;\n",
        INIT.format(count=1) + "@%p1 mbarrier.arrive.shared.b64 _, [%r3];\n",
    ),
    Case(
        "cluster-barrier-order",
        "barrier",
        "second arrive",
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned;\n",
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" * 2,
    ),
    Case(
        "cluster-barrier-deadlock",
        "deadlock",
        r"cluster barrier, warps \[0\] have not arrived",
        "@%p2 bra OUT;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nOUT: bar.sync 0;\n",
        "barrier.cluster.arrive.aligned;\n@%p2 bra OUT;\nbarrier.cluster.wait.aligned;\nOUT: bar.sync 0;\n",
    ),
    Case("trap", "trap", "trap", "@%p1 trap;\n", "setp.ne.u32 %p3, %r0, %r0;\n@%p3 trap;\n"),
    Case(
        "instruction",
        "unsupported",
        r"line \d+: .*frobnicate",
        "frobnicate.b32 %r4, %r0;\n",
        "mov.b32 %r4, %r0;\n",
    ),
    Case(
        "modifier",
        "unsupported",
        r"line \d+: modifier .wobble",
        "add.wobble.s32 %r4, %r0, 1;\n",
        "add.s32 %r4, %r0, 1;\n",
    ),
]


def go(body: str, case: Case, schedule: str | int) -> np.ndarray:
    data = aligned(np.zeros(1024, np.uint32))
    execute(body, [data], threads=case.threads, schedule=schedule, shared=case.shared)
    return data


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_trips(case: Case) -> None:
    with pytest.raises(Fault) as caught:
        go(case.bad, case, case.schedule)
    assert caught.value.kind == case.kind, str(caught.value)
    assert re.search(case.message, caught.value.message), str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_twin_passes_under_every_schedule(case: Case) -> None:
    answers = {go(case.good, case, schedule).tobytes() for schedule in ("early", "late", "reverse", 1, 2)}
    assert len(answers) == 1


def test_fault_names_line_text_and_warp() -> None:
    with pytest.raises(Fault) as caught:
        execute("\nld.shared.b32 %r4, [%r3+4];\n", [np.zeros(4, np.uint32)], threads=32)
    assert re.search(
        r"line \d+: `ld.shared.b32 %r4, \[%r3\+4\]`, warp 0 of CTA \(0, 0, 0\)", str(caught.value)
    )


def test_deadlock_report_names_each_blocked_warp() -> None:
    body = (
        INIT.format(count=1)
        + "@%p2 bra OTHER;\nbar.sync 1, 128;\nOTHER:\n"
        + WAIT.format(label="W", parity=0)
    )
    with pytest.raises(Fault) as caught:
        execute(body, [np.zeros(4, np.uint32)])
    text = str(caught.value)
    assert "warps 0-0: line" in text
    assert "1 of 1 arrivals pending" in text
    assert "warps 1-3: line" in text
    assert "barrier 1, 96 of 128 threads arrived (warps [1, 2, 3])" in text
