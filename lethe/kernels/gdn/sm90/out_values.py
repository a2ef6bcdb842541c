"""First half of `out`: what the tokens write (N) and its adjoint (R), with the gradients of v and w.

Powers of two: a tile that is operand A from registers (E, dN) has one for each warp's 16 channels; dO, N
and R, which are operands from shared memory, have one for the CTA, from maxima that the warps leave side by
side.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS
from lethe.kernels.gdn.sm90.out_fragments import (
    HALF,
    Float32,
    Int32,
    as_bits,
    as_float,
    asm,
    binade,
    choose,
    largest,
    largest_packed,
    load_float,
    pack,
    pack_all,
    store_float,
    unpack_all,
)
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_sums import leave_sums

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


def arrive(barrier: cute.Pointer) -> None:
    """Arrive once for the whole warp, with no count: an instruction that reads no register.

    `parts.arrive` has its count in one. For ``out`` with d_v = 64, bfloat16 and no gates ptxas let it be
    overwritten before it was read, and a barrier that was given that count ends the kernel.
    """
    with cute.arch.elect_one():
        asm("mbarrier.arrive.shared::cta.b64 _, [$0];", "", [barrier.toint()], "r", True)


def leave_maximum(place: Place, which: int, most) -> None:
    """Put the warp's largest magnitude where `common` finds it, one barrier later."""
    store_float(place.base + Int32(at.SMALL_MAXIMA + 32 * which) + place.warp * 4, most)


def common(place: Place, which: int):
    """The largest magnitude of all warps."""
    found = load_float(place.base + Int32(at.SMALL_MAXIMA + 32 * which) + place.within * 4)
    return as_float(asm("redux.sync.max.s32 $0, $1, 0xffffffff;", "r", [as_bits(found)], "r", True))


def erased(place: Place, spec: Spec, b: int) -> list:
    """b of block b."""
    return place.keys.values(at.B, b, spec.dtype) if spec.erase == "channel" else place.scalars(at.SMALL_B, b)


def scale_keys(place: Place, spec: Spec, decay, arrived) -> Scaled:
    """Ph and Kt to where g was, dO to float16; what dO is scaled by. Two barriers."""
    words = [place.vals.words(at.DO, b) for b in BLOCKS]
    most = largest_packed([word for block in words for word in block], spec.dtype)
    leave_maximum(place, 0, most)
    arrived(at.FULL_KEYS)
    meet()
    up, down = binade(common(place, 0))
    for b in BLOCKS:
        k = place.keys.values(at.K, b, spec.dtype)
        if spec.erases:
            factors = zip(k, erased(place, spec, b), decay.early(b), strict=True)
            place.keys.put(at.PH, b, [x * y * e for x, y, e in factors])
        place.keys.put(at.KT, b, [x * e for x, e in zip(k, decay.late(b), strict=True)])
        if spec.dtype is not HALF:
            place.vals.put(at.DO, b, [x * up for x in unpack_all(words[b], spec.dtype)])
    publish()
    meet()
    return Scaled(up, down, down if spec.dtype is not HALF else Float32(1.0))


def _values(place: Place, spec: Spec, b: int) -> tuple[list, list]:
    """(v, w) of block b; w is empty where it is one."""
    v = place.vals.values(at.V, b, spec.dtype)
    if spec.write == "channel":
        return v, place.vals.values(at.W, b, spec.dtype)
    return v, place.scalars(at.SMALL_W, b) if spec.write == "head" else []


def _written_values(place: Place, spec: Spec) -> list:
    """w v as a fragment."""
    found = []
    for b in BLOCKS:
        v, w = _values(place, spec, b)
        found += [x * y for x, y in zip(v, w, strict=True)] if w else v
    return found


def written_and_adjoint(place: Place, spec: Spec, o: at.Operands, do: Scaled, states: list, arrived) -> tuple:
    """(N, what undoes its scale) and R as float32 fragments [d_v, tokens].

    ``states``: what undoes the powers of S and D.

    ``arrived(barrier)`` waits for a set of tiles.
    """
    x, y, z = at.accumulator(), at.accumulator(), at.accumulator()
    half = [o.registers() for _ in range(2)]
    apart = 4096 * (spec.panels - 1)
    arrived(at.FULL_SQUARES)
    warpgroup.fence()
    if spec.erases:
        s, ph = o.k_major(at.S, spec.dv, 128, apart), o.k_major(at.PH, 64, 128)
        at.product(o.kk, x, at.operand_a(o.kk, s), at.operand_b(o.kk, ph), False)
        warpgroup.commit_group()
    d, kt = o.k_major(at.D, spec.dv, 128, apart), o.k_major(at.KT, 64, 128)
    at.product(o.kk, y, at.operand_a(o.kk, d), at.operand_b(o.kk, kt), False)
    do_t, causal = o.mn_major(at.DO, 64, apart), o.mn_major(at.A, 64)
    at.product(o.mm, z, at.operand_a(o.mm, do_t), at.operand_b(o.mm, causal), False)
    warpgroup.commit_group()
    arrived(at.FULL_VALUES)
    wv = _written_values(place, spec)
    if spec.erases:
        warpgroup.wait_group(1)
        down_n = _start(x, half[0][1], [wv[i] - x[i] * states[0] for i in range(32)])
        at.product(o.rk, x, half[0][0], at.operand_b(o.rk, o.k_major(at.T, 64, 64)), True)
        warpgroup.commit_group()
    own = []
    for b in BLOCKS:
        factors = zip(place.scalars(at.SMALL_A, b), place.vals.values(at.DO, b, HALF), strict=True)
        own += [a * (x * do.down) for a, x in factors]
    warpgroup.wait_group(1 if spec.erases else 0)
    adjoint = [own[i] + z[i] * do.down + y[i] * states[1] for i in range(32)]
    if not spec.erases:
        return (wv, Float32(1.0)), adjoint
    down_r = _start(z, half[1][1], adjoint)
    at.product(o.rm, z, half[1][0], at.operand_b(o.rm, o.mn_major(at.T, 64)), True)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    return ([x[i] for i in range(32)], down_n), [z[i] * down_r for i in range(32)]


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


def hand_on(place: Place, spec: Spec, written: tuple, adjoint: list, done) -> tuple[Scaled, Scaled]:
    """dv and dw over v and w; N and R as float16 over Ph and Kt; how they are scaled. Two barriers.

    With d_v = 64 both groups hold the same: the first puts dv and N, the second dw and R.
    """
    leave_maximum(place, 1, largest(written[0]) * written[1])
    leave_maximum(place, 2, largest(adjoint))
    gradients = _value_gradients(place, spec, adjoint)
    meet()
    for tile, blocks in gradients:
        for b, words in zip(BLOCKS, blocks, strict=True):
            place.vals.put_words(tile, b, words)
    n, r = (Scaled(up, down, down) for up, down in (binade(common(place, which)) for which in (1, 2)))
    to_n = written[1] * n.up
    tiles = [(Int32(at.N), [x * to_n for x in written[0]]), (Int32(at.R), [x * r.up for x in adjoint])]
    for tile, values in tiles if spec.panels == 2 else [_of_group(place, *tiles)]:
        for b in BLOCKS:
            place.vals.put(tile, b, values[8 * b : 8 * b + 8])
    publish()
    done(at.DONE_VALUES)
    meet()
    return n, r


def _of_group(place: Place, first: tuple, second: tuple) -> tuple:
    """(tile, fragment) of the group."""
    mine = place.group == 0
    fragment = [choose(mine, x, y) for x, y in zip(first[1], second[1], strict=True)]
    return first[0] + (second[0] - first[0]) * place.group, fragment


def _value_gradients(place: Place, spec: Spec, adjoint: list) -> list:
    """(tile, packed words by block) of dv and, with one w a channel, of dw; sums for dw with one a head."""
    dv, dw = [], []
    for b in BLOCKS:
        v, w = _values(place, spec, b)
        r = adjoint[8 * b : 8 * b + 8]
        dv += [x * y for x, y in zip(w, r, strict=True)] if w else r
        dw += [x * y for x, y in zip(v, r, strict=True)] if w else []
    if spec.write == "head":
        leave_sums(place, at.W, dw)
    found = [(Int32(at.V), dv), (Int32(at.W), dw)] if spec.write == "channel" else [(Int32(at.V), dv)]
    if spec.panels == 1 and len(found) == 2:
        found = [_of_group(place, *found)]
    return [
        (tile, [[pack(x[i], x[i + 1], spec.dtype) for i in range(8 * b, 8 * b + 8, 2)] for b in BLOCKS])
        for tile, x in found
    ]
