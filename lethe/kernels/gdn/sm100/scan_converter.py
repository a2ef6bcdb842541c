"""A converter warp of `scan`: 16 rows (d_v) of a state, step by step, between tensor memory and the rest."""

from typing import Any

import cutlass
from cutlass import cute

from lethe.kernels.gdn.precision import TARGET
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.out_fragments import pack_all
from lethe.kernels.gdn.sm90.scan_consumer import CHUNK, FORWARD, GROUP, WARP_ROWS, At, Consumer, Ring
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.scan_map import PACKED, PRODUCT, SECOND, STATE
from lethe.kernels.gdn.sm100.scan_outputs import Outputs

Int32 = cutlass.Int32


class Converter(Consumer):
    """The steps of one direction, for the warps with rows of the state."""

    def __init__(self, kernel: Any, way: int, ring: Ring, at: At, signals: Any, base: Any):
        super().__init__(kernel, way, ring, at)
        self.signals, self.base = signals, base

    @cute.jit
    def run(
        self, moves, maxima: cute.Tensor, powers: cute.Tensor, starts: tuple, ends: tuple, written: tuple
    ):
        """All steps, between the initial and the final state."""
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane, half = thread % 32, warp // 4
        # Rows of the state by 16, counted through all groups: with M = 128 two warps share 32 lanes.
        rows = warp if cutlass.const_expr(self.k.groups == 1) else 2 * (warp % 4) + half
        self.own = self.base + tensor.lanes_of(warp, half)
        power = self.sequence_power(maxima, starts[self.way], thread)
        if (rows // 4 == 0) & (self.at.column == 0):
            for chunk in cutlass.range(32 * rows + lane, self.at.count, 128, unroll=1):
                powers[self.at.first + chunk, self.at.head, self.way] = power

        start, end = starts[self.way], ends[self.way]
        state = cute.make_rmem_tensor(cute.make_layout((2, 2, self.dk // 8)), cutlass.Float32)
        state.fill(0.0)
        tile = self.at.column * self.k.groups + rows // 4
        if start.shape[0] > 0:
            cute.autovec_copy(self.place(start, tile, rows % 4, lane), state)
            state.store(state.load() * parts.two_to(power))
        self.put_state(state)
        tensor.publish()
        self.steps(moves, power, tile, rows, lane, written)
        if cutlass.const_expr(len(self.k.products(self.way)) > 0):
            self.complete(self.at.count)
        if end.shape[0] > 0:
            self.get_state(state)
            state.store(state.load() * parts.two_to(-power))
            cute.autovec_copy(state, self.place(end, tile, rows % 4, lane))
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        tensor.publish()

    def place(self, states: cute.Tensor, tile, row, lane) -> cute.Tensor:
        """This thread's elements of states [N, H, dk, dv], in the order of a fragment."""
        one = states[self.at.sequence, self.at.head, None, None]
        width = self.k.dv
        first = 2 * (lane % 4) * width + GROUP * tile + WARP_ROWS * row + lane // 4
        layout = cute.make_layout((2, 2, self.dk // 8), stride=(width, 8, 8 * width))
        return cute.make_tensor(one.iterator + first, layout)

    @cute.jit
    def complete(self, steps):
        """Wait for the second product of so many steps, if there were any."""
        if steps > 0:
            tensor.wait(self.signals.second, (steps - 1) % 2)

    def put_state(self, state: cute.Tensor) -> None:
        """The float32 state to tensor memory."""
        tensor.put(self.own + Int32(STATE), [state[i] for i in range(self.dk // 2)])

    def get_state(self, state: cute.Tensor) -> None:
        """The float32 state from tensor memory."""
        for i, x in enumerate(tensor.load(self.own + Int32(STATE), self.dk)):
            state[i] = x

    @cute.jit
    def steps(self, moves, power, tile, rows, lane, written: tuple):
        """The recurrence."""
        ring, signals = self.ring, self.signals
        stages, multiplied = self.k.stages, len(self.k.products(self.way)) > 0
        forward = self.way == FORWARD
        decays = cute.make_tensor(ring.vectors[0].iterator, cute.make_layout((2, 4, self.dk // 8, stages)))
        factors = cute.make_rmem_tensor(cute.make_layout((2, self.dk // 8)), cutlass.Float32)
        if cutlass.const_expr(self.k.saves):
            atom, store = moves["SD"[self.way]]
            targets = cute.local_tile(store, (WARP_ROWS, self.dk), (None, None, self.at.head, None))
            source, target = parts.partition(atom, ring.staging, targets)
            staging = ring.staging.iterator.toint() + rows * (2 * WARP_ROWS * self.dk)
        if cutlass.const_expr(self.k.outputs):
            self.outputs = Outputs(self, lane, power, written)
        state = cute.make_rmem_tensor(cute.make_layout((2, 2, self.dk // 8)), cutlass.Float32)
        packed = cute.make_rmem_tensor(state.layout, parts.HALF)

        for step in cutlass.range(self.at.count, unroll=1):
            stage, phase = step % stages, step % 2
            slot = self.at.first + (step if cutlass.const_expr(forward) else self.at.count - 1 - step)
            if cutlass.const_expr(multiplied):
                self.complete(step)
            self.get_state(state)
            packed.store(state.load().to(parts.HALF))
            if cutlass.const_expr(self.k.starts):
                flat = cute.make_tensor(packed.iterator, cute.make_layout(self.dk // 2))
                words = cute.recast_tensor(flat, Int32)
                tensor.put_words(self.own + Int32(PACKED), [words[i] for i in range(self.dk // 4)])
                tensor.arrive(signals.packed)
            if cutlass.const_expr(self.k.saves):
                self.stage_rows(packed, staging, lane)
                cute.copy(atom, source[None, rows], target[None, 4 * tile + rows % 4, 0, slot])
                cute.arch.cp_async_bulk_commit_group()

            cute.arch.mbarrier_wait(ring.full + stage, (step // stages) % 2)
            cute.autovec_copy(decays[None, lane % 4, None, stage], factors)
            largest = ring.vectors[1][0 if cutlass.const_expr(forward) else 2, stage]
            factor = parts.two_to(power - parts.power(largest, TARGET))
            wide = CHUNK if cutlass.const_expr(forward) else self.dk
            own = ring.own.iterator.toint() + (stage * self.k.groups + rows // 4) * (2 * GROUP * wide)
            self.decay(state, factors)
            if cutlass.const_expr(forward):
                added = self.floats(self.transposed(own, lane, rows % 4), cute.make_layout(CHUNK // 2))
                self.put_state(state)
                self.second_operand(added * factor, phase, stage)
            else:
                added = self.floats(self.rows(own, lane, rows % 4), state.layout)
                state.store(state.load() + added * factor)
                self.put_state(state)
                if cutlass.const_expr(self.erase):
                    self.second_operand(None, phase, stage)
                else:
                    tensor.publish()
            if cutlass.const_expr(self.k.outputs):
                tensor.wait(signals.second, phase)
                self.outputs.collect()
                self.outputs.write(own, step, tile, lane, rows % 4)
            parts.arrive(ring.empty + stage)

    @cute.jit
    def second_operand(self, added: cutlass.Constexpr, phase, stage):
        """``added - X`` (-Y if nothing is added) as operand A, when the first product is there; arrive."""
        values = cute.make_rmem_tensor(cute.make_layout(CHUNK // 2), cutlass.Float32)
        if cutlass.const_expr(self.k.starts):
            tensor.wait(self.signals.first, phase)
        if cutlass.const_expr(self.erase):
            for i, x in enumerate(tensor.load(self.own + Int32(PRODUCT), CHUNK)):
                values[i] = -x
            if cutlass.const_expr(added is not None):
                values.store(added + values.load())
        else:
            values.store(added)
        tensor.put_words(self.own + Int32(SECOND), pack_all([values[i] for i in range(CHUNK // 2)]))
        if cutlass.const_expr(self.k.outputs):
            self.outputs.add_diagonal(values, stage)
        tensor.arrive(self.signals.ready)
