"""Products with a decay between the tokens of a chunk: ``X_ij = sum_d x_id k_jd e^{G_id - G_jd}``, i > j.

A pair of warps forms the 16 rows of one block of A and of M against the blocks up to its own, by mma.sync
with float32 sums, half of the channels each; then one has all of A, the other all of M (`swap`). With r = G
in the block's first row both factors ``e^{G_i - r}`` and ``e^{r - G_j}`` of an earlier block are at most 1
for every decay; they go onto the fragments in float32, which are rounded to float16 once. On the diagonal
the second factor grows to the decay of 15 rows: there both operands are tf32 (K of m16n8k8 is permuted: a
lane gives the two channels that it has). A block whose decay passes `prep_gates.LIMIT` is formed pair by
pair instead. The reference is the same for both, so q and b k are scaled once, and k serves both products.

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


def add_diagonal(sums: cute.Tensor, block: int, left: list, right: list) -> None:
    """The block on the diagonal, of fragments in tf32."""
    for half in (0, 4):
        a = [left[half], left[half + 2], left[half + 1], left[half + 3]]
        for tile in (0, 1):
            b = [right[half + 2 * tile], right[half + 2 * tile + 1]]
            add(sums, 2 * block + tile, registers.multiply_tf32, a, b)


def clear(sums: cute.Tensor, count: int) -> None:
    """Zero the first registers."""
    for i in range(count):
        sums[i] = Float32(0.0)


def erasers(fragments: list, erase: str) -> list:
    """p of [k, b] for b of every channel; k without b, which then multiplies the rows."""
    k = fragments[0]
    return [x * y for x, y in zip(k, fragments[1], strict=True)] if erase == "channel" else k


@cute.jit
def rows_by_channel(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    tiles: tuple, table, lane, half, of_a: cute.Tensor, of_m: cute.Tensor, own: cute.Tensor,
):  # fmt: skip
    """Rows of a block for a decay of every channel: sums[4 tile + i] for tiles of 8 columns to the diagonal.

    Half of the channels of the tiles q, k, b. own[0..1] is this lane's part of ``sum_d q k`` of tokens r and
    r + 8.
    """
    q_tile, k_tile, b_tile = tiles
    clear(of_a, 8 * (block + 1))
    clear(of_m, 8 * (block + 1))
    clear(own, 2)
    for i in cutlass.range(dk // 32, unroll=1):
        step = half * (dk // 32) + i
        at = fragment_offset(lane, step)
        decays = Decays(table, lane, step, dk)
        first = decays.first(block)
        k = unpacked(fragment(k_tile, at, block))
        q = unpacked(fragment(q_tile, at, block))
        for i in cutlass.range_constexpr(8):
            own[(i // 2) % 2] = own[(i // 2) % 2] + q[i] * k[i]
        late = [G - r for G, r in zip(decays.block(block), first, strict=True)]
        y = [registers.tf32(v * registers.exp2(-d)) for v, d in zip(k, late, strict=True)]
        late = [registers.exp2(d) for d in late]
        q = gates.scaled(q, late)
        add_diagonal(of_a, block, [registers.tf32(v) for v in q], y)
        a = [registers.pack_all(q)]
        if cutlass.const_expr(erase != "none"):
            b = unpacked(fragment(b_tile, at, block)) if cutlass.const_expr(erase == "channel") else k
            p = gates.scaled(erasers([k, b], erase), late)
            add_diagonal(of_m, block, [registers.tf32(v) for v in p], y)
            a.append(registers.pack_all(p))
        for J in cutlass.range_constexpr(block):
            y = unpacked(fragment(k_tile, at, J))
            early = [r - G for G, r in zip(decays.block(J), first, strict=True)]
            b = registers.pack_all([v * registers.exp2(d) for v, d in zip(y, early, strict=True)])
            add_both([of_a, of_m], J, a, b)


def add_both(sums: list, J: int, a: list, b: list) -> None:
    """Both products, or the first, against block J."""
    for found, left in zip(sums, a, strict=False):
        for tile in (0, 1):
            add(found, 2 * J + tile, registers.multiply, left, against(b, tile))


def two_of(tile, token, channel) -> tuple:
    """Two channels side by side of one token."""
    at = tile + (channel >> 6) * HALF_TILE + token * 128 + ((((channel >> 3) ^ token) & 7) << 4)
    word = registers.asm("ld.shared.b32 $0, [$1];", "r", [at + (channel & 7) * 2], "r", True)
    return registers.unpack(word, cutlass.Float16)


@cute.jit
def diagonal_by_pairs(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    tiles: tuple, table, lane, half, sums: cute.Tensor,
):  # fmt: skip
    """The diagonal block again (of A in half 0, of M in half 1), each entry from its own differences of G;
    above the diagonal anything."""
    q_tile, k_tile, b_tile = tiles
    x_tile = q_tile + half * ((b_tile if cutlass.const_expr(erase == "channel") else k_tile) - q_tile)
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
        if cutlass.const_expr(erase == "channel"):
            k = [two_of(k_tile, token, channel) for token in rows]
            x = [[x[h][d] * one_or(half, k[h][d]) for d in range(2)] for h in range(2)]
        for i in cutlass.range_constexpr(8):
            h, j = (i // 2) % 2, 2 * (i // 4) + i % 2
            for d in cutlass.range_constexpr(2):
                ratio = registers.exp2(late[h][d] - early[j][d])
                sums[8 * block + i] = sums[8 * block + i] + x[h][d] * (y[j][d] * ratio)


@cute.jit
def rows_by_head(
    block: cutlass.Constexpr, dk: cutlass.Constexpr, erase: cutlass.Constexpr,
    tiles: tuple, lane, half, of_a: cute.Tensor, of_m: cute.Tensor,
):  # fmt: skip
    """The same for one decay a head, or none, without the ratios."""
    q_tile, k_tile, b_tile = tiles
    clear(of_a, 8 * (block + 1))
    clear(of_m, 8 * (block + 1))
    for i in cutlass.range(dk // 32, unroll=1):
        at = fragment_offset(lane, half * (dk // 32) + i)
        a, k = [fragment(q_tile, at, block)], fragment(k_tile, at, block)
        if cutlass.const_expr(erase == "channel"):
            b = unpacked(fragment(b_tile, at, block))
            a.append(registers.pack_all(erasers([unpacked(k), b], erase)))
        elif cutlass.const_expr(erase == "head"):
            a.append(k)
        add_both([of_a, of_m], block, a, k)
        for J in cutlass.range_constexpr(block):
            add_both([of_a, of_m], J, a, fragment(k_tile, at, J))


def own_of_head(block: int, lane, of_a: cute.Tensor, own: cute.Tensor) -> None:
    """``sum_d q k`` of tokens r and r + 8 from the diagonal of the sums, in the lane that has it."""
    for h in (0, 1):
        at = 8 * block + 6 * h
        found = [gates.same((lane & 3) * 2 + e, lane >> 2, of_a[at + e]) for e in (0, 1)]
        own[h] = found[0] + found[1]


def times_ratios(block: int, vector, lane, sums: cute.Tensor) -> None:
    """Multiply products by the ratios of one decay a head; above the diagonal anything."""
    late = [registers.load_float(vector + (lane >> 2) * 4, 4 * (BLOCK * block + 8 * h)) for h in (0, 1)]
    for t in range(2 * (block + 1)):
        early = registers.load_two(vector + (lane & 3) * 8, 32 * t)
        for i in range(4):
            sums[4 * t + i] = sums[4 * t + i] * registers.exp2(late[i // 2] - early[i % 2])


SWAPPED = 10 * 1024
"""Bytes that the blocks' halves of one product take in `swap`."""


def swap_bytes(erase: str) -> int:
    """Shared memory for `swap`."""
    return SWAPPED * (1 if erase == "none" else 2)


@cute.jit
def swap(
    block: cutlass.Constexpr, erase: cutlass.Constexpr, space, lane, half,
    of_a: cute.Tensor, of_m: cute.Tensor,
):  # fmt: skip
    """Half 0 gets all of A, half 1 all of M. Every warp of the CTA passes one barrier within."""
    count = 8 * (block + 1)
    at = space + 1024 * (block * (block + 1) // 2) + lane * 16
    if half == 1:
        put(at, of_a, count)
    elif cutlass.const_expr(erase != "none"):
        put(at + SWAPPED, of_m, count)
    cute.arch.sync_threads()
    if half == 0:
        take(at, of_a, count)
    elif cutlass.const_expr(erase != "none"):
        take(at + SWAPPED, of_m, count)


def put(at, sums: cute.Tensor, count: int) -> None:
    """Write registers, four a lane side by side."""
    for i in range(0, count, 4):
        values = [sums[i + e] for e in range(4)]
        registers.asm(
            f"st.shared.v4.f32 [$0+{128 * i}], {{$1, $2, $3, $4}};", "", [at, *values], "rffff", True
        )


def take(at, sums: cute.Tensor, count: int) -> None:
    """Add what `put` wrote."""
    for i in range(0, count, 4):
        load = f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{128 * i}];"
        for e, value in enumerate(registers.asm(load, "ffff", [at], "r", True)):
            sums[i + e] = sums[i + e] + value


def one_or(flag, value):
    """`value` if flag is not zero, else 1."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.ne.s32 p, $1, 0;\n\tselp.f32 $0, $2, 0f3F800000, p;\n\t}",
        "f",
        [flag, value],
        "rf",
    )


def times_rows(block: int, lane, vector, sums: cute.Tensor) -> None:
    """Multiply every row of a block's products by one number a token."""
    of_rows = [registers.load_float(vector + (lane >> 2) * 4, 4 * (BLOCK * block + 8 * h)) for h in (0, 1)]
    for i in range(8 * (block + 1)):
        sums[i] = sums[i] * of_rows[(i // 2) % 2]
