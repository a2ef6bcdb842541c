"""The switch of a fairness rule, in tests only: its function replaced wherever lethe holds it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lethe.verifier.fairness import RULES
from lethe.verifier.tolerance import UNIT


def never(*_: Any, **__: Any) -> bool:
    return False


def always(*_: Any, **__: Any) -> bool:
    return True


def nowhere(a: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.zeros(a.shape, dtype=torch.bool)


def everywhere(a: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.ones(a.shape, dtype=torch.bool)


def itself(value: Any, *_: Any) -> Any:
    return value


OFF: dict[int, Callable[..., Any]] = {
    1: never,
    2: never,
    3: never,
    4: nowhere,
    5: itself,
    6: nowhere,
    7: never,
    8: everywhere,
    9: lambda dtype: float("inf"),
    10: never,
    11: never,
    12: lambda dtype, output=None: UNIT["float32"],
    13: always,
    14: always,
    15: always,
    16: never,
    17: never,
    18: lambda aliases, reference_aliases: list(aliases),
    19: always,
    20: never,
    21: never,
    22: never,
    23: always,
    24: always,
    25: never,
    26: always,
    27: lambda rejected, honest: (rejected / honest, rejected / honest),
    28: always,
    29: never,
    30: nowhere,
    31: never,
    32: never,
    33: itself,
    34: never,
    35: lambda source, sizes, written=None: {},
    36: nowhere,
    37: never,
    38: never,
    39: never,
    40: always,
    41: nowhere,
    42: always,
    43: always,
    44: always,
    45: never,
    46: never,
    47: never,
}
"""What a harness without the rule does in its place."""


@contextmanager
def without(rule: int) -> Iterator[None]:
    """Replace the function of `rule` in every module of lethe that holds it, under whatever name."""
    function = RULES[rule].predicate
    held = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path == "lethe" or path.startswith("lethe.")
        for name, value in list(vars(module).items())
        if value is function
    ]
    assert held, f"no module of lethe holds the function of rule {rule}"
    try:
        for module, name in held:
            setattr(module, name, OFF[rule])
        yield
    finally:
        for module, name in held:
            setattr(module, name, function)


assert set(OFF) == set(RULES), "every rule has its switch"
