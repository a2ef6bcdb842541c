"""Fences, register budget, dependent launch, cluster helpers: PTX ISA 9.7.13.4, 9.7.13.13 and 9.7.19."""

from __future__ import annotations

from lethe.ptx.emit import Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.isa.warp import aligned
from lethe.ptx.syntax import Imm, Instruction


@instruction("membar", "fence", section="9.7.13.4", dests=0)
def fence(e: Emit, ins: Instruction) -> None:
    """Memory fences: execution is sequentially consistent already; proxy fences publish generic writes."""
    name = ins.name
    e.flag(*ins.modifiers)
    if name.startswith("fence.proxy.async"):
        e.line(f"{e.cta('sync.proxy_fence')}({e.rows}, {e.m})")
    known: tuple[str, ...] = (
        "sc",
        "acq_rel",
        "acquire",
        "release",
        "mbarrier_init",
        "proxy",
        "cta",
        "gl",
        "sys",
        "gpu",
        "cluster",
    )
    known += ("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    if ins.modifiers and ins.modifiers[0] not in known:
        e.refuse("fence")


@instruction("setmaxnreg", section="9.7.19.5", dests=0)
def setmaxnreg(e: Emit, ins: Instruction) -> None:
    """setmaxnreg.{inc,dec}: a multiple of 8 in [24, 256]; the register file is not modelled."""
    e.choice("inc", "dec")
    e.flag("sync", "aligned", "u32")
    count = ins.operands[0]
    if not isinstance(count, Imm) or not 24 <= count.value <= 256 or count.value % 8:
        e.refuse("register count")
    e.line(f"{e.obj(aligned)}({e.m})")


@instruction("griddepcontrol", section="9.7.13.13", dests=0)
def griddep(e: Emit, ins: Instruction) -> None:
    """One grid runs at a time: prerequisites are complete."""
    e.choice("launch_dependents", "wait")


@instruction("mapa", section="9.7.9.23", copies=True)
def mapa(e: Emit, ins: Instruction) -> None:
    """Address in the shared memory of a CTA of the cluster; only rank 0 exists."""
    e.prefixed("shared")
    view = "u" + e.type(("u32", "u64"))[1:]
    d, a, rank = ins.operands
    if not (isinstance(rank, Imm) and rank.value == 0):
        e.line(f"{e.cta('sync.only_rank_zero')}({e.src(rank, 'u32')}, {e.m})")
    e.put(d, view, e.src(a, view))


@instruction("getctarank", section="9.7.9.24")
def getctarank(e: Emit, ins: Instruction) -> None:
    """Rank of the CTA that owns an address: 0 in a cluster of one."""
    e.prefixed("shared", "u32", "u64")
    e.put(ins.operands[0], "u32", "0")


@instruction("alloca", "stacksave", "stackrestore", section="9.7.17.1-3", dests=1)
def stack(e: Emit, ins: Instruction) -> None:
    """Dynamic stack allocation has no user among the modelled compilers."""
    e.refuse("stack manipulation")
