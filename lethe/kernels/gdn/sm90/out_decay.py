"""Decays of one chunk in registers, for one gate a channel: every factor from one exponential an element.

In log2 units ``x = G log2(e)``, and m = x at the middle row of a block of 16 tokens: a thread keeps ``e =
2^(x - m)`` of its fragment (`out_fragments`). Every other factor is e or 1/e times a number per block and
channel that is at most 1. References r are x at rows 16, 32 and 48; ``gamma`` is x at the last row.
"""

from cutlass import cute

from lethe.kernels.gdn.sm90.out_fragments import LOG2E, Float32, Int32, choose, exp2, load_float, of_quad

BLOCKS, HALVES = range(4), range(2)


class Decay:
    """Fragments and references of one chunk; lists of two are for the channels r and r + 8."""

    def __init__(self, addresses, lane):
        """Read g at ``addresses[h][e]`` (tokens 8 t + 2 c + e, 1024 bytes from t to t + 1) and sum it
        up."""
        x = [Float32(0.0)] * 32
        for h in HALVES:
            before = Float32(0.0)
            for t in range(8):
                first, second = (load_float(addresses[h][e], 1024 * t) * LOG2E for e in HALVES)
                earlier, total = _prefix(first + second, lane)
                x[4 * t + 2 * h] = before + earlier + first
                x[4 * t + 2 * h + 1] = before + earlier + (first + second)
                before = before + total
        row = lambda n: [of_quad(x[4 * (n // 8) + 2 * h + n % 2], lane, n % 8 // 2) for h in HALVES]  # noqa: E731
        self.middle = [row(16 * b + 8) for b in BLOCKS]
        self.r16, self.r32, self.r48, self.gamma = row(16), row(32), row(48), row(63)
        zero = [Float32(0.0)] * 2
        self.before = [zero, self.r16, self.r32, self.r48]
        self.after = [self.r16, self.r32, self.r48, self.gamma]
        self.e = [exp2(x[i] - self.middle[i // 8][i // 2 % 2]) for i in range(32)]

    def from_start(self, b: int) -> list:
        """What e is multiplied by to give e^G."""
        return [exp2(m) for m in self.middle[b]]

    def to_end(self, b: int) -> list:
        """What 1/e is multiplied by to give e^(Gam - G)."""
        return between(self.gamma, self.middle[b])


def between(later: list, earlier: list) -> list:
    """Decay from one reference to a later one, at most 1."""
    return [exp2(late - early) for late, early in zip(later, earlier, strict=True)]


def _prefix(pair, lane):
    """(sum of the lanes before in the quad, sum of the quad)."""
    c = lane & Int32(3)
    clamp = 0x1C00
    up = cute.arch.shuffle_sync_up
    one = up(pair, 1, mask_and_clamp=clamp)
    found = pair + _unless_first(one, c, 1)
    found = found + _unless_first(up(found, 2, mask_and_clamp=clamp), c, 2)
    earlier = _unless_first(up(found, 1, mask_and_clamp=clamp), c, 1)
    return earlier, of_quad(found, lane, 3)


def _unless_first(value, c, count: int):
    """0 in the first `count` lanes of a quad."""
    return choose(c >= Int32(count), value, Float32(0.0))
