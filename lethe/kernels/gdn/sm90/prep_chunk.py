"""One chunk and head in prep, phase after phase (`prep` has the plan and the memory map)."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import prep_gates as gates
from lethe.kernels.gdn.sm90 import prep_intra as intra
from lethe.kernels.gdn.sm90 import prep_locals as local
from lethe.kernels.gdn.sm90 import prep_products as products
from lethe.kernels.gdn.sm90 import prep_triangle as triangle
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, Rows, store_global

THREADS, HALF_THREADS = 256, 128
SOLVERS, LOCALS = 1, 2
"""Named barriers of warps 4-7 and of warps 0-3."""
STEEP, OF_G, OF_B = 448, 512, products.OF_B
"""Bytes of SMALL: whether a part is steep, the vectors of one g and one b a head; a is at 0."""
SQUARE = 8192
Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


class Place:
    """Addresses of one chunk and head, and who this thread is."""

    def __init__(self, of, base: cute.Pointer, where: tuple, heads):
        first, self.rows, head, slot = where
        self.of, self.base, self.heads = of, base, heads
        origin = base.toint()
        self.at = {name: origin + offset for name, offset in of.at.items()}
        self.small = self.at["SMALL"]
        self.token = Int64(first) * Int64(heads) + Int64(head)
        self.entry = Int64(slot) * Int64(heads) + Int64(head)
        self.thread, _, _ = cute.arch.thread_idx()
        self.warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        self.lane = self.thread % 32
        self.keys, self.values = Rows(self.thread, of.dk, THREADS), Rows(self.thread, of.dv, THREADS)
        self.maxima = products.Maxima(self.small)
        self.decay = {
            "channel": gates.Channel(self.at["G"], of.dk),
            "head": gates.Head(self.small + OF_G),
            "none": gates.Still(),
        }[of.gate]

    def source(self, tensor: cute.Tensor, row_bytes: int):
        """Address of the chunk's first row of an input [B, L, H, width]."""
        return tensor.iterator.toint() + self.token * Int64(row_bytes)

    def target(self, tensor: cute.Tensor, size: int):
        """Address of the chunk's entry of a workspace."""
        return tensor.iterator.toint() + self.entry * Int64(size)

    def load(self, mine: Rows, tile, tensor: cute.Tensor) -> None:
        """Start copying the chunk's rows of an input to a tile."""
        width = 16 * mine.pieces
        mine.load(tile, self.source(tensor, width), self.heads * width, self.rows)

    def head_gate(self, tensor: cute.Tensor, vector) -> None:
        """One number a token to shared memory."""
        local.gate_of_head(self.thread, self.source(tensor, 2), self.heads * 2, self.rows, self.of.io, vector)


@cute.jit
def run(of: cutlass.Constexpr, inputs: tuple, outputs: tuple, scale, base: cute.Pointer, where: tuple):
    """Everything of one chunk."""
    q, k, v, g, b, w, do = inputs
    Kt, W, U, P, Qh, A, T, a, decay, most_of = outputs
    place = Place(of, base, where, Int32(q.shape[2]))
    load_keys(place, q, k, b, g)
    targets = (place.target(Qh, 128 * of.dk), place.target(Kt, 128 * of.dk))
    vectors = (place.target(decay, 4 * of.dk), place.target(a, 256))
    squares(of, place, do, scale, targets, vectors)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_threads()

    work = products.Products(of, base, place.at, place.thread, place.warp, place.lane, place.decay)
    negated, shift = erasures(place, work, v, w)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_threads()
    store_squares(place, W, A, T)
    if cutlass.const_expr(of.adjoint):
        p, undo = work.adjoint(negated, shift, scale)
        place.maxima.leave(products.OF_P, place.warp, registers.largest(p) * undo)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    if cutlass.const_expr(of.adjoint):
        work.store_adjoint(p, undo, place.target(P, 2 * of.dk * of.dv))
    wv = work.written()
    place.maxima.leave(products.OF_WV, place.warp, registers.largest(wv))
    cute.arch.sync_threads()
    u, undo = work.values(wv)
    place.maxima.leave(products.OF_U, place.warp, registers.largest(u) * undo)
    cute.arch.sync_threads()
    work.store_values(u, undo, place.target(U, 128 * of.dv))
    report(place, place.target(most_of, 16))


def load_keys(place: Place, q, k, b, g) -> None:
    """Phases 1 and 2: the tiles of a key's width, and G."""
    of, at = place.of, place.at
    copied = [("Q", q), ("K", k)] + [("B", b)] * (of.erase == "channel")
    for name, tensor in copied:
        place.load(place.keys, at[name], tensor)
    cute.arch.cp_async_commit_group()
    if of.erase == "head":
        place.head_gate(b, place.small + OF_B)
    if of.gate == "channel":
        stride = place.heads * (4 * of.dk)
        sums = gates.Sums(place.thread, of.dk, place.source(g, 4 * of.dk), stride, place.rows)
        sums.leave_totals(at["A"], place.small + STEEP, place.warp)
    elif of.gate == "head":
        gates.sum_of_head(place.thread, place.source(g, 4), place.heads * 4, place.rows, place.small + OF_G)
    cute.arch.cp_async_wait_group(0)
    if of.io is cutlass.BFloat16:
        for name, _ in copied:
            place.keys.to_half(at[name])
    cute.arch.sync_threads()
    if of.gate == "channel":
        sums.store(at["A"], at["G"])
        cute.arch.sync_threads()


@cute.jit
def squares(
    of: cutlass.Constexpr, place: cutlass.Constexpr, do: cute.Tensor, scale, targets: tuple, vectors: tuple
):
    """Phase 3: halves of A and M by pairs of warps, then A and what is local by warps 0-3, T by warps 4-7."""
    at, small, lane, warp = place.at, place.small, place.lane, place.warp
    of_a, of_m = cute.make_rmem_tensor((32,), Float32), cute.make_rmem_tensor((32,), Float32)
    own = cute.make_rmem_tensor((2,), Float32)
    half = warp // 4
    block = warp - 4 * half
    block = block + half * (3 - 2 * block)
    tiles = (at["Q"], at["K"], at["B"])
    space = at["T"] + SQUARE - intra.swap_bytes(of.erase)
    by_channel = of.gate == "channel"
    steep = Int32(0)
    if cutlass.const_expr(by_channel):
        steep = steepness(small + STEEP, block)
    for number in cutlass.range_constexpr(4):
        if block == number:
            if cutlass.const_expr(by_channel):
                intra.rows_by_channel(number, of.dk, of.erase, tiles, at["G"], lane, half, of_a, of_m, own)
                if half == 1:
                    local.leave_own(number, own, small + OF_G, lane)
            else:
                intra.rows_by_head(number, of.dk, of.erase, tiles, lane, half, of_a, of_m)
            intra.swap(number, of.erase, space, lane, half, of_a, of_m)
            if half == 0:
                if steep != 0:
                    intra.diagonal_by_pairs(number, of.dk, of.erase, tiles, at["G"], lane, half, of_a)
                cute.arch.sync_threads()
                finish_a(of, place, number, of_a, own, scale)
            elif cutlass.const_expr(of.erase == "none"):
                cute.arch.sync_threads()
            else:
                if steep != 0:
                    intra.diagonal_by_pairs(number, of.dk, of.erase, tiles, at["G"], lane, half, of_m)
                cute.arch.sync_threads()
                finish_t(of, place, number, of_m)
    if half == 0:
        elementwise(of, place, do, targets, vectors)


def finish_a(of, place: Place, block: int, sums: cute.Tensor, own: cute.Tensor, scale) -> None:
    """A block's rows of A and a."""
    small, lane = place.small, place.lane
    if of.gate != "channel":
        intra.own_of_head(block, lane, sums, own)
    if of.gate == "head":
        intra.times_ratios(block, small + OF_G, lane, sums)
    local.finish_rows(block, sums, scale, place.at["A"], lane)
    other = small + OF_G if of.gate == "channel" else None
    local.finish_own(block, own, scale, small, other, lane)


def finish_t(of, place: Place, block: int, sums: cute.Tensor) -> None:
    """A block's rows of M, and T with the other three."""
    if of.gate == "head":
        intra.times_ratios(block, place.small + OF_G, place.lane, sums)
    if of.erase == "head":
        intra.times_rows(block, place.lane, place.small + OF_B, sums)
    triangle.invert(block, sums, place.lane, place.at["T"], SOLVERS)


@cute.jit
def elementwise(
    of: cutlass.Constexpr, place: cutlass.Constexpr, do: cute.Tensor, targets: tuple, vectors: tuple
):
    """What warps 0-3 do when their rows of A are done; dO arrives meanwhile, copied by who converts it."""
    at, thread = place.at, place.thread
    few = Rows(thread, of.dv, HALF_THREADS)
    if cutlass.const_expr(of.adjoint):
        start_load(place, few, at["DO"], do)
    queries = "place" if of.adjoint else "memory"
    most = local.scaled_keys(thread, of.dk, (at["Q"], at["K"]), place.decay, targets, queries)
    leave(place, products.OF_KT, most)
    if cutlass.const_expr(of.adjoint):
        cute.arch.cp_async_wait_group(0)
        scale_adjoints(place, few)
    else:
        cute.arch.barrier(barrier_id=LOCALS, number_of_threads=HALF_THREADS)
    local.vectors(thread, of.dk, place.decay, place.small, *vectors)


def start_load(place: Place, mine: Rows, tile, tensor: cute.Tensor) -> None:
    """Copy rows as a group of its own."""
    place.load(mine, tile, tensor)
    cute.arch.cp_async_commit_group()


def leave(place: Place, kind: int, value) -> None:
    """The warp's largest magnitude of a kind."""
    place.maxima.leave(kind, place.warp, value)


def scale_adjoints(place: Place, mine: Rows) -> None:
    """dO as float16."""
    local.scaled_adjoints(mine, place.warp, place.at["DO"], place.maxima, place.of.io, LOCALS)


def steepness(flags, block):
    """Is a part of the block steep? Not zero if so."""
    one, two = registers.asm("ld.shared.v2.b32 {$0, $1}, [$2];", "rr", [flags + block * 8], "r", True)
    return one | two


def erasures(place: Place, work: products.Products, v, w) -> tuple:
    """Phases 4 and 5: W where b was, v and w where G was; (-dNloc^T packed, its power) or (None, 0)."""
    of, at = place.of, place.at
    if of.erase != "none":
        w_sums = work.start_w()
        if of.adjoint:
            n_sums = work.start_local()
    cute.arch.sync_threads()
    place.load(place.values, at["G"], v)
    if of.write == "channel":
        place.load(place.values, at["G"] + 128 * of.dv, w)
    elif of.write == "head":
        place.head_gate(w, at["G"] + 128 * of.dv)
    cute.arch.cp_async_commit_group()
    negated, shift = None, Int32(0)
    if of.erase != "none":
        warpgroup.wait_group(1 if of.adjoint else 0)
        work.finish_w(w_sums)
        if of.adjoint:
            warpgroup.wait_group(0)
            negated, shift = work.negated(n_sums)
    return negated, shift


def store_squares(place: Place, W, A, T) -> None:
    """W, A and T to memory."""
    of, square = place.of, Rows(place.thread, CHUNK, THREADS)
    square.store(place.target(A, SQUARE), place.at["A"])
    if of.erase != "none":
        place.keys.store(place.target(W, 128 * of.dk), place.at["B"])
        square.store(place.target(T, SQUARE), place.at["T"])


def report(place: Place, target) -> None:
    """max|U|, max|Kt|, max|P| to memory."""
    found = [place.maxima.most(products.OF_U), place.maxima.most(products.OF_KT, 4), Float32(0.0)]
    if place.of.adjoint:
        found[2] = place.maxima.most(products.OF_P)
    by_first(place.thread, target, [registers.as_bits(x) for x in [*found, Float32(0.0)]])


@cute.jit
def by_first(thread, target, words: list):
    """Sixteen bytes by one thread."""
    if thread == 0:
        store_global(target, words)
