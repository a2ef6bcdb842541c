"""Second quarter of `out`: dA and dM, the products with the states, and what S and D have in common.

Group 0 multiplies dO and N, group 1 R and N: dA and -dM of one chunk at once. dQh, dPh and dKt run behind
them, while dA and dM go to shared memory. |dA| <= d_v max|dO| max|N|, with both maxima below 2^8 in their
tiles' units: a product times 2^-8 is at most 2^15, so that dA and dM need no maximum of their own (`units`).
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import HALVES
from lethe.kernels.gdn.sm90.out_fragments import (
    Float32,
    Int32,
    as_bits,
    as_float,
    choose,
    multiply,
    pack_all,
    store_if,
    store_matrices,
    store_two,
    tf32,
    two_to,
)
from lethe.kernels.gdn.sm90.out_intra import Square, Sums
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_values import Scaled, meet, publish

SMALLER, LARGER = 2.0**-8, 8
LEAST, MOST = -120, 112
"""Powers of the units of dA and dM: their inverse is a normal number, and 65504 units are one."""

ROOM = 120 - 31
"""In a product with a state, of at most 2^31 in its tiles' units, there are at most 2^120 units."""


@dataclass(frozen=True)
class Adjoints:
    """Fragments [d_k, tokens] before the decays: ``dq`` and ``dp`` without e^G, ``dk`` without e^(Gam - G);
    dA (``causal``) and dM (``erasing``); ``kept``: ``e^Gam rowsum(S D)`` by channel.

    Without b there is nothing in ``dp``, without g nothing in ``kept``."""

    dq: Sums
    dp: Sums
    dk: Sums
    causal: Square
    erasing: Square
    kept: list[Any]


def with_states(
    place: Place,
    spec: Spec,
    o: at.Operands,
    decay,
    scaled: tuple[Scaled, Scaled, Scaled],
    states: list,
    scale,
    done,
) -> Adjoints:
    """``scaled``: dO, N, R. One barrier."""
    do, n, r = scaled
    pair, dq, dp, dk = (at.accumulator() for _ in range(4))
    warpgroup.fence()
    rows = o.k_major(at.DO, 64, spec.dv, (at.R - at.DO) // 2 if spec.erases else 0)
    written = o.k_major(at.N, 64, spec.dv)
    at.product(o.kk, pair, at.operand_a(o.kk, rows), at.operand_b(o.kk, written), False)
    warpgroup.commit_group()
    s, d = (at.operand_a(o.mk, o.mn_major(state, spec.dv, 64 * spec.dv)) for state in (at.S, at.D))
    for sums, a, b in ((dq, s, at.DO), (dp, s, at.R), (dk, d, at.N)):
        if sums is not dp or spec.erases:
            at.product(o.mk, sums, a, at.operand_b(o.mk, o.k_major(b, 64, spec.dv)), False)
    warpgroup.commit_group()
    kept = _common(place, spec, decay, states[0] * states[1]) if spec.decays else []
    factors = units(place, spec, scaled, states, scale)
    warpgroup.wait_group(1)
    _hand_on(place, spec, decay, [pair[i] for i in range(32)], factors)
    warpgroup.wait_group(0)
    done(at.DONE_STATES)
    meet()
    undone = do.down * states[0] * scale, r.down * states[0] * -1.0, n.down * states[1]
    dq, dp, dk = (Sums([x[i] for i in range(32)], f) for x, f in zip((dq, dp, dk), undone, strict=True))
    return Adjoints(dq, dp, dk, factors.causal, factors.erasing, kept)


@dataclass(frozen=True)
class Units:
    """dA (``causal``) and dM (``erasing``) with the units of their float16 tiles. What brings the group's one
    of the two products there: ``half`` to those units, ``natural`` to natural ones, two factors in turn."""

    causal: Square
    erasing: Square
    half: Any
    natural: tuple[Any, Any]


def units(place: Place, spec: Spec, scaled: tuple[Scaled, Scaled, Scaled], states: list, scale) -> Units:
    """Units that are powers of two within float32, whatever the tiles hold.

    A unit is 2^8 times the units of the tiles that are multiplied, times the scale's binade. Where tiles are
    tiny it is larger, so that neither its inverse nor, in these units, the products with states to which
    `out_head` adds leave float32; then dA or dM is smaller in its tile, 2^-80 of those products and less.
    """
    do, n, r = scaled
    of_do, of_n, of_r, of_s, of_d = (_power(x) for x in (do.inverse, n.down, r.down, *states))
    of_scale = cutlass.min(_power(scale) + 1, Int32(126))
    causal, erasing = of_do + of_n + of_scale + Int32(LARGER), of_r + of_n + Int32(LARGER)
    room = Int32(ROOM)
    one = _within(causal, of_n + of_d - room, of_do + of_s + of_scale - room)
    two = _within(erasing, of_n + of_d - room, of_r + of_s - room, causal - Int32(ROOM - 6))
    half = do.up * do.down * SMALLER * (scale * two_to(-of_scale)) * _difference(causal, one)
    natural = do.down * scale
    if spec.erases:
        first = place.group == 0
        half = choose(first, half, _difference(erasing, two) * -SMALLER)
        natural = choose(first, natural, r.down * -1.0)
    return Units(
        Square(at.A, at.DIAG, two_to(one)),
        Square(at.T, at.DIAG + at.DIAG_MATRIX, two_to(two)),
        half,
        (n.down, natural),
    )


def _power(x):
    """e of 2^e; of any number, rounded down; -127 of 0."""
    return ((as_bits(x) >> 23) & 255) - Int32(127)


def _within(*powers):
    """The largest, within what a unit may be."""
    found = Int32(LEAST)
    for power in powers:
        found = cutlass.max(found, power)
    return cutlass.min(found, Int32(MOST))


def _difference(power, other):
    """2^(power - other); 2^-126 or 2^127 instead of what is not normal."""
    return two_to(cutlass.min(cutlass.max(power - other, Int32(-126)), Int32(127)))


def _common(place: Place, spec: Spec, decay, power) -> list:
    """e^Gam rowsum(S D) by channel; `power` undoes the scales of the tiles.

    The diagonal of S^T D over the warp's channels by mma.sync, eight columns for each of the two halves.
    """
    sums = [[Float32(0.0)] * 4 for _ in HALVES]
    for rows in range(spec.dv // 16):
        s, d = (place.state.words(tile, rows) for tile in (at.S, at.D))
        sums = [multiply(x, s, d[h::2]) for h, x in enumerate(sums)]
    even, source = (place.row & 1) == 0, (place.lane & Int32(~3)) + (place.row >> 1)
    own = [choose(even, x[2 * h], x[2 * h + 1]) for h, x in enumerate(sums)]
    totals = [cute.arch.shuffle_sync(x, source) for x in own]
    return [whole * (x * power) for whole, x in zip(decay.whole(), totals, strict=True)]


def _hand_on(place: Place, spec: Spec, decay, pair: list, factors: Units) -> None:
    """The group's matrix to its tile in float16, and da in float32.

    With one gate a channel the blocks on the diagonal go into float32 as well, and what is above them is
    never read. Else the matrix is weighted and zero from the diagonal on.
    """
    tile = Int32(at.A) + place.group * 8192
    w = place.warp & 3
    block = pair[24:32]
    for number in range(3):
        block = [choose(w == number, pair[8 * number + i], block[i]) for i in range(8)]
    block = [x * factors.natural[0] * factors.natural[1] for x in block]
    for h in HALVES:
        mine = choose((place.row & 1) == 0, block[6 * h], block[6 * h + 1])
        here = place.base + Int32(at.SMALL_DA) + (w * 16 + 8 * h + place.row) * 4
        store_if((place.group * 4 + (place.row >> 1)) == place.column, here, mine)
    scaled = [x * factors.half for x in pair]
    if spec.gate == "channel":
        _diagonal(place, block)
    else:
        ahead = w * 16 + place.row - place.column * 2
        weighted = [x * ratio for x, ratio in zip(scaled, decay.ratios(place), strict=True)]
        behind = [8 * (i // 4) + i % 2 - 8 * (i // 2 % 2) for i in range(32)]
        scaled = [choose(ahead > least, x, Float32(0.0)) for x, least in zip(weighted, behind, strict=True)]
    words = pack_all(scaled)
    for p in range(4):
        store_matrices((place.square_store ^ Int32(32 * p)) + tile, words[4 * p : 4 * p + 4])
    if spec.gate != "channel":
        publish()


def _diagonal(place: Place, block: list) -> None:
    """The warp's diagonal block of 16, strictly lower, in natural units, rounded to tf32."""
    block = [as_float(tf32(x)) for x in block]
    matrix = place.base + Int32(at.DIAG) + place.group * at.DIAG_MATRIX + (place.warp & 3) * at.DIAG_BLOCK
    below = [place.row > place.column * 2 + e for e in HALVES]
    for h in HALVES:
        kept = [choose(below[e], block[6 * h + e], Float32(0.0)) for e in HALVES]
        address = matrix + (place.row + 8 * h) * at.DIAG_ROW + place.column * 8
        store_two(address, kept[0], kept[1], 32 * h)
    store_two(matrix + (place.row + 8) * at.DIAG_ROW + place.column * 8, block[2], block[3])
