"""Last quarter of `out`: the late decay factors, the gradients of the gates, and what is stored of q, k, b,
g.

Everything is a warp's own: dq, dk and db replace q, k and b in its columns, and the reverse sum over tokens
that makes dg of dG takes shuffles in quads.
"""

from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, HALVES, Decay
from lethe.kernels.gdn.sm90.out_fragments import (
    Float32,
    Int32,
    choose,
    load_two,
    of_quad,
    reciprocal,
    sum_of_quad,
)
from lethe.kernels.gdn.sm90.out_pairs import Adjoints
from lethe.kernels.gdn.sm90.out_place import Place

QUAD = 0x1C1F
"""Segments of four lanes, clamped at the last, for a shuffle downwards."""


def finish(place: Place, decay: Decay, adjoints: Adjoints, ended: list, dtype) -> None:
    """Write dq, dk, db and dg to shared memory; dq and dp are in units of e, dk in units of 1/e.

    ``ended``: this thread's part of ``sum_j Kt_j dKt_j`` by channel.
    """
    at_decay = []
    for b in BLOCKS:
        q, k, erased = (place.values(tile, b, dtype) for tile in (at.Q, at.K, at.B))
        diagonal = [load_two(place.tokens, at.SMALL_DA + 32 * t) for t in (2 * b, 2 * b + 1)]
        new: tuple[list, list, list] = ([], [], [])
        for i in range(8):
            e, da = decay.e[8 * b + i], diagonal[i // 4][i % 2]
            dq, dp = adjoints.dq[8 * b + i] * e, adjoints.dp[8 * b + i] * e
            dk = adjoints.dk[8 * b + i] * reciprocal(e)
            db = k[i] * dp
            at_decay.append(q[i] * dq + erased[i] * db - k[i] * dk)
            for made, value in zip(new, (dq + da * k[i], dk + da * q[i] + erased[i] * dp, db), strict=True):
                made.append(value)
        for tile, values in zip((at.Q, at.K, at.B), new, strict=True):
            place.put(tile, b, values, dtype)
    last = place.column == 3
    for h in HALVES:
        added = adjoints.kept[h] + sum_of_quad(ended[h])
        i = 4 * 7 + 2 * h + 1
        at_decay[i] = at_decay[i] + choose(last, added, Float32(0.0))
        _sum_back(place, at_decay, h)


def _sum_back(place: Place, at_decay: list, h: int) -> None:
    """dg_i = sum of dG_j over j >= i, for one channel of the thread."""
    down, c = cute.arch.shuffle_sync_down, place.column
    later = Float32(0.0)
    for t in reversed(range(8)):
        first, second = (at_decay[4 * t + 2 * h + e] for e in HALVES)
        pair = first + second
        found = pair + choose(c < Int32(3), down(pair, 1, mask_and_clamp=QUAD), Float32(0.0))
        found = found + choose(c < Int32(2), down(found, 2, mask_and_clamp=QUAD), Float32(0.0))
        after = choose(c < Int32(3), down(found, 1, mask_and_clamp=QUAD), Float32(0.0))
        place.put_gate(t, h, 1, later + after + second)
        place.put_gate(t, h, 0, later + after + pair)
        later = later + of_quad(found, place.lane, 0)
