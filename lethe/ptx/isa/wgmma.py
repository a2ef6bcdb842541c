"""Warpgroup matrix multiply: PTX ISA 9.7.15 (wgmma.mma_async, fence, commit_group, wait_group)."""

from __future__ import annotations

from lethe.ptx.emit import Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.isa.warp import aligned
from lethe.ptx.syntax import Imm, Instruction, Operand, Reg, Vector


@instruction("wgmma.mma_async", section="9.7.15.5.2", inout=True, late=True, warpgroup=True)
def mma_async(e: Emit, ins: Instruction) -> None:
    """wgmma.mma_async.sync.aligned.shape.dtype.atype.btype d, a, b, scale-d {, imm-scales, transposes}."""
    if ins.has("sp"):
        e.refuse("sparse wgmma")
    e.flag("mma_async", "sync", "aligned")
    shape = e.prefixed("m64n")[0]
    b_type, a_type, d_type = e.type(), e.type(), e.type()
    d, a, b, scale_d, *rest = ins.operands
    numbers = [o.value for o in rest if isinstance(o, Imm)]
    scales = (numbers[0], numbers[1]) if len(numbers) >= 2 else (1, 1)
    flips = numbers[2:]
    transposes = (0, flips[0]) if len(flips) == 1 else (flips[0], flips[1]) if flips else (0, 0)
    left = e.srclist(a, "u32") if isinstance(a, Vector) else e.src(a, "u64")
    names = tuple(r.name for o in (d, a) for r in _registers(o))
    e.line(
        f"{e.cta('tensor.wgmma')}({e.index}, {e.rows}, {(shape, d_type, a_type, b_type)!r}, "
        f"{e.srclist(d, 'u32')}, {left}, {e.src(b, 'u64')}, {e.src(scale_d, 'pred')}, {scales!r}, "
        f"{transposes!r}, {e.obj(names)}, {e.m})"
    )


def _registers(operand: Operand) -> list[Reg]:
    return [r for r in operand.items if isinstance(r, Reg)] if isinstance(operand, Vector) else []


@instruction("wgmma.fence", section="9.7.15.7.1", dests=0, warpgroup=True)
def fence(e: Emit, ins: Instruction) -> None:
    """Orders register accesses with wgmma.mma_async."""
    e.flag("fence", "sync", "aligned")
    e.line(f"{e.obj(aligned)}({e.m})")
    e.line(f"{e.cta('tensor.wgmma_fence')}({e.rows})")


@instruction("wgmma.commit_group", section="9.7.15.7.2", dests=0, warpgroup=True)
def commit(e: Emit, ins: Instruction) -> None:
    """Close the wgmma group."""
    e.flag("commit_group", "sync", "aligned")
    e.line(f"{e.cta('tensor.wgmma_commit')}({e.rows}, {e.m})")


@instruction("wgmma.wait_group", section="9.7.15.7.3", dests=0, warpgroup=True)
def wait(e: Emit, ins: Instruction) -> None:
    """Wait until at most N groups are pending."""
    e.flag("wait_group", "sync", "aligned")
    n = ins.operands[0]
    assert isinstance(n, Imm)
    e.line(f"{e.cta('tensor.wgmma_wait')}({e.rows}, {n.value}, {e.m})")
