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

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.declare import Argument, Variant
from lethe.kernels.gdn.sm90 import parts
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

OWN = ("U", "P")
"""Tiles that each warp group has for itself: its columns. The others serve all groups of a CTA."""

CONSUMER_REGISTERS, LOADER_REGISTERS = 232, 40
"""Two warp groups with 64 registers of state a thread need more than a launch can give to all: a third group
takes the loader, and registers are handed over by setmaxnreg."""


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
    _variant(dk=dk, dv=dv, erase=erase, packed=packed, direction=direction, groups=groups)
    for direction in ("both", "reverse")
    for dk in (128, 64)
    for dv, groups in ((128, 2), (128, 1), (64, 1))
    for erase in (True, False)
    for packed in (False, True)
)


def kernel(**options) -> "Scan":
    """The kernel of one variant."""
    return Scan(**options)


class Scan:
    """``direction``: both, forward or reverse; ``groups``: warp groups of a CTA; the rest as in `stages`."""

    outputs, saves = False, True
    """Are outputs formed beside the states; are the states stored? Otherwise in `forward`."""

    def __init__(self, dk: int, dv: int, erase: bool, packed: bool, direction: str, groups: int):
        self.dk, self.dv, self.groups = dk, dv, groups
        self.erase, self.packed = erase, packed
        self.ways = {"both": (FORWARD, REVERSE), "forward": (FORWARD,), "reverse": (REVERSE,)}[direction]
        self.columns = dv // (GROUP * groups)
        self.consumers = 4 * groups
        self.pooled = groups > 1 and dk > 64
        self.threads = 128 * (groups + 1) if self.pooled else 32 * (self.consumers + 1)
        self.loaded = tuple(dict.fromkeys(name for way in self.ways for name in self.tiles(way)))
        self.stored = tuple("SD"[way] for way in self.ways) if self.saves else ()
        self.shared = tuple(name for name in self.loaded if name not in OWN)
        self.wide = dk if REVERSE in self.ways else CHUNK
        stage = 2 * (sum(self.elements(name) for name in self.shared) + GROUP * groups * self.wide)
        stage += self.vector_bytes()
        staging = 2 * GROUP * groups * dk * self.saves
        self.stages = min(MOST_STAGES, (SHARED_BYTES - RESERVED - staging) // stage)

    def tiles(self, way: int) -> tuple[str, ...]:
        """What a direction loads, in the order of use: operands of the two products, then U or P."""
        if way == FORWARD:
            return ("W", "Kt", "U") if self.erase else ("Kt", "U")
        return ("Kt", "W", "P") if self.erase else ("P",)

    def box(self, name: str) -> tuple[int, int]:
        """Rows and columns of one copy; of U and P for each group."""
        return {"U": (CHUNK, GROUP), "P": (GROUP, self.dk), "A": (CHUNK, CHUNK)}.get(name, (CHUNK, self.dk))

    def elements(self, name: str) -> int:
        """Elements of one copy."""
        rows, columns = self.box(name)
        return rows * columns

    def vector_bytes(self) -> int:
        """What a stage holds beside tiles: e^Gam, the maxima, and a where outputs are formed."""
        return 4 * (self.dk + 4 + CHUNK * self.outputs)

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
        tensors = {"Kt": Kt, "W": W, "U": U, "P": P, "S": S, "D": D}
        self.launch(
            tensors, (decay, maxima), (S0, dfinal), cu_seqlens, powers, (final, dS0), sequences, (), stream
        )

    def launch(self, tensors, vectors, starts, cu_seqlens, powers, ends, sequences, written, stream) -> None:
        """Make the tensor maps of what is loaded and stored, and launch. ``written``: (o, scale) or empty."""
        moves = [parts.tma_load(tensors[name], *self.box(name)) for name in self.loaded]
        moves += [parts.tma_store(tensors[name], WARP_ROWS, self.dk) for name in self.stored]
        heads = cute.size(vectors[0], mode=[1])
        self.kernel(
            tuple(atom for atom, _ in moves),
            tuple(tensor for _, tensor in moves),
            vectors,
            starts,
            cu_seqlens,
            powers,
            ends,
            sequences,
            written,
        ).launch(
            grid=(sequences * heads * self.columns, len(self.ways), 1),
            block=(self.threads, 1, 1),
            stream=stream,
            use_pdl=True,
        )

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
        ring, _ = self.allocate()
        if warp == self.consumers:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(ring.full + stage, 1)
                    cute.arch.mbarrier_init(ring.empty + stage, self.consumers)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        at = self.chunks(n, h, column, decay, cu_seqlens, sequences)
        moves = self.moves(atoms, tensors)
        for position in cutlass.range_constexpr(len(self.ways)):
            if direction == position:
                if warp < self.consumers:
                    if cutlass.const_expr(self.pooled):
                        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                    consumer = Consumer(self, self.ways[position], ring, at)
                    consumer.run(moves, maxima, powers, starts, ends, written)
                else:
                    if cutlass.const_expr(self.pooled):
                        cute.arch.setmaxregister_decrease(LOADER_REGISTERS)
                    if warp == self.consumers:
                        self.load(self.ways[position], moves, ring, vectors, at)

    def chunks(self, n, h, column, decay: cute.Tensor, cu_seqlens: cute.Tensor, sequences) -> At:
        """Where the chunks of a sequence are, traced."""
        if self.packed:
            first = cu_seqlens[n] // CHUNK + n
            count = (cu_seqlens[n + 1] - cu_seqlens[n] + CHUNK - 1) // CHUNK
        else:
            count = cute.size(decay, mode=[0]) // sequences
            first = n * count
        return At(n, h, column, first, count, cu_seqlens)

    def moves(self, atoms: tuple, tensors: tuple) -> dict:
        """Tensor map and tensor of what is loaded and stored, by name."""
        pairs = zip(atoms, tensors, strict=True)
        return dict(zip(self.loaded + self.stored, pairs, strict=True))

    def signals(self, shared: memory.SmemAllocator) -> Any:
        """What a subclass keeps in shared memory behind the barriers of the ring."""

    def allocate(self) -> tuple[Ring, Any]:
        """Shared memory, in the order of the module's text, and `signals`."""
        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        signals = self.signals(shared)
        largest = shared.allocate_array(cutlass.Float32, self.consumers)

        def tile(rows: int, columns: int, count: int) -> cute.Tensor:
            layout = parts.k_major(rows, columns, count)
            return shared.allocate_tensor(parts.HALF, layout.outer, 1024, layout.inner)

        tiles = {name: tile(*self.box(name), self.stages) for name in self.shared}
        own = tile(GROUP, self.wide, self.stages * self.groups)
        staging = tile(WARP_ROWS, self.dk, self.consumers) if self.saves else None
        lengths = (self.dk, 4, CHUNK)[: 3 if self.outputs else 2]
        vectors = [
            shared.allocate_tensor(cutlass.Float32, cute.make_layout((length, self.stages)), 16)
            for length in lengths
        ]
        return Ring(full, empty, largest, tiles, own, staging, vectors), signals

    @cute.jit
    def load(self, way: cutlass.Constexpr, moves, ring, vectors: tuple, at):
        """The loader warp: fill a stage for every chunk, in the order of the recurrence."""
        copies = self.copies(way, moves, ring, at)
        bulk = [parts.bulk_load(cute.size(tensor, mode=[0])) for tensor in ring.vectors]
        for step in cutlass.range(at.count, unroll=1):
            stage = step % self.stages
            slot = at.first + (step if cutlass.const_expr(way == FORWARD) else at.count - 1 - step)
            full = ring.full + stage
            cute.arch.mbarrier_wait(ring.empty + stage, (step // self.stages) % 2 ^ 1)
            parts.expect(full, self.stage_bytes(way))
            for i in cutlass.range_constexpr(len(copies)):
                name, atom, to, source = copies[i]
                count = self.groups if name in OWN else 1
                for group in cutlass.range_constexpr(count):
                    tile = at.column * self.groups + group
                    if cutlass.const_expr(name == "U"):
                        part = source[None, 0, tile, slot]
                    elif cutlass.const_expr(name == "P"):
                        part = source[None, tile, 0, slot]
                    else:
                        part = source[None, 0, 0, slot]
                    cute.copy(atom, part, to[None, stage * count + group], tma_bar_ptr=full)
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(len(bulk)):
                    row = vectors[i][slot, at.head, None]
                    cute.copy(bulk[i], row, ring.vectors[i][None, stage], mbar_ptr=full)

    def copies(self, way: int, moves: dict, ring: Ring, at: At) -> list:
        """(name, atom, target by stage and group, source by tile) of every tile that a direction loads."""
        found = []
        for name in self.tiles(way):
            atom, tensor = moves[name]
            shared = (
                ring.own_as(self.box(name), self.stages * self.groups) if name in OWN else ring.tiles[name]
            )
            tiles = cute.local_tile(tensor, self.box(name), (None, None, at.head, None))
            found.append((name, atom, *parts.partition(atom, shared, tiles)))
        return found

    def stage_bytes(self, way: int) -> int:
        """What the copies of one stage deliver."""
        copies = (self.elements(name) * (self.groups if name in OWN else 1) for name in self.tiles(way))
        return 2 * sum(copies) + self.vector_bytes()
