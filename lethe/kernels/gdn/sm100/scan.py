"""Kernel ``scan`` for sm_100a: the states of a sequence and head, in tensor memory for the whole loop.

::

    forward    S' = e^Gam S + Kt^T (U - W S)        reverse    D' = e^Gam D + P - W^T (Kt D)

Arguments, variants and units are those of `sm90.scan`. A CTA owns one sequence, head, direction and ``64
groups`` columns of the state, which it keeps transposed, float32, in the same columns of tensor memory from
the first chunk to the last: the second product of a step accumulates onto it there, and all that ever leaves
is a float16 copy, as an operand and to global memory. With groups = 2 a product has M = 128, with groups = 1
M = 64 (`tensor`: rows in lanes). Map of tensor memory, 512 columns allocated once:

===========  =====================================================================  ========================
columns      contents                                                               written by
===========  =====================================================================  ========================
0-127        **state**, S^T or D^T [d_v x d_k] float32, resident                    converters, second product
128-191      X^T = S^T W^T or Y^T = D^T Kt^T [d_v x 64] float32                     first product
192-255      the packed state, float16 (operand A of the first product)             converters
256-287      f U^T - X^T or -Y^T, float16 (operand A of the second product)         converters
288-351      o^T [d_v x 64] float32, in `forward` only                              products, converters
===========  =====================================================================  ========================

Roles: ``4 groups`` converter warps with 16 rows of the state each, one loader, one multiplier. A step:

1. converters wait for ``second`` of the step before, read the state, pack it, store it as an operand, arrive
   at ``packed``; the multiplier starts the first product and commits it to ``first``;
2. meanwhile they write the packed state to shared memory and global memory (TMA, their own rows), scale the
   float32 state by e^Gam, in reverse add f P^T, and put it back;
3. they wait for ``first``, form the second operand, arrive at ``ready``; the multiplier accumulates the
   second product onto the state and commits it to ``second`` and to the stage's ``empty``.

No operand has a second buffer: the packed state is written when the second product of the step before is
complete, and so the first; the second operand when the first product of this step is. ``full`` (bytes) and
``empty`` (one arrival a converter warp, one of the multiplier) of every stage as in `sm90.scan`. Without
erasure there is no first product, and in reverse none at all: the multiplier then only hands stages back.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90 import scan as hopper
from lethe.kernels.gdn.sm90.scan_consumer import CHUNK, FORWARD, GROUP, Ring
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.scan_converter import Converter
from lethe.kernels.gdn.sm100.scan_map import COLUMNS, OUTPUT, PACKED, PRODUCT, SECOND, STATE

VARIANTS = hopper.VARIANTS
Int32 = cutlass.Int32


def kernel(**options) -> "Scan":
    """The kernel of one variant."""
    return Scan(**options)


@dataclass(frozen=True)
class Signals:
    """Barriers of one arrival kind each, and the address of tensor memory."""

    packed: Any
    first: Any
    ready: Any
    second: Any
    slot: Any


class Scan(hopper.Scan):
    """``direction``: both or reverse; ``groups``: 64 columns of the state each, in one CTA."""

    def __init__(self, **options):
        super().__init__(**options)
        self.pooled = False
        self.threads = 32 * (self.consumers + 2)
        self.rows = GROUP * self.groups
        self.starts = self.erase or self.outputs

    def products(self, way: int) -> tuple[str, ...]:
        """Operands B of the products of a step: K-major for the first, MN-major for the second."""
        if way == FORWARD:
            return ("W", "Kt") if self.erase else ("Kt",)
        return ("Kt", "W") if self.erase else ()

    @cute.kernel
    def kernel(
        self,
        atoms: tuple,
        tensors: tuple,
        vectors: tuple,
        starts: tuple,
        cu_seqlens: cute.Tensor,
        powers: cute.Tensor,
        ends: tuple,
        sequences: cutlass.Int32,
        written: tuple,
    ):
        decay, maxima = vectors[:2]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, direction, _ = cute.arch.block_idx()
        heads = cute.size(decay, mode=[1])
        row, column = block // self.columns, block % self.columns
        n, h = row // heads, row % heads
        ring, signals = self.allocate()
        loader, multiplier = self.consumers, self.consumers + 1
        if warp == loader:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(ring.full + stage, 1)
                    cute.arch.mbarrier_init(ring.empty + stage, self.consumers + 1)
                for barrier in (signals.packed, signals.ready):
                    cute.arch.mbarrier_init(barrier, self.consumers)
                for barrier in (signals.first, signals.second):
                    cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        if warp == multiplier:
            tensor.allocate(COLUMNS, signals.slot)
        cute.arch.sync_threads()
        base = tensor.address(signals.slot)
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        at = self.chunks(n, h, column, decay, cu_seqlens, sequences)
        moves = self.moves(atoms, tensors)
        for position in cutlass.range_constexpr(len(self.ways)):
            if direction == position:
                if warp < self.consumers:
                    converter = Converter(self, self.ways[position], ring, at, signals, base)
                    converter.run(moves, maxima, powers, starts, ends, written)
                if warp == loader:
                    self.load(self.ways[position], moves, ring, vectors, at)
                if warp == multiplier:
                    self.multiply(self.ways[position], ring, signals, at.count, base)
        cute.arch.sync_threads()
        if warp == multiplier:
            tensor.deallocate(base, COLUMNS)

    def signals(self, shared: memory.SmemAllocator) -> Signals:
        """Behind the barriers of the ring of `sm90.scan`."""
        barriers = [shared.allocate_array(cutlass.Int64, 1) for _ in range(4)]
        return Signals(*barriers, shared.allocate_array(Int32, 1))

    @cute.jit
    def multiply(self, way: cutlass.Constexpr, ring, signals, count, base):
        """The multiplier warp: every product of the recurrence, in order."""
        names = self.products(way)
        for step in cutlass.range(count, unroll=1):
            stage, phase = step % self.stages, step % 2
            cute.arch.mbarrier_wait(ring.full + stage, (step // self.stages) % 2)
            if cutlass.const_expr(not names):
                parts.arrive(ring.empty + stage)
            else:
                if cutlass.const_expr(self.starts):
                    tensor.wait(signals.packed, phase)
                    with cute.arch.elect_one():
                        self.first(ring, names[0], stage, base)
                        tensor.commit(signals.first)
                tensor.wait(signals.ready, phase)
                with cute.arch.elect_one():
                    self.second(ring, names[-1], stage, base)
                    tensor.commit(signals.second)
                    tensor.commit(ring.empty + stage)

    def tile(self, ring: Ring, name: str, stage, mn: bool = False) -> tensor.Shared:
        """A stage's tile of 64 rows as operand B."""
        size = 2 * self.elements(name)
        return tensor.Shared(ring.tiles[name].iterator.toint() + stage * size, 2 * CHUNK * 64, mn)

    def first(self, ring: Ring, name: str, stage, base) -> None:
        """What starts from the packed state: X^T or Y^T, S^T Qh^T; N = 64 tokens, K = d_k."""
        a = tensor.Columns(base + Int32(PACKED))
        wanted = [(PRODUCT, name)] * self.erase + [(OUTPUT, "Qh")] * self.outputs
        for column, tile in wanted:
            b = self.tile(ring, tile, stage)
            tensor.product(self.rows, CHUNK, self.dk, base + Int32(column), a, b, False)

    def second(self, ring: Ring, name: str, stage, base) -> None:
        """Onto the state, N = d_k, K = 64 tokens; N^T A^T onto the outputs."""
        a = tensor.Columns(base + Int32(SECOND))
        b = self.tile(ring, name, stage, mn=True)
        tensor.product(self.rows, self.dk, CHUNK, base + Int32(STATE), a, b, True)
        if self.outputs:
            b = self.tile(ring, "A", stage)
            tensor.product(self.rows, CHUNK, CHUNK, base + Int32(OUTPUT), a, b, True)
