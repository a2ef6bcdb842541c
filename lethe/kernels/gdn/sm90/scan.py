"""Kernel ``scan``: the states of a sequence and head, chunk after chunk, forward and in reverse.

::

    forward    S' = e^Gam S + Kt^T (U - W S)        reverse    D' = e^Gam D + P - W^T (Kt D)

Both run in one launch. A CTA owns one sequence, head, direction and ``64 * groups`` columns of the state; a
warp group keeps 64 of them, transposed, as the float32 accumulator ``[64 d_v x dk]`` of m64n(dk)k16: it never
leaves the registers. A step is two products whose A operand is packed from an accumulator in place (the
fragments of D and A agree) and whose B operand is a tile of the ring, read K-major by the first and MN-major
by the second:

=========  =======================================  =====================================================
direction  first (m64n64, k = dk)                   second (m64n(dk), k = 64), onto the state
=========  =======================================  =====================================================
forward    X^T = S^T W^T                            e^Gam S^T + (f U^T - X^T) Kt,  f = 2^(eS - e(max|U|))
reverse    Y^T = D^T Kt^T                           e^Gam D^T + f P^T - Y^T W,     f = 2^(eD - e(max|P|))
=========  =======================================  =====================================================

The states are in units of 2^-eS and 2^-eD (`precision.sequence_powers`), found before the first step from the
chunks' maxima. While the first product runs, the decay and P are applied; U comes by ldmatrix.trans.

Roles: ``4 * groups`` consumer warps, one loader warp. Shared memory: a ring of stages (Kt, W, then U or P of
the CTA's columns, e^Gam, the maxima), and for each consumer warp 16 rows of the packed state, which it writes
by stmatrix and stores by TMA on its own. Barriers: ``full`` (transaction count) and ``empty`` (one arrival a
consumer warp) of every stage; a warp waits for its bulk group's reads before it writes its rows again.

Without erasure (``erase=False``) there is no first product, and in reverse no product at all.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import cpasync

from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.declare import Argument, Variant
from lethe.kernels.gdn.sm90.scan_consumer import (
    CHUNK,
    FORWARD,
    GROUP,
    REVERSE,
    WARP_ROWS,
    At,
    Consumer,
    Ring,
)

SHARED_BYTES = 232448
RESERVED = 1280
"""Of shared memory: barriers, the maxima of the initial state, alignment."""

MOST_STAGES = 4

CONSUMER_REGISTERS, LOADER_REGISTERS = 232, 40
"""With two warp groups a third one takes the loader, so that registers can be handed over by setmaxnreg."""


def _arguments(dk: int, dv: int, erase: bool, packed: bool, direction: str) -> tuple[Argument, ...]:
    forward, reverse = direction != "reverse", direction != "forward"
    keys, values = ("slots", "H", CHUNK, dk), ("slots", "H", CHUNK, dv)

    def states(name: str, there: bool, output: bool = False) -> Argument:
        shape = ("slots" if there else f"slots_{name}", "H", dv, dk)
        return Argument(name, "float16", shape, not there, output)

    def ends(name: str, output: bool = False) -> Argument:
        return Argument(name, "float32", (f"N_{name}", "H", dk, dv), True, output)

    def rows(name: str, shape: tuple, there: bool) -> Argument:
        return Argument(name, "float16", shape if there else (f"slots_{name}", *shape[1:]), not there)

    return (
        rows("Kt", keys, erase or forward),
        rows("W", keys, erase),
        rows("U", values, forward),
        states("P", reverse),
        Argument("decay", "float32", ("slots", "H", dk)),
        Argument("maxima", "float32", ("slots", "H", 4)),
        ends("S0"),
        ends("dfinal"),
        Argument("cu_seqlens", "int32", ("cuts",), optional=not packed),
        states("S", forward, True),
        states("D", reverse, True),
        Argument("powers", "int32", ("slots", "H", 2), output=True),
        ends("final", True),
        ends("dS0", True),
        Argument("sequences", "int32"),
    )


def _variant(**options) -> Variant:
    declared = {k: v for k, v in options.items() if k != "groups"}
    return Variant("scan", options, _arguments(**declared))


VARIANTS = tuple(
    _variant(dk=128, dv=dv, erase=erase, packed=packed, direction=direction, groups=groups)
    for direction in ("both", "reverse")
    for dv, groups in ((128, 2), (128, 1), (64, 1))
    for erase in (True, False)
    for packed in (False, True)
)


def kernel(**options) -> "Scan":
    """The kernel of one variant."""
    return Scan(**options)


class Scan:
    """``direction``: both, forward or reverse; ``groups``: warp groups of a CTA; the rest as in `stages`."""

    def __init__(self, dk: int, dv: int, erase: bool, packed: bool, direction: str, groups: int):
        self.dk, self.dv, self.groups = dk, dv, groups
        self.erase, self.packed = erase, packed
        self.ways = {"both": (FORWARD, REVERSE), "forward": (FORWARD,), "reverse": (REVERSE,)}[direction]
        self.consumers = 4 * groups
        self.pooled = groups > 1
        self.threads = 128 * (groups + 1) if self.pooled else 32 * (self.consumers + 1)
        self.loaded = tuple(dict.fromkeys(name for way in self.ways for name in self.tiles(way)))
        self.stored = tuple("SD"[way] for way in self.ways)
        third = GROUP * groups * (dk if REVERSE in self.ways else CHUNK)
        keys = sum(name in ("Kt", "W") for name in self.loaded)
        stage = 2 * (keys * CHUNK * dk + third) + 4 * (dk + 4)
        staging = 2 * GROUP * groups * dk
        self.stages = min(MOST_STAGES, (SHARED_BYTES - RESERVED - staging) // stage)

    def tiles(self, way: int) -> tuple[str, ...]:
        """What a direction loads, in the order of use: operands of the two products, then U or P."""
        if way == FORWARD:
            return ("W", "Kt", "U") if self.erase else ("Kt", "U")
        return ("Kt", "W", "P") if self.erase else ("P",)

    @cute.jit
    def __call__(
        self,
        Kt: cute.Tensor,
        W: cute.Tensor,
        U: cute.Tensor,
        P: cute.Tensor,
        decay: cute.Tensor,
        maxima: cute.Tensor,
        S0: cute.Tensor,
        dfinal: cute.Tensor,
        cu_seqlens: cute.Tensor,
        S: cute.Tensor,
        D: cute.Tensor,
        powers: cute.Tensor,
        final: cute.Tensor,
        dS0: cute.Tensor,
        sequences: cutlass.Int32,
        stream: cuda.CUstream,
    ):
        boxes = {
            "Kt": (Kt, CHUNK, self.dk),
            "W": (W, CHUNK, self.dk),
            "U": (U, CHUNK, GROUP),
            "P": (P, GROUP, self.dk),
            "S": (S, WARP_ROWS, self.dk),
            "D": (D, WARP_ROWS, self.dk),
        }
        loads = [parts.tma_load(*boxes[name]) for name in self.loaded]
        stores = [parts.tma_store(*boxes[name]) for name in self.stored]
        grid = (self.dv // (GROUP * self.groups), sequences * cute.size(decay, mode=[1]), len(self.ways))
        self.kernel(
            tuple(atom for atom, _ in loads + stores),
            tuple(tensor for _, tensor in loads + stores),
            decay,
            maxima,
            (S0, dfinal),
            cu_seqlens,
            powers,
            (final, dS0),
            sequences,
        ).launch(grid=grid, block=(self.threads, 1, 1), stream=stream, use_pdl=True)

    @cute.kernel
    def kernel(
        self,
        atoms: tuple,
        tensors: tuple,
        decay: cute.Tensor,
        maxima: cute.Tensor,
        starts: tuple,
        cu_seqlens: cute.Tensor,
        powers: cute.Tensor,
        ends: tuple,
        sequences: cutlass.Int32,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        _, row, direction = cute.arch.block_idx()
        heads = cute.size(decay, mode=[1])
        n, h = row // heads, row % heads
        ring = self.allocate()
        if warp == self.consumers:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(ring.full + stage, 1)
                    cute.arch.mbarrier_init(ring.empty + stage, self.consumers)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        if cutlass.const_expr(self.packed):
            first = cu_seqlens[n] // CHUNK + n
            count = (cu_seqlens[n + 1] - cu_seqlens[n] + CHUNK - 1) // CHUNK
        else:
            count = cute.size(decay, mode=[0]) // sequences
            first = n * count
        at = At(n, h, first, count)
        names = self.loaded + self.stored
        moves = {name: (atoms[i], tensors[i]) for i, name in enumerate(names)}
        for position in cutlass.range_constexpr(len(self.ways)):
            if direction == position:
                if warp < self.consumers:
                    if cutlass.const_expr(self.pooled):
                        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                    consumer = Consumer(self, self.ways[position], ring, at)
                    consumer.run(moves, maxima, powers, starts, ends)
                else:
                    if cutlass.const_expr(self.pooled):
                        cute.arch.setmaxregister_decrease(LOADER_REGISTERS)
                    if warp == self.consumers:
                        self.load(self.ways[position], moves, ring, decay, maxima, at)

    def allocate(self) -> Ring:
        """Shared memory, in the order of the module's text."""
        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        largest = shared.allocate_array(cutlass.Float32, self.consumers)

        def tile(rows: int, columns: int, count: int) -> cute.Tensor:
            layout = parts.k_major(rows, columns, count)
            return shared.allocate_tensor(parts.HALF, layout.outer, 1024, layout.inner)

        keys = {name: tile(CHUNK, self.dk, self.stages) for name in ("Kt", "W") if name in self.loaded}
        wide = self.dk if REVERSE in self.ways else CHUNK
        third = tile(GROUP, wide, self.stages * self.groups)
        staging = tile(WARP_ROWS, self.dk, self.consumers)
        decay = shared.allocate_tensor(cutlass.Float32, cute.make_layout((self.dk, self.stages)), 16)
        maxima = shared.allocate_tensor(cutlass.Float32, cute.make_layout((4, self.stages)), 16)
        return Ring(full, empty, largest, keys, third, staging, decay, maxima)

    @cute.jit
    def load(self, way: cutlass.Constexpr, moves, ring, decay: cute.Tensor, maxima: cute.Tensor, at):
        """The loader warp: fill a stage for every chunk, in the order of the recurrence."""
        column, _, _ = cute.arch.block_idx()
        copies = self.copies(way, moves, ring, at)
        vector = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=32 * self.dk)
        scalar = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=128)
        for step in cutlass.range(at.count, unroll=1):
            stage = step % self.stages
            slot = at.first + (step if cutlass.const_expr(way == FORWARD) else at.count - 1 - step)
            full = ring.full + stage
            cute.arch.mbarrier_wait(ring.empty + stage, (step // self.stages) % 2 ^ 1)
            parts.expect(full, self.stage_bytes(way))
            for i in cutlass.range_constexpr(len(copies)):
                name, atom, to, source, count = copies[i]
                for group in cutlass.range_constexpr(count):
                    tile = column * self.groups + group
                    if cutlass.const_expr(name == "U"):
                        part = source[None, 0, tile, slot]
                    elif cutlass.const_expr(name == "P"):
                        part = source[None, tile, 0, slot]
                    else:
                        part = source[None, 0, 0, slot]
                    cute.copy(atom, part, to[None, stage * count + group], tma_bar_ptr=full)
            with cute.arch.elect_one():
                cute.copy(vector, decay[slot, at.head, None], ring.decay[None, stage], mbar_ptr=full)
                cute.copy(scalar, maxima[slot, at.head, None], ring.maxima[None, stage], mbar_ptr=full)

    def copies(self, way: int, moves: dict, ring: Ring, at: At) -> list:
        """(name, atom, target by stage, source by tile, boxes of a stage) of everything a direction loads."""
        found = []
        for name in self.tiles(way):
            atom, tensor = moves[name]
            if name in ring.keys:
                box, shared, count = (CHUNK, self.dk), ring.keys[name], 1
            else:
                box = (CHUNK, GROUP) if name == "U" else (GROUP, self.dk)
                shared, count = ring.third_as(box, self.stages, self.groups), self.groups
            tiles = cute.local_tile(tensor, box, (None, None, at.head, None))
            found.append((name, atom, *parts.partition(atom, shared, tiles), count))
        return found

    def stage_bytes(self, way: int) -> int:
        """What the copies of one stage deliver, with e^Gam and the maxima."""
        third = GROUP * self.groups * (CHUNK if way == FORWARD else self.dk)
        return 2 * ((len(self.tiles(way)) - 1) * CHUNK * self.dk + third) + 4 * (self.dk + 4)
