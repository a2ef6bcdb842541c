"""Products with a decay between the tokens of a chunk: ``X_ij = sum_d x_id k_jd e^{G_id - G_jd}``, i > j.

A warp forms the 16 rows of one block against the blocks up to its own, by mma.sync with float32 sums. With
r = G in the block's first row both factors ``e^{G_i - r}`` and ``e^{r - G_j}`` of an earlier block are at
most 1 for every decay; they go onto the fragments in float32, which are rounded to float16 once. On the
diagonal the second factor grows to the decay of 15 rows: there both operands are tf32 (K of m16n8k8 is
permuted: a lane gives the two channels that it has). A block whose decay passes `prep_gates.LIMIT` is formed
pair by pair instead. The reference is the same for both, so x is scaled once.

With one decay a head, or none, the operands are q (or b k) and k as they are, and the ratios come afterwards.

Fragments of q, k and b are those of ldmatrix on ``[16 tokens, 16 channels]``: with ``r = lane // 4`` and
``c = lane % 4`` words 0..3 hold tokens (r, r + 8, r, r + 8) and channels ``2 c + e`` (words 2 and 3: + 8).
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import prep_gates as gates

BLOCK = gates.BLOCK
HALF_TILE = 64 * 128
Int32, Float32 = cutlass.Int32, cutlass.Float32


def fragment_offset(lane, step):
    """Byte of a tile (`prep_memory`) that this lane hands to ldmatrix for block 0 and channels ``16 step``;
    block J is ``2048 J`` further."""
    chunk = ((step & 3) * 2 + (lane >> 4)) ^ (lane & 7)
    return (step >> 2) * HALF_TILE + (lane & 15) * 128 + (chunk << 4)


def fragment(tile, at, block: int) -> list:
    """Four words of a block."""
    return registers.load_matrices(tile + at + 2048 * block)


def unpacked(words: list) -> list:
    """Eight float32, index ``2 word + e``."""
    return registers.unpack_all(words, cutlass.Float16)


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


def clear(sums: cute.Tensor, count: int) -> None:
    """Zero the first registers."""
    for i in range(count):
        sums[i] = Float32(0.0)


@cute.jit
def rows_by_channel(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    x_tile, k_tile, table, lane, times_k, steep, sums: cute.Tensor, own: cute.Tensor,
):  # fmt: skip
    """Rows of a block for a decay of every channel: sums[4 tile + i] for tiles of 8 columns to the diagonal.

    x is the tile x_tile, times k where `times_k` if erase. own[0..1] is this lane's part of the unscaled
    ``sum_d x k`` of tokens r and r + 8.
    """
    clear(sums, 8 * (block + 1))
    clear(own, 2)
    for step in cutlass.range(dk // 16, unroll=1):
        at = fragment_offset(lane, step)
        decays = Decays(table, lane, step, dk)
        first = decays.first(block)
        k = unpacked(fragment(k_tile, at, block))
        x = unpacked(fragment(x_tile, at, block))
        if cutlass.const_expr(erase):
            x = [x[i] * one_or(times_k, k[i]) for i in range(8)]
        for i in cutlass.range_constexpr(8):
            own[(i // 2) % 2] = own[(i // 2) % 2] + x[i] * k[i]
        late = [G - r for G, r in zip(decays.block(block), first, strict=True)]
        x = [v * registers.exp2(d) for v, d in zip(x, late, strict=True)]
        add_diagonal(sums, block, x, [v * registers.exp2(-d) for v, d in zip(k, late, strict=True)])
        a = registers.pack_all(x)
        for J in cutlass.range_constexpr(block):
            y = unpacked(fragment(k_tile, at, J))
            early = [r - G for G, r in zip(decays.block(J), first, strict=True)]
            b = registers.pack_all([v * registers.exp2(d) for v, d in zip(y, early, strict=True)])
            for tile in cutlass.range_constexpr(2):
                add(sums, 2 * J + tile, registers.multiply, a, against(b, tile))
    if steep != 0:
        diagonal_by_pairs(block, dk, erase, x_tile, k_tile, table, lane, times_k, sums)


def two_of(tile, token, channel) -> tuple:
    """Two channels side by side of one token."""
    at = tile + (channel >> 6) * HALF_TILE + token * 128 + ((((channel >> 3) ^ token) & 7) << 4)
    word = registers.asm("ld.shared.b32 $0, [$1];", "r", [at + (channel & 7) * 2], "r", True)
    return registers.unpack(word, cutlass.Float16)


@cute.jit
def diagonal_by_pairs(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    x_tile, k_tile, table, lane, times_k, sums: cute.Tensor,
):  # fmt: skip
    """The diagonal block again, each entry from its own differences of G; above the diagonal anything."""
    for i in cutlass.range_constexpr(8):
        sums[8 * block + i] = Float32(0.0)
    for pair in cutlass.range(dk // 2, unroll=1):
        channel, decay = pair * 2, gates.Channel(table, dk)
        rows = [(lane >> 2) + (BLOCK * block + 8 * h) for h in range(2)]
        columns = [(lane & 3) * 2 + (BLOCK * block + 8 * t + e) for t in range(2) for e in range(2)]
        late = [registers.load_two(decay.address(token, channel)) for token in rows]
        early = [registers.load_two(decay.address(token, channel)) for token in columns]
        x = [two_of(x_tile, token, channel) for token in rows]
        y = [two_of(k_tile, token, channel) for token in columns]
        if cutlass.const_expr(erase):
            k = [two_of(k_tile, token, channel) for token in rows]
            x = [[x[h][d] * one_or(times_k, k[h][d]) for d in range(2)] for h in range(2)]
        for i in cutlass.range_constexpr(8):
            h, j = (i // 2) % 2, 2 * (i // 4) + i % 2
            for d in cutlass.range_constexpr(2):
                ratio = registers.exp2(late[h][d] - early[j][d])
                sums[8 * block + i] = sums[8 * block + i] + x[h][d] * (y[j][d] * ratio)


@cute.jit
def rows_by_head(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    vector, decays: cutlass.Constexpr, x_tile, k_tile, lane, times_k, sums: cute.Tensor, own: cute.Tensor,
):  # fmt: skip
    """The same for one decay a head (the vector of G), or none."""
    clear(sums, 8 * (block + 1))
    for step in cutlass.range(dk // 16, unroll=1):
        at = fragment_offset(lane, step)
        a = fragment(x_tile, at, block)
        for J in cutlass.range_constexpr(block + 1):
            k = fragment(k_tile, at, J)
            if cutlass.const_expr(J == 0 and erase):
                mine = unpacked(fragment(k_tile, at, block))
                x = [v * one_or(times_k, f) for v, f in zip(unpacked(a), mine, strict=True)]
                a = registers.pack_all(x)
            for tile in cutlass.range_constexpr(2):
                add(sums, 2 * J + tile, registers.multiply, a, against(k, tile))
    r, c = lane >> 2, lane & 3
    for h in cutlass.range_constexpr(2):
        found = [gates.same(c * 2 + e, r, sums[8 * block + 4 * h + 2 * h + e]) for e in range(2)]
        own[h] = found[0] + found[1]
    if cutlass.const_expr(decays):
        late = [registers.load_float(vector + r * 4, 4 * (BLOCK * block + 8 * h)) for h in range(2)]
        for t in cutlass.range_constexpr(2 * (block + 1)):
            early = registers.load_two(vector + c * 8, 32 * t)
            for i in cutlass.range_constexpr(4):
                sums[4 * t + i] = sums[4 * t + i] * registers.exp2(late[i // 2] - early[i % 2])


def one_or(flag, value):
    """`value` if flag is not zero, else 1."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.ne.s32 p, $1, 0;\n\tselp.f32 $0, $2, 0f3F800000, p;\n\t}",
        "f",
        [flag, value],
        "rf",
    )


@cute.jit
def times_rows(block: cutlass.Constexpr, lane, vector, sums: cute.Tensor):
    """Multiply every row of a block's products by one number a token."""
    of_rows = [registers.load_float(vector + (lane >> 2) * 4, 4 * (BLOCK * block + 8 * h)) for h in range(2)]
    for i in cutlass.range_constexpr(8 * (block + 1)):
        sums[i] = sums[i] * of_rows[(i // 2) % 2]
