"""Products with a decay between the tokens of a chunk: ``X_ij = sum_d x_id k_jd e^{G_id - G_jd}``, i >= j.

A warp forms the 16 rows of one block block against the blocks J <= block, by mma.sync with float32 sums.
With r = G in the block's first row both factors ``e^{G_i - r}`` and ``e^{r - G_j}`` of an earlier block are
at most 1 for every decay; they go onto the fragments in float32, which are rounded to float16 once. On the
diagonal the second factor grows to the decay of 15 rows: there both operands are tf32 (K of m16n8k8 is
permuted: a lane gives the two channels that it has). A block whose decay passes `parts_gates.LIMIT` is
formed pair by pair instead. The reference is the same for both, so x is scaled once.

Fragments of q, k and b are those of ldmatrix on ``[16 tokens, 16 channels]``: with ``r = lane // 4`` and
``c = lane % 4`` words 0..3 hold tokens (r, r + 8, r, r + 8) and channels ``2 c + e`` (words 2 and 3: + 8).
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts_gates as gates

BLOCK = gates.BLOCK
HALF_TILE = 64 * 128
Int32, Float32 = cutlass.Int32, cutlass.Float32


def fragment_offset(lane, step):
    """Byte within a tile (`prep_memory`) that this lane hands to ldmatrix for block 0 and 16 channels ``16 step``;
    block J is ``2048 J`` further."""
    chunk = ((step & 3) * 2 + (lane >> 4)) ^ (lane & 7)
    return (step >> 2) * HALF_TILE + (lane & 15) * 128 + (chunk << 4)


def sums_offset(lane, step):
    """Byte within the table of G of token r and the channels of words 0 and 1; ``^ 32``: of words 2 and 3."""
    r, c = lane >> 2, lane & 3
    return r * 512, (step * 64 + c * 8) ^ (gates.key(r) << 5)


class Decays:
    """G of one step of 16 channels, by block: as fragments, and of a block's first row."""

    def __init__(self, table, lane, step, dk: int):
        self.row = 4 * dk
        within = (step * 64 + (lane & 3) * 8) ^ (gates.key(lane >> 2) << 5)
        self.at = [table + (lane >> 2) * self.row + (within ^ half) for half in (0, 32)]
        self.first_at = table + step * 64 + (lane & 3) * 8

    def block(self, J: int) -> list:
        """Eight float32, index ``2 word + e``."""
        found = []
        for word in range(4):
            offset = (BLOCK * J + 8 * (word & 1)) * self.row
            found += registers.load_two(self.at[word >> 1], offset)
        return found

    def first(self, J: int) -> list:
        """Of the block's first row, in the same order (equal for words 0 and 1, 2 and 3)."""
        low, high = (registers.load_two(self.first_at, BLOCK * J * self.row + half) for half in (0, 32))
        return [*low, *low, *high, *high]


def halves(values: list) -> list:
    """A fragment in float32 as four words of float16."""
    return registers.pack_all(values)


def against(words: list, tile: int) -> list:
    """Operand B of tokens ``8 tile + r`` out of a block's four words."""
    return [words[tile], words[tile + 2]]


def add(sums: cute.Tensor, tile: int, product, a: list, b: list) -> None:
    """Accumulate one 16 x 8 product onto sums[4 tile ...]."""
    found = product([sums[4 * tile + i] for i in range(4)], a, b)
    for i in range(4):
        sums[4 * tile + i] = found[i]


def add_diagonal(sums: cute.Tensor, block: int, x: list, y: list) -> None:
    """The block on the diagonal in tf32, of fragments in float32."""
    left, right = [registers.tf32(v) for v in x], [registers.tf32(v) for v in y]
    for half in (0, 4):
        a = [left[half], left[half + 2], left[half + 1], left[half + 3]]
        for tile in (0, 1):
            b = [right[half + 2 * tile], right[half + 2 * tile + 1]]
            add(sums, 2 * block + tile, registers.multiply_tf32, a, b)


@cute.jit
def rows_by_channel(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    x_tile, k_tile, table, lane, times_k, sums: cute.Tensor, own: cute.Tensor,
):  # fmt: skip
    """Rows of block block for a decay of every channel: sums[4 tile + i] for the tiles of 8 columns up to the diagonal.

    ``x`` is the tile x_tile, times k where `times_k` (b of every channel). own[0..1] is this lane's part of the
    unscaled ``sum_d x k`` of tokens r and r + 8.
    """
    for i in cutlass.range_constexpr(8 * (block + 1)):
        sums[i] = Float32(0.0)
    own[0] = Float32(0.0)
    own[1] = Float32(0.0)
    for step in cutlass.range(dk // 16, unroll=1):
        at = fragment_offset(lane, step)
        decays = Decays(table, lane, step, dk)
        first = decays.first(block)
        k = registers.unpack_all(registers.load_matrices(k_tile + at + 2048 * block), cutlass.Float16)
        x = registers.unpack_all(registers.load_matrices(x_tile + at + 2048 * block), cutlass.Float16)
        if cutlass.const_expr(erase):
            x = [x[i] * one_or(times_k, k[i]) for i in range(8)]
        for i in cutlass.range_constexpr(8):
            own[(i // 2) % 2] = own[(i // 2) % 2] + x[i] * k[i]
        late = [G - r for G, r in zip(decays.block(block), first, strict=True)]
        x = [v * registers.exp2(d) for v, d in zip(x, late, strict=True)]
        add_diagonal(sums, block, x, [v * registers.exp2(-d) for v, d in zip(k, late, strict=True)])
        a = halves(x)
        for J in cutlass.range_constexpr(block):
            y = registers.unpack_all(registers.load_matrices(k_tile + at + 2048 * J), cutlass.Float16)
            early = [r - G for G, r in zip(decays.block(J), first, strict=True)]
            b = halves([v * registers.exp2(d) for v, d in zip(y, early, strict=True)])
            for tile in cutlass.range_constexpr(2):
                add(sums, 2 * J + tile, registers.multiply, a, against(b, tile))


def one_or(flag, value):
    """`value` if flag is not zero, else 1."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.ne.s32 p, $1, 0;\n\tselp.f32 $0, $2, 0f3F800000, p;\n\t}",
        "f",
        [flag, value],
        "rf",
    )
