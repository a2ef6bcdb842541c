"""Kernel ``out`` for sm_100a: the gradients of q, k, v, g, b and w, chunk by chunk (`stages.gradients`).

Arguments, variants, the tiles in shared memory with their barriers, the loader and everything by the element
are `sm90.out`'s. Products of whole tiles are tcgen05.mma by a warp of its own (`out_multiplier`): consumer
warps say by an mbarrier that operands are there, and wait for the one that the product is committed to. Map
of tensor memory, 512 columns allocated once, one CTA an SM:

=========  ==========================================================  ===================================
columns    contents                                                    then
=========  ==========================================================  ===================================
0-63       S^T Ph^T, float32; E^T, and N^T onto it                     0-31: p^T, float16 operand
64-127     D^T Kt^T, float32
128-191    dO^T A, float32; dN^T, and R^T onto it
192-223    E^T, float16 operand                                        k^T
224-255    dN^T, float16 operand                                       q^T
256-319    dA in the lower half of each 32 lanes, dM in the upper
320-383    dQh^T, float32                                              dq^T
384-447    dPh^T, float32                                              dp^T
448-511    dKt^T, float32                                              dk^T
=========  ==========================================================  ===================================

("then": with one gate a head or none; with one a channel these products are mma.sync, as on sm_90a.)

Warps: eight consumers, a loader, a multiplier, two idle ones that make the last warp group whole, so that it
can hand registers over. The multiplier allocates and, when every consumer is done with its last chunk,
deallocates.
"""

import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.sm90 import out as hopper
from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_channel import Wide
from lethe.kernels.gdn.sm90.out_fragments import Int32, two_to
from lethe.kernels.gdn.sm90.out_spec import DK, Spec
from lethe.kernels.gdn.sm100 import out_map as to
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.out_head import between_tokens
from lethe.kernels.gdn.sm100.out_multiplier import Multiplier
from lethe.kernels.gdn.sm100.out_pairs import with_states
from lethe.kernels.gdn.sm100.out_values import written_and_adjoint

WARPS = hopper.WARPS
LOADER, MULTIPLIER = WARPS, WARPS + 1
OTHER_REGISTERS, CONSUMER_REGISTERS = 40, 232
"""Of 168 that a thread of three warp groups starts with: 128 x 40 + 256 x 232 = 384 x 168."""

VARIANTS = hopper.VARIANTS


def kernel(dk: int, **options) -> "Out":
    """The kernel of one variant."""
    assert dk == DK
    return Out(Spec(**options))


class Out(hopper.Out):
    """One variant."""

    written_and_adjoint = staticmethod(written_and_adjoint)
    with_states = staticmethod(with_states)
    between_tokens = staticmethod(between_tokens)

    @cute.kernel
    def kernel(
        self,
        loads: tuple,
        stores: tuple,
        targets: tuple,
        scalars: tuple,
        g: cute.Tensor,
        dg: cute.Tensor,
        a: cute.Tensor,
        powers: cute.Tensor,
        cu_seqlens: cute.Tensor,
        length: Int32,
        scale: cutlass.Float32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = memory.SmemAllocator().allocate(to.BYTES, 1024)
        barriers = cute.recast_ptr(shared + at.BAR, dtype=cutlass.Int64)
        if warp == LOADER:
            with cute.arch.elect_one():
                for n in cutlass.range_constexpr(at.BARRIERS):
                    cute.arch.mbarrier_init(barriers + n, self.arrivals(n))
                to.start(shared, WARPS)
            cute.arch.mbarrier_init_fence()
        if warp == MULTIPLIER:
            to.allocate(shared)
        cute.arch.sync_threads()
        base = to.address(shared)
        cute.arch.griddepcontrol_wait()
        if warp >= LOADER:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            if warp == LOADER:
                self.move(shared, barriers, loads, stores, targets, scalars, a, cu_seqlens, length)
            if warp == MULTIPLIER:
                self.multiply(shared, barriers, base, a, cu_seqlens, length)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            given = (scalars, g, dg)
            self.consume(shared, barriers, base, thread, warp, given, a, powers, cu_seqlens, length, scale)

    @cute.jit
    def multiply(self, shared, barriers, base, a, cu_seqlens, length):
        """The multiplier warp: the products of chunk after chunk, and the end of tensor memory."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count = Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            _, valid = self.locate(work // heads, cu_seqlens, length)
            if valid > 0:
                self.products(shared, barriers, base, count & 1)
                count = count + 1
        tensor.wait(to.Exchange(shared, base, Int32(0), Int32(0)).given("over"), Int32(0))
        tensor.deallocate(base, to.COLUMNS)

    def products(self, shared, barriers, base, phase) -> None:
        """Those of one chunk."""
        exchange = to.Exchange(shared, base, Int32(0), phase)
        Multiplier(self.spec, shared, barriers, exchange).chunk()

    @cute.jit
    def consume(self, shared, barriers, base, thread, warp, gates, a, powers, cu_seqlens, length, scale):
        """The consumer warps."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count = Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            slot, head = work // heads, work % heads
            start, valid = self.locate(slot, cu_seqlens, length)
            if valid > 0:
                states = [two_to(-powers[slot, head, n]) for n in range(2)]
                place = to.Place(shared.toint(), thread, warp, self.spec.panels)
                exchange = to.Exchange(shared, base, warp, count & 1)
                where = (thread, warp, count & 1, start, valid, head)
                self.chunk(place, exchange, barriers, where, gates, states, scale)
                count = count + 1
        to.Exchange(shared, base, warp, Int32(0)).give("over")

    def wide(self, place, start, valid, head) -> Wide:
        """As on sm_90a, with the rows that a warp has in tensor memory."""
        found = Wide(place, start, valid, head)
        found.channel = place.spread * 16 + place.row
        return found
