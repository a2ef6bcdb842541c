"""T - block for T = (block + M)^{-1}, by four warps that hold the 16 rows of a block each (`triangle` has the
mathematics).

M arrives in float32 accumulators of mma.sync (tile of 8 columns t at sums[4 t ...]). A warp substitutes its
diagonal block by itself: a lane is a column, 15 steps. Then neighbouring blocks join twice, by mma.sync on
float16: M is operand A out of its accumulators, T is operand B out of the tile that it is written to, and X
passes through the place of its own result. The tile T is 64 rows of 128 bytes (`prep_memory`); above the
diagonal it is zero.
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import prep_gates as gates
from lethe.kernels.gdn.sm90.prep_memory import piece, store_piece, store_word

BLOCK = 16
SCRATCH_ROW = 80
"""Bytes between columns of M in the scratch, which lies where the block's rows of T will be."""
Int32, Float32 = cutlass.Int32, cutlass.Float32


def place(T, lane, block: int, J: int):
    """This lane's address for ldmatrix or stmatrix of block (block, J)."""
    return T + piece(BLOCK * block + (lane & 15), 2 * J + (lane >> 4))


def put_block(tile, lane, block: int, J: int, values: list) -> None:
    """Write the accumulators of a 16 x 16 block (index 4 t + 2 h + e) as float16."""
    for t in (0, 1):
        at = tile + piece(BLOCK * block + (lane >> 2), Int32(2 * J + t)) + (lane & 3) * 4
        for h in (0, 1):
            word = registers.pack(values[4 * t + 2 * h], values[4 * t + 2 * h + 1])
            store_word(at, word, 8 * 128 * h)


def clear_above(tile, lane, block: int) -> None:
    """Zero the blocks right of the diagonal in the rows of block block."""
    for J in range(block + 1, 4):
        store_piece(tile + piece(BLOCK * block + (lane & 15), 2 * J + (lane >> 4)), [Int32(0)] * 4)


def below(lane, h: int, t: int, e: int, value):
    """`value` where an entry of a diagonal block's accumulators lies strictly below the diagonal, else 0."""
    return gates.keep((lane & 3) * 2 + (8 * t + e), (lane >> 2) + 8 * h, value)


def strictly_below(lane, values: list) -> list:
    """The accumulators of a diagonal block without what is on and above the diagonal."""
    return [below(lane, (i // 2) % 2, i // 4, i % 2, v) for i, v in enumerate(values)]


def accumulators(sums: cute.Tensor, J: int) -> list:
    """The eight float32 of block J."""
    return [sums[8 * J + i] for i in range(8)]


def as_a(values: list) -> list:
    """Accumulators of a block as operand A."""
    return registers.pack_all(values)


def plus_product(values: list, a: list, b: list) -> list:
    """Accumulators + A B, where b is what ldmatrix.trans gives for a block stored by rows."""
    first = registers.multiply(values[:4], a, b[:2])
    return [*first, *registers.multiply(values[4:], a, b[2:])]


def negative(values: list) -> list:
    """-x."""
    return [-v for v in values]


def solve_diagonal(block: int, lane, diagonal: list, T) -> None:
    """Substitute block (block, block) and write it into T; its rows of T are the scratch."""
    scratch = T + 2048 * block
    for i, value in enumerate(diagonal):
        t, h, e = i // 4, (i // 2) % 2, i % 2
        at = scratch + ((lane & 3) * 2 + (8 * t + e)) * SCRATCH_ROW + (lane >> 2) * 4
        registers.store_float(at, value, 32 * h)
    cute.arch.sync_warp()
    column = lane & 15
    x = [one_where(column, i) for i in range(BLOCK)]
    for j in range(BLOCK - 1):
        for start in range((j + 1) // 4 * 4, BLOCK, 4):
            m = registers.asm(
                f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{j * SCRATCH_ROW + 4 * start}];",
                "ffff", [scratch], "r", True,
            )  # fmt: skip
            for i in range(max(start, j + 1), start + 4):
                x[i] = x[i] - m[i - start] * x[j]
    cute.arch.sync_warp()
    write_column(block, lane, x, T)


def one_where(column, i: int):
    """1 in lane column i, else 0."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.eq.s32 p, $1, $2;\n\tselp.f32 $0, 0f3F800000, 0f00000000, p;\n\t}",
        "f", [column, Int32(i)], "rr",
    )  # fmt: skip


def write_column(block: int, lane, x: list, T) -> None:
    """Column `lane % 16` of the solved block without its unit; lanes 16.. write the lower eight rows."""
    column, half = lane & 15, lane >> 4
    for i in range(8):
        row = half * 8 + i
        value = pick(half, x[i], x[i + 8])
        word = registers.pack(gates.keep(column, row, value), Float32(0.0))
        at = T + piece(BLOCK * block + row, 2 * block + (column >> 3)) + (column & 7) * 2
        low = "{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, $1;\n\tst.shared.b16 [$0], l;\n\t}"
        registers.asm(low, "", [at, word], "rr", True)


def pick(flag, without, given):
    """`given` if flag is not zero, else `without`."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.eq.s32 p, $1, 0;\n\tselp.f32 $0, $2, $3, p;\n\t}",
        "f",
        [flag, without, given],
        "rff",
    )


def transposed_block(T, lane, block: int, J: int) -> list:
    """Block (block, J) of T as operand B."""
    return registers.load_matrices(place(T, lane, block, J), transposed=True)


@cute.jit
def invert(block: cutlass.Constexpr, sums: cute.Tensor, lane, T, barrier: cutlass.Constexpr):
    """What the warp of a block does; the four meet at the barrier four times, and must again after it."""
    solve_diagonal(block, lane, strictly_below(lane, accumulators(sums, block)), T)
    clear_above(T, lane, block)
    meet(barrier)
    if cutlass.const_expr(block % 2 == 1):
        M = accumulators(sums, block - 1)
        x = plus_product(M, as_a(M), transposed_block(T, lane, block - 1, block - 1))
        put_block(T, lane, block, block - 1, x)
        cute.arch.sync_warp()
        right = transposed_block(T, lane, block, block - 1)
        cute.arch.sync_warp()
        own = registers.load_matrices(place(T, lane, block, block))
        put_block(T, lane, block, block - 1, negative(plus_product(x, own, right)))
    meet(barrier)
    if cutlass.const_expr(block >= 2):
        M0, M1 = accumulators(sums, 0), accumulators(sums, 1)
        x0 = plus_product(M0, as_a(M0), transposed_block(T, lane, 0, 0))
        x0 = plus_product(x0, as_a(M1), transposed_block(T, lane, 1, 0))
        x1 = plus_product(M1, as_a(M1), transposed_block(T, lane, 1, 1))
        put_block(T, lane, block, 0, x0)
        put_block(T, lane, block, 1, x1)
        meet(barrier)
        joined = [x0, x1]
        for J in cutlass.range_constexpr(2):
            for K in cutlass.range_constexpr(2, block + 1):
                left = registers.load_matrices(place(T, lane, block, K))
                joined[J] = plus_product(joined[J], left, transposed_block(T, lane, K, J))
        meet(barrier)
        for J in cutlass.range_constexpr(2):
            put_block(T, lane, block, J, negative(joined[J]))
    else:
        meet(barrier)
        meet(barrier)


def meet(barrier: int) -> None:
    """The four warps wait for each other."""
    cute.arch.barrier(barrier_id=barrier, number_of_threads=128)
