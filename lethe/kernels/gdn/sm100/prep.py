"""Kernel ``prep`` for sm_100a: what a chunk knows by itself; one CTA a slot and head, two CTAs an SM.

Arguments, variants, shared memory and everything by the element (G, A, M, T by mma.sync, Kt, Qh) are
`sm90.prep`'s. The four products of whole tiles are tcgen05.mma, transposed as there: rows are channels,
columns tokens. Where there are 128 rows, M = 128, and warp w of group g has the 16 channels from
``16 (2 w + g)`` on; 64 rows are formed by both groups alike, M = 64 in either half of the lanes (d_v = 64 and
d_k = 128: each group half of the columns of P^T). Map of tensor memory, 256 columns allocated once, so that
two CTAs fit:

=======  =======================================  ======================================================
columns  contents                                 then
=======  =======================================  ======================================================
0-63     W^T = Ph^T + Ph^T T'^T, float32          0-31: -dNloc^T, 32-63: (w v)^T, float16 operands
64-127   dNloc^T = a dO^T + dO^T A, float32       U^T = (w v)^T + (w v)^T T'^T, float32
128-255  Ph^T, float16 operand, in 128-159        P^T = s dO^T Qh - dNloc^T W, float32
=======  =======================================  ======================================================

First terms are put there as initial accumulators, in float32. Warp 0 issues: after one barrier of the CTA
W^T, dNloc^T and dO^T Qh at once, which take tensor memory in the order of their issue; after the next the
second product of P^T; after the last U^T. Without erasure there is the middle one of three alone, for the
forward pass W^T and U^T, and with neither no tensor memory is allocated.
"""

import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.sm90 import prep as hopper
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, locate, locate_packed
from lethe.kernels.gdn.sm100 import prep_chunk, prep_map, tensor

VARIANTS = hopper.VARIANTS
Int32 = cutlass.Int32


def kernel(**options) -> "Prep":
    """The kernel of one variant."""
    return Prep(**options)


class Prep(hopper.Prep):
    """``gate``, ``erase``, ``write`` (g, b, w): channel, head or none; ``adjoint``: dO and P, else Qh."""

    def __init__(self, **options):
        super().__init__(**options)
        self.multiplies = self.erase != "none" or self.adjoint

    @cute.kernel
    def kernel(self, inputs: tuple, cu_seqlens: cute.Tensor, outputs: tuple, scale: cutlass.Float32):
        head, slot, _ = cute.arch.block_idx()
        q = inputs[0]
        if cutlass.const_expr(self.packed):
            first, rows = locate_packed(cu_seqlens, slot)
        else:
            first, rows = locate(Int32(q.shape[1]), slot)
        base = memory.SmemAllocator().allocate(self.bytes, 1024)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        small = base + self.at["SMALL"]
        held = None
        if cutlass.const_expr(self.multiplies):
            prep_map.start(small, warp)
            cute.arch.sync_threads()
            held = prep_map.memory(small, warp)
        if rows > 0:
            where = (first, cutlass.min(rows, Int32(CHUNK)), head, slot)
            prep_chunk.run(self, inputs, outputs, scale, base, where, held)
        if cutlass.const_expr(self.multiplies):
            tensor.publish()
            cute.arch.sync_threads()
            if warp == 0:
                tensor.deallocate(held.base, prep_map.COLUMNS)
