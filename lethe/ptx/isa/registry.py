"""The table from opcode to semantics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lethe.ptx.emit import Emit
from lethe.ptx.faults import Fault
from lethe.ptx.syntax import Instruction, Operand, Pair, Reg, Vector

Writer = Callable[[Emit, Instruction], None]


@dataclass(frozen=True)
class Entry:
    """How an instruction is executed.

    Attributes:
        write: emits the instruction's source.
        section: the section of PTX ISA 9.1 that defines it; numbers move between editions.
        dests: how many leading operands are destinations (0 or 1).
        inout: whether the destination is read as well.
        ends: whether it ends a basic block (control flow, or it may block).
        copies: whether it only moves values, so that an undefined input makes its output undefined.
        late: whether its vector operands are read or written after its issue, until a wait.
        warpgroup: whether four neighbouring warps execute it together.
    """

    write: Writer
    section: str
    dests: int = 1
    inout: bool = False
    ends: bool = False
    copies: bool = False
    late: bool = False
    warpgroup: bool = False

    @property
    def pure(self) -> bool:
        """Whether it only computes registers from registers."""
        return self.write.__module__.rsplit(".", 1)[-1] in _PURE


_PURE = ("bits", "compare", "convert", "floating", "integer", "move")

REGISTRY: dict[str, Entry] = {}


def instruction(
    *names: str,
    section: str,
    dests: int = 1,
    inout: bool = False,
    ends: bool = False,
    copies: bool = False,
    late: bool = False,
    warpgroup: bool = False,
) -> Callable[[Writer], Writer]:
    """Register semantics under dotted-name prefixes; the longest registered prefix of a name wins."""

    def register(write: Writer) -> Writer:
        for name in names:
            REGISTRY[name] = Entry(write, section, dests, inout, ends, copies, late, warpgroup)
        return write

    return register


def lookup(ins: Instruction) -> Entry:
    """The entry of an instruction.

    Raises:
        Fault: kind ``unsupported``, with line and text.
    """
    parts = (ins.opcode, *ins.modifiers)
    for n in range(min(len(parts), 6), 0, -1):
        found = REGISTRY.get(".".join(parts[:n]))
        if found is not None:
            return found
    raise Fault("unsupported", f"line {ins.line}: instruction `{ins.text}` is not modelled")


def registers(operand: object) -> Iterator[Reg]:
    """Every register that an operand mentions."""
    if isinstance(operand, Reg):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers(item)
    elif isinstance(operand, Pair):
        yield from registers(operand.first)
        yield from registers(operand.second)
    elif hasattr(operand, "base"):
        yield from registers(operand.base)
        for item in operand.extra:  # type: ignore[attr-defined]
            yield from registers(item)
    elif hasattr(operand, "reg"):
        yield operand.reg


def writes_of(ins: Instruction) -> tuple[set[Reg], set[Reg]]:
    """Registers written and registers read (guard included)."""
    entry = lookup(ins)
    dests: tuple[Operand, ...] = ins.operands[: entry.dests]
    written = {r for o in dests for r in registers(o)}
    read = {r for o in ins.operands[entry.dests :] for r in registers(o)}
    if entry.inout:
        read |= written
    if ins.guard is not None:
        read.add(ins.guard.reg)
    return written, read
