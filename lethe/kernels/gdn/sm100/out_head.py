"""Products between the rows of a chunk with one decay a head, or none: `sm90.out_head` with tensor memory."""

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS
from lethe.kernels.gdn.sm90.out_fragments import HALF, Float32, pack_all, reciprocal
from lethe.kernels.gdn.sm90.out_head import _natural
from lethe.kernels.gdn.sm90.out_pairs import Adjoints
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_values import erased
from lethe.kernels.gdn.sm100 import out_map as to


def between_tokens(place: Place, spec: Spec, x: to.Exchange, decay, found: Adjoints) -> tuple:
    """dq, dp and dk in natural units, and this thread's part of ``sum_j Kt_j dKt_j`` by channel."""
    early = [f for b in BLOCKS for f in decay.early(b)]
    late = [f for b in BLOCKS for f in decay.late(b)]
    ended = [Float32(0.0)] * 2
    dk = _natural(found.dk, late)
    if spec.decays:
        for b in BLOCKS:
            for i, k in enumerate(place.keys.values(at.K, b, spec.dtype)):
                ended[i // 2 % 2] = ended[i // 2 % 2] + k * dk[8 * b + i]
    one, two = found.causal.unit, found.erasing.unit
    _put(x, to.DQ, _natural(found.dq, early), one)
    _put(x, to.DK, dk, one)
    x.put_words(to.KEYS, _words(place, spec, at.K))
    x.put_words(to.QUERIES, _words(place, spec, at.Q))
    if spec.erases:
        _put(x, to.DP, _natural(found.dp, early), two)
    x.give("tokens")
    p = _erased_keys(place, spec) if spec.erases else []
    x.wait("tokens")
    dk, dp = [v * one for v in x.load(to.DK)], []
    if spec.erases:
        _put(x, to.DK, dk, two)
        x.put_words(to.ERASERS, p)
        x.give("again")
        dp = [v * two for v in x.load(to.DP)]
    dq = [v * one for v in x.load(to.DQ)]
    if spec.erases:
        x.wait("again")
        dk = [v * two for v in x.load(to.DK)]
    return dq, dp, dk, ended


def _put(x: to.Exchange, column: int, values: list, unit) -> None:
    """Values as an accumulator in these units."""
    up = reciprocal(unit)
    x.put(column, [v * up for v in values])


def _words(place: Place, spec: Spec, tile: int) -> list:
    """A tile's own columns as an operand: float16 as it is, bfloat16 rounded."""
    if spec.dtype is HALF:
        return [word for b in BLOCKS for word in place.keys.words(tile, b)]
    return [word for b in BLOCKS for word in pack_all(place.keys.values(tile, b, spec.dtype))]


def _erased_keys(place: Place, spec: Spec) -> list:
    """p = b k as an operand."""
    words = []
    for b in BLOCKS:
        k = place.keys.values(at.K, b, spec.dtype)
        words += pack_all([v * y for v, y in zip(k, erased(place, spec, b), strict=True)])
    return words
