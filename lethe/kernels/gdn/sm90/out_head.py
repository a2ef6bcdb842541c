"""Products between the rows of a chunk with one decay a head, or none: dA and dM carry it; q, k and p do not.

Where one gate a channel needs the levels of `out_intra`, these are wgmma with A from registers: ``dq^T += k^T
dA^T``, ``dp^T += k^T dM^T``, ``dk^T += q^T dA + p^T dM``. The accumulators are put in the units of dA or dM
before.
"""

from cutlass.cute.nvgpu import warpgroup

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS
from lethe.kernels.gdn.sm90.out_fragments import HALF, Float32, pack_all, reciprocal
from lethe.kernels.gdn.sm90.out_intra import Sums
from lethe.kernels.gdn.sm90.out_pairs import Adjoints
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_values import erased


def between_tokens(place: Place, spec: Spec, o: at.Operands, decay, found: Adjoints) -> tuple:
    """dq, dp and dk in natural units, and this thread's part of ``sum_j Kt_j dKt_j`` by channel."""
    early = [x for b in BLOCKS for x in decay.early(b)]
    late = [x for b in BLOCKS for x in decay.late(b)]
    ended = [Float32(0.0)] * 2
    dk = _natural(found.dk, late)
    if spec.decays:
        for b in BLOCKS:
            for i, k in enumerate(place.keys.values(at.K, b, spec.dtype)):
                ended[i // 2 % 2] = ended[i // 2 % 2] + k * dk[8 * b + i]
    dq = _natural(found.dq, early)
    dp = _natural(found.dp, early) if spec.erases else []
    k, q = _operand(place, spec, o, at.K), _operand(place, spec, o, at.Q)
    one, two = found.causal.unit, found.erasing.unit
    rows, columns = _sums(dq, one), _sums(dk, one)
    warpgroup.fence()
    at.product(o.rk, rows, k, at.operand_b(o.rk, o.k_major(at.A, 64, 64)), True)
    at.product(o.rm, columns, q, at.operand_b(o.rm, o.mn_major(at.A, 64)), True)
    warpgroup.commit_group()
    if spec.erases:
        erasing = _sums(dp, two)
        warpgroup.fence()
        at.product(o.rk, erasing, k, at.operand_b(o.rk, o.k_major(at.T, 64, 64)), True)
        warpgroup.commit_group()
        p = _erased_keys(place, spec, o)
        warpgroup.wait_group(0)
        dp = [erasing[i] * two for i in range(32)]
        again = _sums([columns[i] * one for i in range(32)], two)
        warpgroup.fence()
        at.product(o.rm, again, p, at.operand_b(o.rm, o.mn_major(at.T, 64)), True)
        warpgroup.commit_group()
        columns, one_k = again, two
    else:
        one_k = one
    warpgroup.wait_group(0)
    return [rows[i] * one for i in range(32)], dp, [columns[i] * one_k for i in range(32)], ended


def _natural(sums: Sums, factors: list) -> list:
    return [x * (factor * sums.unit) for x, factor in zip(sums.values, factors, strict=True)]


def _sums(values: list, unit):
    """Accumulators that hold the values in these units."""
    made, up = at.accumulator(), reciprocal(unit)
    for i, x in enumerate(values):
        made[i] = x * up
    return made


def _operand(place: Place, spec: Spec, o: at.Operands, tile: int):
    """A tile's own columns as operand A: float16 as it is, bfloat16 rounded."""
    made, words = o.registers()
    for b in BLOCKS:
        if spec.dtype is HALF:
            block = place.keys.words(tile, b)
        else:
            block = pack_all(place.keys.values(tile, b, spec.dtype))
        for i, word in enumerate(block):
            words[4 * b + i] = word
    return made


def _erased_keys(place: Place, spec: Spec, o: at.Operands):
    """p = b k as operand A."""
    made, words = o.registers()
    for b in BLOCKS:
        k = place.keys.values(at.K, b, spec.dtype)
        block = pack_all([x * y for x, y in zip(k, erased(place, spec, b), strict=True)])
        for i, word in enumerate(block):
            words[4 * b + i] = word
    return made
