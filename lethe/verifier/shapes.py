"""Sizes at which a candidate is tried.

Bugs hide below one tile: of 114 mutants of real kernels, 48 survived a battery of
small shapes and 14 (nearly all equivalent) once odd sizes above a tile were varied
jointly. Where a loop or a grid loses or adds one element, the last tile holds one element
or lacks one, so the cases end just past a tile (193 = 192 + 1, 4097 = 4096 + 1) and just
before one (47 = 48 - 1, 191 = 192 - 1: with them of 2, 3, 4, 6, 8 ... rows or columns),
beside 1 and small primes.

Only legal sizes are used: the reference is asked on the meta device, then run once
for real. The candidate is never run here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lethe.verifier.axes import Axis, SizeModel, size_model
from lethe.verifier.problem import Problem, ProblemError, instantiate
from lethe.verifier.shrink import Shrunk, shrink
from lethe.verifier.sites import find_sites, hard_coded_sizes, substitute, written_sizes

if TYPE_CHECKING:
    from lethe.verifier.probe import Facts

__all__ = [
    "Axis",
    "ShapeCase",
    "Shrunk",
    "SizeModel",
    "find_sites",
    "hard_coded_sizes",
    "shape_cases",
    "shrink",
    "size_model",
    "substitute",
    "written_sizes",
]

CASE_BUDGET = 1 << 19
"""Default cost of a case in elements (see `probe.Facts.cost`): about a second for an
interpreted kernel whose programs handle 1024 elements in 2 ms."""
MAX_CASES = 12
LARGE_BATCH = 16
"""From here on a leading dimension is likely to be tiled, so it is tried above a tile too."""
TALL = 1025
"""A batch above a tile of 1024 rows: what a second kernel reduces over rows, or a grid counts in tiles."""
MANY = (1 << 15) + 1
"""A batch whose last row a 16-bit index cannot name, below the 65,535 programs of a grid's second axis."""
MANY_BUDGET = 1 << 19
"""What a case of so many rows may cost at least: some milliseconds of eager code on a CPU."""
PAST = (241, 17)
"""The only factors of 4097 = 2^12 + 1."""
LADDER = (4097, 2049, 1025, 513, 257, 193, 129, 97, 65, 47, 33, 17, 13, 7, 5, 3, 2, 1)
"""Values a case falls back to when it is too dear: odd, and one past tiles of 4096 ... 16 where possible."""
WIDE = 4097
"""One more than the largest block that a program usually takes in one tile. An element that is loaded and
worked on holds a 64-bit pointer, the value and a result in four registers of a thread; of its 255 that leaves
room for 63 elements, in the 128 threads of Triton's default four warps for 8,064: the largest power of two
within is 4096."""
WIDE_AT_LEAST = 1025
"""Where `WIDE` is too dear: still more than the 1,024 threads that a block of CUDA may have."""
WIDE_CASES = 2
"""Axes that are tried that wide beside the first, which ordinary cases take past 4096."""
DEARER = 2
"""What a case past a tile may cost in multiples of the others: a loop over time at 100 steps, written for
128, costs that much at 129."""


@dataclass(frozen=True)
class ShapeCase:
    """One set of sizes to judge a candidate at."""

    id: str
    """Readable: ``"width=193"``, ``"batch_size=1"``, ``"joint:batch_size=7,width=193"``."""
    sizes: dict[str, int]
    """Complete substitution for `instantiate` (base sizes included)."""
    moves: str
    """The axis's role (``"batch"``, ``"width"``, ``"length"``, ``"features"``), or ``"joint"``."""
    cost: int
    """Work of the reference in elements."""
    also: str = ""
    """A kind that is drawn too, where the input ends one element after a whole tile: what is lost there is
    one element, which shows only where that element matters. ``"sorted"``: the last of each row is its
    largest; ``"spike"``: it dominates a long sum."""
    refusable: bool = False
    """Whether a clear refusal is no breach: no tile explains it, but the limits of a grid or of shared memory
    may, far above the sizes as written."""


def shape_cases(
    problem: Problem,
    model: SizeModel,
    base_sizes: Mapping[str, int] | None = None,
    budget: int = CASE_BUDGET,
    limit: int = MAX_CASES,
    device: str = "cpu",
    many: bool = False,
) -> list[ShapeCase]:
    """At most `limit` sizes to try a candidate at, the most telling first, and up to `WIDE_CASES` more with
    an axis that is longer than a tile; with `many` one more, of `MANY` rows, for executors to which so many
    programs are nothing.

    `base_sizes` defaults to the model's. `budget` bounds a case's cost in elements; a
    case may always cost as much as the base sizes do, one past a tile `DEARER` times as
    much. Every case was run once for real by the reference (on `device`), with finite
    outputs wherever the base sizes give finite ones.
    """
    base = dict(model.base if base_sizes is None else base_sizes)
    ceiling = max(budget, model.facts.cost)
    demand_finite = _finite(problem, base, device)
    cases: dict[tuple[tuple[str, int], ...], ShapeCase] = {}
    wide = 0
    for wish in _wishes(model.axes):
        if len(cases) - wide == limit or model.prober.exhausted:
            break
        got = _afford(model, base, wish, ceiling * (DEARER if wish.also else 1))
        if got is None:
            continue
        chosen, facts = got
        if any(chosen.get(a, 0) < wish.least for a in wish.keep):
            continue
        sizes = {**base, **{n: v for axis, v in chosen.items() for n in axis.names}}
        key = tuple(sorted(sizes.items()))
        if key in cases:
            continue
        finite = _finite(problem, sizes, device)
        if finite is None or (demand_finite and not finite):
            continue
        wide += bool(wish.least)
        text = ",".join(f"{axis.label}={v}" for axis, v in chosen.items())
        joint = len(chosen) > 1
        moves = "joint" if joint else next(iter(chosen)).role
        name = f"joint:{text}" if joint else text
        cases[key] = ShapeCase(name, sizes, moves, facts.cost, wish.also, refusable=bool(wish.least))
    found = list(cases.values())
    last = _many_rows(model, base, found, max(budget, MANY_BUDGET)) if many else None
    if last is not None and _finite(problem, last.sizes, device) in (True, demand_finite):
        found.append(last)
    return found


def _many_rows(
    model: SizeModel, base: dict[str, int], cases: list[ShapeCase], ceiling: int
) -> ShapeCase | None:
    """`MANY` rows of a width at which the candidate is tried anyway, so that no kernel is compiled for them;
    None where a row is too dear, or the batch is so small that nothing is indexed by it."""
    batch = [a for a in model.axes if a.role == "batch"]
    others = [a for a in model.axes if a.role != "batch"]
    if not batch or max(a.value for a in batch) < LARGE_BATCH or model.prober.exhausted:
        return None
    rows = {n: next(v for v in a.near(MANY) if v >= MANY) for a in batch for n in a.names}
    tried = [{n: c.sizes.get(n, a.value) for a in others for n in a.names} for c in cases]
    tried.append({n: 3 for a in others for n in a.names})
    tried.sort(key=lambda sizes: min(sizes.values(), default=0) == 1)  # a row of one element says least
    for sizes in ({**base, **other, **rows} for other in tried):
        try:
            facts = model.prober.run(sizes, ceiling)
        except ProblemError:
            continue
        if facts.cost <= ceiling:
            text = ",".join(f"{n}={sizes[n]}" for a in (*batch, *others) for n in a.names)
            return ShapeCase(f"rows:{text}", sizes, "joint", facts.cost, refusable=True)
    return None


@dataclass(frozen=True)
class _Wish:
    """Values to try; later lowered where too dear and moved to legal ones."""

    values: dict[Axis, int]
    keep: frozenset[Axis]
    """Axes that are lowered last: the ones this wish is about."""
    also: str = ""
    least: int = 0
    """Below this value of the axes kept, the case is not worth its time."""


def _wishes(axes: tuple[Axis, ...]) -> Iterator[_Wish]:
    """Most telling first. `shape_cases` takes as many as its limit allows."""
    batch = [a for a in axes if a.role == "batch"]
    others = sorted((a for a in axes if a.role != "batch"), key=lambda a: (-a.value, a.role != "width"))

    def one(axis: Axis, value: int) -> _Wish:
        return _Wish({axis: value}, frozenset([axis]))

    def joint(
        batch_value: int, first: int, second: int, rest: int, rotation: int = 0, also: str = ""
    ) -> _Wish:
        turned = others[rotation % len(others) :] + others[: rotation % len(others)] if others else []
        values = dict.fromkeys(batch, batch_value)
        values.update({a: (first, second, rest)[min(i, 2)] for i, a in enumerate(turned)})
        return _Wish(values, frozenset(turned[:2]), also)

    def beyond(a: Axis) -> int:
        return a.value + a.step * (2 if a.step % 2 and a.value % 2 else 1)

    yield joint(7, 193, 191, 5)
    yield from (one(a, 1) for a in batch[:1] + others[:1])
    yield joint(131 if any(a.value >= LARGE_BATCH for a in batch) else 5, 47, 191, 3, rotation=1)
    yield joint(9, 4097, 17, 3, also="sorted")
    yield from _wider_than_a_tile(batch, others)
    yield from _one_past_a_tile(axes)
    if batch and max(a.value for a in batch) >= LARGE_BATCH:
        tall = {a: 33 if a is others[0] else 3 for a in others} | dict.fromkeys(batch, TALL)
        yield _Wish(tall, frozenset(batch))
    for a in others[:1]:
        yield one(a, 13)
        yield one(a, beyond(a))
    yield from (one(a, 131 if a.value != 131 else 193) for a in others[1:3])
    yield from (one(a, beyond(a)) for a in batch[:1])
    yield joint(2, 2049, 17, 3)
    yield from (one(a, v) for a in others[1:3] for v in (1, 13))
    yield joint(5, 37, 17, 3)
    yield from (one(a, v) for a in others[:2] for v in (67, max(1, a.value // 2)))
    yield from (one(a, 67) for a in batch[:1])


def _wider_than_a_tile(batch: list[Axis], others: list[Axis]) -> Iterator[_Wish]:
    """Axes other than the first, alone longer than any tile, reduced ones first: a kernel that takes such an
    axis in one block leaves out what lies beyond it, where an axis of the output would get a grid."""
    for a in sorted(others[1:], key=lambda a: not a.reduced)[:WIDE_CASES]:
        values = dict.fromkeys(others, 3) | dict.fromkeys(batch, 2) | {a: WIDE}
        yield _Wish(values, frozenset([a]), least=WIDE_AT_LEAST)


def _one_past_a_tile(axes: tuple[Axis, ...]) -> Iterator[_Wish]:
    """The last two dimensions of the first input as 17 x 241 = 2^12 + 1, all others 1.

    Rows, planes and the flattened input then all end one element after a whole tile of any power of two up
    to 4096, where a loop or a grid that stops an element early loses a whole tile's result.
    """
    place = {a: max((d for i, d in a.moves if i == 0), default=-1) for a in axes}
    last = sorted((a for a in axes if place[a] >= 0), key=lambda a: -place[a])
    if not last:
        return
    values = dict.fromkeys(axes, 1) | dict(
        zip(last, PAST if len(last) > 1 else [math.prod(PAST)], strict=False)
    )
    yield _Wish(values, frozenset(last[:2]), also="spike")


def _afford(
    model: SizeModel, base: dict[str, int], wish: _Wish, ceiling: int
) -> tuple[dict[Axis, int], Facts] | None:
    """The wish at legal values within the cost ceiling, or None."""
    from lethe.verifier.probe import TooDear

    values = dict(wish.values)
    while values:
        try:
            legal = _legal(model, base, values, ceiling)
            if legal is None or legal[1].cost <= ceiling:
                return legal
        except TooDear:
            pass
        minor = [a for a in values if a not in wish.keep and values[a] > 3]
        dearest = max(minor or values, key=lambda a: values[a])
        lower = next((v for v in LADDER if v < values[dearest]), 0)
        if not lower or (len(values) == 1 and lower <= dearest.value):
            return None
        values[dearest] = lower
    return None


def _legal(
    model: SizeModel, base: dict[str, int], values: dict[Axis, int], ceiling: int
) -> tuple[dict[Axis, int], Facts] | None:
    """The values nearest to those wished for that the reference accepts.

    Axes that have no legal value near the wish stay at the base sizes. Raises TooDear.
    """
    nearest = {axis: next(axis.near(target)) for axis, target in values.items()}
    for attempt in (nearest, None):
        chosen: dict[Axis, int] = {}
        sizes = dict(base)
        if attempt is not None:
            chosen = attempt
            sizes.update({n: v for axis, v in attempt.items() for n in axis.names})
        else:
            for axis, target in values.items():
                for v in list(axis.near(target))[:4]:
                    there = {**sizes, **dict.fromkeys(axis.names, v)}
                    if _accepted(model, there, ceiling):
                        chosen[axis], sizes = v, there
                        break
        moved = {a: v for a, v in chosen.items() if v != a.value}
        if moved and _accepted(model, sizes, ceiling):
            return moved, model.prober.run(sizes)
    return None


def _accepted(model: SizeModel, sizes: dict[str, int], ceiling: int) -> bool:
    from lethe.verifier.probe import TooDear

    try:
        model.prober.run(sizes, ceiling)
    except TooDear:
        raise
    except ProblemError:
        return False
    return True


def _finite(problem: Problem, sizes: Mapping[str, int], device: str) -> bool | None:
    """Whether the reference's floating outputs are finite; None if `sizes` are not legal (rule 19)."""
    from lethe.verifier.fairness import legal_shape
    from lethe.verifier.reference import run_reference
    from lethe.verifier.structure import flatten

    try:
        instance = instantiate(problem, sizes, device=device)
        outputs, _ = flatten(run_reference(instance, instance.draw(0)))
    except ProblemError as refusal:
        return True if legal_shape(refusal) else None
    if not legal_shape(None, outputs):
        return None
    return all(bool(t.isfinite().all()) for t in outputs if t.is_floating_point())
