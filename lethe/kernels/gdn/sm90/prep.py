"""Kernel ``prep``: what a chunk knows by itself (`stages`); one CTA a slot and head, two CTAs an SM.

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
``G``     32 K     the table of G (`prep_gates`), then v and w
``DO``    16 K     dO (float16, with a power of two)
``A``     8 K      totals of G by part; A
``T``     8 K      T - I
``SMALL`` 1 K      a, maxima of the warps, steep parts, gates that are one number a head
========  =======  =========================================================================================

The last 4 K of ``DO``, ``A`` and ``T`` serve the exchange of half sums before they are filled; P^T and U^T
are staged in dead tiles, 4 K and 2 K a warp. Eight warps do, between the barriers of the CTA:

1. copy q, k, b (cp.async); g to registers, its running sum, totals by part;
2. the table of G;
3. rows of A and M of one block, warps w and 7 - w half of the channels each (`prep_intra`), exchanged; then
   warps 0-3: A, a; Qh in place, Kt and e^Gam to memory, dO copied and converted;
   warps 4-7: T (`prep_triangle`);
4. Ph^T from k, b, G; wgmma W^T = Ph^T + Ph^T T'^T (the first term as the initial accumulator, in float32);
   dNloc^T = a dO^T + dO^T A;
5. v and w are copied to where G was, W^T to where b was;
6. P^T = s dO^T Qh - dNloc^T W;
7. U^T = (w v)^T + (w v)^T T'^T; both with their own power of two.

Only generic stores write shared memory; each barrier before a wgmma follows a proxy fence. A chunk whose
rows end early has zeros there: q, k, b, v, w, dO by cp.async, g by selection. Without erasure there is no T
and no W, and 4 and most of 5 are left out; for the forward pass there is no dO and no P, and Qh goes to
memory.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute, memory

from lethe.kernels.gdn.declare import KINDS, Argument, Variant
from lethe.kernels.gdn.sm90 import prep_chunk
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, locate, locate_packed

THREADS = prep_chunk.THREADS
KIB = 1024
Int32 = cutlass.Int32
DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}


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
    _variant(io=io, dk=dk, dv=dv, gate=gate, erase=erase, write=write, packed=packed, adjoint=adjoint)
    for gate, erase, write in KINDS
    for io in DTYPES
    for dk, dv in ((128, 128), (128, 64), (64, 64), (64, 128))
    for packed in (False, True)
    for adjoint in (True, False)
)


def kernel(**options) -> "Prep":
    """The kernel of one variant."""
    return Prep(**options)


class Prep:
    """``gate``, ``erase``, ``write`` (g, b, w): channel, head or none; ``adjoint``: dO and P, else Qh."""

    def __init__(self, io, dk, dv, gate, erase, write, packed, adjoint):
        self.io, self.dk, self.dv = DTYPES[io], dk, dv
        self.gate, self.erase, self.write = gate, erase, write
        self.packed, self.adjoint = packed, adjoint
        self.halved = dv == 64 and dk == 128
        """Both groups form the same 64 rows of P^T, each half of its columns."""
        sizes = (
            ("Q", 128 * dk),
            ("K", 128 * dk),
            ("B", 128 * dk),
            ("G", max(256 * dk, 256 * dv)),
            ("DO", 128 * dv),
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
            where = (first, cutlass.min(rows, Int32(CHUNK)), head, slot)
            prep_chunk.run(self, inputs, outputs, scale, base, where)
