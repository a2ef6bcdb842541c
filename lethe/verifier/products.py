"""The elements of a reference whose value rests on a product that can be split otherwise.

A blocked or tree-shaped product multiplies parts first. Where a part underflows, an infinity before it makes
NaN (zero times infinity); in the reference's order it stays one. Found out on the reference alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lethe.verifier.conditioning import overflow_limit
from lethe.verifier.modes import EagerMode
from lethe.verifier.oracle import run_under
from lethe.verifier.perturbation import partial_products_escape, smallest
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten

PRODUCTS = ("prod", "cumprod")


class _Split(EagerMode):
    """NaN for every product of which some contiguous part leaves the range of the working precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.limit, self.tiny = overflow_limit(dtype), smallest(dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in PRODUCTS and isinstance(out, Tensor) and out.is_floating_point():
            parts = partial_products_escape(name, args, kwargs, out, self.limit, self.tiny)
            out = out.masked_fill(parts, math.nan)
        return out


def splittable(instance: Instance, inputs: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """For each output, in the host's memory, a mask of the elements that rest on such a product.

    Elements that are NaN anyway are in it. Raises ReferenceFailed.
    """
    split = run_under(instance, inputs, _Split(dtype), "split products", torch.float32)
    return [_nan(t) for t in flatten(split)[0]]


def _nan(t: Tensor) -> Tensor:
    return (t.isnan() if t.is_floating_point() else torch.zeros(t.shape, dtype=torch.bool)).cpu()
