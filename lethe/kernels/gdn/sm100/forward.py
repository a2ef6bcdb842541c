"""Kernel ``forward`` for sm_100a: the states of `scan` in one direction, and the outputs of every chunk.

Arguments and variants are `sm90.forward`'s, the recurrence and its map of tensor memory `scan`'s.
"""

from lethe.kernels.gdn.sm90 import forward as hopper
from lethe.kernels.gdn.sm100.scan import Scan

VARIANTS = hopper.VARIANTS


def kernel(**options) -> "Forward":
    """The kernel of one variant."""
    return Forward(**options)


class Forward(Scan, hopper.Forward):
    """``io``: dtype of o; ``saves``: store S; the rest as in `Scan`."""
