"""Where a NaN of the reference only says how its terms are associated.

``sum(x * w)`` with one infinite x adds +Inf and -Inf up where the weights differ in sign; ``x * sum(w)``, the
same function by the distributive law, is one infinity. Found out on the reference alone, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lethe.verifier import births, oracle
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten, unflatten

MOST_SOURCES = 32
"""Infinities that are tried one by one. `placement` puts at most 16 at the edges of tiles, twice that in a
symmetric matrix; a longer row of them counts as associable untried, in the candidate's favour."""


def undecided(instance: Instance, inputs: Any, clean: Any) -> list[Tensor]:
    """For each output, in the host's memory, a mask of the elements that may be an infinity instead of NaN.

    `clean` are the inputs without their infinities. Where a NaN is among the inputs no element is in a mask;
    else one is if

    * it is infinite where every NaN that a sum makes is taken for +Inf, or for -Inf: so no NaN is born
      elsewhere (Inf / Inf, Inf - Inf in a norm, 0 * Inf in a product by element) on its way; and
    * one of the infinities alone makes it NaN. What two of them make together stays NaN in every spelling of
      a linear function: if the coefficients of both inputs differ in sign, some partial sum meets both.

    Raises ReferenceFailed.
    """
    runs = [flatten(births.born_as(instance, inputs, value))[0] for value in (math.inf, -math.inf)]
    open_to = [_where(torch.isinf, up) | _where(torch.isinf, down) for up, down in zip(*runs, strict=True)]
    if any(bool(_where(torch.isnan, t).any()) for t in flatten(inputs)[0]):
        return [torch.zeros_like(mask) for mask in open_to]
    alone = _alone(instance, inputs, clean)
    return open_to if alone is None else [a & b for a, b in zip(open_to, alone, strict=True)]


def _alone(instance: Instance, inputs: Any, clean: Any) -> list[Tensor] | None:
    """A mask per output of what some single infinity makes NaN; None where there are too many to try."""
    tensors, skeleton = flatten(inputs)
    base, _ = flatten(clean)
    infinite = [_where(torch.isinf, t) for t in tensors]
    if sum(int(mask.sum()) for mask in infinite) > MOST_SOURCES:
        return None
    masks: list[Tensor] = []
    for k, mask in enumerate(infinite):
        for i in mask.reshape(-1).nonzero().reshape(-1).tolist():
            one = [b.clone(memory_format=torch.contiguous_format) for b in base]
            one[k].view(-1)[i] = tensors[k].reshape(-1)[i]
            found, _ = flatten(oracle.run_float64(instance, unflatten(one, skeleton)))
            nan = [_where(torch.isnan, t) for t in found]
            masks = [a | b for a, b in zip(masks, nan, strict=True)] if masks else nan
    return masks


def _where(holds: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """A mask in the host's memory; of an integer tensor nothing is NaN or infinite."""
    return holds(t).cpu() if t.is_floating_point() else torch.zeros(t.shape, dtype=torch.bool)
