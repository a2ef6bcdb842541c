"""Decays of one chunk in registers: for one gate a channel, one a head, or none.

One gate a channel: every factor between rows from one exponential an element.

In log2 units ``x = G log2(e)``, and m = x at the middle row of a block of 16 tokens: a thread keeps ``e =
2^(x - m)`` of its fragment (`out_fragments`). Every other factor is e or 1/e times a number per block and
channel that is at most 1. References r are x at rows 16, 32 and 48; ``gamma`` is x at the last row.
"""

import math
from collections.abc import Callable

from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_fragments import (
    LOG2E,
    Float32,
    Int32,
    add_in_quad,
    asm,
    choose,
    exp2,
    larger_than,
    load_float,
    of_quad,
    store_if,
)

BLOCKS, HALVES = range(4), range(2)
LIMIT = 64.0
"""Largest decay between the middle of a block of 16 and its ends, in log2 units, that e and 1/e are used for:
5.5 nats a token. Products with them stay within float32, and gradients down to 2^-60 keep their bits."""


def rates(place) -> list:
    """g of one gate a channel as a fragment, from its tile."""
    return [load_float(place.gate[i // 2 % 2][i % 2], 1024 * (i // 4)) for i in range(32)]


class ChannelDecay:
    """Fragments and references of one chunk; lists of two are for the channels r and r + 8."""

    def __init__(self, place, rates: list, run: Callable | None = None):
        """Sum up `rates`, the fragment of g, by `run`."""
        lane = place.lane
        x = [Float32(0.0)] * 32
        for h in HALVES:
            before = Float32(0.0)
            for t in range(8):
                first, second = (rates[4 * t + 2 * h + e] for e in HALVES)
                one, two, before = (run or _run)(first, second, before, lane)
                x[4 * t + 2 * h], x[4 * t + 2 * h + 1] = one, two
        row = lambda n: [of_quad(x[4 * (n // 8) + 2 * h + n % 2], lane, n % 8 // 2) for h in HALVES]  # noqa: E731
        self.middle = [row(16 * b + 8) for b in BLOCKS]
        self.r16, self.r32, self.r48, self.gamma = row(16), row(32), row(48), row(63)
        zero = [Float32(0.0)] * 2
        self.before = [zero, self.r16, self.r32, self.r48]
        self.after = [self.r16, self.r32, self.r48, self.gamma]
        self.x = x
        ends = [x[8 * b + 5 * t + 2 * h] - self.middle[b][h] for b in BLOCKS for h in HALVES for t in HALVES]
        self.steep = larger_than(LIMIT, [number(end, -math.inf) for end in ends])
        self.e = [exp2(x[i] - self.middle[i // 8][i // 2 % 2]) for i in range(32)]

    def from_start(self, b: int) -> list:
        """What e is multiplied by to give e^G."""
        return [exp2(m) for m in self.middle[b]]

    def to_end(self, b: int) -> list:
        """What 1/e is multiplied by to give e^(Gam - G)."""
        return between(self.gamma, self.middle[b])

    def early(self, b: int) -> list:
        """e^G of block b."""
        return [exp2(x) for x in self.x[8 * b : 8 * b + 8]]

    def late(self, b: int) -> list:
        """e^(Gam - G) of block b."""
        return [exp2(self.gamma[i // 2 % 2] - x) for i, x in enumerate(self.x[8 * b : 8 * b + 8])]

    def whole(self) -> list:
        """e^Gam."""
        return [exp2(gamma) for gamma in self.gamma]


class HeadDecay:
    """The same for all channels: ``x`` has the thread's 16 tokens, at 2 t + e."""

    def __init__(self, place):
        """Sum up the 64 numbers of the head, and leave the sums for `rows`, one barrier later."""
        self.x, before = [], Float32(0.0)
        for b in BLOCKS:
            values = place.scalars(at.SMALL_G, b)
            for t in range(2):
                one, two, before = _run(values[4 * t], values[4 * t + 1], before, place.lane)
                self.x += [one, two]
        self.gamma = of_quad(self.x[15], place.lane, 3)
        mine = (place.warp * 8 + place.row) == Int32(0)
        for i, x in enumerate(self.x):
            store_if(mine, place.tokens + Int32(at.SMALL_X + 32 * (i // 2) + 4 * (i % 2)), x)

    def early(self, b: int) -> list:
        """e^G of block b."""
        return self._block(b, [exp2(x) for x in self.x[4 * b : 4 * b + 4]])

    def late(self, b: int) -> list:
        """e^(Gam - G) of block b."""
        return self._block(b, [exp2(self.gamma - x) for x in self.x[4 * b : 4 * b + 4]])

    def whole(self) -> list:
        """e^Gam."""
        return [exp2(self.gamma)] * 2

    def ratios(self, place) -> list:
        """e^(G_i - G_j) for the thread's rows i and columns j of a square; anything for i < j."""
        rows = [self._row(place, h) for h in HALVES]
        return [exp2(rows[i // 2 % 2] - self.x[2 * (i // 4) + i % 2]) for i in range(32)]

    @staticmethod
    def _row(place, h: int):
        return load_float(place.base + ((place.warp & 3) * 16 + 8 * h + place.row) * 4, at.SMALL_X)

    @staticmethod
    def _block(b: int, values: list) -> list:
        return [values[2 * (i // 4) + i % 2] for i in range(8)]


class NoDecay:
    """All factors are one."""

    def __init__(self, place):
        self.place = place

    def early(self, b: int) -> list:
        """Of block b."""
        return [Float32(1.0)] * 8

    def late(self, b: int) -> list:
        """Of block b."""
        return [Float32(1.0)] * 8

    def ratios(self, place) -> list:
        """Between all rows."""
        return [Float32(1.0)] * 32


def between(later: list, earlier: list) -> list:
    """Decay from one reference to a later one, at most 1."""
    return [exp2(late - early) for late, early in zip(later, earlier, strict=True)]


def number(x, least: float):
    """x; where it is NaN, `least`, which x is nowhere below."""
    return asm("max.f32 $0, $1, $2;", "f", [x, Float32(least)], "ff")


def run_alone(first, second, before, lane) -> tuple:
    """`_run` by one more shuffle, so that a NaN is in no sum of earlier tokens."""
    found = add_in_quad(add_in_quad(first + second, "up", 1), "up", 2)
    earlier = cute.arch.shuffle_sync_up(found, 1)
    one = before + choose((lane & Int32(3)) == Int32(0), first, earlier + first) * LOG2E
    return one, before + found * LOG2E, before + of_quad(found, lane, 3) * LOG2E


def _run(first, second, before, lane) -> tuple:
    """The running sums at a thread's two tokens of eight, and behind the eight, in log2 units.

    With a NaN in `g`, which sends `out_channel` the other way, it would be in the sum at one token before."""
    found = add_in_quad(add_in_quad(first + second, "up", 1), "up", 2)
    two = before + found * LOG2E
    return two - second * LOG2E, two, before + of_quad(found, lane, 3) * LOG2E
