"""Second quarter of `out`: dA and dM, the products with the states, and what S and D have in common.

Group 0 multiplies dO and N, group 1 R and N: dA and -dM of one chunk at once. dQh, dPh and dKt run behind
them, while dA and dM go to shared memory. |dA| <= 128 max|dO| max|N|, with both maxima below 2^8 in their
tiles' units: a product times 2^-8 is at most 2^15, so that dA and dM need no maximum of their own.
"""

from dataclasses import dataclass
from typing import Any

from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import HALVES, Decay
from lethe.kernels.gdn.sm90.out_fragments import (
    HALF,
    Float32,
    Int32,
    choose,
    exp2,
    pack_all,
    store_if,
    store_matrices,
    store_two,
    sum_of_quad,
    unpack,
)
from lethe.kernels.gdn.sm90.out_intra import Square
from lethe.kernels.gdn.sm90.out_place import Place, state_words
from lethe.kernels.gdn.sm90.out_values import Scaled, meet

SMALLER = 2.0**-8


@dataclass(frozen=True)
class Adjoints:
    """Fragments [d_k, tokens] before the decays: dq and dp in units of e^G, dk of e^(Gam - G); dA and dM;
    and ``e^Gam rowsum(S D)`` by channel."""

    dq: list
    dp: list
    dk: list
    causal: Square
    erasing: Square
    kept: list[Any]


def with_states(
    place: Place,
    o: at.Operands,
    decay: Decay,
    scaled: tuple[Scaled, Scaled, Scaled],
    states: list,
    scale,
    done,
) -> Adjoints:
    """``scaled``: dO, N, R. One barrier."""
    do, n, r = scaled
    pair, dq, dp, dk = (at.accumulator() for _ in range(4))
    warpgroup.fence()
    rows, written = o.k_major(at.DO, 64, 128, (at.R - at.DO) // 2), o.k_major(at.N, 64, 128)
    at.product(o.kk, pair, at.operand_a(o.kk, rows), at.operand_b(o.kk, written), False)
    warpgroup.commit_group()
    s, d = (at.operand_a(o.mk, o.mn_major(state, 128, 8192)) for state in (at.S, at.D))
    for sums, a, b in ((dq, s, at.DO), (dp, s, at.R), (dk, d, at.N)):
        at.product(o.mk, sums, a, at.operand_b(o.mk, o.k_major(b, 64, 128)), False)
    warpgroup.commit_group()
    common = _common(place)
    warpgroup.wait_group(1)
    first = place.group == 0
    half = choose(first, do.up * do.down * SMALLER, Float32(-SMALLER))
    natural = choose(first, do.down * n.down * scale, r.down * n.down * -1.0)
    _hand_on(place, [pair[i] for i in range(32)], half, natural)
    warpgroup.wait_group(0)
    done(at.DONE_STATES)
    meet()
    factors = do.down * states[0] * scale, r.down * states[0] * -1.0, n.down * states[1]
    dq, dp, dk = ([x[i] * f for i in range(32)] for x, f in zip((dq, dp, dk), factors, strict=True))
    larger = 1 / SMALLER
    causal = Square(at.A, at.DIAG, n.down * do.inverse * scale * larger)
    erasing = Square(at.T, at.DIAG + at.DIAG_MATRIX, n.down * r.down * larger)
    both = states[0] * states[1]
    kept = [exp2(decay.gamma[h]) * (common[h] * both) for h in HALVES]
    return Adjoints(dq, dp, dk, causal, erasing, kept)


def _common(place: Place) -> list:
    """rowsum(S D) by channel, as the tiles are scaled."""
    sums = [Float32(0.0)] * 2
    for rows in range(8):
        for i, (s, d) in enumerate(
            zip(state_words(place, at.S, rows), state_words(place, at.D, rows), strict=True)
        ):
            (s0, s1), (d0, d1) = unpack(s, HALF), unpack(d, HALF)
            sums[i % 2] = sums[i % 2] + s0 * d0 + s1 * d1
    return [sum_of_quad(x) for x in sums]


def _hand_on(place: Place, pair: list, half, natural) -> None:
    """The group's matrix to its tile in float16, its diagonal blocks below the diagonal and da in
    float32."""
    tile = Int32(at.A) + place.group * 8192
    words = pack_all([x * half for x in pair])
    for p in range(4):
        store_matrices((place.square_store ^ Int32(32 * p)) + tile, words[4 * p : 4 * p + 4])
    w = place.warp & 3
    block = pair[24:32]
    for number in range(3):
        block = [choose(w == number, pair[8 * number + i], block[i]) for i in range(8)]
    block = [x * natural for x in block]
    matrix = place.base + Int32(at.DIAG) + place.group * at.DIAG_MATRIX + w * at.DIAG_BLOCK
    below = [place.row > place.column * 2 + e for e in HALVES]
    for h in HALVES:
        own = block[4 * h + 2 * h : 4 * h + 2 * h + 2]
        kept = [choose(below[e], own[e], Float32(0.0)) for e in HALVES]
        address = matrix + (place.row + 8 * h) * at.DIAG_ROW + place.column * 8
        store_two(address, kept[0], kept[1], 32 * h)
        mine = choose((place.row & 1) == 0, own[0], own[1])
        here = place.base + Int32(at.SMALL_DA) + (w * 16 + 8 * h + place.row) * 4
        store_if((place.group * 4 + (place.row >> 1)) == place.column, here, mine)
    store_two(matrix + (place.row + 8) * at.DIAG_ROW + place.column * 8, block[2], block[3])
