"""What the CuTe kernels of this folder share: fences, arrivals, operands, and the views that TMA copies.

`cutlass` is imported at the top, so this module loads only where nvidia-cutlass-dsl is installed.
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers

TMEM_ALIGNMENT = 16


def before_thread_sync() -> None:
    """tcgen05.fence::before_thread_sync: earlier tcgen05 work is ordered before the barrier that follows."""
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


def after_thread_sync() -> None:
    """tcgen05.fence::after_thread_sync: later tcgen05 work is ordered after the barrier just passed."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def mma_sm100(
    dtype: type[cutlass.Numeric],
    tile: tuple[int, int, int],
    a_source: tcgen05.OperandSource = tcgen05.OperandSource.SMEM,
    a_major: OperandMajorMode = OperandMajorMode.K,
    b_major: OperandMajorMode = OperandMajorMode.K,
) -> cute.TiledMma:
    """tcgen05.mma kind::f16 of one CTA, ``tile`` = (M, N, K of the tile), float32 accumulator in tensor
    memory."""
    operation = tcgen05.MmaF16BF16Op(
        dtype, cutlass.Float32, (*tile[:2], 16), tcgen05.CtaGroup.ONE, a_source, a_major, b_major
    )
    return cute.make_tiled_mma(operation)


def load_a(mma: cute.TiledMma, tile: tuple, tensor: cute.Tensor, stages: int):
    """Shared layout of operand A with its stages, and the TMA load of one stage: (layout, atom, tensor)."""
    layout = blackwell_helpers.make_smem_layout_a(mma, tile, tensor.element_type, stages)
    operation = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = cute.select(layout, mode=[0, 1, 2])
    return layout, *cute.nvgpu.make_tiled_tma_atom_A(operation, tensor, stage, tile, mma)


def load_b(mma: cute.TiledMma, tile: tuple, tensor: cute.Tensor, stages: int):
    """The same for operand B."""
    layout = blackwell_helpers.make_smem_layout_b(mma, tile, tensor.element_type, stages)
    operation = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = cute.select(layout, mode=[0, 1, 2])
    return layout, *cute.nvgpu.make_tiled_tma_atom_B(operation, tensor, stage, tile, mma)


def stage_bytes(dtype: type[cutlass.Numeric], layout: cute.ComposedLayout) -> int:
    """Bytes that one TMA load of this operand delivers."""
    return cute.size_in_bytes(dtype, cute.select(layout, mode=[0, 1, 2]))


def partition(atom: cute.CopyAtom, shared: cute.Tensor, tiles: cute.Tensor, modes: int = 3):
    """(shared, global) views for `cute.copy`: [copy, stage] and [copy, tiles left over...]."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, modes), cute.group_modes(tiles, 0, modes)
    )


def accumulator(mma: cute.TiledMma, tile: tuple, base: cute.Pointer, column: int) -> cute.Tensor:
    """The float32 accumulator of ``tile`` at ``column`` of the allocation that starts at ``base``."""
    layout = mma.make_fragment_C(mma.partition_shape_C(tile[:2])).layout
    return cute.make_tensor(base + column, layout)


def operand_in_tmem(
    mma: cute.TiledMma, layout: cute.ComposedLayout, base: cute.Pointer, column: int
) -> cute.Tensor:
    """Operand A in tensor memory at ``column``: two 16-bit elements of a row share a 32-bit column."""
    fragment = mma.make_fragment_A(layout.outer.shape)
    return cute.make_tensor(cute.recast_ptr(base + column, dtype=fragment.element_type), fragment.layout)


@cute.jit
def gemm(mma: cute.TiledMma, out: cute.Tensor, a: cute.Tensor, b: cute.Tensor, accumulate):
    """One tcgen05.mma per 16 k of operands [MMA, M, K]; the first overwrites ``out`` unless ``accumulate``.

    The flag lives in the atom, so the caller keeps the returned one: ``mma = gemm(mma, ...)``.
    """
    mma.set(tcgen05.Field.ACCUMULATE, accumulate)
    for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(mma, out, a[None, None, k], b[None, None, k], out)
        mma.set(tcgen05.Field.ACCUMULATE, True)
    return mma


def commit(barrier: cute.Pointer) -> None:
    """Arrive on ``barrier`` when every tcgen05.mma that this thread issued so far has completed."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier)


def expect(barrier: cute.Pointer, count: int) -> None:
    """Arrive once and announce ``count`` bytes that TMA will deliver."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, count)


def load_rows(thread, repetition: tcgen05.Repetition, source, target):
    """tcgen05.ld 32x32b: thread = lane of tensor memory = row. (copy, partitioned source, partitioned
    target)."""
    copy = tcgen05.make_tmem_copy(
        cute.make_copy_atom(tcgen05.Ld32x32bOp(repetition), cutlass.Float32), source
    )
    part = copy.get_slice(thread)
    return copy, part.partition_S(source), part.partition_D(target)


def store_rows(thread, repetition: tcgen05.Repetition, target):
    """tcgen05.st 32x32b, the inverse: (copy, shape of the registers, partitioned target)."""
    dtype = target.element_type
    copy = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.St32x32bOp(repetition), dtype), target)
    part = copy.get_slice(thread)
    return copy, part.partition_S(target).shape, part.partition_D(target)
