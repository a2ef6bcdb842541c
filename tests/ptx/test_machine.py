"""Control flow, waiting, memory spaces, many CTAs: small kernels with answers worked out in Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lethe.ptx import Fault, GlobalMemory, Machine, parse, run
from tests.ptx.tensor_kernels import aligned, execute, text

SCHEDULES = ("early", "late", 0, 1, 2)
OUT = "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd1, %rd10;\nst.global.b32 [%rd1], {reg};\n"


def lanes(body: str, threads: int = 128, schedule: str | int = "early", result: str = "%r20") -> np.ndarray:
    """Run ``body`` and return one 32-bit result per thread."""
    out = aligned(np.zeros(threads, np.uint32))
    execute(body + OUT.format(reg=result), [out], threads=threads, schedule=schedule)
    return out


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (3 * n + 1 if n & 1 else n // 2), steps + 1
    return steps


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("threads", [1, 32, 70, 128])
def test_divergent_loop(threads: int, schedule: str | int) -> None:
    """Every lane leaves the loop at its own time, with a branch inside it."""
    body = """
add.s32 %r10, %r0, 1;
mov.b32 %r20, 0;
HEAD: setp.eq.u32 %p3, %r10, 1;
@%p3 bra DONE;
and.b32 %r11, %r10, 1;
setp.eq.u32 %p4, %r11, 0;
@%p4 bra EVEN;
mad.lo.u32 %r10, %r10, 3, 1;
bra NEXT;
EVEN: shr.u32 %r10, %r10, 1;
NEXT: add.s32 %r20, %r20, 1;
bra HEAD;
DONE:
"""
    assert lanes(body, threads, schedule).tolist() == [collatz(i + 1) for i in range(threads)]


def test_lanes_meet_again_after_a_branch() -> None:
    """A shuffle of the whole warp right after a divergent if."""
    body = """
mov.b32 %r20, %r0;
setp.lt.u32 %p3, %r2, 7;
@!%p3 bra MEET;
add.s32 %r20, %r20, 1000;
MEET: shfl.sync.idx.b32 %r20, %r20, 3, 31, -1;
"""
    assert lanes(body, 64).tolist() == [1003] * 32 + [1035] * 32


def test_exited_lanes_do_not_come_back() -> None:
    out = aligned(np.zeros(64, np.uint32))
    body = "setp.ge.u32 %p3, %r2, 9;\n@%p3 exit;\nmov.b32 %r20, 5;\n" + OUT.format(reg="%r20")
    execute(body, [out], threads=64)
    assert out.tolist() == ([5] * 9 + [0] * 23) * 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_memory_exchange(schedule: str | int) -> None:
    body = """
shl.b32 %r4, %r0, 2;
add.s32 %r5, %r3, %r4;
st.shared.b32 [%r5], %r0;
bar.sync 0;
xor.b32 %r6, %r0, 127;
shl.b32 %r6, %r6, 2;
add.s32 %r6, %r6, %r3;
ld.shared.b32 %r20, [%r6];
"""
    assert lanes(body, 128, schedule).tolist() == list(range(127, -1, -1))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_named_barriers_order_producer_and_consumer(schedule: str | int) -> None:
    body = """
@%p2 bra PRODUCE;
bar.sync 1, 128;
ld.shared.b32 %r20, [%r3];
bra END;
PRODUCE: mov.b32 %r20, 42;
st.shared.b32 [%r3], %r20;
bar.arrive 1, 128;
END:
"""
    assert set(lanes(body, 128, schedule).tolist()) == {42}


@pytest.mark.parametrize(
    ("op", "kind", "want"), [("popc.u32", "r", 43), ("or.pred", "p", 1), ("and.pred", "p", 0)]
)
def test_reducing_barrier(op: str, kind: str, want: int) -> None:
    dest = "%r20" if kind == "r" else "%p5"
    body = f"rem.u32 %r4, %r0, 3;\nsetp.eq.u32 %p3, %r4, 0;\nbar.red.{op} {dest}, 0, %p3;\n"
    body += "" if kind == "r" else "selp.b32 %r20, 1, 0, %p5;\n"
    assert set(lanes(body).tolist()) == {want}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mbarrier_state_and_parity(schedule: str | int) -> None:
    """Three phases of a ring between one producer warp and three consumer warps."""
    body = """
@%p1 mbarrier.init.shared.b64 [%r3], 32;
@%p1 mbarrier.init.shared.b64 [%r3+8], 96;
bar.sync 0;
mov.b32 %r20, 0;
mov.b32 %r10, 0;
LOOP: and.b32 %r11, %r10, 1;
xor.b32 %r12, %r11, 1;
@!%p2 bra CONSUME;
FREE: mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], %r12;
@!%p3 bra FREE;
mad.lo.u32 %r13, %r10, 10, 7;
@%p1 st.shared.b32 [%r3+16], %r13;
mbarrier.arrive.shared.b64 _, [%r3];
bra NEXT;
CONSUME:
FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], %r11;
@!%p3 bra FULL;
ld.shared.b32 %r14, [%r3+16];
add.s32 %r20, %r20, %r14;
mbarrier.arrive.shared.b64 %rd3, [%r3+8];
NEXT: add.s32 %r10, %r10, 1;
setp.lt.u32 %p4, %r10, 3;
@%p4 bra LOOP;
"""
    assert lanes(body, 128, schedule)[32:].tolist() == [7 + 17 + 27] * 96


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async_groups(schedule: str | int) -> None:
    """Two groups; the last four bytes of every 16-byte copy of the second are zero filled."""
    source = aligned(np.arange(1024, dtype=np.uint32))
    out = aligned(np.zeros(256, np.uint32))
    body = """
shl.b32 %r4, %r0, 4;
cvt.u64.u32 %rd1, %r4;
add.s64 %rd1, %rd1, %rd10;
add.s32 %r5, %r3, %r4;
cp.async.cg.shared.global [%r5], [%rd1], 16;
cp.async.commit_group;
mov.b32 %r6, 12;
cp.async.ca.shared.global [%r5+2048], [%rd1+2048], 16, %r6;
cp.async.commit_group;
cp.async.wait_group 1;
ld.shared.b32 %r20, [%r5+12];
cp.async.wait_group 0;
ld.shared.v4.b32 {%r21, %r22, %r23, %r24}, [%r5+2048];
add.s32 %r24, %r24, %r23;
mul.wide.u32 %rd1, %r0, 8;
add.s64 %rd1, %rd1, %rd11;
st.global.v2.b32 [%rd1], {%r20, %r24};
"""
    execute(body, [source, out], schedule=schedule)
    assert out[0::2].tolist() == [4 * i + 3 for i in range(128)]
    assert out[1::2].tolist() == [512 + 4 * i + 2 for i in range(128)]


def test_a_cp_async_that_no_lane_executes_copies_nothing() -> None:
    """What a masked load of a tensor becomes where a warp has nothing of it, in a kernel whose generic and
    asynchronous accesses are kept apart."""
    source, out = aligned(np.arange(1024, dtype=np.uint32)), aligned(np.zeros(256, np.uint32))
    body = """
setp.gt.u32 %p1, %r0, 4096;
mov.b32 %r20, 7;
st.shared.b32 [%r3], %r20;
@%p1 cp.async.ca.shared.global [%r3], [%rd10], 4;
cp.async.commit_group;
cp.async.bulk.commit_group;
cp.async.wait_group 0;
bar.sync 0;
ld.shared.b32 %r20, [%r3];
mul.wide.u32 %rd1, %r0, 8;
add.s64 %rd1, %rd1, %rd11;
st.global.b32 [%rd1], %r20;
"""
    execute(body, [source, out])
    assert out[0::2].tolist() == [7] * 128


def test_cp_async_without_wait_is_a_race() -> None:
    source = aligned(np.arange(512, dtype=np.uint32))
    body = (
        "shl.b32 %r4, %r0, 4;\ncvt.u64.u32 %rd1, %r4;\nadd.s64 %rd1, %rd1, %rd10;\nadd.s32 %r5, %r3, %r4;\n"
    )
    body += (
        "cp.async.cg.shared.global [%r5], [%rd1], 16;\ncp.async.commit_group;\nld.shared.b32 %r20, [%r5];\n"
    )
    with pytest.raises(Fault) as caught:
        execute(body, [source], schedule="late")
    assert caught.value.kind == "race"


def test_atomics_serialise_lanes() -> None:
    counter = aligned(np.zeros(4, np.uint32))
    out = aligned(np.zeros(128, np.uint32))
    body = "atom.global.add.u32 %r20, [%rd10], 3;\nred.global.max.u32 [%rd10+4], %r0;\n"
    body += "atom.global.cas.b32 %r21, [%rd10+8], 0, %r0;\n" + OUT.format(reg="%r20").replace(
        "%rd10", "%rd11"
    )
    execute(body, [counter, out])
    assert counter.tolist() == [384, 127, 1, 0]
    assert out.tolist() == [3 * i for i in range(128)]


def test_generic_addresses_and_local_memory() -> None:
    body = """
.local .align 8 .b8 depot[64];
mov.u64 %rd3, depot;
cvta.local.u64 %rd4, %rd3;
mul.wide.u32 %rd5, %r2, 2;
and.b64 %rd5, %rd5, 60;
add.s64 %rd4, %rd4, %rd5;
st.b32 [%rd4], %r0;
cvt.u64.u32 %rd6, %r3;
cvta.shared.u64 %rd7, %rd6;
mul.wide.u32 %rd8, %r0, 4;
add.s64 %rd7, %rd7, %rd8;
ld.b32 %r10, [%rd4];
st.b32 [%rd7], %r10;
cvta.to.shared.u64 %rd9, %rd7;
cvt.u32.u64 %r11, %rd9;
ld.shared.b32 %r20, [%r11];
"""
    assert lanes(body).tolist() == list(range(128))


GRID = """
.version 8.7
.target sm_90a
.address_size 64
.global .align 4 .u32 arrived;
.const .align 4 .u32 table[4] = {10, 20, 30, 40};
.visible .entry k(.param .u64 out, .param .u32 wait)
.reqntid 32, 1, 1
{
.reg .pred %p<4>;
.reg .b32 %r<16>;
.reg .b64 %rd<8>;
ld.param.u64 %rd1, [out];
ld.param.u32 %r1, [wait];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ctaid.y;
mov.u32 %r4, %nctaid.x;
mad.lo.u32 %r5, %r3, %r4, %r2;
mov.u32 %r6, %laneid;
setp.ne.u32 %p1, %r6, 0;
@%p1 bra OUT;
atom.global.add.u32 %r7, [arrived], 1;
SPIN: ld.acquire.gpu.global.u32 %r8, [arrived];
setp.lt.u32 %p2, %r8, %r1;
@%p2 bra SPIN;
OUT: and.b32 %r9, %r5, 3;
shl.b32 %r9, %r9, 2;
mov.u32 %r10, table;
add.s32 %r10, %r10, %r9;
ld.const.u32 %r11, [%r10];
mul.wide.u32 %rd2, %r5, 4;
add.s64 %rd2, %rd2, %rd1;
st.global.u32 [%rd2], %r11;
ret;
}
"""


def launch_grid(wait: int, **options: object) -> list[int]:
    out, memory = np.zeros(6, np.uint32), GlobalMemory()
    run(parse(GRID), "k", (3, 2, 1), (32, 1, 1), [memory.add(out, "out"), wait], memory, **options)
    return out.tolist()


def test_grid_in_sequence() -> None:
    assert launch_grid(0) == [10, 20, 30, 40, 10, 20]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_grid_interleaved_for_ctas_that_wait_for_each_other(schedule: str | int) -> None:
    assert launch_grid(6, interleave=6, schedule=schedule) == [10, 20, 30, 40, 10, 20]


def test_instruction_budget() -> None:
    with pytest.raises(Fault) as caught:
        launch_grid(6, limit=20_000)
    assert caught.value.kind == "limit"


@pytest.mark.parametrize(
    ("block", "params", "kernel", "message"),
    [
        ((64, 1, 1), [0, 0], "k", "requires"),
        ((32, 1, 1), [0], "k", "parameters"),
        ((32, 1, 1), [0, b"\0\0"], "k", "2 bytes given"),
        ((32, 1, 1), [0, 0], "other", "no kernel"),
    ],
)
def test_launch_faults(block: tuple[int, int, int], params: list[object], kernel: str, message: str) -> None:
    with pytest.raises(Fault, match=message) as caught:
        Machine(parse(GRID), kernel, (1, 1, 1), block, params, GlobalMemory())
    assert caught.value.kind == "launch"


def test_poisoned_global_window() -> None:
    data, memory = np.zeros(32, np.uint32), GlobalMemory()
    body = text(OUT.replace("st.global.b32 [%rd1], {reg}", "ld.global.b32 %r20, [%rd1]"), 1)
    address = memory.add(data, "scratch", poison=True)
    with pytest.raises(Fault, match="scratch") as caught:
        run(parse(body), "k", (1, 1, 1), (32, 1, 1), [address], memory)
    assert caught.value.kind == "poison"


def test_read_only_window() -> None:
    data, memory = np.zeros(32, np.uint32), GlobalMemory()
    address = memory.add(data, "weights", writable=False)
    with pytest.raises(Fault, match="read-only weights"):
        run(parse(text(OUT.format(reg="%r0"), 1)), "k", (1, 1, 1), (32, 1, 1), [address], memory)


def test_report_counts_warp_instructions() -> None:
    out = aligned(np.zeros(64, np.uint32))
    memory = GlobalMemory()
    module = parse(text(OUT.format(reg="%r0"), 1))
    report = run(module, "k", (2, 1, 1), (64, 1, 1), [memory.add(out)], memory)
    assert report.ctas == 2
    assert report.instructions == 2 * 2 * len(module.kernels["k"].instructions)
    assert report.counts["st.global.b32"] == 4
    assert report.instructions == sum(report.counts.values())


def test_seeds_repeat() -> None:
    body = "bar.sync 0;\n" * 5
    first, second = (execute(body, [aligned(np.zeros(4, np.uint32))], schedule=9) for _ in range(2))
    assert first.counts == second.counts


def test_every_two_seeds_agree() -> None:
    body = "st.shared.b32 [%r3], 7;\nbar.sync 0;\nld.shared.b32 %r20, [%r3];\n"
    results = [lanes(body, schedule=s).tolist() for s in range(20)]
    assert all(a == b for a, b in itertools.pairwise(results))


def test_short_branches_are_predicated_and_counted_by_the_warps_that_enter() -> None:
    """One lane of warp 0 enters the body; the instruction inside counts once, not four times."""
    body = "mov.b32 %r20, 1;\n@!%p1 bra SKIP;\nadd.s32 %r20, %r20, 6;\nxor.b32 %r20, %r20, 8;\nSKIP:\n"
    out = aligned(np.zeros(128, np.uint32))
    report = execute(body + OUT.format(reg="%r20"), [out])
    assert out.tolist() == [15] + [1] * 127
    assert report.counts["add.s32"] == report.counts["xor.b32"] == 1
    assert report.instructions == sum(report.counts.values())
