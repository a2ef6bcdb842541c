"""Sums of absolute terms: the companion of a linear operator that bounds every order of summation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lethe.verifier.modes import EagerMode, widened
from lethe.verifier.operations import ELEMENTARY, SELECTING, is_scaling, kind_of, lengths, whole_power
from lethe.verifier.oracle import (
    ReferenceFailed,
    call,
    cast_floating,
    default_dtype,
    module_copy,
    pinned_backends,
    reference_errors,
)
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten


class NotASumOfProducts(Exception):
    """The reference holds an operator for which sums of absolute terms do not bound the error."""


class AbsoluteTerms(EagerMode):
    """Evaluate a sum of products with every term made positive: subtractions add, negations vanish."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, kind = kind_of(func)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.is_complex() for t in given):  # a part of a product is a difference of products
            raise NotASumOfProducts(name)
        if not any(t.is_floating_point() for t in given) or func.is_view:
            return func(*args, **kwargs)
        if kind == "exact":
            if name in SELECTING or name in ("sign", "floor", "ceil", "round", "trunc", "heaviside", "relu"):
                raise NotASumOfProducts(name)
            return args[0].abs() if name == "neg" else func(*_positive(args), **_positive(kwargs))
        if kind in ("contraction", "adding"):
            out = func(*_positive(args), **_positive(kwargs))
            self.length += lengths(name, args, out)[0]
            return out
        product = is_scaling(name, args) or (name in ELEMENTARY and whole_power(name, args))
        if not product or func._schema.is_mutable:
            raise NotASumOfProducts(name)
        self.length += 1
        if name in ("sub", "rsub"):
            alpha = abs(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
            first, second = _positive(args[:2])
            return first + alpha * second if name == "sub" else second + alpha * first
        return func(*_positive(args), **_positive(kwargs))


def _positive(value: Any) -> Any:
    def positive(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.abs() if x.is_floating_point() else x
        return abs(x) if isinstance(x, float) else x

    return tree_map(positive, value)


@dataclass(frozen=True)
class Terms:
    """Sums of absolute terms of a sum of products."""

    absolute: list[Tensor]
    """float64 per output tensor: A with |error| <= gamma_length A for every order of evaluation."""
    length: int
    """At most so many roundings lie on the way to any output element."""

    @property
    def largest(self) -> float:
        """The largest sum of any output element."""
        return max((float(t.max()) for t in self.absolute if t.numel()), default=0.0)


def absolute_terms(instance: Instance, inputs: Any) -> Terms | None:
    """Sums of |terms| and the number of roundings, or None if the reference is no sum of products.

    Bound: |computed - exact| <= gamma_n A, n = accumulation length; N. Higham, *Accuracy and Stability
    of Numerical Algorithms*, 2nd ed., section 3.1. Raises ReferenceFailed.
    """
    mode = AbsoluteTerms()
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64):
        module = module_copy(instance, torch.float64)
        try:
            with reference_errors("absolute"), widened(), mode:
                out = call(module, wide)
        except ReferenceFailed as e:
            if isinstance(e.__cause__, NotASumOfProducts):
                return None
            raise
    tensors = flatten(out)[0]
    if any(t.is_complex() for t in tensors):
        return None
    return Terms([t.double().abs() for t in tensors], max(1, mode.length))
