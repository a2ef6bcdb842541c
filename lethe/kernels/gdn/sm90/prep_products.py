"""The matrix products of prep on wgmma, one warp group for 64 channels, A always from registers.

Lists of float32 are transposed fragments (`out_fragments`): index ``4 t + 2 h + e`` of an accumulator.
Largest magnitudes meet in shared memory, one float32 a warp and kind (`Maxima`).
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90 import prep_gates as gates
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, load_piece, piece, store_global

Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32
KEYS, MN = OperandMajorMode.K, OperandMajorMode.MN
MAXIMA = 256
OF_DO, OF_KT, OF_P, OF_WV, OF_U = range(5)
OF_B = 768
MOST_SHIFT = 24


class Maxima:
    """``SMALL + 256``: for each kind the largest magnitude that each warp saw."""

    def __init__(self, small):
        self.small = small

    def leave(self, kind: int, warp, value) -> None:
        """Every lane writes the warp's value."""
        registers.store_float(self.small + warp * 4, value, MAXIMA + 32 * kind)

    def most(self, kind: int, warps: int = 8):
        """Over the warps, after a barrier."""
        found = None
        for start in range(0, warps, 4):
            four = registers.asm(
                f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{MAXIMA + 32 * kind + 4 * start}];",
                "ffff", [self.small], "r", True,
            )  # fmt: skip
            for value in four:
                found = value if found is None else registers.larger(found, value)
        return found


def view(base: cute.Pointer, offset, layout: cute.ComposedLayout) -> cute.Tensor:
    """A tile in shared memory as an operand."""
    pointer = cute.recast_ptr(base + offset, layout.inner, dtype=parts.HALF)
    return cute.make_tensor(pointer, layout.outer)[None, None, 0]


def fresh_accumulator(columns: int) -> cute.Tensor:
    """Registers of an accumulator of 64 rows that the first wgmma overwrites."""
    return cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), Float32)


def accumulator(values: list) -> cute.Tensor:
    """Registers of an accumulator that starts with these values."""
    made = fresh_accumulator(2 * len(values))
    for i, value in enumerate(values):
        made[i] = value
    return made


def operand(words: list) -> cute.Tensor:
    """Sixteen packed words as operand A of 64 tokens."""
    made = cute.make_rmem_tensor(((2, 2, 2), 1, 4), parts.HALF)
    bits = cute.recast_tensor(made, Int32)
    for i, word in enumerate(words):
        bits[i] = word
    return made


def listed(sums: cute.Tensor) -> list:
    """An accumulator's registers."""
    return [sums[i] for i in range(cute.size(sums))]


def start(sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, major, thread, fresh=False) -> None:
    """Issue sums += A B (sums = A B if fresh) as one group of wgmmas.

    A is packed words, or a tile whose M is contiguous.
    """
    words = a.memspace == cute.AddressSpace.rmem
    source = warpgroup.OperandSource.RMEM if words else warpgroup.OperandSource.SMEM
    shape = (64, 2 * cute.size(sums), 16)
    operation = warpgroup.MmaF16BF16Op(parts.HALF, Float32, shape, source, KEYS if words else MN, major)
    mma = cute.make_tiled_mma(operation)
    mine = mma.get_slice(thread % 128)
    left = a if words else mma.make_fragment_A(mine.partition_A(a))
    right = mma.make_fragment_B(mine.partition_B(b))
    mma.set(warpgroup.Field.ACCUMULATE, not fresh)
    warpgroup.fence()
    for k in range(4):
        cute.gemm(mma, sums, left[None, None, k], right[None, None, k], sums)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


class Products:
    """One warp's part of every product; `at`: shared addresses by name, `offsets`: the same from `base`."""

    def __init__(self, of, base: cute.Pointer, at: dict, thread, warp, lane, decay):
        self.of, self.base, self.at, self.offsets = of, base, at, of.at
        self.thread, self.warp, self.lane = thread, warp, lane
        self.group, self.decay = warp // 4, decay
        self.maxima = Maxima(at["SMALL"])
        self.key_warp = warp if of.dk == 128 else warp % 4
        self.value_warp = warp if of.dv == 128 else warp % 4

    def transposed_at(self, tile, warp):
        """This lane's address for ldmatrix.trans of 16 tokens of the warp's 16 channels."""
        lane = self.lane
        return tile + piece((lane & 7) + ((lane >> 4) & 1) * 8, warp * 2 + ((lane >> 3) & 1))

    def words(self, tile, warp) -> list:
        """The transposed fragment of a tile as it lies there, 16 words."""
        start = self.transposed_at(tile, warp)
        return [w for step in range(4) for w in registers.load_matrices(start + 2048 * step, transposed=True)]

    def tile(self, name: str, rows: int, columns: int, major, further=0) -> cute.Tensor:
        """A tile as operand B."""
        layout = parts.k_major(rows, columns) if major is KEYS else parts.mn_major(rows, columns)
        return view(self.base, self.offsets[name] + further, layout)

    def decayed_erasers(self) -> list:
        """Ph^T."""
        found = []
        at = {name: self.transposed_at(self.at[name], self.key_warp) for name in "KB"}
        for step in range(4):
            k = registers.unpack_all(registers.load_matrices(at["K"] + 2048 * step, True), parts.HALF)
            if self.of.erase == "channel":
                b = registers.unpack_all(registers.load_matrices(at["B"] + 2048 * step, True), parts.HALF)
            else:
                b = self.of_tokens(self.at["SMALL"] + OF_B, 2 * step, 2)
            factors = self.decay.transposed(self.lane, self.key_warp * 16, step)
            found += gates.scaled([x * y for x, y in zip(k, b, strict=True)], factors)
        return found

    def of_tokens(self, vector, start: int, count: int) -> list:
        """One number a token of `count` pieces of eight tokens as a transposed fragment."""
        found = []
        for t in range(start, start + count):
            found += [*registers.load_two(vector + (self.lane & 3) * 8, 32 * t)] * 2
        return found

    def start_w(self) -> cute.Tensor:
        """W^T = Ph^T + Ph^T T'^T, issued."""
        first = self.decayed_erasers()
        sums = accumulator(first)
        a = operand(registers.pack_all(first))
        start(sums, a, self.tile("T", 64, 64, KEYS), KEYS, self.thread)
        return sums

    def finish_w(self, sums: cute.Tensor) -> None:
        """Write W where b was."""
        words = registers.pack_all(listed(sums))
        at = self.transposed_at(self.at["B"], self.key_warp)
        for step in range(4):
            registers.store_matrices(at + 2048 * step, words[4 * step : 4 * step + 4], transposed=True)

    def start_local(self) -> cute.Tensor:
        """dNloc^T = a dO^T + dO^T A in units of dO's power, issued."""
        words = self.words(self.at["DO"], self.value_warp)
        do = registers.unpack_all(words, parts.HALF)
        a = self.of_tokens(self.at["SMALL"], 0, 8)
        sums = accumulator([x * y for x, y in zip(do, a, strict=True)])
        start(sums, self.adjoints(), self.tile("A", 64, 64, MN), MN, self.thread)
        return sums

    def adjoints(self) -> cute.Tensor:
        """dO^T of this group's 64 rows as operand A."""
        further = self.group * (CHUNK * 128) if self.of.dv == 128 else 0
        return self.tile("DO", CHUNK, 64, MN, further)

    def negated(self, sums: cute.Tensor) -> tuple:
        """(-dNloc^T packed with a power of the warp's own, that power)."""
        values = listed(sums)
        shift = 8 - parts.exponent(registers.largest(values))
        shift = cutlass.max(cutlass.min(shift, Int32(MOST_SHIFT)), Int32(-MOST_SHIFT))
        factor = -registers.two_to(shift)
        return registers.pack_all([x * factor for x in values]), shift

    def adjoint(self, negated: list | None, shift, scale) -> tuple:
        """(P^T, what its values are to be multiplied by); `negated` is None without erasure."""
        further = self.group * (CHUNK * 128) if self.of.halved else 0
        columns = self.of.dk // (2 if self.of.halved else 1)
        sums = fresh_accumulator(columns)
        qh = self.tile("Q", CHUNK, columns, MN, further)
        start(sums, self.adjoints(), qh, MN, self.thread, fresh=True)
        warpgroup.wait_group(0)
        scale = scale * registers.two_to(shift)
        for i in range(cute.size(sums)):
            sums[i] = sums[i] * scale
        if negated is not None:
            w = self.tile("B", CHUNK, columns, MN, further)
            start(sums, operand(negated), w, MN, self.thread)
            warpgroup.wait_group(0)
        _, undo = registers.binade(self.maxima.most(OF_DO, 4))
        return listed(sums), undo * registers.two_to(-shift)

    def store_adjoint(self, values: list, undo, target) -> None:
        """Write P^T with its power, 16 rows of d_v a warp, staged over Qh and k."""
        power, _ = registers.binade(self.maxima.most(OF_P))
        factor = power * undo
        words = registers.pack_all([x * factor for x in values])
        lane, pieces = self.lane, len(values) // 4
        region = self.at["Q"] + self.warp * (256 * pieces)
        for n in range(0, pieces, 2):
            registers.store_matrices(
                region + narrow_piece(lane & 15, (lane >> 4) + n), words[2 * n : 2 * n + 4]
            )
        cute.arch.sync_warp()
        rows = 32 // pieces
        further = self.group * 128 if self.of.halved else Int32(0)
        for i in range(16 // rows):
            row, chunk = lane // pieces + i * rows, lane % pieces
            to = (self.value_warp * 16 + row) * (2 * self.of.dk) + further + chunk * 16
            store_global(target + Int64(to), load_piece(region + narrow_piece(row, chunk)))

    def written(self) -> list:
        """(w v)^T."""
        of, at = self.of, self.at["G"]
        v = registers.unpack_all(self.words(at, self.value_warp), of.io)
        if of.write == "none":
            return v
        at = at + 128 * of.dv
        if of.write == "head":
            w = self.of_tokens(at, 0, 8)
        else:
            w = registers.unpack_all(self.words(at, self.value_warp), of.io)
        return [x * y for x, y in zip(v, w, strict=True)]

    def values(self, first: list) -> tuple:
        """U^T = (w v)^T + (w v)^T T'^T in units of the power of w v: (values, what to multiply them by)."""
        power, undo = registers.binade(self.maxima.most(OF_WV))
        scaled = [x * power for x in first]
        if self.of.erase == "none":
            return scaled, undo
        sums = accumulator(scaled)
        a = operand(registers.pack_all(scaled))
        start(sums, a, self.tile("T", 64, 64, KEYS), KEYS, self.thread)
        warpgroup.wait_group(0)
        return listed(sums), undo

    def store_values(self, values: list, undo, target) -> None:
        """Write U with its power: 32 bytes of every token a warp, staged over W."""
        power, _ = registers.binade(self.maxima.most(OF_U))
        factor = power * undo
        words = registers.pack_all([x * factor for x in values])
        lane = self.lane
        region = self.at["B"] + self.warp * 2048
        to = region + ((lane & 7) + ((lane >> 4) & 1) * 8) * 32 + ((lane >> 3) & 1) * 16
        for step in range(4):
            registers.store_matrices(to + 512 * step, words[4 * step : 4 * step + 4], transposed=True)
        cute.arch.sync_warp()
        count = 4 if self.of.dv == 128 else 2
        begin = Int32(0) if self.of.dv == 128 else self.group * 32
        for i in range(count):
            token = begin + i * 16 + (lane >> 1)
            at = token * (2 * self.of.dv) + self.value_warp * 32 + (lane & 1) * 16
            store_global(target + Int64(at), load_piece(region + token * 32 + (lane & 1) * 16))


def narrow_piece(row, chunk):
    """Byte of a 16-byte piece in 16 rows of 64 or 128 channels."""
    return (chunk >> 3) * 2048 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4)
