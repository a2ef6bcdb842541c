"""One launch for what a perturbed operator does to its result on a GPU; see `perturbation.Perturb`.

Written out in torch it is a dozen launches of a few microseconds each. Where many judges and suspects take
turns on a device, every one of them is a turn, and these were most of an oracle's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=["seed", "count"])
def _move(
    value, scale, moved, escaped, seed: tl.int64, count: tl.int64,
    unit: tl.float64, tiny: tl.float64, grown: tl.float64, underflow: tl.float64, limit: tl.float64,
    SCALED: tl.constexpr, LIMITED: tl.constexpr, VANISHING: tl.constexpr, COHERENT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(value + at, mask=inside, other=0.0)
    size = tl.abs(x)
    finite = size < float("inf")
    r, s, _, _ = tl.rand4x(seed, at * 0 if COHERENT else at)
    first, second = 2.0 * r.to(tl.float64) - 1.0, 2.0 * s.to(tl.float64) - 1.0
    if COHERENT:
        first = tl.where(first < 0.0, -1.0, 1.0).to(tl.float64)
        second = tl.where(second < 0.0, -1.0, 1.0).to(tl.float64)
    flushed = tiny if VANISHING else tl.minimum(size, tiny)
    error = (size * unit + flushed) * first
    if SCALED:
        terms = tl.abs(tl.load(scale + at, mask=inside, other=0.0))
        error += (terms * grown + tl.minimum(terms, underflow)) * second
    y = tl.where(finite, x + error, x)
    if LIMITED:
        beyond = finite & (tl.abs(y) >= limit)
        y = tl.where(beyond, tl.where(y < 0.0, float("-inf"), float("inf")), y)
        tl.atomic_max(escaped, tl.max(beyond.to(tl.int32)))
    tl.store(moved + at, y, mask=inside)


def move(
    real: Tensor,
    scale: Tensor | None,
    escaped: Tensor,
    *,
    seed: int,
    unit: float,
    tiny: float,
    grown: float,
    underflow: float,
    limit: float | None,
    vanishing: bool,
    coherent: bool,
) -> Tensor:
    """`real` (float64, on a GPU) with a rounding error of each element, and infinite from `limit` on.

    The error is ``(unit |x| + min(tiny, |x|)) r``, with `tiny` itself where `vanishing`, plus
    ``(grown |s| + min(underflow, |s|)) r'`` for a `scale` s; r and r' are uniform in [-1, 1), or -1 or 1 and
    the same for all elements where `coherent`. `escaped` (int32, one element) becomes 1 where anything
    reaches `limit`.
    """
    moved = torch.empty_like(real)
    x = _flat(real, moved)
    s = x if scale is None else _flat(scale.expand_as(real), moved)
    if x.numel():
        with torch.cuda.device_of(x):
            _move[(triton.cdiv(x.numel(), BLOCK),)](
                x, s, moved, escaped, seed, x.numel(), unit, tiny, grown, underflow,
                torch.inf if limit is None else limit,
                SCALED=scale is not None, LIMITED=limit is not None, VANISHING=vanishing, COHERENT=coherent,
                BLOCK=BLOCK,
            )  # fmt: skip
    return moved


def _flat(t: Tensor, like: Tensor) -> Tensor:
    """`t`, or a copy, with its elements in memory as those of `like`, which has no gaps."""
    return t if t.stride() == like.stride() else torch.empty_like(like).copy_(t)
