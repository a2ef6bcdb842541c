"""Where asynchronous results may still be on their way, and which registers hold or depend on them.

``tcgen05.ld`` and ``wgmma.mma_async`` name registers that are valid only after ``tcgen05.wait::ld`` and
``wgmma.wait_group`` (PTX ISA 9.7.16.8 and 9.7.15.7). Compilers place pure arithmetic on ``tcgen05.ld``
results before the wait and leave the dependency to ptxas; so arithmetic in that region is deferred to the
wait, while any other use there is a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.ptx.isa.registry import registers as mentioned
from lethe.ptx.syntax import Imm, Vector

if TYPE_CHECKING:
    from lethe.ptx.program import Block, Program


class Late:
    """Result of the analysis: ``used(i)`` are the registers of instruction i that may be on their way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.registers: set[str] = set()
        for ins, entry in zip(program.instructions, program.entries, strict=True):
            if entry.late:
                self.registers |= {
                    r.name for o in ins.operands if isinstance(o, Vector) for r in mentioned(o)
                }
        self.outstanding: list[bool] = [False] * len(program.instructions)
        if self.registers:
            self._flow()
            self._close()

    def used(self, index: int) -> tuple[str, ...]:
        """Names to check when instruction ``index`` runs; empty almost everywhere."""
        if not self.outstanding[index] or self.program.entries[index].late:
            return ()
        ins = self.program.instructions[index]
        return tuple(sorted({r.name for o in ins.operands for r in mentioned(o)} & self.registers))

    def _step(self, index: int, state: int) -> int:
        """Bit 0: a tcgen05.ld, bit 1: a wgmma may be outstanding after the instruction."""
        ins = self.program.instructions[index]
        if self.program.entries[index].late:
            return state | (1 if ins.opcode == "tcgen05" else 2)
        if ins.guard is not None or index in self.program.inside:
            return state
        if ins.has("wait::ld"):
            return state & ~1
        if ins.opcode == "wgmma" and ins.has("wait_group") and ins.operands == (Imm(0),):
            return state & ~2
        return state

    def _flow(self) -> None:
        program = self.program
        entry = {b.start: 0 for b in program.blocks}
        work: list[Block] = list(program.blocks)
        while work:
            block = work.pop()
            state = entry[block.start]
            for i in range(block.start, block.stop):
                self.outstanding[i] = state != 0
                state = self._step(i, state)
            for target in program.successors(block):
                if entry[target] | state != entry[target]:
                    entry[target] |= state
                    work.append(program.at[target])

    def _close(self) -> None:
        """Add registers computed from late ones while those may be on their way."""
        changed = True
        while changed:
            changed = False
            for i, ins in enumerate(self.program.instructions):
                entry = self.program.entries[i]
                if not self.outstanding[i] or not entry.pure:
                    continue
                reads = {r.name for o in ins.operands[entry.dests :] for r in mentioned(o)}
                writes = {r.name for o in ins.operands[: entry.dests] for r in mentioned(o)}
                if reads & self.registers and not writes <= self.registers:
                    self.registers |= writes
                    changed = True
