"""N and R of `out` for sm_100a: `sm90.out_values` with its products in tensor memory."""

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import BLOCKS
from lethe.kernels.gdn.sm90.out_fragments import HALF, Float32, binade, largest, pack_all
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import Spec
from lethe.kernels.gdn.sm90.out_values import Scaled, _written_values
from lethe.kernels.gdn.sm100 import out_map as to


def written_and_adjoint(place: Place, spec: Spec, x: to.Exchange, do: Scaled, states: list, arrived) -> tuple:
    """(N, what undoes its scale) and R as float32 fragments [d_v, tokens], as `sm90` has them."""
    x.give("first")
    arrived(at.FULL_SQUARES)
    arrived(at.FULL_VALUES)
    written, unit = _written_values(place, spec), Float32(1.0)
    if spec.erases:
        x.wait("states")
        found = x.load(to.WRITTEN)
        values = [v - found[i] * states[0] for i, v in enumerate(written)]
        unit = _start(x, to.WRITTEN, to.E, values)
        x.give("written")
    own = []
    for b in BLOCKS:
        factors = zip(place.scalars(at.SMALL_A, b), place.vals.values(at.DO, b, HALF), strict=True)
        own += [a * (v * do.down) for a, v in factors]
    x.wait("local")
    inside, across = x.load(to.ADJOINT), x.load(to.STATE_PART)
    adjoint = [own[i] + inside[i] * do.down + across[i] * states[1] for i in range(32)]
    if not spec.erases:
        return (written, unit), adjoint
    down = _start(x, to.ADJOINT, to.DN, adjoint)
    x.give("adjoint")
    x.wait("written")
    written = x.load(to.WRITTEN)
    x.wait("adjoint")
    return (written, unit), [v * down for v in x.load(to.ADJOINT)]


def _start(x: to.Exchange, sums: int, operand: int, values: list):
    """Values to accumulators and, rounded, to operand A, both in the warp's own binade; what undoes it."""
    up, down = binade(largest(values))
    scaled = [v * up for v in values]
    x.put(sums, scaled)
    x.put_words(operand, pack_all(scaled))
    return down
