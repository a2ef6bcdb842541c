"""Where a thread of the two consumer groups finds its fragments: byte addresses in shared memory.

A warp owns 16 channels of every tile and all 64 tokens: rows of its wgmma accumulators. So everything between
two products happens in place, in the warp's own columns of a tile, and needs no barrier. With d_v = 64 both
groups own the same columns of values.
"""

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_fragments import (
    HALF,
    Int32,
    load_matrices,
    load_two,
    pack,
    store_matrices,
    unpack,
)


class Columns:
    """A warp's 16 columns of the tiles [64, 128 or 64] at one address."""

    def __init__(self, address):
        self.address = address

    def words(self, tile, b: int) -> tuple:
        """16 tokens (block b) of a 16-bit tile: four packed words."""
        return load_matrices(self.address + tile + Int32(2048 * b), transposed=True)

    def values(self, tile, b: int, dtype) -> list:
        """The same as eight float32."""
        return [x for word in self.words(tile, b) for x in unpack(word, dtype)]

    def put(self, tile, b: int, values, dtype=HALF) -> None:
        """Eight float32 as 16 bits to where `values` reads."""
        self.put_words(tile, b, [pack(values[i], values[i + 1], dtype) for i in range(0, 8, 2)])

    def put_words(self, tile, b: int, packed) -> None:
        """Four packed words to where `words` reads."""
        store_matrices(self.address + tile + Int32(2048 * b), packed, transposed=True)


class Place:
    """Addresses for `thread` in 0..255, given the address of shared memory; ``panels`` of values: dv / 64.

    ``keys``, ``vals``: the warp's columns of tiles of d_k and of d_v.
    """

    def __init__(self, base, thread, warp, panels: int):
        lane = thread & 31
        self.base, self.lane, self.warp, self.group = base, lane, warp, warp >> 2
        self.panels = panels
        self.row, self.column = lane >> 2, lane & 3
        self.within, self.matrix = lane & 7, lane >> 3
        half, token = self.matrix & 1, self.matrix >> 1
        chunk = (warp & 3) * 2 + half
        inside = self.within * 128 + ((chunk ^ self.within) << 4) + token * 1024
        self.keys = Columns(base + self.group * 8192 + inside)
        self.vals = self.keys if panels == 2 else Columns(base + inside)
        self.state = Columns(base + self.group * (8192 * panels) + inside)
        self.gate = [[self._gate(h, e) for e in range(2)] for h in range(2)]
        rows = (warp & 3) * 2 + half
        self.square_store = base + rows * 1024 + self.within * 128 + ((token ^ self.within) << 4)
        self.diagonal_row = base + self.row * at.DIAG_ROW + self.column * 8
        self.diagonal_column = base + self.column * (2 * at.DIAG_ROW) + self.row * 4
        self.tokens = base + self.column * 8

    def _gate(self, h: int, e: int):
        token = self.column * 2 + e
        chunk = (self.warp & 1) * 4 + 2 * h + (self.row >> 2)
        inside = ((chunk ^ token) << 4) + (self.row & 3) * 4
        return self.base + at.G + (self.warp >> 1) * 8192 + token * 128 + inside

    def square(self, tile: int, rows, chunk):
        """Address of this lane's row ``8 rows + within`` and 16-byte chunk of a [64, 64] float16 panel."""
        return self.base + tile + rows * 1024 + self.within * 128 + ((chunk ^ self.within) << 4)

    def scalars(self, offset: int, b: int) -> list:
        """64 float32, one a token, as the eight of block b of a fragment."""
        pairs = [load_two(self.tokens, offset + 32 * t) for t in (2 * b, 2 * b + 1)]
        return [pairs[i // 4][i % 2] for i in range(8)]
