"""A kernel that is wrong on purpose: tensor memory allocated and relinquished once per GEMM.

Two GEMMs, ``C0 = A @ B0^T`` and ``C1 = A @ B1^T``, each 128 x 64 x 64. Each of them takes all 512 columns,
gives up the permit to allocate, multiplies, stores, and deallocates: a function that was right when the
kernel had one GEMM, called twice. The PTX ISA forbids it: after ``tcgen05.relinquish_alloc_permit`` the CTA
must not allocate again. On hardware the second allocation is undefined, and a CTA that holds 512 columns
leaves none for a neighbour on the same SM. ``OncePerKernel`` is the same kernel with one life of 64 columns
per accumulator.

`lethe.ptx.lint` names the defect from the text; the machine faults at the second ``tcgen05.alloc``.
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import tcgen05

from lethe.ptx.examples import parts

TILE = (128, 64, 64)
THREADS = 128
ALL_COLUMNS, ENOUGH_COLUMNS = 512, 128


class OncePerGemm:
    """Call with A[128, 64], B[128, 64] (B0 above B1; 16 bit) and C[128, 128] (float32, C0 beside C1)."""

    once_per_kernel = False

    def __init__(self, dtype: type[cutlass.Numeric]):
        self.dtype = dtype

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        mma = parts.mma_sm100(self.dtype, TILE)
        layout_a, tma_a, tiles_a = parts.load_a(mma, TILE, a, 1)
        layout_b, tma_b, tiles_b = parts.load_b(mma, TILE, b, 2)
        self.kernel(mma, tma_a, tiles_a, tma_b, tiles_b, c, layout_a, layout_b).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1)
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
        shared = memory.SmemAllocator()
        loaded = shared.allocate_array(cutlass.Int64, 1)
        done = shared.allocate_array(cutlass.Int64, 2)
        address = shared.allocate_array(cutlass.Int32, 1)
        shared_a = shared.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        shared_b = shared.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(loaded, 1)
                cute.arch.mbarrier_init(done, 1)
                cute.arch.mbarrier_init(done + 1, 1)
            cute.arch.mbarrier_init_fence()
            if cutlass.const_expr(self.once_per_kernel):
                cute.arch.alloc_tmem(ENOUGH_COLUMNS, address)
                cute.arch.relinquish_tmem_alloc_permit()
                parts.before_thread_sync()
        cute.arch.sync_threads()
        parts.after_thread_sync()

        tiles_a = mma.get_slice(0).partition_A(cute.local_tile(a, (TILE[0], TILE[2]), (0, 0)))
        tiles_b = mma.get_slice(0).partition_B(cute.local_tile(b, (TILE[1], TILE[2]), (None, 0)))
        tiles_c = mma.get_slice(0).partition_C(cute.local_tile(c, TILE[:2], (0, None)))
        to_a, from_a = parts.partition(tma_a, shared_a, tiles_a)
        to_b, from_b = parts.partition(tma_b, shared_b, tiles_b)
        operand_a, operand_b = mma.make_fragment_A(shared_a), mma.make_fragment_B(shared_b)
        if warp == 0:
            parts.expect(
                loaded, parts.stage_bytes(self.dtype, layout_a) + 2 * parts.stage_bytes(self.dtype, layout_b)
            )
            cute.copy(tma_a, from_a, to_a[None, 0], tma_bar_ptr=loaded)
            cute.copy(tma_b, from_b[None, 0], to_b[None, 0], tma_bar_ptr=loaded)
            cute.copy(tma_b, from_b[None, 1], to_b[None, 1], tma_bar_ptr=loaded)
        cute.arch.mbarrier_wait(loaded, 0)

        for half in cutlass.range_constexpr(2):
            if cutlass.const_expr(not self.once_per_kernel):
                if warp == 0:
                    cute.arch.alloc_tmem(ALL_COLUMNS, address)
                    cute.arch.relinquish_tmem_alloc_permit()
                    parts.before_thread_sync()
                cute.arch.sync_threads()
                parts.after_thread_sync()
            base = cute.arch.retrieve_tmem_ptr(cutlass.Float32, parts.TMEM_ALIGNMENT, address)
            column = TILE[1] * half if cutlass.const_expr(self.once_per_kernel) else 0
            accumulator = parts.accumulator(mma, TILE, base, column)
            if warp == 0:
                mma = parts.gemm(
                    mma, accumulator, operand_a[None, None, None, 0], operand_b[None, None, None, half], False
                )
                parts.commit(done + half)
            cute.arch.mbarrier_wait(done + half, 0)
            parts.after_thread_sync()
            load, rows, target = parts.load_rows(
                thread,
                tcgen05.Repetition.x32,
                accumulator[(None, None), 0, 0],
                tiles_c[(None, None), 0, 0, half],
            )
            registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            cute.copy(load, rows, registers)
            cute.arch.fence_view_async_tmem_load()
            cute.autovec_copy(registers, target)
            parts.before_thread_sync()
            cute.arch.sync_threads()
            if cutlass.const_expr(not self.once_per_kernel):  # noqa: SIM102, one is of compile time
                if warp == 0:
                    parts.after_thread_sync()
                    cute.arch.dealloc_tmem(base, ALL_COLUMNS)
        if cutlass.const_expr(self.once_per_kernel):  # noqa: SIM102
            if warp == 0:
                parts.after_thread_sync()
                cute.arch.dealloc_tmem(base, ENOUGH_COLUMNS)


class OncePerKernel(OncePerGemm):
    """The same two GEMMs with one allocation of 128 columns, one relinquish and one deallocation."""

    once_per_kernel = True
