"""What prep does by the element: A and a as they are stored, Qh, Kt, dO in float16, e^Gam, a head's gates."""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90 import prep_gates as gates
from lethe.kernels.gdn.sm90 import prep_triangle as triangle
from lethe.kernels.gdn.sm90.prep_memory import Rows, load_piece, store_global, store_global_float, store_piece
from lethe.kernels.gdn.sm90.prep_products import OF_DO, Maxima

THREADS = 128
Int32, Int64, Float32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


def leave_own(block: int, own: cute.Tensor, vector, lane) -> None:
    """Write this warp's part of a block's ``sum_d q k``."""
    for h in (0, 1):
        at = vector + (gates.BLOCK * block + 8 * h + (lane >> 2)) * 4
        registers.store_float(at, registers.sum_of_quad(own[h]))


def finish_rows(block: int, sums: cute.Tensor, scale, tile, lane) -> None:
    """Write a block's rows of A, strictly lower and times the scale."""
    for J in range(block):
        triangle.put_block(tile, lane, block, J, [x * scale for x in triangle.accumulators(sums, J)])
    last = triangle.strictly_below(lane, triangle.accumulators(sums, block))
    triangle.put_block(tile, lane, block, block, [x * scale for x in last])
    triangle.clear_above(tile, lane, block)


def finish_own(block: int, own: cute.Tensor, scale, small, other, lane) -> None:
    """Write a block's a; `other` has the other warp's part, or is None."""
    for h in (0, 1):
        at = (gates.BLOCK * block + 8 * h + (lane >> 2)) * 4
        total = registers.sum_of_quad(own[h])
        if other is not None:
            total = total + registers.load_float(other + at)
        registers.store_float(small + at, total * scale)


def scaled_adjoints(mine: Rows, warp, tile, maxima: Maxima, io, barrier: int) -> None:
    """dO as float16 with the chunk's power, in place, by four warps that meet once; each thread its own."""
    places = [tile + mine.offset + i * mine.step * 128 for i in range(mine.count)]
    held = [load_piece(at) for at in places]
    most = registers.largest([x for words in held for x in registers.unpack_all(words, io)])
    maxima.leave(OF_DO, warp, most)
    cute.arch.barrier(barrier_id=barrier, number_of_threads=THREADS)
    power, _ = registers.binade(maxima.most(OF_DO, 4))
    for at, words in zip(places, held, strict=True):
        values = [x * power for x in registers.unpack_all(words, io)]
        store_piece(at, registers.pack_all(values))


@cute.jit
def scaled_keys(
    thread, dk: cutlass.Constexpr, tiles: tuple, decay: cutlass.Constexpr, targets: tuple,
    queries: cutlass.Constexpr,
):  # fmt: skip
    """Kt to memory, eight channels at once by 128 threads; Qh to where `queries` says ("place", "memory");
    the warp's largest |Kt|."""
    pieces = dk // 8
    step = THREADS // pieces
    row, chunk = thread // pieces, thread % pieces
    offset = Rows(thread, dk, THREADS).offset
    last = decay.last(chunk)
    most = Float32(0.0)
    for i in cutlass.range(64 // step, unroll=1):
        within = offset + i * (step * 128)
        early, late = gates.eight(decay, row, chunk, i * step, last)
        k = gates.scaled(registers.unpack_all(load_piece(tiles[1] + within), parts.HALF), late)
        for x in k:
            most = registers.larger(most, registers.magnitude(x))
        to = Int64((row + i * step) * (2 * dk) + chunk * 16)
        store_global(targets[1] + to, registers.pack_all(k))
        q = gates.scaled(registers.unpack_all(load_piece(tiles[0] + within), parts.HALF), early)
        if cutlass.const_expr(queries == "place"):
            store_piece(tiles[0] + within, registers.pack_all(q))
        else:
            store_global(targets[0] + to, registers.pack_all(q))
    return registers.largest([most])


@cute.jit
def vectors(thread, dk: cutlass.Constexpr, decay: cutlass.Constexpr, small, decay_target, a_target):
    """e^Gam and a to memory, a value a thread."""
    if thread < dk:
        store_global_float(decay_target + Int64(thread * 4), gates.final(decay, thread))
    if thread < 64:
        store_global_float(a_target + Int64(thread * 4), registers.load_float(small + thread * 4))


@cute.jit
def gate_of_head(thread, start, stride, rows, io: cutlass.Constexpr, vector):
    """One gate a head as 64 float32, zero past the end."""
    if thread < 64:
        at = start + Int64(cutlass.min(thread, rows - 1)) * Int64(stride)
        bits = cute.arch.inline_ptx(
            "{ .reg .b16 h; ld.global.nc.b16 h, [{$r0}]; mov.b32 {$w0}, {h, h}; }",
            write_only_types=[Int32],
            read_only_args=[at],
        )
        registers.store_float(vector + thread * 4, gates.keep(thread, rows, registers.unpack(bits, io)[0]))
