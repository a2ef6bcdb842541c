"""Products between the rows of a chunk when a gate closes so fast that ``1/e`` of `out_intra` leaves float32.

Then nothing is taken relative to the middle of a block of 16: G is summed up again from global memory, every
factor is the exponential of a difference of two rows that are in order, at most 1, and the diagonal blocks
are cut on into squares of 8, 4, 2 and 1 (`decay`: block=1), whose products are tf32. A warp whose 16 channels
have such a block in them goes this way with all of its blocks.

So does one with a NaN in g: from its token on every factor of a row is NaN, and what comes before must not
be. A factor of a column that is NaN is zero instead (`Steep.columns`): it multiplies zeros for earlier rows,
and later rows have a NaN of their own.
"""

from collections.abc import Callable, Sequence

from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, HALVES, ChannelDecay, number
from lethe.kernels.gdn.sm90.out_fragments import (
    Float32,
    Int32,
    as_bits,
    choose,
    exp2,
    load_float,
    load_matrices,
    load_two,
    multiply,
    multiply_tf32,
    of_quad,
    pack_all,
)
from lethe.kernels.gdn.sm90.out_intra import Square, Sums, tf32_fragment

SIDES = (8, 4, 2, 1)


class Steep:
    """Factors of one chunk: lists of eight for a block of 16 tokens, at ``4 t + 2 h + e``."""

    def __init__(self, decay: ChannelDecay, place):
        self.decay, self.place = decay, place

    def x(self, b: int) -> list:
        """G in log2 units."""
        return self.decay.x[8 * b : 8 * b + 8]

    def since(self, b: int, reference: list) -> list:
        """Decay of the rows of block b since a row before them."""
        return [exp2(x - reference[i // 2 % 2]) for i, x in enumerate(self.x(b))]

    def until(self, b: int, reference: list) -> list:
        """Decay from the rows of block b to a row behind them."""
        return [exp2(reference[i // 2 % 2] - x) for i, x in enumerate(self.x(b))]

    def _first_of_lower(self, b: int, side: int) -> list:
        """For every element the row that its square of this side begins with."""
        x, lane = self.x(b), self.place.lane
        if side == 8:
            return [self.decay.middle[b][i // 2 % 2] for i in range(8)]
        if side == 4:
            return [of_quad(x[i & ~1], lane, 2) for i in range(8)]
        if side == 2:
            return [cute.arch.shuffle_sync(x[i & ~1], lane | Int32(1)) for i in range(8)]
        return [x[i | 1] for i in range(8)]

    def _lower(self, i: int, side: int):
        """Is the token below the middle of twice its side? A Python bool, or one by lane."""
        if side in (8, 1):
            return bool(i // 4 if side == 8 else i % 2)
        return (self.place.column & Int32(side // 2)) != 0

    def rows(self, b: int, side: int) -> list:
        """Factors of the rows of the squares of this side, 0 elsewhere."""
        pairs = zip(self.x(b), self._first_of_lower(b, side), strict=True)
        return [_only(self._lower(i, side), x, r) for i, (x, r) in enumerate(pairs)]

    def columns(self, b: int, side: int) -> list:
        """Factors of their columns, 0 elsewhere and for NaN."""
        pairs = zip(self.x(b), self._first_of_lower(b, side), strict=True)
        found = [_only(_negated(self._lower(i, side)), r, x) for i, (x, r) in enumerate(pairs)]
        return [number(x, 0.0) for x in found]

    def together(self, value, side: int):
        """An element of a diagonal block of 8 if its row and column share a square, else 0."""
        if side > 2:
            return value
        row, column = self.place.row >> side, self.place.column >> (side - 1)
        return choose(row == column, value, Float32(0.0))


def _negated(condition):
    return not condition if isinstance(condition, bool) else condition == (Int32(0) != 0)


def _only(condition, later, earlier):
    """e^(later - earlier), or 0."""
    if isinstance(condition, bool):
        return exp2(later - earlier) if condition else Float32(0.0)
    return choose(condition, exp2(later - earlier), Float32(0.0))


def steep_rows(outputs: Sequence[tuple[Sums, Square]], keys: Callable, f: Steep, end: Sums, place) -> list:
    """`out_intra.as_rows`."""
    decay, ended = f.decay, [Float32(0.0)] * 2
    for sums, _ in outputs:
        for b in BLOCKS:
            _scale(sums, b, f.since(b, [Float32(0.0)] * 2))
    for b in BLOCKS:
        k, late = keys(b), f.until(b, decay.gamma)
        for i in range(8):
            ended[i // 2 % 2] = ended[i // 2 % 2] + k[i] * late[i] * (end.values[8 * b + i] * end.unit)
        targets = {0: ((1, decay.r16), (2, decay.r32), (3, decay.r32)), 1: ((2, decay.r32), (3, decay.r32))}
        for to, reference in targets.get(b, ((3, decay.r48),) if b == 2 else ()):
            operand = pack_all([x * y for x, y in zip(k, f.until(b, reference), strict=True)])
            for sums, square in outputs:
                for t in (2 * to, 2 * to + 1):
                    words = load_matrices(place.square(square.tile, Int32(t), (place.matrix & 1) + 2 * b))
                    found = multiply([Float32(0.0)] * 4, operand, words[:2])
                    _add(sums, t, found, f.since(to, reference), square.unit)
        for sums, square in outputs:
            for side in SIDES:
                scaled = [x * y for x, y in zip(k, f.columns(b, side), strict=True)]
                for i, j in ((1, 0),) if side == 8 else ((0, 0), (1, 1)):
                    offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
                    pair = [f.together(x, side) for x in load_two(place.diagonal_row, offset)]
                    found = _product(scaled, j, pair)
                    _add(sums, 2 * b + i, found, f.rows(b, side), Float32(1.0))
    return ended


def steep_columns(sums: Sums, pairs: Sequence[tuple[Callable, Square]], f: Steep, place) -> None:
    """`out_intra.as_columns`."""
    decay = f.decay
    for b in BLOCKS:
        _scale(sums, b, f.until(b, decay.gamma))
    for rows, square in pairs:
        for b in BLOCKS:
            x = rows(b)
            targets = {1: ((0, decay.r16),), 2: ((0, decay.r32), (1, decay.r32))}
            last = ((0, decay.r32), (1, decay.r32), (2, decay.r48))
            for to, reference in targets.get(b, last if b == 3 else ()):
                operand = pack_all([y * e for y, e in zip(x, f.since(b, reference), strict=True)])
                for t in (2 * to, 2 * to + 1):
                    address = place.square(square.tile, (place.matrix & 1) + 2 * b, Int32(t))
                    words = load_matrices(address, transposed=True)
                    found = multiply([Float32(0.0)] * 4, operand, words[:2])
                    _add(sums, t, found, f.until(to, reference), square.unit)
            for side in SIDES:
                scaled = [y * e for y, e in zip(x, f.rows(b, side), strict=True)]
                for i, j in ((1, 0),) if side == 8 else ((0, 0), (1, 1)):
                    offset = square.diagonal + b * at.DIAG_BLOCK + 8 * i * at.DIAG_ROW + 32 * j
                    pair = [load_float(place.diagonal_column, offset + e * at.DIAG_ROW) for e in HALVES]
                    found = _product(scaled, i, [f.together(y, side) for y in pair])
                    _add(sums, 2 * b + j, found, f.columns(b, side), Float32(1.0))


def _product(scaled: list, half: int, pair: list) -> list:
    return multiply_tf32([Float32(0.0)] * 4, tf32_fragment(scaled, half), [as_bits(x) for x in pair])


def _scale(sums: Sums, b: int, factors: list) -> None:
    for i, factor in enumerate(factors):
        sums.values[8 * b + i] = sums.values[8 * b + i] * (factor * sums.unit)


def _add(sums: Sums, t: int, found: list, factors: list, unit) -> None:
    for i, x in enumerate(found):
        factor = factors[4 * (t % 2) + i]
        sums.values[4 * t + i] = sums.values[4 * t + i] + x * (factor * unit)
