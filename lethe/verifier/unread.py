"""Elements of an input that the reference does not read, where a non-finite would test nothing (rule 7)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lethe.verifier import fairness, oracle
from lethe.verifier.structure import flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.problem import Instance

ROUNDS = 27
"""Elements of a window of 3 x 3 x 3, which are told to be read one in a round."""


def unread(
    instance: Instance,
    inputs: list[Any],
    which: int,
    name: str,
    upstream: list[Tensor | None],
    clean: list[Tensor],
) -> Tensor | None:
    """Mask of the elements of tensor `which`, whose gradient is called `name`, that no output depends on;
    None if there are none or they are not found. `clean` are the outputs on `inputs`.

    Suspected are those without a gradient; a NaN in all of them at once must leave every output alone. Where
    it does not, some are read and lost to others: a maximum passes its gradient back to one operand alone.
    With the NaN in place that is one of them, which is so found to be read, and the rest is looked at again.
    Raises ReferenceFailed.
    """
    tensors, skeleton = flatten(inputs)
    suspected: Tensor | None = None
    for _ in range(ROUNDS):
        gradient = oracle.gradients(instance, unflatten(tensors, skeleton), upstream, "float64")[name]
        if gradient is None:
            return None
        left = gradient == 0 if suspected is None else (gradient == 0) & suspected
        if not bool(left.any()) or (suspected is not None and bool((left == suspected).all())):
            return None
        suspected = left
        tensors = list(tensors)
        tensors[which] = flatten(inputs)[0][which].masked_fill(suspected, math.nan)
        seen, _ = flatten(oracle.run_working(instance, unflatten(tensors, skeleton)))
        if fairness.masked_out(clean, seen):
            return suspected
    return None
