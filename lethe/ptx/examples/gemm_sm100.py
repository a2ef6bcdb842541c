"""A dense GEMM for sm_100a in the fewest ideas that still overlap: TMA, mbarriers, tcgen05, TMEM.

``C[M, N] = A[M, K] @ B[N, K]^T`` with 16-bit inputs and float32 output. One CTA of four warps owns a tile of
128 x ``tile_n``. Three roles:

* warp 0 *loads*: for every block of 64 k it waits until the stage is empty, announces the bytes, and starts
  two TMA copies that complete the stage's ``full`` barrier by themselves;
* warp 1 *multiplies*: waits for ``full``, issues one ``tcgen05.mma`` per 16 k into tensor memory, and commits
  to ``empty``. The commit, not the thread, says when the stage may be overwritten: the MMA reads shared
  memory long after it was issued;
* all four warps *store*: wait for ``done``, read their 32 lanes of the accumulator and write rows of C.

Barriers are spelled out and no pipeline class is used, so that each line of the emitted PTX has one line
here. The tensor memory has one life: one warp allocates, relinquishes and deallocates, each once.

Needs ``nvidia-cutlass-dsl``; `lethe.ptx.examples.build` compiles it, no GPU involved.
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import cpasync, tcgen05

from lethe.ptx.examples import parts

TILE_M = 128
TILE_K = 64
THREADS = 128
LOADER, MULTIPLIER = 0, 1


class GemmSm100:
    """One configuration of the kernel; call it with A[M, K], B[N, K] (K contiguous) and C[M, N] (float32).

    ``tile_n``: multiple of 16 up to 256, the accumulator's columns. ``stages``: blocks of k in flight.
    M must be a multiple of 128, N of ``tile_n`` and K of 64.
    """

    def __init__(self, dtype: type[cutlass.Numeric], tile_n: int = 64, stages: int = 3):
        self.dtype = dtype
        self.tile = (TILE_M, tile_n, TILE_K)
        self.stages = stages
        self.columns = max(32, 1 << (tile_n - 1).bit_length())

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        mma = parts.mma_sm100(self.dtype, self.tile)
        layout_a, tma_a, tiles_a = parts.load_a(mma, self.tile, a, self.stages)
        layout_b, tma_b, tiles_b = parts.load_b(mma, self.tile, b, self.stages)
        grid = cute.ceil_div((cute.size(c, mode=[0]), cute.size(c, mode=[1]), 1), self.tile[:2])
        self.kernel(mma, tma_a, tiles_a, tma_b, tiles_b, c, layout_a, layout_b).launch(
            grid=grid, block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        tma_a: cute.CopyAtom,
        a: cute.Tensor,
        tma_b: cute.CopyAtom,
        b: cute.Tensor,
        c: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile_m, tile_n, _ = cute.arch.block_idx()

        # Shared memory: the stages of A and B, two barriers a stage, one for the accumulator, and the word in
        # which tcgen05.alloc leaves the address of the tensor memory.
        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        done = shared.allocate_array(cutlass.Int64, 1)
        address = shared.allocate_array(cutlass.Int32, 1)
        shared_a = shared.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        shared_b = shared.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)

        if warp == LOADER:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 1)
                cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(self.columns, address)
            cute.arch.relinquish_tmem_alloc_permit()
            parts.before_thread_sync()
        cute.arch.sync_threads()
        parts.after_thread_sync()

        # Views. Global tiles have the blocks of k as their last mode, shared tiles the stages.
        coordinate = (tile_m, tile_n, None)
        tiles_a = mma.get_slice(0).partition_A(cute.local_tile(a, self.tile, coordinate, proj=(1, None, 1)))
        tiles_b = mma.get_slice(0).partition_B(cute.local_tile(b, self.tile, coordinate, proj=(None, 1, 1)))
        tiles_c = mma.get_slice(0).partition_C(cute.local_tile(c, self.tile, coordinate, proj=(1, 1, None)))
        to_a, from_a = parts.partition(tma_a, shared_a, tiles_a)
        to_b, from_b = parts.partition(tma_b, shared_b, tiles_b)
        operand_a, operand_b = mma.make_fragment_A(shared_a), mma.make_fragment_B(shared_b)
        base = cute.arch.retrieve_tmem_ptr(cutlass.Float32, parts.TMEM_ALIGNMENT, address)
        accumulator = parts.accumulator(mma, self.tile, base, 0)
        blocks = cute.size(from_a, mode=[1])
        block_bytes = parts.stage_bytes(self.dtype, layout_a) + parts.stage_bytes(self.dtype, layout_b)

        if warp == LOADER:
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                # A fresh barrier is in phase 0; waiting for parity 1 passes at once, so the first round
                # through the stages does not wait for a consumer.
                cute.arch.mbarrier_wait(empty + stage, (block // self.stages) % 2 ^ 1)
                parts.expect(full + stage, block_bytes)
                cute.copy(tma_a, from_a[None, block], to_a[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_b, from_b[None, block], to_b[None, stage], tma_bar_ptr=full + stage)

        if warp == MULTIPLIER:
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                at = (None, None, None, stage)
                cute.arch.mbarrier_wait(full + stage, (block // self.stages) % 2)
                mma = parts.gemm(mma, accumulator, operand_a[at], operand_b[at], block > 0)
                parts.commit(empty + stage)
            parts.commit(done)

        # Each warp may read 32 lanes only, the ones of its rank in the warp group: lane = row of C.
        cute.arch.mbarrier_wait(done, 0)
        parts.after_thread_sync()
        load, rows, target = parts.load_rows(
            thread, tcgen05.Repetition.x32, accumulator[(None, None), 0, 0], tiles_c[(None, None), 0, 0]
        )
        registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(load, rows, registers)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(registers, target)
        parts.before_thread_sync()

        # Every warp has read its lanes before one of them deallocates.
        cute.arch.sync_threads()
        if warp == LOADER:
            parts.after_thread_sync()
            cute.arch.dealloc_tmem(base, self.columns)
