"""What `forward` adds to a step of `scan`: the outputs of its chunk, transposed like the states.

``o^T = s S^T Qh^T + a N^T + N^T A^T`` in units of 2^-eS: two products of the packed state and of the packed
N, which are operand A of the recurrence's own products, with tiles Qh and A as operand B. The diagonal a has
float32 N. A warp writes its 16 columns over its own part of U's tile, which only it has read, and from there
to o in rows of 32 bytes, under a predicate: the next sequence's rows may follow.
"""

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from lethe.kernels.gdn.sm90 import parts

CHUNK, GROUP = 64, 64


class Outputs:
    """Of one warp group. ``written``: (o [B, L, H, dv], scale)."""

    def __init__(self, consumer: Any, thread: Any, power: Any, written: tuple):
        self.c, self.k, self.power = consumer, consumer.k, power
        self.o, self.scale = written
        mma = self.mma()
        self.queries = consumer.operand(mma, "Qh", thread)
        self.pairs = consumer.operand(mma, "A", thread)
        self.sums = cute.make_rmem_tensor(mma.partition_shape_C((GROUP, CHUNK)), cutlass.Float32)
        vector = consumer.ring.vectors[2]
        view = cute.make_tensor(vector.iterator, cute.make_layout((2, 4, CHUNK // 8, self.k.stages)))
        self.diagonal = view[None, thread % 4, None, None]

    def mma(self) -> cute.TiledMma:
        """m64n64k16; a fresh atom wherever it is used, because setting a field replaces its value."""
        return parts.mma(CHUNK, OperandMajorMode.K, warpgroup.OperandSource.RMEM)

    @cute.jit
    def from_state(self, packed: cute.Tensor, stage):
        """Start S^T Qh^T."""
        mma = self.mma()
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(packed, mode=[2])):
            cute.gemm(mma, self.sums, packed[None, None, k], self.queries[None, None, k, stage], self.sums)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def from_diagonal(self, written: cute.Tensor, stage):
        """Wait for it, scale it and add a N^T; ``written``: N in float32."""
        factors = cute.make_rmem_tensor(cute.make_layout((2, CHUNK // 8)), cutlass.Float32)
        cute.autovec_copy(self.diagonal[None, None, stage], factors)
        warpgroup.wait_group(0)
        for j in cutlass.range_constexpr(CHUNK // 8):
            for e in cutlass.range_constexpr(4):
                i = 4 * j + e
                self.sums[i] = self.scale * self.sums[i] + factors[e % 2, j] * written[i]

    @cute.jit
    def from_pairs(self, half: cute.Tensor, stage):
        """Start to add N^T A^T; the caller has fenced and waits."""
        mma = self.mma()
        mma.set(warpgroup.Field.ACCUMULATE, True)
        for k in cutlass.range_constexpr(cute.size(half, mode=[2])):
            cute.gemm(mma, self.sums, half[None, None, k], self.pairs[None, None, k, stage], self.sums)
        warpgroup.commit_group()

    @cute.jit
    def write(self, at, step, tile, lane, warp):
        """Round to o's dtype and store the rows that there are. ``at``: of U's tile of this group."""
        sequence, cuts = self.c.at.sequence, self.c.at.cuts
        batch, start, length = sequence, cutlass.Int32(0), cute.size(self.o, mode=[1])
        if cutlass.const_expr(self.k.packed):
            batch, start = cutlass.Int32(0), cuts[sequence]
            length = cuts[sequence + 1] - start
        dtype = self.o.element_type
        rounded = cute.make_rmem_tensor(cute.make_layout(GROUP * CHUNK // 128), dtype)
        flat = cute.make_tensor(self.sums.iterator, rounded.layout)
        rounded.store((flat.load() * parts.two_to(-self.power)).to(dtype))
        words = cute.recast_tensor(rounded, cutlass.Int32)
        base = (8 * (lane // 16) + lane % 8) * 128 + ((2 * warp + lane // 8 % 2) ^ (lane % 8)) * 16
        for j in cutlass.range_constexpr(0, CHUNK // 8, 2):
            parts.stmatrix(at + 1024 * j + base, [words[2 * j + i] for i in range(4)], transposed=True)
        cute.arch.sync_warp()
        for part in cutlass.range_constexpr(4):
            token, piece = 16 * part + lane // 2, 2 * warp + lane % 2
            row = CHUNK * step + token
            if row < length:
                parts.store_16_bytes(
                    self.o[batch, start + row, self.c.at.head, None].iterator + (GROUP * tile + 8 * piece),
                    at + 128 * token + 16 * (piece ^ (token % 8)),
                )
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
