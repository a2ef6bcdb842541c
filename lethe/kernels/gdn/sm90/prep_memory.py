"""Where a chunk lies, and how its rows come into shared memory and go out again.

A tile is ``[64 tokens, 64 or 128 channels]`` float16: halves of 64 channels after one another, each of 64
rows of 128 bytes, whose eight 16-byte pieces are swapped by an exclusive or with ``row % 8``. That is the
layout of a 128-byte swizzle (`parts`), so ldmatrix, stmatrix and wgmma all read it without bank conflicts.
Rows are copied by ``cp.async``, 16 bytes a thread, because that fills rows past the end of a sequence with
zeros by itself and every thread can convert what it copied without a barrier.
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers

CHUNK = 64
HALF_TILE = 64 * 128
"""Bytes of 64 rows of 64 channels."""
Int32, Int64 = cutlass.Int32, cutlass.Int64


@cute.jit
def locate_packed(cu_seqlens: cute.Tensor, slot):
    """(first token, rows) of a slot; rows <= 0 if it holds no chunk. `chunks`: sequence n starts at slot
    ``cu_seqlens[n] // 64 + n``."""
    low, high = Int32(0), cutlass.Int32(cu_seqlens.shape[0]) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if cu_seqlens[middle] // CHUNK + middle <= slot:
            low = middle
        else:
            high = middle
    start = cu_seqlens[low]
    first = start + (slot - start // CHUNK - low) * CHUNK
    return first, cu_seqlens[low + 1] - first


def locate(length, slot):
    """(first token, rows) of a slot of a batch whose rows have this many tokens."""
    chunks = (length + CHUNK - 1) // CHUNK
    batch = slot // chunks
    within = (slot - batch * chunks) * CHUNK
    return batch * length + within, length - within


def piece(row, chunk):
    """Byte of the 16-byte piece `chunk` of a row within a tile."""
    return (chunk >> 3) * HALF_TILE + row * 128 + (((chunk & 7) ^ (row & 7)) << 4)


class Rows:
    """One thread's share of a tile of `width` channels: every ``threads / pieces``-th row, one piece each.

    The rows of a thread differ by multiples of 8, so its offsets within the tile differ by constants.
    """

    def __init__(self, thread, width: int, threads: int):
        self.pieces = width // 8
        self.step = threads // self.pieces
        self.count = CHUNK // self.step
        self.row, self.chunk = thread // self.pieces, thread % self.pieces
        self.offset = piece(self.row, self.chunk)

    def load(self, tile, source, stride, rows) -> None:
        """Start copying to the tile from `source`, the chunk's first row; rows are `stride` bytes apart."""
        for i in range(self.count):
            row = self.row + i * self.step
            kept = cutlass.min(row, rows - 1)
            size = registers.asm(
                "{\n\t.reg .pred p;\n\tsetp.lt.s32 p, $1, $2;\n\tselp.b32 $0, 16, 0, p;\n\t}",
                "r",
                [row, rows],
                "rr",
            )
            address = source + Int64(kept) * Int64(stride) + Int64(self.chunk * 16)
            cute.arch.inline_ptx(
                "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
                read_only_args=[tile + self.offset + i * self.step * 128, address, size],
            )

    def to_half(self, tile) -> None:
        """Convert this thread's pieces from bfloat16 to float16 in place."""
        for i in range(self.count):
            at = tile + self.offset + i * self.step * 128
            words = [registers.unpack(word, cutlass.BFloat16) for word in load_piece(at)]
            store_piece(at, [registers.pack(*pair) for pair in words])

    def store(self, target, tile) -> None:
        """Copy the tile to a dense workspace ``[64, width]`` float16."""
        for i in range(self.count):
            words = load_piece(tile + self.offset + i * self.step * 128)
            at = (self.row + i * self.step) * (self.pieces * 16) + self.chunk * 16
            store_global(target + Int64(at), words)


def load_piece(address) -> list:
    """ld.shared of 16 bytes."""
    return list(registers.asm("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "rrrr", [address], "r", True))


def store_piece(address, words) -> None:
    """st.shared of 16 bytes."""
    registers.asm("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "", [address, *words], "rrrrr", True)


def store_word(address, word, offset: int = 0) -> None:
    """st.shared of 4 bytes."""
    registers.asm(f"st.shared.b32 [$0+{offset}], $1;", "", [address, word], "rr", True)


def store_global(address, words) -> None:
    """st.global of 16 bytes."""
    cute.arch.inline_ptx(
        "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[address, *words]
    )


def store_global_float(address, value) -> None:
    """st.global of one float32."""
    cute.arch.inline_ptx("st.global.f32 [{$r0}], {$r1};", read_only_args=[address, value])
