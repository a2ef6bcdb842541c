"""Fifth-generation tensor core: PTX ISA 9.7.16 (alloc, mma, cp, commit, ld, st, wait, fence)."""

from __future__ import annotations

from lethe.ptx import tcgen05
from lethe.ptx.emit import Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.isa.warp import aligned
from lethe.ptx.syntax import Address, Imm, Instruction, Operand, Reg, Vector

_SHARED = ("shared", "shared::cta", "shared::cluster")
_LD_SHAPES = ("16x64b", "16x128b", "16x256b", "32x32b", "16x32bx2")
_COUNTS = tuple(f"x{2**i}" for i in range(8))


def _address_or_reg(e: Emit, operand: Operand) -> str:
    return e.address(operand, "u32") if isinstance(operand, Address) else e.src(operand, "u32")


@instruction(
    "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit", section="9.7.16.7.1", dests=0
)
def lifetime(e: Emit, ins: Instruction) -> None:
    """Allocation, deallocation, and giving up the permit; warp-synchronous."""
    tcgen05.refuse(ins.modifiers)
    op = e.choice("alloc", "dealloc", "relinquish_alloc_permit")
    e.flag("cta_group::1", "sync", "aligned", "b32", *_SHARED)
    e.line(f"{e.obj(aligned)}({e.m})")
    if op == "relinquish_alloc_permit":
        e.line(f"{e.cta('tensor.relinquish')}({e.rows}, {e.m})")
        return
    a, n = ins.operands
    e.line(f"{e.cta('tensor.' + op)}({e.rows}, {_address_or_reg(e, a)}, {e.src(n, 'u32')}, {e.m})")


@instruction("tcgen05.mma", section="9.7.16.10.9.1", dests=0)
def mma(e: Emit, ins: Instruction) -> None:
    """tcgen05.mma.cta_group::1.kind [d], a, b, idesc {, disable lanes}, enable {, scale}."""
    tcgen05.refuse(ins.modifiers)
    e.flag("mma", "cta_group::1")
    kind = e.prefixed("kind::")[0].split("::")[1]
    e.prefixed("collector::")
    d, a, b, idesc, *rest = ins.operands
    disabled = e.items(rest.pop(0)) if rest and isinstance(rest[0], Vector) else ()
    enable = rest.pop(0)
    scale = rest[0].value if rest and isinstance(rest[0], Imm) else 0
    in_tmem = isinstance(a, Address)
    left = e.address(a, "u32") if in_tmem else e.src(a, "u64")
    lanes = "[" + ", ".join(e.src(r, "u32") for r in disabled) + "]"
    e.line(
        f"{e.cta('tensor.mma')}({e.index}, {e.rows}, {kind!r}, {e.address(d, 'u32')}, {left}, "
        f"{e.src(b, 'u64')}, "
        f"{e.src(idesc, 'u32')}, {e.src(enable, 'pred')}, {in_tmem}, {scale}, {lanes}, {e.m})"
    )


@instruction("tcgen05.cp", section="9.7.16.9.2", dests=0)
def cp(e: Emit, ins: Instruction) -> None:
    """tcgen05.cp.shape {multicast} [taddr], s-desc."""
    tcgen05.refuse(ins.modifiers)
    e.flag("cp", "cta_group::1")
    shape = e.choice("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
    mods = tuple(e.prefixed("warpx"))
    a, desc = ins.operands
    e.line(
        f"{e.cta('tensor.copy')}({e.index}, {e.rows}, {shape!r}, {mods!r}, {_address_or_reg(e, a)}, "
        f"{e.src(desc, 'u64')}, {e.m})"
    )


@instruction("tcgen05.commit", section="9.7.16.12.1", dests=0)
def commit(e: Emit, ins: Instruction) -> None:
    """tcgen05.commit: an mbarrier arrival when all earlier operations of the thread are complete."""
    tcgen05.refuse(ins.modifiers)
    e.flag("commit", "cta_group::1", "mbarrier::arrive::one", "b64", *_SHARED)
    e.line(f"{e.cta('tensor.commit')}({e.index}, {e.rows}, {e.address(ins.operands[0])}, {e.m})")


@instruction("tcgen05.ld", section="9.7.16.8.3", late=True)
def ld(e: Emit, ins: Instruction) -> None:
    """tcgen05.ld.sync.aligned.shape.num{.pack} r, [taddr] {, half offset}."""
    e.flag("ld", "sync", "aligned", "b32")
    shape, num = e.choice(*_LD_SHAPES), int(e.choice(*_COUNTS)[1:])
    pack = e.flag("pack::16b")
    r, a, *rest = ins.operands
    offset = rest[0].value if rest and isinstance(rest[0], Imm) else None
    names = tuple(item.name for item in e.items(r) if isinstance(item, Reg))
    e.line(f"{e.obj(aligned)}({e.m})")
    e.line(
        f"{e.cta('tensor.load')}({e.index}, {e.rows}, {_address_or_reg(e, a)}, {shape!r}, {num}, "
        f"{pack}, {offset}, "
        f"{e.reglist(r, 'u32')}, {e.obj(names)}, {e.m})"
    )


@instruction("tcgen05.st", section="9.7.16.8.4", dests=0)
def st(e: Emit, ins: Instruction) -> None:
    """tcgen05.st.sync.aligned.shape.num{.unpack} [taddr] {, half offset}, r."""
    e.flag("st", "sync", "aligned", "b32")
    shape, num = e.choice(*_LD_SHAPES), int(e.choice(*_COUNTS)[1:])
    unpack = e.flag("unpack::16b")
    a, *rest = ins.operands
    offset = rest[0].value if isinstance(rest[0], Imm) else None
    e.line(f"{e.obj(aligned)}({e.m})")
    e.line(
        f"{e.cta('tensor.store')}({e.index}, {e.rows}, {_address_or_reg(e, a)}, {shape!r}, {num}, {unpack}, "
        f"{offset}, {e.srclist(rest[-1], 'u32')}, {e.m})"
    )


@instruction("tcgen05.wait::ld", "tcgen05.wait::st", section="9.7.16.8.5", dests=0)
def wait(e: Emit, ins: Instruction) -> None:
    """tcgen05.wait::{ld,st}.sync.aligned."""
    which = e.choice("wait::ld", "wait::st")
    e.flag("sync", "aligned")
    e.line(f"{e.obj(aligned)}({e.m})")
    e.line(f"{e.cta('tensor.wait_load' if which == 'wait::ld' else 'tensor.wait_store')}({e.rows}, {e.m})")


@instruction(
    "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", section="9.7.16.11.1", dests=0
)
def fence(e: Emit, ins: Instruction) -> None:
    """Code-motion fences around thread synchronisation."""
    which = e.choice("fence::before_thread_sync", "fence::after_thread_sync")
    e.line(f"{e.cta('tensor.fence')}({e.rows}, {'before' in which}, {e.m})")
