"""The life of tensor memory in a compiled kernel, from its text: columns, and what the static checks find.

`lethe.ptx.lint` walks every path of every warp: one allocation of a static power of two, one relinquish, one
dealloc of as many columns on each path, every operand in tensor memory inside the allocation.
"""

from __future__ import annotations

from typing import Any

from lethe.ptx import parse
from lethe.ptx.lint import lint
from lethe.ptx.syntax import Imm, Kernel, Reg


def lifecycle(ptx: str, threads: int) -> dict[str, Any]:
    """Columns of tensor memory, and what the static checks say of their life on every path of every warp."""
    findings = [f for found in lint(parse(ptx), threads).values() for f in found]
    return {
        "tmem_columns": allocated(ptx),
        "violations": [str(f) for f in findings if f.rule != "undecided"],
        "undecided": [str(f) for f in findings if f.rule == "undecided"],
    }


def allocated(ptx: str) -> int:
    """Columns that the text allocates: a constant of the kernel, 0 where tensor memory is not used."""
    return sum(_columns(kernel) for kernel in parse(ptx).kernels.values())


def _columns(kernel: Kernel) -> int:
    """Over the allocations of one kernel; each takes its count from a register set to a constant."""
    constants = {
        i.operands[0].name: i.operands[1].value
        for i in kernel.instructions
        if i.opcode == "mov" and isinstance(i.operands[0], Reg) and isinstance(i.operands[1], Imm)
    }
    total = 0
    for i in kernel.instructions:
        if i.opcode == "tcgen05" and "alloc" in i.modifiers:
            count = i.operands[-1]
            total += count.value if isinstance(count, Imm) else constants[count.name]
    return total
