"""dA, dM and the products with the states of `out` for sm_100a: `sm90.out_pairs` with tensor memory.

The gradients of q, p and k wait in tensor memory until dA and dM have gone to shared memory.
"""

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_fragments import Float32, choose
from lethe.kernels.gdn.sm90.out_intra import Square, Sums
from lethe.kernels.gdn.sm90.out_pairs import SMALLER, Adjoints, _common, _hand_on
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_values import Scaled, meet
from lethe.kernels.gdn.sm100 import out_map as to


def with_states(
    place: Place,
    spec: Spec,
    x: to.Exchange,
    decay,
    scaled: tuple[Scaled, Scaled, Scaled],
    states: list,
    scale,
    done,
) -> Adjoints:
    """``scaled``: dO, N, R. One barrier."""
    do, n, r = scaled
    x.give("pair")
    kept = _common(place, spec, decay, states[0] * states[1]) if spec.decays else []
    half, natural = do.up * do.down * SMALLER, do.down * n.down * scale
    if spec.erases:
        first = place.group == 0
        half = choose(first, half, Float32(-SMALLER))
        natural = choose(first, natural, r.down * n.down * -1.0)
    x.wait("pair")
    _hand_on(place, spec, decay, x.load(to.PAIR), half, natural)
    x.wait("keys")
    done(at.DONE_STATES)
    meet()
    factors = do.down * states[0] * scale, r.down * states[0] * -1.0, n.down * states[1]
    columns = to.DQ, to.DP if spec.erases else None, to.DK
    dq, dp, dk = (
        Sums([] if column is None else x.load(column), f) for column, f in zip(columns, factors, strict=True)
    )
    larger = 1 / SMALLER
    causal = Square(at.A, at.DIAG, n.down * do.inverse * scale * larger)
    erasing = Square(at.T, at.DIAG + at.DIAG_MATRIX, n.down * r.down * larger)
    return Adjoints(dq, dp, dk, causal, erasing, kept)
