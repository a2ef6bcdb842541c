"""The same dense GEMM for sm_90a: TMA, mbarriers, wgmma, accumulators in registers.

``C[M, N] = A[M, K] @ B[N, K]^T`` with 16-bit inputs and float32 output. One CTA owns ``64 * groups`` rows and
``tile_n`` columns. ``groups`` warp groups of 128 threads multiply, one more warp loads:

* the loader waits until a stage is empty, announces its bytes and starts two TMA copies;
* a warp group waits for ``full``, issues ``wgmma.mma_async`` for the block of 64 k, commits them as one
  group and waits until at most one group is in flight; the stage *before* this one has then been read, and
  one thread of each warp says so. Waiting for the newest group instead would stop the tensor cores each
  time;
* at the end each thread stores its fragment of the accumulator (PTX ISA, wgmma register fragment D).

With ``b_major="n"`` B is given as B[K, N] and the descriptor transposes it: the other half of the descriptor
and of the shared-memory layouts.
"""

import cutlass
from cutlass import cute, memory, utils
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import hopper_helpers

from lethe.ptx.examples import parts

TILE_K = 64
GROUP_THREADS = 128


class GemmSm90:
    """Call with A[M, K], B[N, K] (with ``b_major="n"``: N contiguous) and C[M, N] (float32).

    M must be a multiple of ``64 * groups``, N of ``tile_n`` (a multiple of 64 up to 256), K of 64.
    """

    def __init__(
        self,
        dtype: type[cutlass.Numeric],
        tile_n: int = 64,
        groups: int = 1,
        stages: int = 3,
        b_major: str = "k",
    ):
        self.dtype = dtype
        self.tile = (64 * groups, tile_n, TILE_K)
        self.groups = groups
        self.stages = stages
        self.b_major = b_major
        self.threads = GROUP_THREADS * groups + 32

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        major_b = OperandMajorMode.K if self.b_major == "k" else OperandMajorMode.MN
        operation = warpgroup.MmaF16BF16Op(
            self.dtype,
            cutlass.Float32,
            (64, self.tile[1], 16),
            warpgroup.OperandSource.SMEM,
            OperandMajorMode.K,
            major_b,
        )
        mma = cute.make_tiled_mma(operation, (self.groups, 1, 1))
        order_b = utils.LayoutEnum.ROW_MAJOR if self.b_major == "k" else utils.LayoutEnum.COL_MAJOR
        layout_a = hopper_helpers.make_smem_layout_a(
            utils.LayoutEnum.ROW_MAJOR, self.tile, self.dtype, self.stages
        )
        layout_b = hopper_helpers.make_smem_layout_b(order_b, self.tile, self.dtype, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp()
        stage = (None, None, 0)
        tma_a, tiles_a = cpasync.make_tiled_tma_atom(
            load, a, cute.slice_(layout_a, stage), (self.tile[0], TILE_K)
        )
        tma_b, tiles_b = cpasync.make_tiled_tma_atom(
            load, b, cute.slice_(layout_b, stage), (self.tile[1], TILE_K)
        )
        grid = cute.ceil_div((cute.size(c, mode=[0]), cute.size(c, mode=[1]), 1), self.tile[:2])
        self.kernel(mma, tma_a, tiles_a, tma_b, tiles_b, c, layout_a, layout_b).launch(
            grid=grid, block=(self.threads, 1, 1)
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
        loader = 4 * self.groups

        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        shared_a = shared.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        shared_b = shared.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)

        if warp == loader:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 4 * self.groups)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        tiles_a = cute.local_tile(a, (self.tile[0], TILE_K), (tile_m, None))
        tiles_b = cute.local_tile(b, (self.tile[1], TILE_K), (tile_n, None))
        tiles_c = cute.local_tile(c, self.tile[:2], (tile_m, tile_n))
        to_a, from_a = parts.partition(tma_a, shared_a, tiles_a, 2)
        to_b, from_b = parts.partition(tma_b, shared_b, tiles_b, 2)
        blocks = cute.size(from_a, mode=[1])
        one_stage = (None, None, 0)
        block_bytes = cute.size_in_bytes(self.dtype, cute.slice_(layout_a, one_stage)) + cute.size_in_bytes(
            self.dtype, cute.slice_(layout_b, one_stage)
        )

        if warp == loader:
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(empty + stage, (block // self.stages) % 2 ^ 1)
                parts.expect(full + stage, block_bytes)
                cute.copy(tma_a, from_a[None, block], to_a[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_b, from_b[None, block], to_b[None, stage], tma_bar_ptr=full + stage)
        else:
            group = mma.get_slice(thread)
            operand_a = mma.make_fragment_A(group.partition_A(shared_a))
            operand_b = mma.make_fragment_B(group.partition_B(shared_b))
            target = group.partition_C(tiles_c)
            accumulator = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(full + stage, (block // self.stages) % 2)
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(operand_a, mode=[2])):
                    part = (None, None, k, stage)
                    cute.gemm(mma, accumulator, operand_a[part], operand_b[part], accumulator)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                if block > 0:
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(empty + (block - 1) % self.stages)
            warpgroup.wait_group(0)
            cute.autovec_copy(accumulator, target)
