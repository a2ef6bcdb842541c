"""Last quarter of `out`: the gradients of the gates, and what is stored of q, k, b, g.

Everything is a warp's own: dq, dk and db replace q, k and b in its columns, and the reverse sum over tokens
that makes dg of dG takes shuffles in quads. Gates that are one number a head go by way of `out_sums`.
"""

from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS, HALVES
from lethe.kernels.gdn.sm90.out_fragments import Float32, add_in_quad, choose, of_quad, sum_of_quad
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_sums import leave_sums
from lethe.kernels.gdn.sm90.out_values import erased


def finish(place: Place, spec: Spec, dq: list, dp: list, dk: list, kept: list, ended: list) -> list:
    """Write dq, dk and db, and sums of gates that are one number a head, to shared memory; return dg.

    dq, dp, dk: without the causal diagonal and b dp. ``kept``: `out_pairs.Adjoints`; ``ended``: this thread's
    part of ``sum_j Kt_j dKt_j``, both by channel.
    """
    at_decay, at_erase = [], []
    for b in BLOCKS:
        q, k = (place.keys.values(tile, b, spec.dtype) for tile in (at.Q, at.K))
        rate = erased(place, spec, b) if spec.erases else []
        diagonal = place.scalars(at.SMALL_DA, b)
        new_q, new_k = [], []
        for i in range(8):
            n = 8 * b + i
            total = q[i] * dq[n] - k[i] * dk[n]
            key = dk[n] + diagonal[i] * q[i]
            if spec.erases:
                at_erase.append(k[i] * dp[n])
                total = total + rate[i] * at_erase[n]
                key = key + rate[i] * dp[n]
            at_decay.append(total)
            new_q.append(dq[n] + diagonal[i] * k[i])
            new_k.append(key)
        place.keys.put(at.Q, b, new_q, spec.dtype)
        place.keys.put(at.K, b, new_k, spec.dtype)
        if spec.erase == "channel":
            place.keys.put(at.B, b, at_erase[8 * b : 8 * b + 8], spec.dtype)
    if spec.erase == "head":
        leave_sums(place, at.B, at_erase)
    if spec.decays:
        _decay_gradient(place, spec, at_decay, kept, ended)
    return at_decay


def _decay_gradient(place: Place, spec: Spec, at_decay: list, kept: list, ended: list) -> None:
    last = place.column == 3
    for h in HALVES:
        i = 4 * 7 + 2 * h + 1
        at_decay[i] = at_decay[i] + choose(last, kept[h] + sum_of_quad(ended[h]), Float32(0.0))
        if spec.gate == "channel":
            _sum_back(place, at_decay, h)
    if spec.gate == "head":
        leave_sums(place, at.DIAG, at_decay)


def _sum_back(place: Place, at_decay: list, h: int) -> None:
    """dg_i = sum of dG_j over j >= i, for one channel of the thread, in place.

    A sum has later tokens alone: one that an earlier token was subtracted from would have its NaN, or the
    rounding of a number that may be far larger.
    """
    later = Float32(0.0)
    for t in reversed(range(8)):
        i = 4 * t + 2 * h
        found = add_in_quad(add_in_quad(at_decay[i] + at_decay[i + 1], "down", 1), "down", 2)
        after = choose(place.column < 3, cute.arch.shuffle_sync_down(found, 1), Float32(0.0))
        at_decay[i + 1] = later + after + at_decay[i + 1]
        at_decay[i] = at_decay[i + 1] + at_decay[i]
        later = later + of_quad(found, place.lane, 0)
