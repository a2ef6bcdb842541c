"""The reference in float64 with the NaN of a sum taken for an infinity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_any, tree_map

from lethe.verifier.modes import EagerMode
from lethe.verifier.operations import ADDING, CONTRACTIONS, kind_of
from lethe.verifier.oracle import run_under
from lethe.verifier.problem import Instance

SUMMING = CONTRACTIONS | ADDING | {"add", "sub", "rsub"}
"""Operators whose every element adds terms up. Where infinities of both signs meet in one, it is NaN, and
which terms meet is a matter of association: sum(x * w) may be x * sum(w)."""


class BornAs(EagerMode):
    """Give a NaN that is born in a sum another value, an infinity.

    An element is born NaN if the operator makes it NaN although no NaN reaches it. Composite operators that
    are not spelled out (norms, softmax, variance) are no sums: what they make NaN stays NaN.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kind_of(func)[0] not in SUMMING or not _infinite((args, kwargs)):
            return func(*args, **kwargs)
        # Before the call, which may write into its operands.
        reached = func(*_finite_but_nan(args), **_finite_but_nan(kwargs))
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point():
            out.masked_fill_(out.isnan() & ~reached.isnan(), self.value)
        return out


def _finite_but_nan(value: Any) -> Any:
    """Copies of the floating operands with 1 for every infinity, so that a NaN in the result is a NaN's."""
    return tree_map(
        lambda t: (
            torch.where(t.isinf(), torch.ones_like(t), t)
            if isinstance(t, Tensor) and t.is_floating_point()
            else t
        ),
        value,
    )


def _infinite(value: Any) -> bool:
    return tree_any(
        lambda t: isinstance(t, Tensor) and t.is_floating_point() and bool(t.isinf().any()), value
    )


def born_as(instance: Instance, inputs: Any, value: float) -> Any:
    """The float64 run in which a NaN that a sum makes of infinities is `value` (`BornAs`).

    Raises ReferenceFailed.
    """
    return run_under(instance, inputs, BornAs(value), "re-associated", torch.float32)
