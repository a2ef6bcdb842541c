"""Kernel ``prep``: everything that a chunk knows by itself (`stages`), one CTA a slot and head, two CTAs an SM.

Rows of a matrix product are channels and columns are tokens, so that an accumulator is the A operand of the
next product without leaving its registers: Ph^T -> W^T, a dO^T -> dNloc^T -> P^T, (w v)^T -> U^T. B
operands are tiles in shared memory, written by this kernel in the layout of a 128-byte swizzle
(`prep_memory`).

========  =======  =========================================================================================
byte      bytes    contents, then what takes its place (d_k = d_v = 128)
========  =======  =========================================================================================
``Q``     16 K     q, then Qh
``K``     16 K     k
``B``     16 K     b, then W
``DO``    16 K     dO (float16, with a power of two)
``G``     32 K     the table of G (`parts_gates`), then v and w
``A``     8 K      block totals of G; A
``T``     8 K      T - I
``SMALL`` 1 K      a, maxima of the warps, steep blocks, gates that are one number a head
========  =======  =========================================================================================

P^T and U^T are staged in dead tiles, 4 K and 2 K a warp. Eight warps do, between the barriers of the CTA:

1. copy q, k, b, dO (cp.async); g to registers, its running sum, block totals;
2. the table of G;
3. warps 0-3: rows of A, a; then among themselves Qh in place, dO to float16 in place, Kt and e^Gam to memory.
   Warps 4-7: rows of M, then T (`prep_triangle`). Block I of A and block 3 - I of M share a scheduler;
4. Ph^T from k, b, G; wgmma W^T = Ph^T + Ph^T T'^T (the first term as the initial accumulator, in float32);
   dNloc^T = a dO^T + dO^T A;
5. v and w are copied to where G was, W^T to where b was;
6. P^T = s dO^T Qh - dNloc^T W; 7. U^T = (w v)^T + (w v)^T T'^T; both with their own power of two.

Only generic stores write shared memory; each barrier before a wgmma follows a proxy fence. A chunk whose
rows end early has zeros there: q, k, b, v, w, dO by cp.async, g by selection.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts_gates as gates
from lethe.kernels.gdn.sm90 import parts_intra as intra
from lethe.kernels.gdn.sm90 import prep_locals as local
from lethe.kernels.gdn.sm90 import prep_products as products
from lethe.kernels.gdn.sm90 import prep_triangle as triangle
from lethe.kernels.gdn.sm90.declare import Argument, Variant
from lethe.kernels.gdn.sm90.prep_memory import (
    CHUNK,
    Rows,
    load_global_two,
    locate,
    locate_packed,
    store_global,
)

THREADS = 256
HALF_THREADS = 128
KIB = 1024
Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32
DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}
SOLVERS, LOCALS = 1, 2
"""Named barriers of warps 4-7 and of warps 0-3."""


def _arguments(io, dk, dv, gate, erase, write, packed, adjoint) -> tuple[Argument, ...]:
    def there(name, dtype, shape, is_there=True, output=False):
        shape = shape if is_there else (f"no_{name}", *shape[1:])
        return Argument(name, dtype, shape, not is_there, output)

    tokens, chunk = ("B", "L", "H"), ("slots", "H")
    width = {"channel": dk, "head": 1, "none": 1}
    wide = {"channel": dv, "head": 1, "none": 1}
    return (
        there("q", io, (*tokens, dk)),
        there("k", io, (*tokens, dk)),
        there("v", io, (*tokens, dv)),
        there("g", "float32", (*tokens, width[gate]), gate != "none"),
        there("b", io, (*tokens, width[erase]), erase != "none"),
        there("w", io, (*tokens, wide[write]), write != "none"),
        there("do", io, (*tokens, dv), adjoint),
        there("cu_seqlens", "int32", ("cuts",), packed),
        there("Kt", "float16", (*chunk, CHUNK, dk), output=True),
        there("W", "float16", (*chunk, CHUNK, dk), erase != "none", True),
        there("U", "float16", (*chunk, CHUNK, dv), output=True),
        there("P", "float16", (*chunk, dv, dk), adjoint, True),
        there("Qh", "float16", (*chunk, CHUNK, dk), not adjoint, True),
        there("A", "float16", (*chunk, CHUNK, CHUNK), output=True),
        there("T", "float16", (*chunk, CHUNK, CHUNK), erase != "none", True),
        there("a", "float32", (*chunk, CHUNK), output=True),
        there("decay", "float32", (*chunk, dk), output=True),
        there("maxima", "float32", (*chunk, 4), output=True),
        Argument("scale", "float32"),
    )


def _variant(**options) -> Variant:
    return Variant("prep", options, _arguments(**options))


VARIANTS = tuple(
    _variant(
        io=io, dk=128, dv=dv, gate="channel", erase="channel", write="channel", packed=packed, adjoint=adjoint
    )
    for io in DTYPES
    for dv in (128, 64)
    for packed in (False, True)
    for adjoint in (True, False)
)


def kernel(**options) -> "Prep":
    """The kernel of one variant."""
    return Prep(**options)


class Prep:
    """``gate``, ``erase``, ``write`` (g, b, w): channel, head or none; ``adjoint``: with dO and P, else with Qh."""

    def __init__(self, io, dk, dv, gate, erase, write, packed, adjoint):
        self.io, self.dk, self.dv = DTYPES[io], dk, dv
        self.gate, self.erase, self.write = gate, erase, write
        self.packed, self.adjoint = packed, adjoint
        sizes = (
            ("Q", 128 * dk),
            ("K", 128 * dk),
            ("B", 128 * dk),
            ("DO", 128 * dv),
            ("G", max(256 * dk, 256 * dv)),
            ("A", 8 * KIB),
            ("T", 8 * KIB),
            ("SMALL", KIB),
        )
        self.at, end = {}, 0
        for name, size in sizes:
            self.at[name] = end
            end += size
        self.bytes = end

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
        cu_seqlens: cute.Tensor,
        Kt: cute.Tensor,
        W: cute.Tensor,
        U: cute.Tensor,
        P: cute.Tensor,
        Qh: cute.Tensor,
        A: cute.Tensor,
        T: cute.Tensor,
        a: cute.Tensor,
        decay: cute.Tensor,
        maxima: cute.Tensor,
        scale: cutlass.Float32,
        stream: cuda.CUstream,
    ):
        inputs = (q, k, v, g, b, w, do)
        outputs = (Kt, W, U, P, Qh, A, T, a, decay, maxima)
        self.kernel(inputs, cu_seqlens, outputs, scale).launch(
            grid=(q.shape[2], Kt.shape[0], 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=2,
            preferred_smem_carveout=100,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, inputs: tuple, cu_seqlens: cute.Tensor, outputs: tuple, scale: cutlass.Float32):
        head, slot, _ = cute.arch.block_idx()
        q = inputs[0]
        if cutlass.const_expr(self.packed):
            first, rows = locate_packed(cu_seqlens, slot)
        else:
            first, rows = locate(Int32(q.shape[1]), slot)
        base = memory.SmemAllocator().allocate(self.bytes, 1024)
        if rows > 0:
            self.chunk(inputs, outputs, scale, base, first, cutlass.min(rows, Int32(CHUNK)), head, slot)

    @cute.jit
    def chunk(self, inputs: tuple, outputs: tuple, scale, base: cute.Pointer, first, rows, head, slot):
        """Everything of one chunk and head."""
        q, k, v, g, b, w, do = inputs
        Kt, W, U, P, Qh, A, T, a, decay, most_of = outputs
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = thread % 32
        heads = Int32(q.shape[2])
        origin = base.toint()
        at = {name: origin + offset for name, offset in self.at.items()}
        token = Int64(first) * Int64(heads) + Int64(head)
        entry = Int64(slot) * Int64(heads) + Int64(head)

        keys, values = Rows(thread, self.dk, THREADS), Rows(thread, self.dv, THREADS)
        copied = [("Q", q, keys), ("K", k, keys), ("B", b, keys)] + [("DO", do, values)] * self.adjoint
        for name, tensor, mine in copied:
            self.load(mine, at[name], tensor, token, heads, rows)
        cute.arch.cp_async_commit_group()
        sums = gates.Sums(thread, self.dk, self.read_gates(g, thread, token, heads, rows))
        sums.leave_totals(at["A"])
        cute.arch.cp_async_wait_group(0)
        if cutlass.const_expr(self.io is cutlass.BFloat16):
            for name, _, mine in copied[:3]:
                mine.to_half(at[name])
        cute.arch.sync_threads()
        sums.store(at["A"], at["G"])
        cute.arch.sync_threads()

        pairs = cute.make_rmem_tensor((32,), Float32)
        own = cute.make_rmem_tensor((2,), Float32)
        solves = warp // 4
        block = warp - 4 * solves
        block = block + solves * (3 - 2 * block)
        x_tile = at["Q"] + solves * (at["B"] - at["Q"])
        address = lambda tensor, size: tensor.iterator.toint() + entry * Int64(size)  # noqa: E731
        maxima = products.Maxima(at["SMALL"])
        for number in cutlass.range_constexpr(4):
            if block == number:
                intra.rows_by_channel(
                    number, self.dk, True, x_tile, at["K"], at["G"], lane, solves, pairs, own
                )
                if solves == 0:
                    local.finish_rows(number, pairs, own, scale, at["A"], at["SMALL"], lane)
                else:
                    triangle.invert(number, pairs, lane, at["T"], SOLVERS)
        if solves == 0:
            few = Rows(thread, self.dv, HALF_THREADS)
            held = local.leave_largest(few, at["DO"], maxima, warp, self.io)
            cute.arch.barrier(barrier_id=LOCALS, number_of_threads=HALF_THREADS)
            local.scale_in_place(few, at["DO"], held, maxima, self.io)
            targets = (address(Qh, 128 * self.dk), address(Kt, 128 * self.dk))
            most = local.scaled_keys(thread, self.dk, at["Q"], at["K"], at["G"], *targets, self.adjoint)
            local.leave_keys(maxima, warp, most)
            targets = (address(decay, 4 * self.dk), address(a, 256))
            local.vectors(thread, self.dk, at["G"], at["SMALL"], *targets)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()

        run = products.Products(self, base, at, thread, warp, lane)
        w_sums = run.start_w()
        do_words = run.words(at["DO"], run.value_warp)
        n_sums = run.start_local(do_words)
        cute.arch.sync_threads()
        self.load(values, at["G"], v, token, heads, rows)
        self.load(values, at["G"] + 128 * self.dv, w, token, heads, rows)
        cute.arch.cp_async_commit_group()
        warpgroup.wait_group(1)
        run.finish_w(w_sums)
        warpgroup.wait_group(0)
        negated, shift = run.negated(n_sums)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()
        keys.store(address(W, 128 * self.dk), at["B"])
        square = Rows(thread, CHUNK, THREADS)
        square.store(address(A, 8 * KIB), at["A"])
        square.store(address(T, 8 * KIB), at["T"])
        p_values, undo = run.adjoint(do_words, negated, shift, scale)
        maxima.leave(products.OF_P, warp, registers.largest(p_values) * undo)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        run.store_adjoint(p_values, undo, address(P, 2 * self.dk * self.dv))
        wv = run.written()
        maxima.leave(products.OF_WV, warp, registers.largest(wv))
        cute.arch.sync_threads()
        u_values, undo = run.start_u(wv)
        maxima.leave(products.OF_U, warp, registers.largest(u_values) * undo)
        cute.arch.sync_threads()
        run.store_values(u_values, undo, address(U, 128 * self.dv))
        largest = [maxima.most(products.OF_U), maxima.most(products.OF_KT, 4), maxima.most(products.OF_P)]
        words = [registers.as_bits(x) for x in [*largest, Float32(0.0)]]
        target = address(most_of, 16)
        if thread == 0:
            store_global(target, words)

    def load(self, mine: Rows, tile, tensor: cute.Tensor, token, heads, rows) -> None:
        """Start copying the chunk's rows of an input [B, L, H, width]."""
        width = 16 * mine.pieces
        mine.load(tile, tensor.iterator.toint() + token * Int64(width), heads * width, rows)

    def read_gates(self, g: cute.Tensor, thread, token, heads, rows) -> list:
        """This thread's two channels of a block's rows of g, zero past the end."""
        pairs = self.dk // 2
        block, pair = thread // pairs, thread % pairs
        start = g.iterator.toint() + token * Int64(4 * self.dk) + Int64(pair * 8)
        found = []
        for i in range(gates.BLOCK):
            row = block * gates.BLOCK + i
            kept = cutlass.min(row, rows - 1)
            read = load_global_two(start + Int64(kept) * Int64(heads * (4 * self.dk)))
            found += [gates.keep(row, rows, x) for x in read]
        return found
