"""dA, dM and the products with the states of `out` for sm_100a: `sm90.out_pairs` with tensor memory.

The gradients of q, p and k wait in tensor memory until dA and dM have gone to shared memory.
"""

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_intra import Sums
from lethe.kernels.gdn.sm90.out_pairs import Adjoints, _common, _hand_on, units
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
    factors = units(place, spec, scaled, states, scale)
    x.wait("pair")
    _hand_on(place, spec, decay, x.load(to.PAIR), factors)
    x.wait("keys")
    done(at.DONE_STATES)
    meet()
    undone = do.down * states[0] * scale, r.down * states[0] * -1.0, n.down * states[1]
    columns = to.DQ, to.DP if spec.erases else None, to.DK
    dq, dp, dk = (
        Sums([] if column is None else x.load(column), f) for column, f in zip(columns, undone, strict=True)
    )
    return Adjoints(dq, dp, dk, factors.causal, factors.erasing, kept)
