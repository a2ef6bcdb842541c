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
from lethe.verifier.modes import EagerMode, widened
from lethe.verifier.oracle import (
    call,
    cast_floating,
    default_dtype,
    module_copy,
    pinned_backends,
    reference_errors,
)
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

    `inputs` are finite. Raises ReferenceFailed.
    """
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64), reference_errors("split products"):
        with widened():
            plain = flatten(call(module_copy(instance, torch.float64, through=torch.float32), wide))[0]
        with widened(), _Split(dtype):
            split = flatten(call(module_copy(instance, torch.float64, through=torch.float32), wide))[0]
    return [_nan(b) & ~_nan(a) for a, b in zip(plain, split, strict=True)]


def _nan(t: Tensor) -> Tensor:
    return (t.isnan() if t.is_floating_point() else torch.zeros(t.shape, dtype=torch.bool)).cpu()
