"""What the kernels for sm_90a share: barriers, bulk copies, views of shared tiles, powers of two.

A *tile* is ``[64 or more rows, dk]`` float16 in shared memory as TMA writes it with a 128-byte swizzle:
blocks of 64 columns after one another, each with rows of 128 bytes. The same bytes are operand B of a wgmma
in two ways: K-major with N = rows (`k_major`), and MN-major with N = columns (`mn_major`).
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

HALF = cutlass.Float16
ONE_STAGE = (None, None, 0)


def k_major(rows: int, columns: int, stages: int = 1) -> cute.ComposedLayout:
    """Layout (rows, columns, stages) of tiles; K = columns are contiguous."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, HALF)
    return cute.tile_to_shape(atom, (rows, columns, stages), (0, 1, 2))


def mn_major(rows: int, columns: int, stages: int = 1) -> cute.ComposedLayout:
    """The same bytes transposed: layout (columns, rows, stages); N = columns are contiguous."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.MN_SW128, HALF)
    return cute.tile_to_shape(atom, (columns, rows, stages), (1, 0, 2))


def mma(columns: int, b_major: OperandMajorMode, a_source: warpgroup.OperandSource) -> cute.TiledMma:
    """wgmma m64n(columns)k16 of one warp group on float16, float32 accumulator, A K-major."""
    operation = warpgroup.MmaF16BF16Op(
        HALF, cutlass.Float32, (64, columns, 16), a_source, OperandMajorMode.K, b_major
    )
    return cute.make_tiled_mma(operation)


def partition(atom: cute.CopyAtom, shared: cute.Tensor, tiles: cute.Tensor, modes: int = 2):
    """(shared, global) views for a TMA `cute.copy`: [copy, stage ...] and [copy, tiles left over ...]."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, modes), cute.group_modes(tiles, 0, modes)
    )


def by_tile(tensor: cute.Tensor) -> cute.Tensor:
    """[slots, H, rows, columns] as (rows, columns, H, slots), what TMA cuts tiles from."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[2, 3, 1, 0]))


def tma_load(tensor: cute.Tensor, rows: int, columns: int):
    """(atom, tensor) that copy tiles of [slots, H, ., .] to shared memory, `k_major`."""
    layout = cute.slice_(k_major(rows, columns), ONE_STAGE)
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), by_tile(tensor), layout, (rows, columns)
    )


def tma_store(tensor: cute.Tensor, rows: int, columns: int):
    """The same from shared memory."""
    layout = cute.slice_(k_major(rows, columns), ONE_STAGE)
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), by_tile(tensor), layout, (rows, columns)
    )


def expect(barrier: cute.Pointer, count) -> None:
    """Arrive once and announce ``count`` bytes that TMA will deliver."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, count)


def arrive(barrier: cute.Pointer) -> None:
    """Arrive once for the whole warp."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)


def exponent(largest):
    """The x of `precision.power_for` for a largest magnitude (float32): largest in [2^(x-1), 2^x).

    0 counts as the smallest normal number.
    """
    bits = cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Int32], read_only_args=[largest]
    )
    return ((bits >> 23) & 255) - 126


def power(largest, target: int):
    """`precision.power_for`: clamp(target - x, -100, 100)."""
    found = target - exponent(largest)
    return cutlass.max(cutlass.min(found, cutlass.Int32(100)), cutlass.Int32(-100))


def two_to(exponent_of_two):
    """2^n in float32 for an int32 n, clamped to normal numbers."""
    n = cutlass.max(cutlass.min(exponent_of_two, cutlass.Int32(127)), cutlass.Int32(-126))
    bits = (n + 127) << 23
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[bits]
    )


@cute.jit
def finite(x):
    """x, or 0 where it is infinite or not a number."""
    return x if x < 3.0e38 else cutlass.Float32(0.0)


def absolute(x):
    """|x| in float32."""
    return cute.arch.inline_ptx(
        "abs.f32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[x]
    )


def ldmatrix(address, transposed: bool = False) -> list:
    """Four 8 x 8 matrices from a shared address (Int32) of each lane's row: four words of two float16."""
    return list(
        cute.arch.inline_ptx(
            f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 "
            "{{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[cutlass.Int32] * 4,
            read_only_args=[address],
        )
    )


def stmatrix(address, words: list, transposed: bool = False) -> None:
    """The inverse of `ldmatrix`."""
    cute.arch.inline_ptx(
        f"stmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 "
        "[{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, *words],
    )


def bulk_load(count: int) -> cute.CopyAtom:
    """cp.async.bulk of `count` float32; one thread must issue it."""
    return cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=32 * count)


def store_16_bytes(target: cute.Pointer, address) -> None:
    """Copy 16 bytes from a shared address (Int32) to global memory."""
    words = cute.arch.inline_ptx(
        "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[cutlass.Int32] * 4,
        read_only_args=[address],
    )
    cute.arch.inline_ptx(
        "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[target.toint(), *words],
    )
