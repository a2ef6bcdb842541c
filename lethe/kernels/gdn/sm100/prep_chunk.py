"""One chunk and head in prep for sm_100a: the phases of `sm90.prep_chunk` with products in tensor memory."""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import prep_products as maxima
from lethe.kernels.gdn.sm90.prep_chunk import Place, load_keys, report, squares, store_squares
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.prep_products import Products

Int32 = cutlass.Int32


@cute.jit
def run(
    of: cutlass.Constexpr,
    inputs: tuple,
    outputs: tuple,
    scale,
    base: cute.Pointer,
    where: tuple,
    held: cutlass.Constexpr,
):
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

    work = Products(of, base, place.at, place.thread, place.warp, place.lane, place.decay, held)
    erasures(place, work, v, w, scale)
    cute.arch.fence_view_async_shared()
    meet()
    if cutlass.const_expr(of.adjoint and of.erase != "none"):
        work.by_one(work.second)
    store_squares(place, W, A, T)
    if cutlass.const_expr(of.adjoint):
        p, undo = work.adjoint(scale)
        place.maxima.leave(maxima.OF_P, place.warp, registers.largest(p) * undo)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    if cutlass.const_expr(of.adjoint):
        work.store_adjoint(p, undo, place.target(P, 2 * of.dk * of.dv))
    wv = work.written()
    place.maxima.leave(maxima.OF_WV, place.warp, registers.largest(wv))
    cute.arch.sync_threads()
    u, undo = work.values(wv)
    place.maxima.leave(maxima.OF_U, place.warp, registers.largest(u) * undo)
    cute.arch.sync_threads()
    work.store_values(u, undo, place.target(U, 128 * of.dv))
    report(place, place.target(most_of, 16))


def meet() -> None:
    """Barrier of the CTA behind which one warp multiplies what the others left in tensor memory."""
    tensor.publish()
    cute.arch.sync_threads()
    tensor.observe()


def erasures(place: Place, work: Products, v, w, scale) -> None:
    """W where b was, v and w where G was; -dNloc^T as an operand, P^T's first product scaled."""
    of, at = place.of, place.at
    if of.erase != "none":
        work.put_erasers()
        if of.adjoint:
            work.put_local()
    meet()
    if of.erase != "none" or of.adjoint:
        work.by_one(work.first)
    place.load(place.values, at["G"], v)
    if of.write == "channel":
        place.load(place.values, at["G"] + 128 * of.dv, w)
    elif of.write == "head":
        place.head_gate(w, at["G"] + 128 * of.dv)
    cute.arch.cp_async_commit_group()
    if of.erase != "none":
        work.finish_w()
        if of.adjoint:
            work.negate(scale)
