"""Decays of a chunk: the running sum of g in shared memory, in units of log2, where mma.sync fragments find it.

``x = log2(e) cumsum(g)`` is a table ``[64 tokens, dk]`` float32 whose rows are swapped in pieces of 32
bytes: ``channel ^ 8 key(token)`` with ``key = (t ^ t >> 1) & 3``. So neither the fragment of a row block (a
quad reads two channels each of one token, eight tokens at once) nor its transpose (a quad reads one channel
of four tokens two apart) meets a bank twice, and eight channels of a row stay together.
"""

import cutlass

from lethe.kernels.gdn.sm90 import out_fragments as registers

BLOCK = 16
"""Rows of a block: the M of mma.sync."""
LIMIT = 110.0
"""Largest decay within a block, in log2 units, whose two factors float32 holds beside a float16 value."""
Int32 = cutlass.Int32


def key(token):
    """By which pieces of 32 bytes a token's row is swapped."""
    return (token ^ (token >> 1)) & 3


def address(table, token, channel, dk: int):
    """Shared address of one element."""
    return table + token * (4 * dk) + ((channel * 4) ^ (key(token) << 5))


class Sums:
    """The running sum by 256 threads (dk = 128) or 128 (dk = 64): one has two channels of a block of 16 rows.

    `values` are its rows' g, [2 x 16] in the order (row, channel of the pair), zero past the end.
    """

    def __init__(self, thread, dk: int, values: list):
        self.dk, self.block, self.pair = dk, thread // (dk // 2), thread % (dk // 2)
        total = [cutlass.Float32(0.0)] * 2
        self.sums = []
        for i, value in enumerate(values):
            total[i % 2] = total[i % 2] + value * registers.LOG2E
            self.sums.append(total[i % 2])

    @property
    def steep(self):
        """Largest decay from the block's first row to its last, of this thread's channels."""
        return [self.sums[e] - self.sums[2 * (BLOCK - 1) + e] for e in (0, 1)]

    def leave_totals(self, totals) -> None:
        """Write the block's totals to ``totals[block, channel]``; a barrier must follow."""
        registers.store_two(totals + self.block * (4 * self.dk) + self.pair * 8, self.sums[-2], self.sums[-1])

    def store(self, totals, table) -> None:
        """Add what is before the block, and write the table."""
        before = [cutlass.Float32(0.0)] * 2
        for earlier in range(3):
            found = registers.load_two(totals + self.pair * 8, earlier * 4 * self.dk)
            for e in (0, 1):
                before[e] = before[e] + keep(Int32(earlier), self.block, found[e])
        for row in range(BLOCK):
            at = address(table + self.block * (BLOCK * 4 * self.dk), Int32(row), self.pair * 2, self.dk)
            registers.store_two(at, before[0] + self.sums[2 * row], before[1] + self.sums[2 * row + 1])


def keep(small, bound, value):
    """`value` if small < bound, else 0."""
    return registers.asm(
        "{\n\t.reg .pred p;\n\tsetp.lt.s32 p, $1, $2;\n\tselp.f32 $0, $3, 0f00000000, p;\n\t}",
        "f",
        [small, bound, value],
        "rrf",
    )


def eight(table, row, chunk, dk: int) -> list:
    """Eight channels of a row, 16-byte loads."""
    at = address(table, row, chunk * 8, dk)
    load = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4"
    return [
        *registers.asm(load + "];", "ffff", [at], "r", True),
        *registers.asm(load + "+16];", "ffff", [at], "r", True),
    ]


def transposed(table, lane, first_channel, step: int, dk: int) -> list:
    """Sixteen tokens from ``16 step`` of the transposed fragment whose channels start at `first_channel`: eight
    float32 at index ``4 t + 2 h + e`` (`out_fragments`)."""
    r, c = lane >> 2, lane & 3
    found = []
    for t in (0, 1):
        for h in (0, 1):
            for e in (0, 1):
                at = address(table, c * 2 + e, first_channel + r + 8 * h, dk)
                found.append(registers.load_float(at, (BLOCK * step + 8 * t) * 4 * dk))
    return found
