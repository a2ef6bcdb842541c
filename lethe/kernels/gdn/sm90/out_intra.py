"""Products with the decay between rows (`decay.decayed_adjoint`) by mma.sync, in a warp's own 16 channels.

dq, dp and dk stay in registers, transposed, where the products with the states left them. They are summed
in units of ``e = 2^(x - m)`` (rows) or 1/e (columns), m the middle of their block of 16: what the state,
the square of 32, those of 16 and the diagonal blocks add differs from that by a factor per block and
channel, at most 1. Squares take float16 operands and are summed by themselves, in the units of dA or dM;
diagonal blocks take tf32 and natural units. In a tf32 product lane c of a quad brings the tokens 2c and
2c + 1 as k = c and c + 4: any order of k is right, and this one needs no shuffle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, HALVES, ChannelDecay, between
from lethe.kernels.gdn.sm90.out_fragments import (
    Float32,
    Int32,
    as_bits,
    as_float,
    load_float,
    load_matrices,
    load_two,
    multiply,
    multiply_tf32,
    pack_all,
    reciprocal,
    tf32_operand,
)


@dataclass(frozen=True)
class Square:
    """dA or dM: where its float16 squares and its float32 diagonal blocks are, and what one unit of float16
    is."""

    tile: int
    diagonal: int
    unit: Any


@dataclass(frozen=True)
class Sums:
    """A fragment [d_k, tokens] as its wgmma left it, changed in place, and what one unit of it is."""

    values: list
    unit: Any

    def begin(self, b: int, factors: list) -> None:
        """Block b times a factor by channel, out of these units."""
        factors = [factor * self.unit for factor in factors]
        for i in range(8 * b, 8 * b + 8):
            self.values[i] = self.values[i] * factors[i // 2 % 2]

    def add(self, t: int, found: list, factors: list, square: Square) -> None:
        """Add products in units of a square at the tokens 8 t .. 8 t + 7."""
        factors = [factor * square.unit for factor in factors]
        for i, x in enumerate(found):
            self.values[4 * t + i] = self.values[4 * t + i] + x * factors[i // 2]


def as_rows(
    outputs: Sequence[tuple[Sums, Square]], keys: Callable, decay: ChannelDecay, end: Sums, place
) -> list:
    """Add ``sum_j X_ij k_j e^(G_i - G_j)`` to every output (dq or dp, without its e^G_i at first, in natural
    units at last) and return ``sum_j k_j e^(Gam - G_j) end_j`` by channel."""
    kept, ended = [], [Float32(0.0)] * 2
    for sums, _ in outputs:
        for b in BLOCKS:
            sums.begin(b, decay.from_start(b))
    for b in BLOCKS:
        scaled = [k * reciprocal(e) for k, e in zip(keys(b), decay.e[8 * b : 8 * b + 8], strict=True)]
        to_end = [factor * end.unit for factor in decay.to_end(b)]
        for h in HALVES:
            inside = sum_of(scaled[i] * end.values[8 * b + i] for i in range(8) if i // 2 % 2 == h)
            ended[h] = ended[h] + to_end[h] * inside
        if b < 2:
            kept.append(_operand(scaled, between(decay.r32, decay.middle[b])))
        if b == 1:
            for sums, square in outputs:
                _rows32(sums, square, kept, decay, place)
        if b % 2 == 0:
            operand = _operand(scaled, between(decay.after[b], decay.middle[b]))
            for sums, square in outputs:
                _rows16(sums, square, operand, b, decay, place)
        for sums, square in outputs:
            _rows_diagonal(sums.values, square, scaled, b, place)
    for sums, _ in outputs:
        sums.values[:] = [x * e for x, e in zip(sums.values, decay.e, strict=True)]
    return ended


def as_columns(sums: Sums, pairs: Sequence[tuple[Callable, Square]], decay: ChannelDecay, place) -> None:
    """Add ``sum_i X_ij x_i e^(G_i - G_j)`` for every pair of rows x and X to `sums` (dk, without its e^(Gam -
    G_j) at first, in natural units at last)."""
    for b in BLOCKS:
        sums.begin(b, decay.to_end(b))
    for rows, square in pairs:
        kept: list = []
        for b in reversed(BLOCKS):
            scaled = [x * e for x, e in zip(rows(b), decay.e[8 * b : 8 * b + 8], strict=True)]
            if b > 1:
                kept.insert(0, _operand(scaled, between(decay.middle[b], decay.r32)))
            if b == 2:
                _columns32(sums, square, kept, decay, place)
            if b % 2 == 1:
                operand = _operand(scaled, between(decay.middle[b], decay.before[b]))
                _columns16(sums, square, operand, b, decay, place)
            _columns_diagonal(sums.values, square, scaled, b, place)
    sums.values[:] = [x * reciprocal(e) for x, e in zip(sums.values, decay.e, strict=True)]


def sum_of(values):
    """Their sum, from the first on."""
    found = None
    for x in values:
        found = x if found is None else found + x
    return found


def _operand(scaled: list, factors: list) -> list:
    """16 tokens of a fragment times a factor by channel, as operand A."""
    return pack_all([x * factors[i // 2 % 2] for i, x in enumerate(scaled)])


def _zeros() -> list:
    return [Float32(0.0)] * 4


def _rows32(sums: Sums, square: Square, a: list, decay: ChannelDecay, place) -> None:
    for t in range(4, 8):
        b = load_matrices(place.square(square.tile, t, place.matrix))
        found = multiply(multiply(_zeros(), a[0], b[:2]), a[1], b[2:])
        sums.add(t, found, between(decay.middle[t // 2], decay.r32), square)


def _rows16(sums: Sums, square: Square, a: list, block: int, decay: ChannelDecay, place) -> None:
    low, high = place.matrix & 1, place.matrix >> 1
    t = 2 * block + 2
    b = load_matrices(place.square(square.tile, high + t, low + 2 * block))
    factors = between(decay.middle[block + 1], decay.after[block])
    for n in range(2):
        sums.add(t + n, multiply(_zeros(), a, b[2 * n : 2 * n + 2]), factors, square)


def _columns32(sums: Sums, square: Square, a: list, decay: ChannelDecay, place) -> None:
    for t in range(4):
        b = load_matrices(place.square(square.tile, place.matrix + 4, t), transposed=True)
        found = multiply(multiply(_zeros(), a[0], b[:2]), a[1], b[2:])
        sums.add(t, found, between(decay.r32, decay.middle[t // 2]), square)


def _columns16(sums: Sums, square: Square, a: list, block: int, decay: ChannelDecay, place) -> None:
    low, high = place.matrix & 1, place.matrix >> 1
    t = 2 * block - 2
    b = load_matrices(place.square(square.tile, low + 2 * block, high + t), transposed=True)
    factors = between(decay.before[block], decay.middle[block - 1])
    for n in range(2):
        sums.add(t + n, multiply(_zeros(), a, b[2 * n : 2 * n + 2]), factors, square)


def tf32_fragment(scaled: list, half: int) -> list:
    """Eight tokens of a block of 16 as operand A of a tf32 product."""
    h0e0, h0e1, h1e0, h1e1 = (tf32_operand(_kept(x)) for x in scaled[4 * half : 4 * half + 4])
    return [h0e0, h1e0, h0e1, h1e1]


def _kept(x):
    """x; the NaN that arithmetic gives, all bits set but the sign, as one that `tf32_operand` keeps."""
    return as_float(cutlass.min(as_bits(x), Int32(0x7FFFEFFF)))


LOWER = ((0, 0), (1, 0), (1, 1))
"""Blocks of 8 of a diagonal block that are not above the diagonal: (rows, columns)."""


def _rows_diagonal(sums: list, square: Square, scaled: list, b: int, place) -> None:
    a = [tf32_fragment(scaled, half) for half in HALVES]
    for i, j in LOWER:
        offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
        pair = [as_bits(x) for x in load_two(place.diagonal_row, offset)]
        t = 2 * b + i
        sums[4 * t : 4 * t + 4] = multiply_tf32(sums[4 * t : 4 * t + 4], a[j], pair)


def _columns_diagonal(sums: list, square: Square, scaled: list, b: int, place) -> None:
    a = [tf32_fragment(scaled, half) for half in HALVES]
    for i, j in LOWER:
        offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
        pair = [as_bits(load_float(place.diagonal_column, offset + e * at.DIAG_ROW)) for e in HALVES]
        t = 2 * b + j
        sums[4 * t : 4 * t + 4] = multiply_tf32(sums[4 * t : 4 * t + 4], a[i], pair)
