"""Orders in which a sum may be added up, each in float32 with one rounding per addition.

The file stands alone (numpy only), because a candidate that adds in one of these orders is this file and a
module that calls it (`summation.candidate_source`).

Method: N. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., chapter 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

LANES = 32
"""Threads of a warp."""


def sequential(x: Floats) -> Floats:
    """Left to right, one rounding per term. x: (..., n) -> (...)."""
    import numpy as np

    total: Floats = np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1]
    return total


def reverse(x: Floats) -> Floats:
    """Right to left."""
    return sequential(x[..., ::-1])


def pairwise(x: Floats) -> Floats:
    """A balanced binary tree over neighbours."""
    while x.shape[-1] > 1:
        x = _even(x)
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def blocked(x: Floats, block: int) -> Floats:
    """Blocks of neighbours left to right, then the blocks left to right."""
    return sequential(sequential(_split(x, block)))


def interleaved(x: Floats, lanes: int = LANES) -> Floats:
    """Lane i adds terms i, i + lanes, ... left to right; then the lanes left to right."""
    return sequential(_lanes(x, lanes))


def warp_tree(x: Floats, lanes: int = LANES) -> Floats:
    """The same lanes, combined by halving the distance, as ``__shfl_down_sync`` does."""
    partial_sums = _lanes(x, lanes)
    while lanes > 1:
        lanes //= 2
        partial_sums = partial_sums[..., :lanes] + partial_sums[..., lanes : 2 * lanes]
    return partial_sums[..., 0]


def fused(x: Floats, w: Floats, lanes: int = 256) -> Floats:
    """A dot product by fused multiply-adds in `lanes` interleaved chains, then left to right.

    The product of two float32 numbers is exact in float64 and the sum there errs by 2^-53, so that rounding
    to float32 is that of a fused multiply-add up to ties that no float64 tells apart.
    """
    import numpy as np

    a, b = (_steps(v, lanes) for v in (x, np.broadcast_to(w, x.shape)))
    carry = np.zeros((*a.shape[:-2], a.shape[-1]), np.float32)
    for k in range(a.shape[-2]):
        exact = a[..., k, :].astype(np.float64) * b[..., k, :]
        carry = (carry + exact).astype(np.float32)
    return sequential(carry)


def _even(x: Floats) -> Floats:
    return _padded(x, x.shape[-1] + x.shape[-1] % 2)


def _padded(x: Floats, length: int) -> Floats:
    import numpy as np

    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])])


def _split(x: Floats, block: int) -> Floats:
    """(..., n) -> (..., blocks, block), the last one filled up with zeros."""
    block = min(block, x.shape[-1])
    blocks = -(-x.shape[-1] // block)
    return _padded(x, blocks * block).reshape(*x.shape[:-1], blocks, block)


def _steps(x: Floats, lanes: int) -> Floats:
    """(..., n) -> (..., steps, lanes): what the lanes read at each step."""
    return _split(x, lanes)


def _lanes(x: Floats, lanes: int) -> Floats:
    """The sums of interleaved lanes, (..., lanes)."""
    steps = _steps(_padded(x, max(lanes, x.shape[-1])), lanes)
    return sequential(steps.swapaxes(-1, -2))


Order = Callable[["Floats"], "Floats"]

ORDERS: dict[str, Order] = {
    "sequential": sequential,
    "reversed": reverse,
    "pairwise": pairwise,
    "blocked 8": partial(blocked, block=8),
    "blocked 32": partial(blocked, block=32),
    "blocked 128": partial(blocked, block=128),
    "blocked 1024": partial(blocked, block=1024),
    "interleaved 32": interleaved,
    "warp tree": warp_tree,
}
"""Orders of a sum; a dot product adds its rounded products in the same orders."""
