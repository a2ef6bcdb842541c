"""Kernel ``out``: the gradients of q, k, v, g, b and w, chunk by chunk (`stages.gradients`).

One CTA for each SM takes chunk after chunk and head after head. Eight consumer warps, in two groups, own 16
channels each of every tile, of d_v first and of d_k later (`out_place`); a ninth warp loads and stores
(`out_loader`).

1. decays in registers, Ph and Kt over g, dO to float16 (`out_decay`, `out_values`);
2. ``E^T = (w v)^T - S^T Ph^T``, ``N^T = E^T + E^T T'^T``; ``dN^T = a dO^T + dO^T A + D^T Kt^T``,
   ``R^T = dN^T + dN^T T'``; dv and dw; N and R over Ph and Kt (`out_values`);
3. dA and dM over A and T; dQh, dPh, dKt stay in 96 registers (`out_pairs`);
4. the products between rows of the chunk by mma.sync onto those (`out_intra`);
5. dq, dk, db, dg over q, k, b and over N and R (`out_gates`).

Barriers: eight mbarriers, one for each set of tiles that it is loaded and one that it may be stored or
replaced (`out_memory`), each a phase a chunk; a named barrier of the consumers, five times a chunk. Tiles
are loaded again as soon as their set is free: S, D and dO of the next chunk from step 4 on, v and w once dv
and dw have left, A and T from step 5 on.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.declare import Argument, Variant
from lethe.kernels.gdn.sm90.out_decay import Decay
from lethe.kernels.gdn.sm90.out_fragments import Int32, store_zeros, two_to
from lethe.kernels.gdn.sm90.out_gates import finish
from lethe.kernels.gdn.sm90.out_intra import as_columns, as_rows
from lethe.kernels.gdn.sm90.out_loader import (
    CHUNK,
    Tile,
    atom,
    by_head,
    by_slot,
    bytes_of,
    load,
    load_row,
    store,
)
from lethe.kernels.gdn.sm90.out_pairs import with_states
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_values import THREADS, hand_on, meet, publish, scale_keys, written_and_adjoint

D = 128
WARPS = THREADS // 32
LOADER = WARPS
LOADER_REGISTERS, CONSUMER_REGISTERS = 32, 240
"""Of 168 that a thread of three warp groups starts with: 128 x 32 + 256 x 240 = 65,536."""

DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}
SETS = (("S", "D", "do"), ("v", "w"), ("A", "T"), ("q", "k", "b", "g"))
"""Tiles by the barrier that they are loaded on (`out_memory`), in the order in which they become free."""

STORED = (("dv", "dw"), ("dq", "dk", "db", "dg"))


def _arguments(dtype: str, packed: bool) -> tuple[Argument, ...]:
    tokens, state, square = ("B", "L", "H", D), ("slots", "H", D, D), ("slots", "H", CHUNK, CHUNK)

    def rows(names: str, output: bool = False) -> list[Argument]:
        kinds = {name: "float32" if name[-1] == "g" else dtype for name in names.split()}
        return [Argument(name, kind, tokens, output=output) for name, kind in kinds.items()]

    return (
        *rows("q k v g b w do"),
        *(Argument(name, "float16", state) for name in "SD"),
        *(Argument(name, "float16", square) for name in "AT"),
        Argument("a", "float32", ("slots", "H", CHUNK)),
        Argument("powers", "int32", ("slots", "H", 2)),
        Argument("cu_seqlens", "int32", ("cuts",), optional=not packed),
        *rows("dq dk dv dg db dw", output=True),
        Argument("scale", "float32"),
        Argument("programs", "int32"),
    )


VARIANTS = tuple(
    Variant("out", {"dtype": dtype, "packed": packed}, _arguments(dtype, packed))
    for dtype in DTYPES
    for packed in (False, True)
)


def kernel(**options) -> "Out":
    """The kernel of one variant."""
    return Out(**options)


class Out:
    """``dtype``: of the inputs and gradients but g and dg; ``packed``: sequences by ``cu_seqlens``."""

    def __init__(self, dtype: str, packed: bool):
        self.dtype, self.packed = DTYPES[dtype], packed
        io, half = self.dtype, at.HALF
        rows = {"q": at.Q, "k": at.K, "b": at.B, "v": at.V, "w": at.W, "do": at.DO, "g": at.G}
        self.tiles = {
            name: Tile(offset, cutlass.Float32 if name == "g" else io, CHUNK, D)
            for name, offset in rows.items()
        }
        self.tiles |= {name: Tile(offset, half, D, D) for name, offset in (("S", at.S), ("D", at.D))}
        self.tiles |= {name: Tile(offset, half, CHUNK, CHUNK) for name, offset in (("A", at.A), ("T", at.T))}
        self.sets = tuple(tuple(self.tiles[name] for name in names) for names in SETS)
        self.stored = tuple(tuple(self.tiles[name[1:]] for name in names) for names in STORED)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        b: cute.Tensor,
        w: cute.Tensor,
        do: cute.Tensor,
        S: cute.Tensor,
        D: cute.Tensor,
        A: cute.Tensor,
        T: cute.Tensor,
        a: cute.Tensor,
        powers: cute.Tensor,
        cu_seqlens: cute.Tensor,
        dq: cute.Tensor,
        dk: cute.Tensor,
        dv: cute.Tensor,
        dg: cute.Tensor,
        db: cute.Tensor,
        dw: cute.Tensor,
        scale: cutlass.Float32,
        programs: cutlass.Int32,
        stream: cuda.CUstream,
    ):
        inputs = {"q": q, "k": k, "v": v, "g": g, "b": b, "w": w, "do": do}
        handed = {"S": S, "D": D, "A": A, "T": T}
        outputs = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "db": db, "dw": dw}
        views = {n: by_head(x) for n, x in inputs.items()} | {n: by_slot(x) for n, x in handed.items()}
        loads = tuple(tuple(atom(self.tiles[name], views[name]) for name in names) for names in SETS)
        stores = tuple(
            tuple(atom(self.tiles[name[1:]], by_head(outputs[name]), store=True) for name in names)
            for names in STORED
        )
        targets = tuple(tuple(outputs[name] for name in names) for names in STORED)
        self.kernel(loads, stores, targets, a, powers, cu_seqlens, q.shape[1], scale).launch(
            grid=(programs, 1, 1),
            block=(THREADS + 128, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        loads: tuple,
        stores: tuple,
        targets: tuple,
        a: cute.Tensor,
        powers: cute.Tensor,
        cu_seqlens: cute.Tensor,
        length: Int32,
        scale: cutlass.Float32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        base = memory.SmemAllocator().allocate(at.BYTES, 1024)
        barriers = cute.recast_ptr(base + at.BAR, dtype=cutlass.Int64)
        if warp == LOADER:
            with cute.arch.elect_one():
                for n in cutlass.range_constexpr(at.BARRIERS):
                    cute.arch.mbarrier_init(barriers + n, 1 if n < at.BARRIERS // 2 else WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()
        if warp >= LOADER:
            cute.arch.setmaxregister_decrease(LOADER_REGISTERS)
            if warp == LOADER:
                self.move(base, barriers, loads, stores, targets, a, cu_seqlens, length)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.compute(base, barriers, thread, warp, a, powers, cu_seqlens, length, scale)

    @cute.jit
    def locate(self, slot: Int32, cu_seqlens: cute.Tensor, length: Int32):
        """(first token, tokens) of a slot's chunk; none if the slot holds no chunk."""
        start, end = Int32(0), Int32(0)
        if cutlass.const_expr(self.packed):
            low, high = Int32(0), cu_seqlens.shape[0] - 1
            while low + 1 < high:
                middle = (low + high) // 2
                if cu_seqlens[middle] // CHUNK + middle <= slot:
                    low = middle
                else:
                    high = middle
            first = cu_seqlens[low]
            start = first + CHUNK * (slot - first // CHUNK - low)
            end = cu_seqlens[low + 1]
        else:
            chunks = (length + CHUNK - 1) // CHUNK
            row = slot // chunks
            start = row * length + CHUNK * (slot % chunks)
            end = (row + 1) * length
        return start, cutlass.min(end - start, Int32(CHUNK))

    @cute.jit
    def move(self, base, barriers, loads, stores, targets, a, cu_seqlens, length):
        """The loader warp: wait until a set is done, store what stands there, load the next chunk's."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count, start, valid, head = Int32(0), Int32(0), Int32(0), Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            slot, next_head = work // heads, work % heads
            next_start, next_valid = self.locate(slot, cu_seqlens, length)
            if next_valid > 0:
                self.turn(
                    base,
                    barriers,
                    stores,
                    targets,
                    count,
                    start,
                    valid,
                    head,
                    loads,
                    a,
                    slot,
                    next_start,
                    next_head,
                    True,
                )
                count, start, valid, head = count + 1, next_start, next_valid, next_head
        if count > 0:
            self.turn(
                base,
                barriers,
                stores,
                targets,
                count,
                start,
                valid,
                head,
                loads,
                a,
                Int32(0),
                start,
                head,
                False,
            )
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def turn(
        self,
        base,
        barriers,
        stores,
        targets,
        count,
        start,
        valid,
        head,
        loads,
        a,
        slot,
        to,
        head_to,
        more: cutlass.Constexpr,
    ):
        """Between two chunks: in the order in which the consumers get done with their sets."""
        before = (count & 1) ^ 1
        cute.arch.mbarrier_wait(barriers + at.DONE_VALUES, before)
        if count > 0:
            store(base, self.stored[0], stores[0], targets[0], start, valid, head)
        cute.arch.mbarrier_wait(barriers + at.DONE_STATES, before)
        where = slot * a.shape[1] + head_to
        if cutlass.const_expr(more):
            self.fetch(base, barriers, loads, at.FULL_STATES, where, to, head_to)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        if cutlass.const_expr(more):
            self.fetch(base, barriers, loads, at.FULL_VALUES, where, to, head_to)
        cute.arch.mbarrier_wait(barriers + at.DONE_SQUARES, before)
        if cutlass.const_expr(more):
            self.fetch(base, barriers, loads, at.FULL_SQUARES, where, to, head_to)
            load_row(base, at.SMALL_A, a, slot, head_to, barriers + at.FULL_SQUARES)
        cute.arch.mbarrier_wait(barriers + at.DONE_KEYS, before)
        if count > 0:
            store(base, self.stored[1], stores[1], targets[1], start, valid, head)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        if cutlass.const_expr(more):
            self.fetch(base, barriers, loads, at.FULL_KEYS, where, to, head_to)

    def fetch(self, base, barriers, loads, number: int, where, start, head) -> None:
        """Load one set of tiles."""
        extra = CHUNK * 4 if number == at.FULL_SQUARES else 0
        parts.expect(barriers + number, bytes_of(self.sets[number]) + extra)
        for tile, copy in zip(self.sets[number], loads[number], strict=True):
            handed = tile.dtype is at.HALF and tile.offset >= at.S
            row, batch = (Int32(0), where) if handed else (start, head)
            load(base, tile, copy, row, batch, barriers + number)

    @cute.jit
    def compute(self, base, barriers, thread, warp, a, powers, cu_seqlens, length, scale):
        """The consumer warps."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count = Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            slot, head = work // heads, work % heads
            _, valid = self.locate(slot, cu_seqlens, length)
            if valid > 0:
                states = [two_to(-powers[slot, head, n]) for n in range(2)]
                self.chunk(base, barriers, thread, warp, count & 1, valid, states, scale)
                count = count + 1

    def chunk(self, base, barriers, thread, warp, phase, valid, states: list, scale) -> None:
        """One chunk, traced."""
        dtype = self.dtype
        place = Place(base.toint(), thread, warp)
        operands = at.Operands(base, place.group)

        def arrived(number: int) -> None:
            cute.arch.mbarrier_wait(barriers + number, phase)

        def done(number: int) -> None:
            cute.arch.sync_warp()
            parts.arrive(barriers + number)

        arrived(at.FULL_KEYS)
        arrived(at.FULL_STATES)
        clear(place.base, barriers, thread, phase, valid)
        decay = Decay(place.gate, place.lane)
        do = scale_keys(place, decay, dtype)
        written, adjoint = written_and_adjoint(place, operands, do, states, dtype, arrived)
        n, r = hand_on(place, written, adjoint, dtype, done)
        found = with_states(place, operands, decay, (do, n, r), states, scale, done)
        keys = lambda b: place.values(at.K, b, dtype)  # noqa: E731
        queries = lambda b: place.values(at.Q, b, dtype)  # noqa: E731
        erased = lambda b: [x * y for x, y in zip(keys(b), place.values(at.B, b, dtype), strict=True)]  # noqa: E731
        ended = as_rows([(found.dq, found.causal), (found.dp, found.erasing)], keys, decay, found.dk, place)
        as_columns(found.dk, [(queries, found.causal), (erased, found.erasing)], decay, place)
        done(at.DONE_SQUARES)
        finish(place, decay, found, ended, dtype)
        publish()
        done(at.DONE_KEYS)


@cute.jit
def clear(base: Int32, barriers: cute.Pointer, thread: Int32, phase: Int32, valid: Int32):
    """Zero the rows past the end of a sequence in every tile of inputs, which lie panel after panel."""
    if valid < CHUNK:
        cute.arch.mbarrier_wait(barriers + at.FULL_VALUES, phase)
        chunk = thread % 128
        for row in cutlass.range(valid + thread // 128, CHUNK, 2, unroll=1):
            store_zeros(base + (chunk // 8) * 8192 + row * 128 + (chunk % 8) * 16)
        publish()
        meet()
