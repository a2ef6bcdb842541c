"""Products with the decay between rows (`decay.decayed_adjoint`) by mma.sync, in a warp's own 16 channels.

dq, dp and dk stay in registers, transposed, where the products with the states left them. One sum runs
through the levels: it is kept in units of the current reference and passes from the chunk's (e^G for rows,
e^(Gam - G) for columns) to the square of 32, those of 16 and the diagonal blocks by a factor per block and
channel. Squares take float16 operands and are summed by themselves, in the units of dA or dM; diagonal
blocks take tf32 and natural units. In a tf32 product lane c of a quad brings the tokens 2c and 2c + 1 as k
= c and c + 4: any order of k is right, and this one needs no shuffle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, HALVES, ChannelDecay, between
from lethe.kernels.gdn.sm90.out_fragments import (
    Float32,
    load_float,
    load_matrices,
    load_two,
    multiply,
    multiply_tf32,
    pack_all,
    reciprocal,
    tf32,
)


@dataclass(frozen=True)
class Square:
    """dA or dM: where its float16 squares and its float32 diagonal blocks are, and what one unit of float16
    is."""

    tile: int
    diagonal: int
    unit: Any


def as_rows(
    outputs: Sequence[tuple[list, Square]], keys: Callable, decay: ChannelDecay, end: list, place
) -> list:
    """Add ``sum_j X_ij k_j e^(G_i - G_j)`` to every output (a fragment of dq or dp in units of e^G_i,
    changed in place to units of e) and return ``sum_j k_j e^(Gam - G_j) end_j`` by channel."""
    kept, ended = [], [Float32(0.0)] * 2
    for b in BLOCKS:
        scaled = [k * reciprocal(e) for k, e in zip(keys(b), decay.e[8 * b : 8 * b + 8], strict=True)]
        to_end = between(decay.gamma, decay.middle[b])
        for h in HALVES:
            inside = sum_of(scaled[i] * end[8 * b + i] for i in range(8) if i // 2 % 2 == h)
            ended[h] = ended[h] + to_end[h] * inside
        if b < 2:
            kept.append(_operand(scaled, between(decay.r32, decay.middle[b])))
        if b == 1:
            for sums, square in outputs:
                _rows32(sums, square, kept, decay, place)
        if b % 2 == 0:
            reference = decay.after[b]
            operand = _operand(scaled, between(reference, decay.middle[b]))
            for sums, square in outputs:
                _rows16(sums, square, operand, b, between(reference, decay.before[b]), place)
        for sums, square in outputs:
            _scale(sums, b, between(decay.middle[b], decay.before[b]))
            _rows_diagonal(sums, square, scaled, b, place)
    for sums, _ in outputs:
        sums[:] = [x * e for x, e in zip(sums, decay.e, strict=True)]
    return ended


def as_columns(sums: list, pairs: Sequence[tuple[Callable, Square]], decay: ChannelDecay, place) -> None:
    """Add ``sum_i X_ij x_i e^(G_i - G_j)`` for every pair of rows x and X to `sums` (dk in units of e^(Gam
    - G_j), changed in place to natural units)."""
    kept: list[list] = [[] for _ in pairs]
    for b in reversed(BLOCKS):
        operands = []
        for n, (rows, _) in enumerate(pairs):
            scaled = [x * e for x, e in zip(rows(b), decay.e[8 * b : 8 * b + 8], strict=True)]
            operands.append(scaled)
            if b > 1:
                kept[n].insert(0, _operand(scaled, between(decay.middle[b], decay.r32)))
        if b == 2:
            _columns32(sums, pairs, kept, decay, place)
        if b % 2 == 1:
            reference = decay.before[b]
            squares = [_operand(s, between(decay.middle[b], reference)) for s in operands]
            _columns16(sums, pairs, squares, b, between(decay.after[b], reference), place)
        _scale(sums, b, between(decay.after[b], decay.middle[b]))
        for scaled, (_, square) in zip(operands, pairs, strict=True):
            _columns_diagonal(sums, square, scaled, b, place)
    sums[:] = [x * reciprocal(e) for x, e in zip(sums, decay.e, strict=True)]


def sum_of(values):
    """Their sum, from the first on."""
    found = None
    for x in values:
        found = x if found is None else found + x
    return found


def _operand(scaled: list, factors: list) -> list:
    """16 tokens of a fragment times a factor by channel, as operand A."""
    return pack_all([x * factors[i // 2 % 2] for i, x in enumerate(scaled)])


def _scale(sums: list, b: int, factors: list) -> None:
    for i in range(8 * b, 8 * b + 8):
        sums[i] = sums[i] * factors[i // 2 % 2]


def _add(sums: list, t: int, chain: list, found: Sequence[tuple[list, Any]]) -> None:
    """Tokens 8 t .. 8 t + 7: into the next units, and add what was found in its own."""
    for i in range(4):
        total = sums[4 * t + i] * chain[i // 2] if chain else sums[4 * t + i]
        for products, unit in found:
            total = total + products[i] * unit
        sums[4 * t + i] = total


def _zeros() -> list:
    return [Float32(0.0)] * 4


def _rows32(sums: list, square: Square, a: list, decay: ChannelDecay, place) -> None:
    chain = between(decay.r32, [Float32(0.0)] * 2)
    for t in range(4, 8):
        b = load_matrices(place.square(square.tile, t, place.matrix))
        found = multiply(multiply(_zeros(), a[0], b[:2]), a[1], b[2:])
        _add(sums, t, chain, [(found, square.unit)])


def _rows16(sums: list, square: Square, a: list, block: int, chain: list, place) -> None:
    low, high = place.matrix & 1, place.matrix >> 1
    t = 2 * block + 2
    b = load_matrices(place.square(square.tile, high + t, low + 2 * block))
    for n in range(2):
        found = multiply(_zeros(), a, b[2 * n : 2 * n + 2])
        _add(sums, t + n, chain, [(found, square.unit)])


def _columns32(sums: list, pairs, kept, decay: ChannelDecay, place) -> None:
    chain = between(decay.gamma, decay.r32)
    for t in range(4):
        found = []
        for (_, square), a in zip(pairs, kept, strict=True):
            b = load_matrices(place.square(square.tile, place.matrix + 4, t), transposed=True)
            found.append((multiply(multiply(_zeros(), a[0], b[:2]), a[1], b[2:]), square.unit))
        _add(sums, t, chain, found)


def _columns16(sums: list, pairs, operands, block: int, chain: list, place) -> None:
    low, high = place.matrix & 1, place.matrix >> 1
    t = 2 * block - 2
    loaded = [
        load_matrices(place.square(square.tile, low + 2 * block, high + t), transposed=True)
        for _, square in pairs
    ]
    for n in range(2):
        found = [
            (multiply(_zeros(), a, b[2 * n : 2 * n + 2]), square.unit)
            for a, b, (_, square) in zip(operands, loaded, pairs, strict=True)
        ]
        _add(sums, t + n, chain, found)


def _tf32_operand(scaled: list, half: int) -> list:
    h0e0, h0e1, h1e0, h1e1 = (tf32(x) for x in scaled[4 * half : 4 * half + 4])
    return [h0e0, h1e0, h0e1, h1e1]


LOWER = ((0, 0), (1, 0), (1, 1))
"""Blocks of 8 of a diagonal block that are not above the diagonal: (rows, columns)."""


def _rows_diagonal(sums: list, square: Square, scaled: list, b: int, place) -> None:
    a = [_tf32_operand(scaled, half) for half in HALVES]
    for i, j in LOWER:
        offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
        pair = [tf32(x) for x in load_two(place.diagonal_row, offset)]
        t = 2 * b + i
        sums[4 * t : 4 * t + 4] = multiply_tf32(sums[4 * t : 4 * t + 4], a[j], pair)


def _columns_diagonal(sums: list, square: Square, scaled: list, b: int, place) -> None:
    a = [_tf32_operand(scaled, half) for half in HALVES]
    for i, j in LOWER:
        offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
        pair = [tf32(load_float(place.diagonal_column, offset + e * at.DIAG_ROW)) for e in HALVES]
        t = 2 * b + j
        sums[4 * t : 4 * t + 4] = multiply_tf32(sums[4 * t : 4 * t + 4], a[i], pair)
