"""Registers that ``wgmma`` reads or writes, and who touched them since the last ``wgmma.fence``.

PTX ISA 9.7.15.7.1: a warpgroup fences before its first ``wgmma.mma_async``, and again between any other
access to an accumulator or to a fragment of A and the next ``wgmma.mma_async`` on those registers;
consecutive ones on the same accumulator need none. Compilers rename registers with ``mov``, which ptxas
removes, so a move hands on the state of its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.isa.registry import registers as mentioned
from lethe.ptx.syntax import Vector

if TYPE_CHECKING:
    from lethe.ptx.program import Program


class Fragments:
    """Which registers of a program to follow: those of ``wgmma.mma_async`` and what is moved into them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: set[str] = set()
        for ins in program.instructions:
            if ins.opcode == "wgmma" and ins.has("mma_async"):
                vectors = [o for o in ins.operands if isinstance(o, Vector)]
                self.names |= {r.name for o in vectors for r in mentioned(o)}
        size = -1
        while size != len(self.names):
            size = len(self.names)
            for index in range(len(program.instructions)):
                reads, writes = self._moved(index)
                if writes & self.names:
                    self.names |= reads

    def _moved(self, index: int) -> tuple[set[str], set[str]]:
        ins, entry = self.program.instructions[index], self.program.entries[index]
        if not entry.copies:
            return set(), set()
        reads = {r.name for o in ins.operands[entry.dests :] for r in mentioned(o)}
        return reads, {r.name for o in ins.operands[: entry.dests] for r in mentioned(o)}

    def written(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Followed registers that an instruction writes, and those that it moves there; None for none."""
        ins, entry = self.program.instructions[index], self.program.entries[index]
        if not self.names or entry.late:
            return None
        writes = {r.name for o in ins.operands[: entry.dests] for r in mentioned(o)} & self.names
        if not writes:
            return None
        return tuple(sorted(writes)), tuple(sorted(self._moved(index)[0]))


class FragmentFence:
    """State of one CTA: the followed registers of each warp that no ``wgmma.fence`` covers yet."""

    def __init__(self, warps: int) -> None:
        self.open: list[set[str]] = [set() for _ in range(warps)]
        self.fenced = [False] * warps

    def wrote(
        self, rows: tuple[int, int], names: tuple[str, ...], sources: tuple[str, ...], mask: Array | None
    ) -> None:
        """An instruction wrote ``names``; a move passes on the state of its ``sources``."""
        for warp in range(*rows):
            if mask is not None and not mask[warp - rows[0]].any():
                continue
            touched = self.open[warp]
            if sources and touched.isdisjoint(sources):
                touched.difference_update(names)
            else:
                touched.update(names)

    def fence(self, rows: tuple[int, int]) -> None:
        """wgmma.fence."""
        for warp in range(*rows):
            self.open[warp].clear()
            self.fenced[warp] = True

    def check(self, warp: int, names: tuple[str, ...]) -> None:
        """A wgmma.mma_async uses ``names``."""
        if not self.fenced[warp]:
            raise Fault("missing-fence", f"no wgmma.fence before the first wgmma.mma_async of warp {warp}")
        found = self.open[warp].intersection(names)
        if found:
            raise Fault(
                "missing-fence",
                f"wgmma.mma_async uses register {min(found)}, written since the last wgmma.fence of "
                f"warp {warp}",
            )
