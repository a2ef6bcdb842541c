"""A warp group of `scan`: 64 columns of a state, step by step. What it computes is in `scan`.

Fragments, by the lane l of warp w: accumulator word ``2 j + i`` are the two elements of row ``16 w + 8 i +
l / 4`` from column ``8 j + 2 (l mod 4)`` on. Packed to float16 they are, in the same order, operand A of the
next wgmma, and 8 x 8 matrices of ldmatrix and stmatrix: four of them, (i, j) = (0, j), (1, j), (0, j + 1),
(1, j + 1), at the addresses that the lanes give. In a tile of 128-byte rows the 16-byte column c of row r
lies at ``128 r + 16 (c xor r mod 8)``.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from lethe.kernels.gdn.precision import STATE_TARGET, TARGET
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.scan_outputs import Outputs

CHUNK, GROUP = 64, 64
"""Tokens of a chunk; columns (d_v) of a warp group."""

WARP_ROWS = 16
BLOCK = 64
"""Columns of a block of a tile: 128 bytes."""

FORWARD, REVERSE = 0, 1


@dataclass(frozen=True)
class At:
    """Which sequence, head, columns (of its own width), first slot and number of chunks a CTA has."""

    sequence: Any
    head: Any
    column: Any
    first: Any
    count: Any
    cuts: Any


@dataclass(frozen=True)
class Ring:
    """Shared memory of a CTA; tensors have their stage last."""

    full: Any
    empty: Any
    largest: Any
    tiles: dict[str, Any]
    own: Any
    staging: Any
    vectors: list[Any]
    """e^Gam, maxima, a."""

    def own_as(self, box: tuple[int, int], count: int) -> cute.Tensor:
        """The tiles of U or P, (rows, columns, stage * groups + group)."""
        return cute.make_tensor(self.own.iterator, parts.k_major(*box, count).outer)


class Consumer:
    """The steps of one direction."""

    def __init__(self, kernel: Any, way: int, ring: Ring, at: At):
        self.k, self.way, self.ring, self.at = kernel, way, ring, at
        self.dk, self.erase = kernel.dk, kernel.erase
        self.threads = 32 * kernel.consumers

    def products(self) -> tuple[cute.TiledMma, cute.TiledMma]:
        """The two products of a step; fresh atoms, because setting a field of an atom replaces its value."""
        source = warpgroup.OperandSource.RMEM
        return parts.mma(CHUNK, OperandMajorMode.K, source), parts.mma(self.dk, OperandMajorMode.MN, source)

    @cute.jit
    def run(
        self, moves, maxima: cute.Tensor, powers: cute.Tensor, starts: tuple, ends: tuple, written: tuple
    ):
        """All steps, between the initial and the final state."""
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile = self.at.column * self.k.groups + warp // 4
        start, end = starts[self.way], ends[self.way]
        power = self.sequence_power(maxima, start, thread)
        if tile == 0:
            for chunk in cutlass.range(thread % 128, self.at.count, 128, unroll=1):
                powers[self.at.first + chunk, self.at.head, self.way] = power

        _, second = self.products()
        state = cute.make_rmem_tensor(second.partition_shape_C((GROUP, self.dk)), cutlass.Float32)
        state.fill(0.0)
        if start.shape[0] > 0:
            cute.autovec_copy(self.fragment_of(start, tile, thread), state)
            state.store(state.load() * parts.two_to(power))
        self.steps(moves, state, power, tile, thread, warp, written)
        if end.shape[0] > 0:
            state.store(state.load() * parts.two_to(-power))
            cute.autovec_copy(state, self.fragment_of(end, tile, thread))
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def fragment_of(self, states: cute.Tensor, tile, thread) -> cute.Tensor:
        """This thread's elements of states [N, H, dk, dv], transposed as the accumulator is."""
        one = states[self.at.sequence, self.at.head, None, None]
        transposed = cute.make_tensor(one.iterator, cute.select(one.layout, mode=[1, 0]))
        columns = cute.local_tile(transposed, (GROUP, self.dk), (tile, 0))
        _, second = self.products()
        return second.get_slice(thread % 128).partition_C(columns)

    @cute.jit
    def sequence_power(self, maxima: cute.Tensor, start: cute.Tensor, thread):
        """eS or eD of `precision.sequence_powers`; what is not finite is left out of the maxima."""
        lane = thread % 32
        zero = cutlass.Float32(0.0)
        added, keys, given = zero, zero, zero
        for chunk in cutlass.range(lane, self.at.count, 32, unroll=4):
            row = maxima[self.at.first + chunk, self.at.head, None]
            added = cute.arch.fmax(added, parts.finite(row[0 if self.way == FORWARD else 2]))
            keys = cute.arch.fmax(keys, parts.finite(row[1]))
        added = cute.arch.warp_reduction_max(added)
        if cutlass.const_expr(self.way == FORWARD):
            added = 8.0 * cute.arch.warp_reduction_max(keys) * added
        if start.shape[0] > 0:
            one = start[self.at.sequence, self.at.head, None, None]
            pieces = self.dk * self.k.dv // (4 * self.threads)
            flat = cute.make_tensor(one.iterator, cute.make_layout((4, self.threads, pieces)))
            piece = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
            for i in cutlass.range(pieces, unroll=4):
                cute.autovec_copy(flat[None, thread, i], piece)
                for e in cutlass.range_constexpr(4):
                    given = cute.arch.fmax(given, parts.finite(parts.absolute(piece[e])))
            given = cute.arch.warp_reduction_max(given)
            largest = cute.make_tensor(self.ring.largest, cute.make_layout(self.k.consumers))
            largest[thread // 32] = given
            cute.arch.barrier(barrier_id=1, number_of_threads=self.threads)
            for w in cutlass.range_constexpr(self.k.consumers):
                given = cute.arch.fmax(given, largest[w])
        return parts.power(cute.arch.fmax(added, given), STATE_TARGET)

    @cute.jit
    def steps(self, moves, state: cute.Tensor, power, tile, thread, warp, written: tuple):
        """The recurrence on `state`."""
        lane, ring = thread % 32, self.ring
        names = self.k.tiles(self.way)
        stages = self.k.stages
        first, second = self.products()
        packed = cute.make_rmem_tensor(first.partition_shape_A((GROUP, self.dk)), parts.HALF)
        half = cute.make_rmem_tensor(second.partition_shape_A((GROUP, CHUNK)), parts.HALF)
        other = cute.make_rmem_tensor(first.partition_shape_C((GROUP, CHUNK)), cutlass.Float32)
        if cutlass.const_expr(self.erase):
            operand_first = self.operand(first, names[0], thread)
        if cutlass.const_expr(len(names) > 1):
            operand_second = self.operand(second, names[1 if self.erase else 0], thread, transposed=True)
        if cutlass.const_expr(self.k.outputs):
            self.outputs = Outputs(self, thread, power, written)
        decays = cute.make_tensor(ring.vectors[0].iterator, cute.make_layout((2, 4, self.dk // 8, stages)))
        factors = cute.make_rmem_tensor(cute.make_layout((2, self.dk // 8)), cutlass.Float32)
        if cutlass.const_expr(self.k.saves):
            atom, tensor = moves["SD"[self.way]]
            targets = cute.local_tile(tensor, (WARP_ROWS, self.dk), (None, None, self.at.head, None))
            source, target = parts.partition(atom, ring.staging, targets)
            staging = ring.staging.iterator.toint() + warp * (2 * WARP_ROWS * self.dk)

        for step in cutlass.range(self.at.count, unroll=1):
            stage = step % stages
            slot = self.at.first + (
                step if cutlass.const_expr(self.way == FORWARD) else self.at.count - 1 - step
            )
            packed.store(cute.make_tensor(state.iterator, packed.layout).load().to(parts.HALF))
            if cutlass.const_expr(self.k.saves):
                self.stage_rows(packed, staging, lane)
            cute.arch.mbarrier_wait(ring.full + stage, (step // stages) % 2)
            if cutlass.const_expr(self.erase):
                first.set(warpgroup.Field.ACCUMULATE, False)
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(packed, mode=[2])):
                    part = operand_first[None, None, k, stage]
                    cute.gemm(first, other, packed[None, None, k], part, other)
                    first.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
            if cutlass.const_expr(self.k.outputs):
                self.outputs.from_state(packed, stage)
            if cutlass.const_expr(self.k.saves):
                row = 4 * tile + warp % 4
                cute.copy(atom, source[None, warp], target[None, row, 0, slot])
                cute.arch.cp_async_bulk_commit_group()

            cute.autovec_copy(decays[None, lane % 4, None, stage], factors)
            largest = ring.vectors[1][0 if self.way == FORWARD else 2, stage]
            factor = parts.two_to(power - parts.power(largest, TARGET))
            at = ring.own.iterator.toint() + (stage * self.k.groups + warp // 4) * (2 * GROUP) * (
                CHUNK if cutlass.const_expr(self.way == FORWARD) else self.dk
            )
            if cutlass.const_expr(self.way == FORWARD):
                words = self.transposed(at, lane, warp % 4)
                added = self.floats(words, half.layout) * factor
                self.decay(state, factors)
                if cutlass.const_expr(self.erase):
                    warpgroup.wait_group(1 if self.k.outputs else 0)
                    added = added - cute.make_tensor(other.iterator, half.layout).load()
                half.store(added.to(parts.HALF))
                if cutlass.const_expr(self.k.outputs):
                    new = cute.make_rmem_tensor(half.layout, cutlass.Float32)
                    new.store(added)
                    self.outputs.from_diagonal(cute.make_tensor(new.iterator, cute.make_layout(32)), stage)
            else:
                self.decay(state, factors)
                words = self.rows(at, lane, warp % 4)
                state.store(state.load() + self.floats(words, state.layout) * factor)
                if cutlass.const_expr(self.erase):
                    warpgroup.wait_group(0)
                    half.store((-cute.make_tensor(other.iterator, half.layout).load()).to(parts.HALF))
            if cutlass.const_expr(len(names) > 1):
                second.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.fence()
                for k in cutlass.range_constexpr(cute.size(half, mode=[2])):
                    part = operand_second[None, None, k, stage]
                    cute.gemm(second, state, half[None, None, k], part, state)
                warpgroup.commit_group()
                if cutlass.const_expr(self.k.outputs):
                    self.outputs.from_pairs(half, stage)
                warpgroup.wait_group(0)
            if cutlass.const_expr(self.k.outputs):
                self.outputs.write(at, step, tile, lane, warp % 4)
            parts.arrive(ring.empty + stage)

    def operand(self, mma: cute.TiledMma, name: str, thread, transposed: bool = False) -> cute.Tensor:
        """Descriptors [., ., k, stage] of a tile as operand B; ``transposed``: its columns are N."""
        rows, columns = self.k.box(name)
        layout = (parts.mn_major if transposed else parts.k_major)(rows, columns, self.k.stages).outer
        shared = cute.make_tensor(self.ring.tiles[name].iterator, layout)
        return mma.make_fragment_B(mma.get_slice(thread % 128).partition_B(shared))

    @cute.jit
    def stage_rows(self, packed: cute.Tensor, staging, lane):
        """Write this warp's 16 rows of the packed state where TMA reads them, once it has read the last."""
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_warp()
        words = cute.recast_tensor(
            cute.make_tensor(packed.iterator, cute.make_layout(self.dk // 2)), cutlass.Int32
        )
        base = (lane % 16) * 128 + ((lane // 16) ^ (lane % 8)) * 16
        for j in cutlass.range_constexpr(0, self.dk // 8, 2):
            address = staging + (8 * j // BLOCK) * (128 * WARP_ROWS) + (base ^ (16 * (j % 8)))
            parts.stmatrix(address, [words[2 * j + i] for i in range(4)])
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()

    def decay(self, state: cute.Tensor, factors: cute.Tensor) -> None:
        """Scale the columns of the state by e^Gam."""
        for j in range(self.dk // 8):
            for e in range(4):
                state[4 * j + e] = state[4 * j + e] * factors[e % 2, j]

    def transposed(self, at, lane, warp) -> list:
        """U^T of this warp from a tile [64 tokens, 64 columns]: 32 words."""
        base = (8 * (lane // 16) + lane % 8) * 128 + ((2 * warp + lane // 8 % 2) ^ (lane % 8)) * 16
        words = []
        for j in range(0, CHUNK // 8, 2):
            words += parts.ldmatrix(at + 8 * 128 * j + base, transposed=True)
        return words

    def rows(self, at, lane, warp) -> list:
        """P^T of this warp from a tile [64 columns, dk]: dk / 2 words."""
        base = (16 * warp + lane % 16) * 128 + ((lane // 16) ^ (lane % 8)) * 16
        words = []
        for j in range(0, self.dk // 8, 2):
            words += parts.ldmatrix(at + (8 * j // BLOCK) * (128 * GROUP) + (base ^ (16 * (j % 8))))
        return words

    def floats(self, words: list, layout: cute.Layout):
        """Packed words in a fragment's order, in float32."""
        held = cute.make_rmem_tensor(cute.make_layout(len(words)), cutlass.Int32)
        for i, word in enumerate(words):
            held[i] = word
        halves = cute.recast_tensor(held, parts.HALF)
        return cute.make_tensor(halves.iterator, layout).load().to(cutlass.Float32)
