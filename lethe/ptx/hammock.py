"""Short forward branches turned into predication: ``@p bra L; ...; L:`` without labels or waits in between.

A branch around a few instructions (one elected lane issues a copy or an MMA) costs more as control flow
than as a mask. Inside, instructions run under the mask of the lanes that fall through, and not at all
when it is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lethe.ptx.isa.registry import Entry
from lethe.ptx.syntax import Instruction

LONGEST = 24
"""Most instructions that a branch may skip to be turned into predication."""


def find(instructions: Sequence[Instruction], entries: Sequence[Entry]) -> dict[int, int]:
    """Index of each such branch -> index after its body; bodies do not nest."""
    targets = Counter(i.target for i in instructions if i.target is not None)
    out: dict[int, int] = {}
    free = 0
    for i, ins in enumerate(instructions):
        stop = ins.target
        if i < free or ins.opcode != "bra" or ins.guard is None or stop is None:
            continue
        if not i + 2 <= stop <= i + 1 + LONGEST or stop >= len(instructions):
            continue
        body = range(i + 1, stop)
        if any(entries[j].ends or entries[j].warpgroup or targets[j] for j in body):
            continue
        out[i], free = stop, stop
    return out
