"""`prep` at the addresses of a few slots."""

import cutlass
from cutlass import cute, memory

from lethe.evidence.gdn_probes import variants
from lethe.kernels.gdn.sm90 import prep, prep_chunk
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, locate

SLOTS = 4
"""With 16 heads 15 MB."""

Int32 = cutlass.Int32
VARIANTS = variants("prep_near", [v for v in prep.VARIANTS if not v.options["packed"]])


def kernel(**options) -> "Near":
    """The probe of one variant."""
    return Near(**options)


class Near(prep.Prep):
    """Every slot is one of the first few."""

    @cute.kernel
    def kernel(self, inputs: tuple, cu_seqlens: cute.Tensor, outputs: tuple, scale: cutlass.Float32):
        head, slot, _ = cute.arch.block_idx()
        slot = slot % SLOTS
        first, rows = locate(Int32(inputs[0].shape[1]), slot)
        base = memory.SmemAllocator().allocate(self.bytes, 1024)
        if rows > 0:
            where = (first, cutlass.min(rows, Int32(CHUNK)), head, slot)
            prep_chunk.run(self, inputs, outputs, scale, base, where)
