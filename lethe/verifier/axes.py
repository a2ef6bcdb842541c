"""Which sizes of a problem can be varied.

Sites are integer literals of the source (see `sites`). A site, or several of equal
value moved together, is an *axis* if the reference stays legal at other values and a
dimension of an input moves with it. The reference is asked on the meta device
(see `probe`); a candidate is never run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from lethe.verifier.problem import Problem, ProblemError, sizes_as_written

if TYPE_CHECKING:
    from lethe.verifier.probe import Facts, Prober, Shape

MAX_PAIRS = 12
"""Pairs of equal-valued sites tried when neither one nor all of them together move."""


@dataclass(frozen=True)
class Axis:
    """One size that can be varied."""

    names: tuple[str, ...]
    """Sites that move together."""
    value: int
    """Its value at the base sizes."""
    role: str
    """``"batch"``, ``"width"`` (a last dimension or a parameter moves), ``"length"``, or
    ``"features"`` (no input moves, but leading dimensions of parameters do)."""
    moves: tuple[tuple[int, int], ...]
    """``(input tensor, dimension)`` pairs that move with it."""
    parameters: bool
    """Whether shapes of parameters or buffers move with it."""
    step: int
    """``value + k * step`` is usually legal; 1 if any value is."""
    reduced: bool = False
    """Whether no output dimension moves: what a kernel leaves out along it is missing from every result."""

    @property
    def label(self) -> str:
        return "=".join(self.names)

    def near(self, target: int, window: int = 3) -> Iterator[int]:
        """Positive values of the axis's grid around `target`: odd ones first, then the nearest."""
        middle = (target - self.value) // self.step
        grid = [self.value + (middle + k) * self.step for k in range(-window, window + 1)]
        values = [v for v in grid if v > 0]
        odd_steps = self.step % 2 == 0

        def rank(v: int) -> tuple[int, int, int]:
            even = (v // self.step) % 2 == 0 if odd_steps and v % self.step == 0 else v % 2 == 0
            return (0 if v == target else 1, int(even), abs(v - target))

        yield from sorted(values, key=rank)


@dataclass(frozen=True)
class SizeModel:
    """What may be varied in a problem."""

    written: dict[str, int]
    """Every site with its value as written."""
    base: dict[str, int]
    """Substitutions that were in force (empty: as written)."""
    axes: tuple[Axis, ...]
    fixed: dict[str, str]
    """Sites that are no sizes, with the reason."""
    facts: Facts
    """The reference at the base sizes."""
    prober: Prober

    @property
    def varied(self) -> tuple[str, ...]:
        """Labels of the axes that move an input dimension other than the batch."""
        return tuple(a.label for a in self.axes if a.role in ("width", "length"))


def size_model(problem: Problem, base: Mapping[str, int] | None = None) -> SizeModel:
    """Find the axes of `problem` around the sizes `base` (site name -> value; others as written).

    Raises ProblemError if the reference refuses the base sizes.
    """
    from lethe.verifier.probe import Prober

    written = sizes_as_written(problem)
    base = dict(base or {})
    prober = Prober(problem, base)
    facts = prober.run(base)
    values = {**written, **base}
    axes: list[Axis] = []
    fixed: dict[str, str] = {}
    for name in written:
        found = _axis(prober, base, facts, (name,), values[name])
        if isinstance(found, Axis) and written[name] == 1:
            found = _broadcasts(found, prober, base, facts) or found
        if isinstance(found, Axis):
            axes.append(found)
        else:
            fixed[name] = found
    for names in _equal_groups(values, fixed):
        if any(n not in fixed for n in names):
            continue
        found = _axis(prober, base, facts, names, values[names[0]])
        if isinstance(found, Axis):
            axes.append(found)
            for n in names:
                del fixed[n]
    return SizeModel(written, base, tuple(axes), fixed, facts, prober)


def _equal_groups(values: Mapping[str, int], fixed: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Sites of equal value that do not move alone: all of them together, then pairs."""
    by_value: dict[int, list[str]] = {}
    for name in fixed:
        if values[name] > 1:
            by_value.setdefault(values[name], []).append(name)
    for names in by_value.values():
        if len(names) > 1:
            yield tuple(names)
        if len(names) > 2:
            yield from list(combinations(names, 2))[:MAX_PAIRS]


def _axis(
    prober: Prober, base: dict[str, int], facts: Facts, names: tuple[str, ...], value: int
) -> Axis | str:
    """The axis that `names` form, or why they form none."""

    def at(v: int) -> dict[str, int]:
        return {**base, **dict.fromkeys(names, v)}

    moves: set[tuple[int, int]] = set()
    parameters = False
    refused = ""
    for v in dict.fromkeys([value + 1, value * 2, value + 2, max(1, value // 2)]):
        if v == value:
            continue
        try:
            there = prober.shapes(at(v))
        except ProblemError as e:
            refused = str(e)
            continue
        if [len(s) for s in there.inputs] != [len(s) for s in facts.inputs]:
            return "the number or rank of the inputs moves"
        if [len(s) for s in there.parameters] != [len(s) for s in facts.parameters]:
            return "the number or rank of the parameters moves"
        moved = _differences(facts.inputs, there.inputs)
        if not moved:
            return _features(prober, at, facts, names, value, v)
        if any((change > 0) != (v > value) for change in moved.values()):
            return "an input dimension moves the other way"
        moves |= set(moved)
        parameters = parameters or there.parameters != facts.parameters
        break
    if not moves:
        return f"no other value is legal ({refused})"
    step, outputs = _step(prober, at, facts, value)
    if step == 0:
        return "the reference accepts no other value"
    last = any(d == len(facts.inputs[i]) - 1 and d > 0 for i, d in moves)
    leading = all(d == 0 for _, d in moves) and outputs <= {0} and not parameters and not last
    if leading or (any("batch" in n.lower() for n in names) and not last):
        role = "batch"
    else:
        role = "width" if last or parameters else "length"
    return Axis(names, value, role, tuple(sorted(moves)), parameters, step, not outputs)


def _broadcasts(axis: Axis, prober: Prober, base: dict[str, int], facts: Facts) -> str:
    """Why a size written as 1 is none, or ``""``.

    A dimension of 1 is legal at other values by broadcasting alone, which a kernel for the sizes as written
    need not do (fairness rule 19): ``torch.randn(k, 1)`` is a column, and one of two inputs written alike
    that grows alone makes them two different things. A batch of 1 grows in all of them. One that moves
    parameters only, as in a bias of shape ``(channels, 1, 1)``, makes rows that no input has.
    """
    if not axis.moves:
        return "written as 1, it moves no input dimension"
    if any("#" in name for name in axis.names):
        return "a 1 inside an expression is part of the form"
    there = prober.shapes({**base, **dict.fromkeys(axis.names, axis.value + axis.step)}).inputs
    pairs = combinations(zip(facts.inputs, there, strict=True), 2)
    if any(a == b and at_a != at_b for (a, at_a), (b, at_b) in pairs):
        return "written as 1, it makes inputs differ that are written alike"
    return ""


def _step(
    prober: Prober, at: Callable[[int], dict[str, int]], facts: Facts, value: int
) -> tuple[int, set[int]]:
    """Smallest step at which the reference stays legal, and the output dimensions that move.

    A step of 0 means that nothing but `value` is legal.
    """
    divisors = [d for d in range(1, min(value, 128) + 1) if value % d == 0]
    for d in dict.fromkeys([*divisors, 1, value]):
        for sign in (1, -1):
            if value + 3 * sign * d < 1 and value + sign * d < 1:
                continue
            try:
                there = prober.run(at(value + sign * d))
                if value + 3 * sign * d > 0:
                    prober.run(at(value + 3 * sign * d))
            except ProblemError:
                continue
            return d, {k for _, k in _differences(facts.outputs, there.outputs)}
    return 0, set()


def _features(
    prober: Prober,
    at: Callable[[int], dict[str, int]],
    facts: Facts,
    names: tuple[str, ...],
    value: int,
    other: int,
) -> Axis | str:
    """An axis such as ``out_features`` or ``hidden_size``: leading dimensions of parameters grow with the
    size, and outputs grow with it or stay. A kernel size moves trailing dimensions, so it is none."""
    try:
        there = prober.run(at(other))
    except ProblemError:
        return "no input dimension moves"
    parameters = _differences(facts.parameters, there.parameters)
    outputs = _differences(facts.outputs, there.outputs)
    changes = [*parameters.values(), *outputs.values()]
    leading = parameters and all(d < 2 for _, d in parameters)
    if not leading or any((change > 0) != (other > value) for change in changes):
        return "no input dimension moves"
    step, _ = _step(prober, at, facts, value)
    if not step:
        return "the reference accepts no other value"
    return Axis(names, value, "features", (), True, step, not outputs)


def _differences(here: tuple[Shape, ...], there: tuple[Shape, ...]) -> dict[tuple[int, int], int]:
    """``(tensor, dimension)`` -> change, where the shapes differ."""
    return {
        (i, d): b - a
        for i, (s, t) in enumerate(zip(here, there, strict=False))
        for d, (a, b) in enumerate(zip(s, t, strict=False))
        if a != b
    }
