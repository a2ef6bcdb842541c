"""Shared memory of `out` for d_k = d_v = 128: where everything lies, as wgmma operands and as addresses.

=========  =====  =================================================================================
offset     bytes  contents, then what takes its place
=========  =====  =================================================================================
``Q``      16 K   q, then dq
``K``      16 K   k, then dk
``B``      16 K   b, then db
``V``      16 K   v, then dv
``W``      16 K   w, then dw
``DO``     16 K   dO; bfloat16 is converted in place to float16 with a power of two
``G``      32 K   g (float32); then Ph | Kt (float16); then N | R (float16)
``S``      32 K   S^T [dv, dk]
``D``      32 K   D^T [dv, dk]
``A``       8 K   A, then dA below its diagonal blocks (float16)
``T``       8 K   T - I, then dM below its diagonal blocks (float16)
``DIAG``   12 K   diagonal blocks of dA, then of dM: float32 [4, 16, 16], rows of 96 bytes; or sums for dg
``SMALL``   2 K   a, da [64]; maxima of the warps; gates that are one number a head, and their sums
``BAR``           barriers
=========  =====  =================================================================================

A *panel* is [rows, 64] 16-bit (or [rows, 32] float32), rows of 128 bytes swizzled by TMA; tiles are panels
one after the other. One layout serves every tile: q, k, b, v, w, dO, Ph, Kt, N and R are [64 tokens, 128
channels].
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

HALF = cutlass.Float16
TILE = 16384
Q, K, B, V, W, DO = (TILE * i for i in range(6))
G = 6 * TILE
PH, KT = G, G + TILE
N, R = PH, KT
S = G + 2 * TILE
D = S + 2 * TILE
A = D + 2 * TILE
T = A + 8192
DIAG = T + 8192
DIAG_ROW, DIAG_BLOCK, DIAG_MATRIX = 96, 16 * 96, 4 * 16 * 96
SMALL = DIAG + 2 * DIAG_MATRIX
SMALL_A, SMALL_DA, SMALL_MAXIMA, SMALL_X, SMALL_G, SMALL_B, SMALL_W = (SMALL + 256 * i for i in range(7))
BAR = SMALL + 2048
BYTES = BAR + 128

FULL_STATES, FULL_VALUES, FULL_SQUARES, FULL_KEYS, FULL_QUERIES = range(5)
DONE_STATES, DONE_VALUES, DONE_SQUARES, DONE_KEYS = range(5, 9)
BARRIERS, LOADED = 9, 5
"""Each set of tiles has a barrier that says they are loaded (``states``: S, D, dO, g; ``values``: v, w;
``squares``: A, T, a; ``keys``: k, b; ``queries``: q), and one that says they may be replaced, after what
stands there has been stored (q with k and b)."""

KEYS, MN = OperandMajorMode.K, OperandMajorMode.MN


def swizzle(atom: warpgroup.SmemLayoutAtomKind, dtype: type[cutlass.Numeric]):
    """The swizzle by which TMA writes panels of this dtype."""
    return warpgroup.make_smem_layout_atom(atom, dtype).inner


def panels(rows: int, columns: int, dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """Layout (rows, columns) of a tile, as TMA copies it."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (rows, columns), (0, 1))


class Operands:
    """Views of the shared memory at `base` as operands of m64n64k16, and the five kinds of product.

    An operand with ``group`` is what the warp group of that number takes: its 64 rows of M.
    """

    def __init__(self, base: cute.Pointer, group):
        self.base, self.group = base, group
        smem, registers = warpgroup.OperandSource.SMEM, warpgroup.OperandSource.RMEM
        self.kk, self.mm, self.mk = (
            self._mma(smem, KEYS, KEYS),
            self._mma(smem, MN, MN),
            self._mma(smem, MN, KEYS),
        )
        self.rk, self.rm = self._mma(registers, KEYS, KEYS), self._mma(registers, KEYS, MN)

    @staticmethod
    def _mma(source, a_major, b_major) -> cute.TiledMma:
        operation = warpgroup.MmaF16BF16Op(HALF, cutlass.Float32, (64, 64, 16), source, a_major, b_major)
        return cute.make_tiled_mma(operation)

    def registers(self) -> tuple[cute.Tensor, cute.Tensor]:
        """Operand A [64, 64] in registers, and the same as packed words."""
        made = cute.make_rmem_tensor(self.rk.partition_shape_A((64, 64)), HALF)
        return made, cute.recast_tensor(made, cutlass.Int32)

    def view(self, offset: int, shape, stride) -> cute.Tensor:
        """float16 at `offset` bytes with the swizzle of a panel."""
        inner = swizzle(warpgroup.SmemLayoutAtomKind.K_SW128, HALF)
        pointer = cute.recast_ptr(self.base + offset, inner, HALF)
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))

    def k_major(self, offset: int, panel_rows: int, depth: int, apart: int = 0) -> cute.Tensor:
        """64 rows of a tile with K = its columns; the group's rows are `apart` elements from the other's."""
        shape, stride = ((8, 8), (64, depth // 64)), ((64, 512), (1, 64 * panel_rows))
        return self._of_group(offset, shape, stride, apart)

    def mn_major(self, offset: int, depth: int, apart: int = 0) -> cute.Tensor:
        """A panel with M or N = its 64 columns and K = its rows."""
        return self._of_group(offset, ((64, 1), (8, depth // 8)), ((1, 0), (64, 512)), apart)

    def _of_group(self, offset: int, shape, stride, apart: int) -> cute.Tensor:
        if not apart:
            return self.view(offset, shape, stride)
        return self.view(offset, (*shape, 2), (*stride, apart))[None, None, self.group]


def operand_a(mma: cute.TiledMma, tile: cute.Tensor) -> cute.Tensor:
    """Descriptors of operand A."""
    return mma.make_fragment_A(mma.get_slice(0).partition_A(tile))


def operand_b(mma: cute.TiledMma, tile: cute.Tensor) -> cute.Tensor:
    """Descriptors of operand B."""
    return mma.make_fragment_B(mma.get_slice(0).partition_B(tile))


def accumulator() -> cute.Tensor:
    """32 float32: what a thread holds of [64, 64]."""
    return cute.make_rmem_tensor(cute.make_layout(((2, 2, 8), 1, 1)), cutlass.Float32)


def product(mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, accumulate: bool) -> None:
    """Issue sums (+)= a b; the caller fences before and commits after."""
    mma.set(warpgroup.Field.ACCUMULATE, accumulate)
    for k in range(cute.size(a, mode=[2])):
        cute.gemm(mma, sums, a[None, None, k], b[None, None, k], sums)
        mma.set(warpgroup.Field.ACCUMULATE, True)
