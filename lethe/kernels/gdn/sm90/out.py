"""Kernel ``out``: the gradients of q, k, v, g, b and w, chunk by chunk (`stages.gradients`).

One CTA for each SM takes chunk after chunk and head after head. Eight consumer warps, in two groups, own 16
channels each of every tile, of d_v first and of d_k later (`out_place`); a ninth warp loads and stores
(`out_loader`).

1. decays in registers, Ph and Kt over g, dO to float16 (`out_decay`, `out_values`);
2. ``E^T = (w v)^T - S^T Ph^T``, ``N^T = E^T + E^T T'^T``; ``dN^T = a dO^T + dO^T A + D^T Kt^T``,
   ``R^T = dN^T + dN^T T'``; dv and dw; N and R over Ph and Kt (`out_values`);
3. dA and dM over A and T; dQh, dPh, dKt stay in 96 registers (`out_pairs`);
4. the products between rows of the chunk onto those (`out_channel`, `out_head`);
5. dq, dk, db over q, k, b; dg from registers (`out_gates`).

Barriers: nine mbarriers, five for sets of tiles that are loaded and four for sets that may be stored or
replaced (`out_memory`), each a phase a chunk; a named barrier of the consumers, five times a chunk. Tiles are
loaded again as soon as their set is free: S, D, dO and g of the next chunk from step 4 on, v and w once dv
and dw have left, A and T from step 5 on, q, k and b at last; these are brought into the L2 cache before.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.out_channel import Wide, between_rows
from lethe.kernels.gdn.sm90.out_decay import ChannelDecay, HeadDecay, NoDecay, rates
from lethe.kernels.gdn.sm90.out_fragments import Int32, store_zeros, two_to
from lethe.kernels.gdn.sm90.out_gates import finish
from lethe.kernels.gdn.sm90.out_head import between_tokens
from lethe.kernels.gdn.sm90.out_loader import (
    Tile,
    announce,
    atom,
    by_head,
    by_slot,
    bytes_of,
    load,
    load_row,
    load_scalars,
    store,
)
from lethe.kernels.gdn.sm90.out_pairs import with_states
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import CHUNK, DK, HANDED, Spec, variants
from lethe.kernels.gdn.sm90.out_sums import store_tokens, sums, sums_back
from lethe.kernels.gdn.sm90.out_values import (
    THREADS,
    arrive,
    hand_on,
    meet,
    publish,
    scale_keys,
    written_and_adjoint,
)

WARPS = THREADS // 32
LOADER = WARPS
LOADER_REGISTERS, CONSUMER_REGISTERS = 24, 240
"""Of 168 that a thread of three warp groups starts with: 128 x 24 + 256 x 240 = 384 x 168. With more, the
consumers would wait for ever for what the CTA does not have."""

VARIANTS = variants()


def kernel(dk: int, **options) -> "Out":
    """The kernel of one variant."""
    assert dk == DK
    return Out(Spec(**options))


class Out:
    """One variant. A subclass has products of its own: it gives other functions for those of whole tiles, and
    what they take as operands."""

    written_and_adjoint = staticmethod(written_and_adjoint)
    with_states = staticmethod(with_states)
    between_tokens = staticmethod(between_tokens)

    def __init__(self, spec: Spec):
        self.spec = spec
        self.packed = spec.packed
        io, half, dv = spec.dtype, at.HALF, spec.dv
        keys = {"q": at.Q, "k": at.K, "b": at.B}
        values = {"v": at.V, "w": at.W, "do": at.DO}
        self.tiles = {name: Tile(offset, io, CHUNK, DK) for name, offset in keys.items()}
        self.tiles |= {name: Tile(offset, io, CHUNK, dv) for name, offset in values.items()}
        self.tiles["g"] = Tile(at.G, cutlass.Float32, CHUNK, DK)
        self.tiles |= {name: Tile(offset, half, dv, DK) for name, offset in (("S", at.S), ("D", at.D))}
        self.tiles |= {name: Tile(offset, half, CHUNK, CHUNK) for name, offset in (("A", at.A), ("T", at.T))}
        self.sets = tuple(tuple(self.tiles[name] for name in names) for names in spec.sets)
        self.stored = tuple(tuple(self.tiles[name[1:]] for name in names) for names in spec.stored)

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
        given = {"q": q, "k": k, "v": v, "g": g, "b": b, "w": w, "do": do, "S": S, "D": D, "A": A, "T": T}
        made = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "db": db, "dw": dw}
        view = lambda name: (by_slot if name in HANDED else by_head)(given[name])  # noqa: E731
        loads = tuple(tuple(atom(self.tiles[name], view(name)) for name in names) for names in self.spec.sets)
        stores = tuple(
            tuple(atom(self.tiles[name[1:]], by_head(made[name]), store=True) for name in names)
            for names in self.spec.stored
        )
        targets = tuple(tuple(made[name] for name in names) for names in self.spec.stored)
        scalars = tuple((given[name], made[f"d{name}"]) for name in self.spec.scalars)
        self.kernel(loads, stores, targets, scalars, g, dg, a, powers, cu_seqlens, q.shape[1], scale).launch(
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
        scalars: tuple,
        g: cute.Tensor,
        dg: cute.Tensor,
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
                    cute.arch.mbarrier_init(barriers + n, self.arrivals(n))
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()
        if warp >= LOADER:
            cute.arch.setmaxregister_decrease(LOADER_REGISTERS)
            if warp == LOADER:
                self.move(base, barriers, loads, stores, targets, scalars, a, cu_seqlens, length)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.compute(base, barriers, thread, warp, (scalars, g, dg), a, powers, cu_seqlens, length, scale)

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

    def arrivals(self, barrier: int) -> int:
        """Of a phase: by the loader, twice where it also stores numbers itself, or by each consumer warp."""
        if barrier >= at.LOADED:
            return WARPS
        return 2 if barrier == at.FULL_KEYS and self.spec.scalars else 1

    @cute.jit
    def move(self, base, barriers, loads, stores, targets, scalars, a, cu_seqlens, length):
        """The loader warp: wait until a set is done, store what stands there, load the next chunk's."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count, start, valid, head = Int32(0), Int32(0), Int32(0), Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            slot, to_head = work // heads, work % heads
            to, many = self.locate(slot, cu_seqlens, length)
            if many > 0:
                self.turn(
                    base, barriers, stores, targets, count, start, valid, head, (loads, a, work, to, to_head)
                )
                load_scalars(base, barriers + at.FULL_KEYS, self.spec.scalars, scalars, to, many, to_head)
                count, start, valid, head = count + 1, to, many, to_head
        if count > 0:
            self.turn(base, barriers, stores, targets, count, start, valid, head, ())
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def turn(self, base, barriers, stores, targets, count, start, valid, head, to: tuple):
        """Between two chunks, in the order in which the consumers get done with the sets.

        ``to`` is empty behind the last chunk."""
        before = (count & 1) ^ 1
        cute.arch.mbarrier_wait(barriers + at.DONE_VALUES, before)
        if count > 0:
            store(base, self.stored[0], stores[0], targets[0], start, valid, head)
        cute.arch.mbarrier_wait(barriers + at.DONE_STATES, before)
        self.fetch(base, barriers, at.FULL_STATES, to)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        self.fetch(base, barriers, at.FULL_VALUES, to)
        for number in (at.FULL_SQUARES, at.FULL_KEYS, at.FULL_QUERIES):
            self.announce(base, number, to)
        cute.arch.mbarrier_wait(barriers + at.DONE_SQUARES, before)
        self.fetch(base, barriers, at.FULL_SQUARES, to)
        cute.arch.mbarrier_wait(barriers + at.DONE_KEYS, before)
        if count > 0:
            store(base, self.stored[1], stores[1], targets[1], start, valid, head)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        self.fetch(base, barriers, at.FULL_KEYS, to)
        self.fetch(base, barriers, at.FULL_QUERIES, to)

    def fetch(self, base, barriers, number: int, to: tuple) -> None:
        """Load one set of tiles."""
        if not to:
            return
        squares = number == at.FULL_SQUARES
        parts.expect(barriers + number, bytes_of(self.sets[number]) + (CHUNK * 4 if squares else 0))
        for place in self.sources(number, to):
            load(base, *place, barriers + number)
        if squares:
            load_row(base, at.SMALL_A, to[1], to[2], barriers + number)

    def announce(self, base, number: int, to: tuple) -> None:
        """Bring a set of tiles, whose place in shared memory is still taken, into the L2 cache."""
        for place in self.sources(number, to) if to else ():
            announce(base, *place)

    def sources(self, number: int, to: tuple):
        """(tile, copy, row, batch) of a set's tiles."""
        loads, _, work, start, head = to
        for name, tile, copy in zip(self.spec.sets[number], self.sets[number], loads[number], strict=True):
            yield tile, copy, *((Int32(0), work) if name in HANDED else (start, head))

    @cute.jit
    def compute(self, base, barriers, thread, warp, gates, a, powers, cu_seqlens, length, scale):
        """The consumer warps."""
        first, _, _ = cute.arch.block_idx()
        programs, _, _ = cute.arch.grid_dim()
        heads = a.shape[1]
        count = Int32(0)
        for work in cutlass.range(first, a.shape[0] * heads, programs, unroll=1):
            slot, head = work // heads, work % heads
            start, valid = self.locate(slot, cu_seqlens, length)
            if valid > 0:
                states = [two_to(-powers[slot, head, n]) for n in range(2)]
                place = Place(base.toint(), thread, warp, self.spec.panels)
                operands = at.Operands(base, place.group)
                where = (thread, warp, count & 1, start, valid, head)
                self.chunk(place, operands, barriers, where, gates, states, scale)
                count = count + 1

    def wide(self, place, start, valid, head) -> Wide:
        """A thread's rows of g and dg."""
        return Wide(place, start, valid, head)

    def chunk(self, place, operands, barriers, where: tuple, gates: tuple, states: list, scale) -> None:
        """One chunk, traced."""
        spec, (scalars, g, dg), (thread, warp, phase, start, valid, head) = self.spec, gates, where
        outputs = {name: pair[1] for name, pair in zip(spec.scalars, scalars, strict=True)}

        def arrived(number: int) -> None:
            cute.arch.mbarrier_wait(barriers + number, phase)

        def done(number: int) -> None:
            cute.arch.sync_warp()
            arrive(barriers + number)

        def store_sums(name: str, tile: int, back: bool = False) -> None:
            pair = sums(place, tile, 4 * spec.panels if name == "w" else WARPS)
            pair = sums_back(place, pair) if back else pair
            by_one = (1 - cutlass.min(warp, 1)) * valid
            store_tokens(outputs[name], place.lane, start, by_one, head, *pair)

        arrived(at.FULL_STATES)
        clear(place.base, barriers, thread, phase, valid)
        if spec.gate == "head":
            arrived(at.FULL_KEYS)
        wide = self.wide(place, start, valid, head)
        decay = {"head": HeadDecay, "none": NoDecay, "channel": None}[spec.gate]
        decay = decay(place) if decay else ChannelDecay(place, rates(place))
        do = scale_keys(place, spec, decay, arrived)
        written, adjoint = self.written_and_adjoint(place, spec, operands, do, states, arrived)
        n, r = hand_on(place, spec, written, adjoint, done)
        if spec.write == "head":
            store_sums("w", at.W)
        arrived(at.FULL_QUERIES)
        found = self.with_states(place, spec, operands, decay, (do, n, r), states, scale, done)
        if spec.gate == "channel":
            results = between_rows(place, spec, decay, found, lambda: wide.load(g))
        else:
            results = self.between_tokens(place, spec, operands, decay, found)
        done(at.DONE_SQUARES)
        at_decay = finish(place, spec, *results[:3], found.kept, results[3])
        publish()
        if "head" in (spec.gate, spec.erase):
            meet()
            if spec.gate == "head":
                store_sums("g", at.DIAG, True)
            if spec.erase == "head":
                store_sums("b", at.B)
        done(at.DONE_KEYS)
        if spec.gate == "channel":
            wide.store(dg, at_decay)


@cute.jit
def clear(base: Int32, barriers: cute.Pointer, thread: Int32, phase: Int32, valid: Int32):
    """Zero the rows past the end of a sequence in every tile of inputs, which lie panel after panel."""
    if valid < CHUNK:
        for n in cutlass.range_constexpr(at.LOADED):
            cute.arch.mbarrier_wait(barriers + n, phase)
        chunk = thread % 128
        for row in cutlass.range(valid + thread // 128, CHUNK, 2, unroll=1):
            store_zeros(base + (chunk // 8) * 8192 + row * 128 + (chunk % 8) * 16)
        publish()
        meet()
