"""The register of mutation operators: a name, the bug it stands for, the function that finds its sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lethe.evidence.mutants.source import Edit

Finder = Callable[..., Iterator[Edit]]


@dataclass(frozen=True)
class Operator:
    """One kind of mutation."""

    name: str
    group: str
    """``"memory"``, ``"loop"``, ``"value"``, ``"precision"``, ``"wrapper"`` or ``"cpp"``."""
    bug: str
    """The bug it imitates, in a few words."""
    find: Finder


OPERATORS: dict[str, Operator] = {}


def operator(name: str, group: str, bug: str) -> Callable[[Finder], Finder]:
    """Register a function that yields the edits of an operator on what its group works on
    (a `Kernel`, a `Wrapper` or a `CppText`)."""

    def register(find: Finder) -> Finder:
        if name in OPERATORS:
            raise ValueError(f"there are two operators named {name}")
        OPERATORS[name] = Operator(name, group, bug, find)
        return find

    return register


def edits(groups: tuple[str, ...], target: Any) -> Iterator[Edit]:
    """Every edit that the operators of these groups find on a target."""
    for op in OPERATORS.values():
        if op.group in groups:
            yield from op.find(target)
