"""First half of `out`: what the tokens write (N) and its adjoint (R), with the gradients of v and w.

Powers of two: a tile that is operand A from registers (E, dN) has one for each warp's 16 channels; dO, N
and R, which are operands from shared memory, have one for the CTA, from maxima that the warps leave side by
side.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, Decay
from lethe.kernels.gdn.sm90.out_fragments import (
    HALF,
    Float32,
    Int32,
    as_bits,
    as_float,
    asm,
    binade,
    largest,
    load_float,
    load_two,
    pack_all,
    reciprocal,
    store_float,
    unpack_all,
)
from lethe.kernels.gdn.sm90.out_place import Place

THREADS = 256
"""Threads of the two consumer groups."""


@dataclass(frozen=True)
class Scaled:
    """``up`` and ``inverse`` as `binade` has them; ``down`` undoes what the float16 tile really carries."""

    up: Any
    inverse: Any
    down: Any


def meet() -> None:
    """Barrier of the consumers."""
    cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)


def publish() -> None:
    """Shared memory that this thread wrote may be read by wgmma and TMA after the barrier that follows."""
    cute.arch.fence_proxy("async.shared", space="cta")


def leave_maximum(place: Place, which: int, values: list) -> None:
    """Put the warp's largest magnitude where `common` finds it, one barrier later."""
    store_float(place.base + Int32(at.SMALL_MAXIMA + 32 * which) + place.warp * 4, largest(values))


def common(place: Place, which: int):
    """The largest magnitude of all warps."""
    found = load_float(place.base + Int32(at.SMALL_MAXIMA + 32 * which) + place.within * 4)
    return as_float(asm("redux.sync.max.s32 $0, $1, 0xffffffff;", "r", [as_bits(found)], "r", True))


def scale_keys(place: Place, decay: Decay, dtype: type[cutlass.Numeric]) -> Scaled:
    """Ph and Kt to where g was, dO to float16; what dO is scaled by. Two barriers."""
    words = [place.words(at.DO, b) for b in BLOCKS]
    leave_maximum(place, 0, [x for block in words for x in unpack_all(block, dtype)])
    meet()
    up, down = binade(common(place, 0))
    for b in BLOCKS:
        k, erased = place.values(at.K, b, dtype), place.values(at.B, b, dtype)
        early, late = decay.from_start(b), decay.to_end(b)
        e = decay.e[8 * b : 8 * b + 8]
        place.put(at.PH, b, [k[i] * erased[i] * (e[i] * early[i // 2 % 2]) for i in range(8)])
        place.put(at.KT, b, [k[i] * (reciprocal(e[i]) * late[i // 2 % 2]) for i in range(8)])
        if dtype is not HALF:
            place.put(at.DO, b, [x * up for x in unpack_all(words[b], dtype)])
    publish()
    meet()
    return Scaled(up, down, down if dtype is not HALF else Float32(1.0))


def written_and_adjoint(place: Place, o: at.Operands, do: Scaled, states: list, dtype, arrived) -> tuple:
    """(N, R) as float32 fragments [d_v, tokens]; ``states``: what undoes the powers of S and D.

    ``arrived(barrier)`` waits for a set of tiles.
    """
    x, y, z = at.accumulator(), at.accumulator(), at.accumulator()
    half = [cute.make_rmem_tensor(o.rk.partition_shape_A((64, 64)), HALF) for _ in range(2)]
    words = [cute.recast_tensor(h, Int32) for h in half]
    warpgroup.fence()
    ph, kt = o.k_major(at.PH, 64, 128), o.k_major(at.KT, 64, 128)
    s, d = o.k_major(at.S, 128, 128, 4096), o.k_major(at.D, 128, 128, 4096)
    at.product(o.kk, x, at.operand_a(o.kk, s), at.operand_b(o.kk, ph), False)
    warpgroup.commit_group()
    arrived(at.FULL_SQUARES)
    at.product(o.kk, y, at.operand_a(o.kk, d), at.operand_b(o.kk, kt), False)
    do_t, causal = o.mn_major(at.DO, 64, 4096), o.mn_major(at.A, 64)
    at.product(o.mm, z, at.operand_a(o.mm, do_t), at.operand_b(o.mm, causal), False)
    warpgroup.commit_group()
    arrived(at.FULL_VALUES)
    wv = [
        v * w
        for b in BLOCKS
        for v, w in zip(place.values(at.V, b, dtype), place.values(at.W, b, dtype), strict=True)
    ]
    warpgroup.wait_group(1)
    down_n = _start(x, words[0], [wv[i] - x[i] * states[0] for i in range(32)])
    at.product(o.rk, x, half[0], at.operand_b(o.rk, o.k_major(at.T, 64, 64)), True)
    warpgroup.commit_group()
    do_values = [x * do.down for b in BLOCKS for x in place.values(at.DO, b, HALF)]
    a = [load_two(place.tokens, at.SMALL_A + 32 * t) for t in range(8)]
    own = [a[i // 4][i % 2] * do_values[i] for i in range(32)]
    warpgroup.wait_group(1)
    down_r = _start(z, words[1], [own[i] + z[i] * do.down + y[i] * states[1] for i in range(32)])
    at.product(o.rm, z, half[1], at.operand_b(o.rm, o.mn_major(at.T, 64)), True)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    return [x[i] * down_n for i in range(32)], [z[i] * down_r for i in range(32)]


def _start(sums, words, values: list):
    """Values to accumulators and, rounded, to operand A, both in the warp's own binade; what undoes it."""
    up, down = binade(largest(values))
    scaled = [x * up for x in values]
    for i, x in enumerate(scaled):
        sums[i] = x
    for i, word in enumerate(pack_all(scaled)):
        words[i] = word
    warpgroup.fence()
    return down


def hand_on(place: Place, written: list, adjoint: list, dtype, done) -> tuple[Scaled, Scaled]:
    """dv and dw over v and w; N and R as float16 over Ph and Kt; how they are scaled. Two barriers."""
    leave_maximum(place, 1, written)
    leave_maximum(place, 2, adjoint)
    for b in BLOCKS:
        v, w = place.values(at.V, b, dtype), place.values(at.W, b, dtype)
        r = adjoint[8 * b : 8 * b + 8]
        place.put(at.V, b, [w[i] * r[i] for i in range(8)], dtype)
        place.put(at.W, b, [v[i] * r[i] for i in range(8)], dtype)
    meet()
    (n_up, n_down), (r_up, r_down) = (binade(common(place, which)) for which in (1, 2))
    for b in BLOCKS:
        block = slice(8 * b, 8 * b + 8)
        place.put(at.N, b, [x * n_up for x in written[block]])
        place.put(at.R, b, [x * r_up for x in adjoint[block]])
    publish()
    done(at.DONE_VALUES)
    meet()
    return Scaled(n_up, n_down, n_down), Scaled(r_up, r_down, r_down)
