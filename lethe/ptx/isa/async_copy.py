"""Asynchronous copies without tensor maps: PTX ISA 9.7.9.25.3 (cp.async) and 9.7.9.25.4 (cp.async.bulk)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.atomics import combiner
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Imm, Instruction, Reg

_SHARED = ("shared", "shared::cta", "shared::cluster")


@instruction("cp.async.ca", "cp.async.cg", section="9.7.9.25.3.1", dests=0)
def cp_async(e: Emit, ins: Instruction) -> None:
    """cp.async.{ca,cg}.shared.global [dst], [src], cp-size {, src-size | ignore-src}."""
    e.flag("async", "ca", "cg", "global", *_SHARED)
    e.prefixed("L2::")
    d, s, size, *rest = ins.operands
    assert isinstance(size, Imm)
    if size.value not in (4, 8, 16) or (ins.has("cg") and size.value != 16):
        e.refuse(f"copy size {size.value}")
    source = "None"
    if rest and isinstance(rest[0], Reg) and rest[0].type == "pred":
        ignore = e.src(rest[0], "pred")
        source = e.let(f"{e.obj(np.where)}({ignore}, 0, {size.value})")
    elif rest and not (isinstance(rest[0], Reg) and rest[0].type == "b64"):
        source = e.src(rest[0], "u32")
    e.line(
        f"{e.cta('copies.copy')}({e.index}, {e.rows}, {e.address(d)}, {e.address(s)}, {size.value}, "
        f"{source}, {e.m})"
    )


@instruction("cp.async.commit_group", section="9.7.9.25.3.2", dests=0)
def commit(e: Emit, ins: Instruction) -> None:
    """Close the cp.async group."""
    e.flag("async", "commit_group")
    e.line(f"{e.cta('copies.copy_commit')}({e.rows}, {e.m})")


@instruction("cp.async.wait_group", "cp.async.wait_all", section="9.7.9.25.3.3", dests=0)
def wait(e: Emit, ins: Instruction) -> None:
    """Wait for all but the newest N groups, or for everything."""
    e.flag("async", "wait_group", "wait_all")
    n = ins.operands[0].value if ins.operands else None  # type: ignore[union-attr]
    e.line(f"{e.cta('copies.copy_wait')}({e.rows}, {n}, {e.m})")


@instruction("cp.async.mbarrier.arrive", section="9.7.13.15.15", dests=0)
def arrive(e: Emit, ins: Instruction) -> None:
    """Arrive once the thread's earlier cp.async operations are complete."""
    e.flag("async", "mbarrier", "arrive", "b64", *_SHARED)
    counted = e.flag("noinc")
    e.line(
        f"{e.cta('copies.copy_signal')}({e.index}, {e.rows}, {e.address(ins.operands[0])}, {counted}, {e.m})"
    )


@instruction("cp.async.bulk.commit_group", section="9.7.9.27.2.1", dests=0)
def bulk_commit(e: Emit, ins: Instruction) -> None:
    """Close the bulk group."""
    e.flag("async", "bulk", "commit_group")
    e.line(f"{e.cta('copies.commit')}({e.rows}, 'bulk', {e.m})")


@instruction("cp.async.bulk.wait_group", section="9.7.9.27.2.2", dests=0)
def bulk_wait(e: Emit, ins: Instruction) -> None:
    """Wait for bulk groups, or only for their reads."""
    e.flag("async", "bulk", "wait_group")
    read = e.flag("read")
    n = ins.operands[0]
    assert isinstance(n, Imm)
    e.line(f"{e.cta('copies.wait')}({e.rows}, 'bulk', {n.value}, {read}, {e.m})")


@instruction("cp.async.bulk", section="9.7.9.25.4.1", dests=0)
def bulk(e: Emit, ins: Instruction) -> None:
    """cp.async.bulk: global -> shared with an mbarrier, or shared -> global in the bulk group."""
    e.flag("async", "bulk", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint")
    spaces = [m for m in ins.modifiers if m in (*_SHARED, "global")]
    e.flag(*_SHARED, "global")
    if len(spaces) != 2 or spaces[0] == spaces[1] or "global" not in spaces:
        e.refuse("bulk copy between these spaces")
    d, s, size, *rest = ins.operands
    args = f"{e.index}, {e.rows}, {e.address(d)}, {e.address(s)}, {e.src(size, 'u32')}"
    if spaces[0] == "global":
        e.line(f"{e.cta('copies.bulk_store')}({args}, None, {e.m})")
    else:
        e.line(f"{e.cta('copies.bulk_load')}({args}, {e.address(rest[0])}, {e.m})")


@instruction("cp.reduce.async.bulk", section="9.7.9.25.4.2", dests=0)
def reduce_bulk(e: Emit, ins: Instruction) -> None:
    """cp.reduce.async.bulk shared -> global."""
    e.flag("reduce", "async", "bulk", "bulk_group", "L2::cache_hint", "noftz", *_SHARED, "global")
    op = e.choice("add", "min", "max", "inc", "dec", "and", "or", "xor")
    kind = e.type()
    view = "u" + kind[1:] if kind[0] == "b" and not kind.startswith("bf") else kind
    d, s, size = ins.operands[:3]
    args = f"{e.index}, {e.rows}, {e.address(d)}, {e.address(s)}, {e.src(size, 'u32')}"
    e.line(
        f"{e.cta('copies.bulk_store')}({args}, {e.obj(_on_bytes(combiner(op, kind), VIEWS[view][0]))}, {e.m})"
    )


def _on_bytes(func: Callable[..., Any], dtype: str) -> Callable[[Array, Array], Array]:
    def combine(old: Array, new: Array) -> Array:
        out = np.asarray(func(old.view(dtype), new.view(dtype)))
        return np.ascontiguousarray(out, dtype).view(np.uint8)

    return combine


@instruction("cp.async.bulk.prefetch", section="9.7.9.25.4.3", dests=0)
def bulk_prefetch(e: Emit, ins: Instruction) -> None:
    """A prefetch has no effect on results."""
    e.flag(*ins.modifiers)
