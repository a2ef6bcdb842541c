"""Decays of a chunk: the running sum G of g in shared memory, in log2 units, where fragments find it.

For a decay of every channel it is a table ``[64 tokens, dk]`` float32 whose rows are swapped in pieces of
32 bytes: ``channel ^ 8 key(token)`` with ``key = (t ^ t >> 1) & 3``. So neither the fragment of a row block
(a quad reads two channels each of one token, eight tokens at once) nor its transpose (a quad reads one
channel of four tokens two apart) meets a bank twice, and eight channels of a row stay together. One decay a
head is a vector ``[64]``; without decay there is nothing to read.

`Channel`, `Head` and `Still` give the factors of a tile's elements for the three cases; None is 1.
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers

CHUNK = 64
BLOCK = 16
"""Rows of a block: the M of mma.sync."""
LIMIT = 110.0
"""Largest decay within a block, in log2 units, whose two factors float32 holds beside a float16 value."""
Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


def key(token):
    """By which pieces of 32 bytes a token's row is swapped."""
    return (token ^ (token >> 1)) & 3


def keep(small, bound, value):
    """`value` if small < bound, else 0."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.lt.s32 p, $1, $2;\n\tselp.f32 $0, $3, 0f00000000, p;\n\t}",
        "f",
        [small, bound, value],
        "rrf",
    )


def same(one, other, value):
    """`value` if one == other, else 0."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.eq.s32 p, $1, $2;\n\tselp.f32 $0, $3, 0f00000000, p;\n\t}",
        "f",
        [one, other, value],
        "rrf",
    )


def load_global(address, count: int) -> list:
    """One or two float32 side by side that no kernel writes."""
    if count == 1:
        text = "ld.global.nc.f32 {$w0}, [{$r0}];"
        return [cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[address])]
    text = "ld.global.nc.v2.f32 {{$w0}, {$w1}}, [{$r0}];"
    return list(cute.arch.inline_ptx(text, write_only_types=[Float32] * 2, read_only_args=[address]))


class Sums:
    """The running sum by 256 threads: one has two channels of ``dk / 8`` rows, a *part*.

    `start` is the address of g of the chunk's first token, rows `stride` bytes apart; past `rows` g is zero.
    """

    def __init__(self, thread, dk: int, start, stride, rows):
        self.dk, self.count = dk, dk // 8
        self.part, self.pair = thread // (dk // 2), thread % (dk // 2)
        total = [Float32(0.0), Float32(0.0)]
        self.sums = []
        for i in range(self.count):
            row = self.part * self.count + i
            at = start + Int64(self.pair * 8) + Int64(cutlass.min(row, rows - 1)) * Int64(stride)
            for e, value in enumerate(load_global(at, 2)):
                total[e] = total[e] + keep(row, rows, value) * registers.LOG2E
                self.sums.append(total[e])

    def leave_totals(self, totals, steep, warp) -> None:
        """Write the part's totals to ``totals[part, channel]``, and whether the warp saw a steep one."""
        registers.store_two(totals + self.part * (4 * self.dk) + self.pair * 8, *self.sums[-2:])
        first = [self.sums[e] if self.count == BLOCK else Float32(0.0) for e in (0, 1)]
        fall = registers.larger(first[0] - self.sums[-2], first[1] - self.sums[-1])
        limit = LIMIT if self.count == BLOCK else LIMIT / 2
        flag = registers.asm(
            "{\n\t.reg .pred p, q;\n\tsetp.gt.f32 p, $1, $2;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\t"
            "selp.b32 $0, 1, 0, q;\n\t}",
            "r",
            [fall, Float32(limit)],
            "ff",
            True,
        )
        registers.asm("st.shared.b32 [$0], $1;", "", [steep + warp * 4, flag], "rr", True)

    def store(self, totals, table) -> None:
        """Add what is before the part, and write the table; a barrier must be between."""
        before = [Float32(0.0), Float32(0.0)]
        for earlier in range(CHUNK // self.count - 1):
            found = registers.load_two(totals + self.pair * 8, earlier * 4 * self.dk)
            for e in (0, 1):
                before[e] = before[e] + keep(Int32(earlier), self.part, found[e])
        decay = Channel(table, self.dk)
        for row in range(self.count):
            at = decay.address(self.part * self.count + row, self.pair * 2)
            registers.store_two(at, before[0] + self.sums[2 * row], before[1] + self.sums[2 * row + 1])


@cute.jit
def sum_of_head(thread, start, stride, rows, vector):
    """The vector G of one decay a head, by the first warp: a lane has two tokens."""
    if thread < 32:
        total = Float32(0.0)
        pair = []
        for e in (0, 1):
            row = thread * 2 + e
            (value,) = load_global(start + Int64(cutlass.min(row, rows - 1)) * Int64(stride), 1)
            total = total + keep(row, rows, value) * registers.LOG2E
            pair.append(total)
        before = total
        for distance in (1, 2, 4, 8, 16):
            earlier = cute.arch.shuffle_sync_up(before, distance, mask_and_clamp=0)
            before = before + keep(Int32(distance - 1), thread, earlier)
        before = before - total
        registers.store_two(vector + thread * 8, before + pair[0], before + pair[1])


class Channel:
    """Factors by the table of G."""

    def __init__(self, table, dk: int):
        self.table, self.dk = table, dk

    def address(self, token, channel):
        """Shared address of one element."""
        return self.table + token * (4 * self.dk) + ((channel * 4) ^ (key(token) << 5))

    def _eight(self, token, piece, further) -> list:
        at = self.address(token, piece * 8) + further * (4 * self.dk)
        load = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4"
        return [x for end in ("];", "+16];") for x in registers.asm(load + end, "ffff", [at], "r", True)]

    def last(self, piece) -> list:
        """Gam of the eight channels of a piece."""
        return self._eight(Int32(CHUNK - 1), piece, 0)

    def eight(self, token, piece, further, last: list) -> tuple:
        """(e^G, e^{Gam - G}) of eight channels of token + further, a multiple of 8."""
        G = self._eight(token, piece, further)
        return [registers.exp2(x) for x in G], [registers.exp2(z - x) for x, z in zip(G, last, strict=True)]

    def transposed(self, lane, first_channel, step: int) -> list:
        """e^G of tokens ``16 step ..`` of the transposed fragment whose channels start at `first_channel`:
        eight float32 at index ``4 t + 2 h + e`` (`out_fragments`)."""
        found = []
        for i in range(8):
            t, h, e = i // 4, (i // 2) % 2, i % 2
            at = self.address((lane & 3) * 2 + e, first_channel + (lane >> 2) + 8 * h)
            found.append(registers.exp2(registers.load_float(at, (BLOCK * step + 8 * t) * 4 * self.dk)))
        return found

    def final(self, channel):
        """e^Gam of one channel."""
        return registers.exp2(registers.load_float(self.address(Int32(CHUNK - 1), channel)))


class Head:
    """Factors by the vector of G."""

    def __init__(self, vector):
        self.vector = vector

    def last(self, _piece) -> list:
        """Gam."""
        return [registers.load_float(self.vector, 4 * (CHUNK - 1))]

    def eight(self, token, _piece, further, last: list) -> tuple:
        """As `Channel.eight`."""
        G = registers.load_float(self.vector + (token + further) * 4)
        return [registers.exp2(G)] * 8, [registers.exp2(last[0] - G)] * 8

    def transposed(self, lane, _first_channel, step: int) -> list:
        """As `Channel.transposed`."""
        found = []
        for t in (0, 1):
            G = registers.load_two(self.vector + (lane & 3) * 8, (BLOCK * step + 8 * t) * 4)
            found += [registers.exp2(x) for x in G] * 2
        return found

    def final(self, _channel):
        """e^Gam."""
        return registers.exp2(registers.load_float(self.vector, 4 * (CHUNK - 1)))


class Still:
    """No decay."""

    def last(self, _piece) -> list:
        """Nothing."""
        return []

    def eight(self, _token, _piece, _further, _last: list) -> tuple:
        """As `Channel.eight`."""
        return None, None

    def transposed(self, _lane, _first_channel, _step: int) -> None:
        """As `Channel.transposed`."""

    def final(self, _channel):
        """1."""
        return Float32(1.0)


def scaled(values: list, factors: list | None) -> list:
    """Values times factors, or as they are."""
    return values if factors is None else [x * f for x, f in zip(values, factors, strict=True)]


def eight(decay, *arguments) -> tuple:
    """``decay.eight``, for use inside a loop of the kernel, where a method would count as a loop variable."""
    return decay.eight(*arguments)


def final(decay, channel):
    """``decay.final``, likewise."""
    return decay.final(channel)
