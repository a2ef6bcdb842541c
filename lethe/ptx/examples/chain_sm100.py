"""Two chained GEMMs for sm_100a: the second reads its A operand from tensor memory.

``O[M, D] = sum over blocks j of half(A[M, K] @ B_j[64, K]^T) @ V_j[64, D]``, the skeleton of attention
without the softmax. V is given transposed, ``Vt[D, N]``, so that both operands are K-major. One CTA owns 128
rows and walks the blocks of 64 rows of B:

* warp 4 *loads* A once, then B_j and V_j into stages;
* warp 5 *multiplies*: S = A B_j^T into tensor memory; when the converters have written P = half(S) beside it,
  O += P V_j, with P read from tensor memory (PTX ISA: tcgen05.mma, "a-tmem");
* warps 0-3 *convert*: a thread owns a row; S goes through its registers and comes back as P. At the
  end the same warps store O.

Tensor memory, one allocation: S at column 0 (64 columns), P at 64 (two halves a column: 32 columns), O at
128. S and P need no second buffer: MMAs of one thread complete in order, so the commit after S_{j+1} also
says that P_j has been read, and P_j complete says that S_j has been.
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import cpasync, tcgen05

from lethe.ptx.examples import parts

ROWS, BLOCK = 128, 64
THREADS = 192
CONVERTERS = 4
LOADER, MULTIPLIER = 4, 5
COLUMNS, COLUMN_S, COLUMN_P, COLUMN_O = 256, 0, 64, 128


class ChainSm100:
    """Call with A[M, K], B[N, K], Vt[D, N] (16 bit) and O[M, D] (float32); M multiple of 128, N of 64.

    ``depth`` = K and ``width`` = D: multiples of 64 up to 256 and up to 128.
    """

    def __init__(self, dtype: type[cutlass.Numeric], depth: int = 64, width: int = 64, stages: int = 2):
        self.dtype = dtype
        self.stages = stages
        self.first = (ROWS, BLOCK, depth)
        self.second = (ROWS, width, BLOCK)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, vt: cute.Tensor, o: cute.Tensor):
        first = parts.mma_sm100(self.dtype, self.first)
        second = parts.mma_sm100(self.dtype, self.second, tcgen05.OperandSource.TMEM)
        layout_a, tma_a, tiles_a = parts.load_a(first, self.first, a, 1)
        layout_b, tma_b, tiles_b = parts.load_b(first, self.first, b, self.stages)
        layout_v, tma_v, tiles_v = parts.load_b(second, self.second, vt, self.stages)
        layout_p, _, _ = parts.load_a(parts.mma_sm100(self.dtype, self.second), self.second, a, 1)
        grid = (cute.ceil_div(cute.size(a, mode=[0]), ROWS), 1, 1)
        self.kernel(
            first,
            second,
            tma_a,
            tiles_a,
            tma_b,
            tiles_b,
            tma_v,
            tiles_v,
            o,
            layout_a,
            layout_b,
            layout_v,
            layout_p,
        ).launch(grid=grid, block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self,
        first: cute.TiledMma,
        second: cute.TiledMma,
        tma_a: cute.CopyAtom,
        a: cute.Tensor,
        tma_b: cute.CopyAtom,
        b: cute.Tensor,
        tma_v: cute.CopyAtom,
        v: cute.Tensor,
        o: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        layout_v: cute.ComposedLayout,
        layout_p: cute.ComposedLayout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        row, _, _ = cute.arch.block_idx()

        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        loaded_a = shared.allocate_array(cutlass.Int64, 1)
        scores = shared.allocate_array(cutlass.Int64, 1)
        converted = shared.allocate_array(cutlass.Int64, 1)
        done = shared.allocate_array(cutlass.Int64, 1)
        address = shared.allocate_array(cutlass.Int32, 1)
        shared_a = shared.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        shared_b = shared.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)
        shared_v = shared.allocate_tensor(self.dtype, layout_v.outer, 1024, layout_v.inner)

        if warp == LOADER:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 1)
                cute.arch.mbarrier_init(loaded_a, 1)
                cute.arch.mbarrier_init(scores, 1)
                cute.arch.mbarrier_init(converted, CONVERTERS)
                cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init_fence()
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            cpasync.prefetch_descriptor(tma_v)
        if warp == MULTIPLIER:
            cute.arch.alloc_tmem(COLUMNS, address)
            cute.arch.relinquish_tmem_alloc_permit()
            parts.before_thread_sync()
        cute.arch.sync_threads()
        parts.after_thread_sync()

        base = cute.arch.retrieve_tmem_ptr(cutlass.Float32, parts.TMEM_ALIGNMENT, address)
        score = parts.accumulator(first, self.first, base, COLUMN_S)
        probability = parts.operand_in_tmem(second, layout_p, base, COLUMN_P)
        output = parts.accumulator(second, self.second, base, COLUMN_O)
        tiles_a = first.get_slice(0).partition_A(cute.local_tile(a, (ROWS, self.first[2]), (row, 0)))
        tiles_b = first.get_slice(0).partition_B(cute.local_tile(b, self.first[1:], (None, 0)))
        tiles_v = second.get_slice(0).partition_B(cute.local_tile(v, self.second[1:], (0, None)))
        tiles_o = second.get_slice(0).partition_C(cute.local_tile(o, self.second[:2], (row, 0)))
        to_a, from_a = parts.partition(tma_a, shared_a, tiles_a)
        to_b, from_b = parts.partition(tma_b, shared_b, tiles_b)
        to_v, from_v = parts.partition(tma_v, shared_v, tiles_v)
        operand_a = first.make_fragment_A(shared_a)
        operand_b = first.make_fragment_B(shared_b)
        operand_v = second.make_fragment_B(shared_v)
        blocks = cute.size(from_b, mode=[1])
        block_bytes = parts.stage_bytes(self.dtype, layout_b) + parts.stage_bytes(self.dtype, layout_v)

        if warp == LOADER:
            parts.expect(loaded_a, parts.stage_bytes(self.dtype, layout_a))
            cute.copy(tma_a, from_a, to_a[None, 0], tma_bar_ptr=loaded_a)
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(empty + stage, (block // self.stages) % 2 ^ 1)
                parts.expect(full + stage, block_bytes)
                cute.copy(tma_b, from_b[None, block], to_b[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_v, from_v[None, block], to_v[None, stage], tma_bar_ptr=full + stage)

        if warp == MULTIPLIER:
            cute.arch.mbarrier_wait(loaded_a, 0)
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(full + stage, (block // self.stages) % 2)
                first = parts.gemm(
                    first, score, operand_a[None, None, None, 0], operand_b[None, None, None, stage], False
                )
                parts.commit(scores)
                cute.arch.mbarrier_wait(converted, block % 2)
                parts.after_thread_sync()
                second = parts.gemm(
                    second,
                    output,
                    probability[None, None, None, 0],
                    operand_v[None, None, None, stage],
                    block > 0,
                )
                parts.commit(empty + stage)
            parts.commit(done)

        if warp < CONVERTERS:
            load, score_rows, row_of_score = parts.load_rows(
                thread, tcgen05.Repetition.x32, score[(None, None), 0, 0], score[(None, None), 0, 0]
            )
            store, shape, probability_rows = parts.store_rows(
                thread, tcgen05.Repetition.x16, probability[None, None, None, 0]
            )
            values = cute.make_rmem_tensor(row_of_score.shape, cutlass.Float32)
            halves = cute.make_rmem_tensor(shape, self.dtype)
            for block in cutlass.range(blocks, unroll=1):
                cute.arch.mbarrier_wait(scores, block % 2)
                parts.after_thread_sync()
                cute.copy(load, score_rows, values)
                cute.arch.fence_view_async_tmem_load()
                halves.store(cute.make_tensor(values.iterator, halves.layout).load().to(self.dtype))
                cute.copy(store, halves, probability_rows)
                cute.arch.fence_view_async_tmem_store()
                parts.before_thread_sync()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(converted)

            cute.arch.mbarrier_wait(done, 0)
            parts.after_thread_sync()
            load, rows, target = parts.load_rows(
                thread, tcgen05.Repetition.x32, output[(None, None), 0, 0], tiles_o[(None, None), 0, 0]
            )
            registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            cute.copy(load, rows, registers)
            cute.arch.fence_view_async_tmem_load()
            cute.autovec_copy(registers, target)
            parts.before_thread_sync()
        cute.arch.sync_threads()
        if warp == MULTIPLIER:
            parts.after_thread_sync()
            cute.arch.dealloc_tmem(base, COLUMNS)
