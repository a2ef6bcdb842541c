"""Warp-wide exchange: PTX ISA 9.7.9.6 (shfl.sync), 9.7.13.9-14 (vote, match, redux, elect, activemask).

Every one names the lanes that must take part; lanes of the mask that are not here make it a divergence
fault.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lethe.ptx.emit import Array, Emit
from lethe.ptx.faults import Fault
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Imm, Instruction, Pair, Sink

_LANES = np.arange(32, dtype=np.int64)
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def active_lanes(mask: Array | None, shape: tuple[int, ...]) -> Array:
    """Mask as an array."""
    return np.ones(shape, bool) if mask is None else mask


def converged(members: Array, mask: Array | None) -> None:
    """Check that all lanes of every executing lane's membermask are executing."""
    if mask is None:
        return
    here = (mask * _BITS).sum(axis=1, dtype=np.uint32)[:, None]
    bad = mask & ((members & ~here) != 0)
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        want = int(members[row][mask[row]][0])
        raise Fault(
            "divergence",
            f"member mask {want:#010x} names lanes that are not here: only {int(here[row, 0]):#010x} execute",
        )


def aligned(mask: Array | None) -> None:
    """Check that warps are whole (``.aligned`` instructions without a mask operand)."""
    if mask is not None:
        part = mask.any(axis=1) & ~mask.all(axis=1)
        if part.any():
            row = int(np.argmax(part))
            raise Fault(
                "divergence", f"only {int(mask[row].sum())} of 32 lanes execute a .sync.aligned instruction"
            )


def shuffle(mode: str, values: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Values and in-range predicate of shfl.sync (pseudo code of 9.7.9.6)."""
    bound = (c & np.uint32(31)).astype(np.int64)
    segment = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
    offset = (b & np.uint32(31)).astype(np.int64)
    low = _LANES & segment
    high = low | (bound & ~segment)
    if mode == "up":
        source = _LANES - offset
        valid = source >= high
    elif mode == "down":
        source = _LANES + offset
        valid = source <= high
    elif mode == "bfly":
        source = _LANES ^ offset
        valid = source <= high
    else:
        source = low | (offset & ~segment)
        valid = source <= high
    source = np.where(valid, source, _LANES)
    return np.take_along_axis(values, np.broadcast_to(source, values.shape), axis=1), valid


@instruction("shfl.sync", section="9.7.9.6")
def shfl(e: Emit, ins: Instruction) -> None:
    """shfl.sync.mode.b32 d{|p}, a, b, c, membermask; reading a lane that does not execute is a fault."""
    e.flag("sync")
    mode = e.choice("up", "down", "bfly", "idx")
    e.type(("b32",))

    def run(values: Array, b: Array, c: Array, members: Array, mask: Array | None) -> tuple[Array, Array]:
        converged(members, mask)
        out, valid = shuffle(mode, values, b, c)
        return out, np.broadcast_to(valid, out.shape)

    d, a, b, c, members = ins.operands
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
    if isinstance(b, Imm) and isinstance(c, Imm) and isinstance(second, Sink) and not isinstance(first, Sink):
        lanes = np.arange(32, dtype=np.uint32)[None, :]
        constants = (np.full((1, 32), x.value & 0xFFFFFFFF, np.uint32) for x in (b, c))
        source = e.obj(shuffle(mode, lanes, *constants)[0][0].astype(np.int64))
        if e.mask is not None:
            e.line(f"{e.obj(converged)}({e.src(members, 'u32')}, {e.m})")
        e.put(first, "u32", f"{e.src(a, 'u32')}.take({source}, 1)")
        return
    args = ", ".join(e.src(x, "u32") for x in (a, b, c, members))
    out = e.let(f"{e.obj(run)}({args}, {e.m})")
    if not isinstance(first, Sink):
        e.put(first, "u32", f"{out}[0]")
    if not isinstance(second, Sink):
        e.put(second, "pred", f"{out}[1]")


@instruction("vote.sync", section="9.7.13.9")
def vote(e: Emit, ins: Instruction) -> None:
    """vote.sync.{all,any,uni}.pred and .ballot.b32."""
    e.flag("sync")
    mode = e.choice("all", "any", "uni", "ballot")
    e.type(("pred", "b32"))

    def run(p: Array, members: Array, mask: Array | None) -> Array:
        converged(members, mask)
        chosen: Array = (members[:, :1] & _BITS).astype(bool) if mask is None else mask
        if mode == "ballot":
            return np.broadcast_to(((p & chosen) * _BITS).sum(axis=1, dtype=np.uint32)[:, None], p.shape)
        every: Array = np.logical_and.reduce(p | ~chosen, axis=1)
        some: Array = np.logical_or.reduce(p & chosen, axis=1)
        out: Array = {"all": every, "any": some, "uni": every | ~some}[mode]
        return np.broadcast_to(out[:, None], p.shape)

    d, a, members = ins.operands
    call = f"{e.obj(run)}({e.src(a, 'pred')}, {e.src(members, 'u32')}, {e.m})"
    e.put(d, "u32" if mode == "ballot" else "pred", call)


@instruction("match", section="9.7.13.10")
def match(e: Emit, ins: Instruction) -> None:
    """match.any.sync and match.all.sync."""
    mode = e.choice("any", "all")
    e.flag("sync")
    view = "u" + e.type(("b32", "b64"))[1:]

    def run(values: Array, members: Array, mask: Array | None) -> tuple[Array, Array]:
        converged(members, mask)
        inside = (members[:, :, None] & _BITS) != 0
        same = (values[:, :, None] == values[:, None, :]) & inside
        found = (same * _BITS).sum(axis=2, dtype=np.uint32)
        if mode == "any":
            return found, np.ones(found.shape, bool)
        every = found == members
        return np.where(every, members, np.uint32(0)), every

    d, a, members = ins.operands
    out = e.let(f"{e.obj(run)}({e.src(a, view)}, {e.src(members, 'u32')}, {e.m})")
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
    e.put(first, "u32", f"{out}[0]")
    if not isinstance(second, Sink):
        e.put(second, "pred", f"{out}[1]")


@instruction("redux.sync", section="9.7.13.12")
def redux(e: Emit, ins: Instruction) -> None:
    """redux.sync: add, min, max, and, or, xor on 32-bit integers; min and max on fp32."""
    e.flag("sync")
    op = e.choice("add", "min", "max", "and", "or", "xor")
    absolute, quiet = e.flag("abs"), e.flag("NaN")
    kind = e.type(("u32", "s32", "b32", "f32"))
    view = "u32" if kind == "b32" else kind
    funcs: dict[str, np.ufunc] = {
        "add": np.add,
        "min": np.minimum if quiet else np.fmin,
        "max": np.maximum if quiet else np.fmax,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }

    def run(values: Array, members: Array, mask: Array | None) -> Array:
        converged(members, mask)
        values = np.abs(values) if absolute else values
        out = values.copy()
        for row in range(values.shape[0]):
            chosen = (members[row, 0 if mask is None else int(np.argmax(mask[row]))] & _BITS) != 0
            if mask is None or mask[row].any():
                out[row] = funcs[op].reduce(values[row][chosen], dtype=values.dtype)
        return out

    d, a, members = ins.operands
    e.put(d, view, f"{e.obj(run)}({e.src(a, view)}, {e.src(members, 'u32')}, {e.m})")


@instruction("elect", section="9.7.13.14")
def elect(e: Emit, ins: Instruction) -> None:
    """elect.sync: the lowest lane of the member mask leads."""
    e.flag("sync")

    def run(members: Array, mask: Array | None) -> tuple[Array, Array]:
        converged(members, mask)
        low = members & (~members + np.uint32(1))
        leader = np.log2(low.astype(np.float64)).astype(np.uint32)
        return leader, np.equal(leader, _LANES)

    d, members = ins.operands
    assert isinstance(d, Pair)
    if isinstance(members, Imm):
        want = members.value & 0xFFFFFFFF
        lead = (want & -want).bit_length() - 1
        if e.mask is not None:
            e.line(f"{e.obj(converged)}({e.src(members, 'u32')}, {e.m})")
        if not isinstance(d.first, Sink):
            e.put(d.first, "u32", str(lead))
        e.put(d.second, "pred", e.obj(np.eye(32, dtype=bool)[lead : lead + 1]))
        return
    out = e.let(f"{e.obj(run)}({e.src(members, 'u32')}, {e.m})")
    if not isinstance(d.first, Sink):
        e.put(d.first, "u32", f"{out}[0]")
    e.put(d.second, "pred", f"{out}[1]")


@instruction("activemask", section="9.7.13.11")
def activemask(e: Emit, ins: Instruction) -> None:
    """Lanes that execute now."""
    e.type(("b32",))

    def run(mask: Array | None, like: Array) -> Array:
        lanes = active_lanes(mask, like.shape)
        return np.broadcast_to((lanes * _BITS).sum(axis=1, dtype=np.uint32)[:, None], like.shape)

    d = ins.operands[0]
    e.put(d, "u32", f"{e.obj(run)}({e.m}, {e.dst(d, 'u32')})")


@instruction("bar.warp.sync", section="9.7.13.2", dests=0)
def warp_barrier(e: Emit, ins: Instruction) -> None:
    """bar.warp.sync membermask: warps run in step, so only the mask is checked."""
    e.flag("warp", "sync")
    check: Callable[..., None] = converged
    e.line(f"{e.obj(check)}({e.src(ins.operands[0], 'u32')}, {e.m})")
