"""What warps 0-3 of prep do while warps 4-7 invert: finish A, then Qh, dO, Kt and e^Gam, element by element."""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90 import parts_gates as gates
from lethe.kernels.gdn.sm90 import prep_triangle as triangle
from lethe.kernels.gdn.sm90.prep_memory import Rows, load_piece, store_global, store_global_float, store_piece
from lethe.kernels.gdn.sm90.prep_products import OF_DO, OF_KT, Maxima

THREADS = 128
Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


def finish_rows(block: int, sums: cute.Tensor, own: cute.Tensor, scale, tile, small, lane) -> None:
    """Write block block's rows of A, strictly lower and times the scale, and of a."""
    for J in range(block):
        triangle.put_block(tile, lane, block, J, [x * scale for x in triangle.accumulators(sums, J)])
    last = triangle.strictly_below(lane, triangle.accumulators(sums, block))
    triangle.put_block(tile, lane, block, block, [x * scale for x in last])
    triangle.clear_above(tile, lane, block)
    for h in (0, 1):
        total = registers.sum_of_quad(own[h]) * scale
        registers.store_float(small + (gates.BLOCK * block + 8 * h + (lane >> 2)) * 4, total)


def leave_largest(mine: Rows, tile, maxima: Maxima, warp, io) -> list:
    """This thread's words of dO; the warp's largest magnitude goes to the maxima."""
    held = [load_piece(tile + mine.offset + i * mine.step * 128) for i in range(mine.count)]
    most = registers.largest([x for words in held for x in registers.unpack_all(words, io)])
    maxima.leave(OF_DO, warp, most)
    return held


def scale_in_place(mine: Rows, tile, held: list, maxima: Maxima, io) -> None:
    """dO as float16 with the chunk's power."""
    power, _ = registers.binade(maxima.most(OF_DO, 4))
    for i, words in enumerate(held):
        values = [x * power for x in registers.unpack_all(words, io)]
        store_piece(tile + mine.offset + i * mine.step * 128, registers.pack_all(values))


@cute.jit
def scaled_keys(
    thread, dk: cutlass.Constexpr, at_q, at_k, table, q_target, k_target, in_place: cutlass.Constexpr
):
    """Qh (in place, or to memory) and Kt (to memory), eight channels at once; the largest |Kt| of the warp."""
    pieces = dk // 8
    step = THREADS // pieces
    row, chunk = thread // pieces, thread % pieces
    offset = Rows(thread, dk, THREADS).offset
    last = gates.eight(table, Int32(63), chunk, dk)
    most = Float32(0.0)
    for i in cutlass.range(64 // step, unroll=1):
        within = offset + i * (step * 128)
        G = gates.eight(table + i * (step * 4 * dk), row, chunk, dk)
        q = registers.unpack_all(load_piece(at_q + within), parts.HALF)
        k = registers.unpack_all(load_piece(at_k + within), parts.HALF)
        q = [x * registers.exp2(y) for x, y in zip(q, G, strict=True)]
        k = [x * registers.exp2(z - y) for x, y, z in zip(k, G, last, strict=True)]
        for x in k:
            most = registers.larger(most, registers.magnitude(x))
        to = Int64((row + i * step) * (2 * dk) + chunk * 16)
        store_global(k_target + to, registers.pack_all(k))
        if cutlass.const_expr(in_place):
            store_piece(at_q + within, registers.pack_all(q))
        else:
            store_global(q_target + to, registers.pack_all(q))
    return registers.largest([most])


@cute.jit
def vectors(thread, dk: cutlass.Constexpr, table, small, decay_target, a_target):
    """e^Gam and a to memory, a value a thread."""
    if thread < dk:
        last = registers.load_float(gates.address(table, Int32(63), thread, dk))
        store_global_float(decay_target + Int64(thread * 4), registers.exp2(last))
    if thread < 64:
        store_global_float(a_target + Int64(thread * 4), registers.load_float(small + thread * 4))


def leave_keys(maxima: Maxima, warp, most) -> None:
    """The largest |Kt| of a warp."""
    maxima.leave(OF_KT, warp, most)
