"""Two chained GEMMs for sm_90a: the second takes its A operand from registers.

``O[M, D] = sum over blocks j of half(A[M, K] @ B_j[64, K]^T) @ V_j[64, D]`` with ``Vt[D, N]`` = V^T.
The accumulator fragment of a wgmma and the A fragment of the next one (PTX ISA, wgmma, register fragments)
give a thread the same elements in the same order, so S becomes P by a conversion in place, without a shuffle
or shared memory. One CTA owns 64 rows: one warp group multiplies, a fifth warp loads A once and the blocks
into stages.

Compare `chain_sm100`, where S goes through tensor memory and three kinds of warps hand it on.
"""

import cutlass
from cutlass import cute, memory, utils
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import hopper_helpers

from lethe.ptx.examples import parts

ROWS, BLOCK = 64, 64
GROUP_WARPS = 4
THREADS = 32 * (GROUP_WARPS + 1)
LOADER = GROUP_WARPS
ONE_STAGE = (None, None, 0)


class ChainSm90:
    """Call with A[M, depth], B[N, depth], Vt[width, N] (16 bit) and O[M, width] (float32), M and N
    multiples of 64."""

    def __init__(self, dtype: type[cutlass.Numeric], depth: int = 64, width: int = 64, stages: int = 2):
        self.dtype = dtype
        self.stages = stages
        self.first = (ROWS, BLOCK, depth)
        self.second = (ROWS, width, BLOCK)

    def mma(self, tile: tuple[int, int, int], source: warpgroup.OperandSource) -> cute.TiledMma:
        """wgmma of one warp group, both operands K-major, float32 accumulator."""
        operation = warpgroup.MmaF16BF16Op(
            self.dtype, cutlass.Float32, (*tile[:2], 16), source, OperandMajorMode.K, OperandMajorMode.K
        )
        return cute.make_tiled_mma(operation)

    def load(self, tensor: cute.Tensor, tile: tuple[int, int, int], operand: str, stages: int):
        """Shared layout and TMA load of operand "a" or "b" of a tile: (layout, atom, tensor)."""
        make = hopper_helpers.make_smem_layout_a if operand == "a" else hopper_helpers.make_smem_layout_b
        layout = make(utils.LayoutEnum.ROW_MAJOR, tile, self.dtype, stages)
        rows = tile[0] if operand == "a" else tile[1]
        atom, tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), tensor, cute.slice_(layout, ONE_STAGE), (rows, tile[2])
        )
        return layout, atom, tiles

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, vt: cute.Tensor, o: cute.Tensor):
        first = self.mma(self.first, warpgroup.OperandSource.SMEM)
        second = self.mma(self.second, warpgroup.OperandSource.RMEM)
        layout_a, tma_a, tiles_a = self.load(a, self.first, "a", 1)
        layout_b, tma_b, tiles_b = self.load(b, self.first, "b", self.stages)
        layout_v, tma_v, tiles_v = self.load(vt, self.second, "b", self.stages)
        self.kernel(
            (first, second),
            (tma_a, tma_b, tma_v),
            (tiles_a, tiles_b, tiles_v),
            o,
            (layout_a, layout_b, layout_v),
        ).launch(grid=(cute.size(o, mode=[0]) // ROWS, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mmas: tuple, atoms: tuple, sources: tuple, o: cute.Tensor, layouts: tuple):
        first, second = mmas
        tma_a, tma_b, tma_v = atoms
        a, b, v = sources
        layout_a, layout_b, layout_v = layouts
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        row, _, _ = cute.arch.block_idx()

        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        loaded_a = shared.allocate_array(cutlass.Int64, 1)
        shared_a = shared.allocate_tensor(self.dtype, layout_a.outer, 1024, layout_a.inner)
        shared_b = shared.allocate_tensor(self.dtype, layout_b.outer, 1024, layout_b.inner)
        shared_v = shared.allocate_tensor(self.dtype, layout_v.outer, 1024, layout_v.inner)
        if warp == LOADER:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, GROUP_WARPS)
                cute.arch.mbarrier_init(loaded_a, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        tiles_a = cute.local_tile(a, (ROWS, self.first[2]), (row, 0))
        tiles_b = cute.local_tile(b, self.first[1:], (None, 0))
        tiles_v = cute.local_tile(v, self.second[1:], (0, None))
        to_a, from_a = parts.partition(tma_a, shared_a, tiles_a, 2)
        to_b, from_b = parts.partition(tma_b, shared_b, tiles_b, 2)
        to_v, from_v = parts.partition(tma_v, shared_v, tiles_v, 2)
        blocks = cute.size(from_b, mode=[1])
        bytes_a, bytes_b, bytes_v = (
            cute.size_in_bytes(self.dtype, cute.slice_(layout, ONE_STAGE)) for layout in layouts
        )

        if warp == LOADER:
            parts.expect(loaded_a, bytes_a)
            cute.copy(tma_a, from_a, to_a[None, 0], tma_bar_ptr=loaded_a)
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(empty + stage, (block // self.stages) % 2 ^ 1)
                parts.expect(full + stage, bytes_b + bytes_v)
                cute.copy(tma_b, from_b[None, block], to_b[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_v, from_v[None, block], to_v[None, stage], tma_bar_ptr=full + stage)
        else:
            group, again = first.get_slice(thread), second.get_slice(thread)
            operand_a = first.make_fragment_A(group.partition_A(shared_a))
            operand_b = first.make_fragment_B(group.partition_B(shared_b))
            operand_v = second.make_fragment_B(again.partition_B(shared_v))
            target = again.partition_C(cute.local_tile(o, self.second[:2], (row, 0)))
            score = cute.make_rmem_tensor(first.partition_shape_C(self.first[:2]), cutlass.Float32)
            half = cute.make_rmem_tensor(second.partition_shape_A((ROWS, BLOCK)), self.dtype)
            output = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            output.fill(0.0)
            second.set(warpgroup.Field.ACCUMULATE, True)
            cute.arch.mbarrier_wait(loaded_a, 0)
            for block in cutlass.range(blocks, unroll=1):
                stage = block % self.stages
                cute.arch.mbarrier_wait(full + stage, (block // self.stages) % 2)
                first.set(warpgroup.Field.ACCUMULATE, False)
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(operand_a, mode=[2])):
                    cute.gemm(
                        first, score, operand_a[None, None, k, 0], operand_b[None, None, k, stage], score
                    )
                    first.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                half.store(cute.make_tensor(score.iterator, half.layout).load().to(self.dtype))
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(half, mode=[2])):
                    cute.gemm(second, output, half[None, None, k], operand_v[None, None, k, stage], output)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(empty + stage)
            cute.autovec_copy(output, target)
