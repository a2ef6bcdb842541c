"""Small hand-written kernels for tests of single tensor instructions on the machine.

A kernel takes pointers only (``%rd10``, ``%rd11``, ... in order) and has dynamic shared memory at ``%r3``;
``%r0`` is the thread, ``%r1`` its warp, ``%r2`` its lane, ``%p1`` thread 0, ``%p2`` warp 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lethe.ptx import GlobalMemory, Report, parse, run

MBARRIER, SLOT, TILE = 0, 16, 1024
"""Shared offsets: an mbarrier, a 4-byte slot for the tensor-memory address, and the data."""


def aligned(data: np.ndarray, boundary: int = 128) -> np.ndarray:
    """A copy of `data` whose address is a multiple of `boundary`."""
    room = np.zeros(data.nbytes + boundary, np.uint8)
    start = -room.ctypes.data % boundary
    copy = room[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    copy[...] = data
    return copy


def text(body: str, pointers: int, target: str = "sm_100a") -> str:
    """PTX of a kernel ``k`` around `body`."""
    params = ", ".join(f".param .u64 p{i}" for i in range(pointers))
    loads = "\n".join(f"ld.param.u64 %rd{10 + i}, [p{i}];" for i in range(pointers))
    return f"""
.version 8.7
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({params})
{{
.reg .pred %p<10>;
.reg .b16 %h<10>;
.reg .b32 %r<400>;
.reg .b64 %rd<40>;
{loads}
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
and.b32 %r2, %r0, 31;
mov.u32 %r3, smem;
setp.eq.u32 %p1, %r0, 0;
setp.eq.u32 %p2, %r1, 0;
{body}
ret;
}}
"""


def execute(
    body: str,
    arrays: Sequence[np.ndarray],
    threads: int = 128,
    target: str = "sm_100a",
    schedule: str | int = "early",
    shared: int = 128 << 10,
) -> Report:
    """Run a kernel on one CTA; `arrays` are its pointers and are written in place."""
    memory = GlobalMemory()
    params = [memory.add(array, name=f"p{i}") for i, array in enumerate(arrays)]
    module = parse(text(body, len(arrays), target))
    return run(
        module,
        "k",
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        params=params,
        memory=memory,
        dynamic_shared=shared,
        schedule=schedule,
    )


def copy_in(pointer: int, nbytes: int, threads: int = 128, offset: int = TILE) -> str:
    """Copy `nbytes` from pointer `pointer` to shared memory and publish them to the async proxy."""
    return f"""
shl.b32 %r4, %r0, 4;
IN{pointer}:
setp.ge.u32 %p9, %r4, {nbytes};
@%p9 bra DONE_IN{pointer};
cvt.u64.u32 %rd1, %r4;
add.s64 %rd1, %rd1, %rd{10 + pointer};
ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%rd1];
add.s32 %r9, %r3, %r4;
st.shared.v4.b32 [%r9+{offset}], {{%r5, %r6, %r7, %r8}};
add.s32 %r4, %r4, {16 * threads};
bra IN{pointer};
DONE_IN{pointer}:
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def copy_out(pointer: int, nbytes: int, threads: int = 128, offset: int = TILE) -> str:
    """Copy `nbytes` of shared memory to pointer `pointer`."""
    return f"""
shl.b32 %r4, %r0, 4;
OUT{pointer}:
setp.ge.u32 %p9, %r4, {nbytes};
@%p9 bra DONE_OUT{pointer};
add.s32 %r9, %r3, %r4;
ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%r9+{offset}];
cvt.u64.u32 %rd1, %r4;
add.s64 %rd1, %rd1, %rd{10 + pointer};
st.global.v4.b32 [%rd1], {{%r5, %r6, %r7, %r8}};
add.s32 %r4, %r4, {16 * threads};
bra OUT{pointer};
DONE_OUT{pointer}:
"""


def mbarrier(expected: int = 1) -> str:
    """Initialise the mbarrier."""
    return f"""
@%p1 mbarrier.init.shared.b64 [%r3+{MBARRIER}], {expected};
fence.mbarrier_init.release.cluster;
bar.sync 0;
"""


def wait(phase: int = 0, label: str = "WAIT") -> str:
    """Every thread spins on the mbarrier's phase."""
    return f"""
{label}:
mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3+{MBARRIER}], {phase};
@!%p9 bra {label};
"""


def alloc(columns: int = 512) -> str:
    """Warp 0 allocates; every thread gets the address in %r10."""
    return f"""
@!%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+{SLOT}], {columns};
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.b32 %r10, [%r3+{SLOT}];
"""


def dealloc(columns: int = 512) -> str:
    """Warp 0 frees the columns at %r10 after everybody is done."""
    return f"""
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
@!%p2 bra FREED;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, {columns};
FREED:
"""


def own_lanes() -> str:
    """Tensor-memory address of the warp's own 32 lanes in %r11."""
    return """
shl.b32 %r11, %r1, 21;
add.s32 %r11, %r11, %r10;
"""


def synchronise() -> str:
    """Order tensor-memory work of all warps around a barrier."""
    return """
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
"""


def registers(first: int, count: int) -> str:
    """A vector operand of `count` 32-bit registers."""
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def load_registers(pointer: int, first: int, count: int) -> str:
    """Registers of this thread from uint32[threads, count] at a pointer."""
    lines = [f"mul.wide.u32 %rd2, %r0, {4 * count};", f"add.s64 %rd2, %rd2, %rd{10 + pointer};"]
    lines += [f"ld.global.b32 %r{first + i}, [%rd2+{4 * i}];" for i in range(count)]
    return "\n".join(lines) + "\n"


def store_registers(pointer: int, first: int, count: int) -> str:
    """Registers of this thread to uint32[threads, count] at a pointer."""
    lines = [f"mul.wide.u32 %rd2, %r0, {4 * count};", f"add.s64 %rd2, %rd2, %rd{10 + pointer};"]
    lines += [f"st.global.b32 [%rd2+{4 * i}], %r{first + i};" for i in range(count)]
    return "\n".join(lines) + "\n"
