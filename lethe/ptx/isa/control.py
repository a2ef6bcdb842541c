"""Control flow: PTX ISA 9.7.12 (bra, call, ret, exit) and 9.7.19 (trap, brkpt, nanosleep, pmevent)."""

from __future__ import annotations

from lethe.ptx.emit import Emit
from lethe.ptx.faults import Fault
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Instruction, Symbol


@instruction("bra", section="9.7.12.3", dests=0, ends=True)
def bra(e: Emit, ins: Instruction) -> None:
    """Branch; the machine splits or masks the warps by the returned mask of lanes that take it."""
    e.flag("uni")
    e.end = ("bra", ins.target, ins.guard is not None)
    e.line(f"return {e.m}")


@instruction("ret", "exit", section="9.7.12.6-7", dests=0, ends=True)
def leave(e: Emit, ins: Instruction) -> None:
    """End of the thread: a kernel has no caller."""
    e.flag("uni")
    e.end = ("exit", ins.guard is not None)
    e.line(f"return {e.m}")


@instruction("trap", section="9.7.19.4", dests=0)
def trap(e: Emit, ins: Instruction) -> None:
    """trap is a fault, not a hang."""
    e.line(f"{e.obj(_trap)}({e.m})")


def _trap(mask: object) -> None:
    if mask is None or mask.any():  # type: ignore[attr-defined]
        raise Fault("trap", "the kernel executed trap")


@instruction("call", section="9.7.12.5", dests=0)
def call(e: Emit, ins: Instruction) -> None:
    """Only the runtime's hooks exist: a failing assertion traps, printing is ignored."""
    e.flag("uni")
    names = {o.name for o in ins.operands if isinstance(o, Symbol)}
    if "__assertfail" in names:
        e.line(f"{e.obj(_assertion)}({e.m})")
    elif "vprintf" not in names:
        e.refuse("call")


def _assertion(mask: object) -> None:
    if mask is None or mask.any():  # type: ignore[attr-defined]
        raise Fault("trap", "a device-side assertion failed")


@instruction("brkpt", "pmevent", "nanosleep", section="9.7.19.1-3", dests=0)
def nothing(e: Emit, ins: Instruction) -> None:
    """No effect on results: time is not modelled."""
    e.flag("mask", "u32")
