"""The large sample on which a mutant is compared with its base: inputs that no gate draws.

Sizes are drawn at random up to several tiles, with powers of two and their neighbours among them; values
are the reference's own draws, every structured kind of `lethe.verifier.inputs`, random bit patterns (all
of float32: NaN, infinities, subnormals, both ends of the range), single non-finites at random places, and
other memory layouts. Last come every remainder that a tile of twelve or less can leave, on both sides of a
tile of 128, and more rows than 16 bits count. Seeds, sizes and places are this module's own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.axes import Axis
    from lethe.verifier.problem import Instance, Problem

SEED = 7_340_033
SIZES = 7
"""Random sizes, besides the ones that the problem is written with and the corners."""
COST = 1 << 18
"""Work of the reference (`probe.Facts.cost`) at a random size: about a second in the interpreter."""
SMALL = (1, 2, 3, 5, 8, 15, 17, 31)
LARGE = (
    33,
    64,
    100,
    127,
    128,
    129,
    200,
    255,
    257,
    384,
    512,
    513,
    700,
    1000,
    1023,
    1025,
    2047,
    2049,
    3001,
    4097,
)
"""What an axis may become; one or two axes are large at a time, since an interpreted program costs a
millisecond whatever its width."""
BATCH = (1, 2, 7, 33, 65)
"""What a batch may become."""
CORNERS = ((17, 241), (3, 683), (25, 41), (1025, 3), (65, 1025))
"""What the last two axes become, all others 1: the product is one more than 2^12, 2^11 and 2^10, then
the first is above a tile of 1024, then the product is above 2^16."""
CORNER_COST = 1 << 20
ADJACENT = range(120, 132)
"""What each of the largest axes becomes in turn."""
ADJACENT_AXES = 3
TALL = 33_001
"""What the first dimension becomes, the others 1 or 2: beyond what a signed 16-bit index holds."""
EVERY_SIZE = ("normal", "bits", "normal", "finite_bits", "negative", "nan")
"""Kinds drawn at each size; the first sizes get every other kind too."""
ALL_KINDS = 2
"""How many sizes do."""


@dataclass(frozen=True)
class Sample:
    """One call: which sizes the modules are built at, whether their weights are varied, and what they get."""

    id: str
    sizes: dict[str, int]
    inputs: list[Any]
    varied: bool = False
    gradient: bool = False
    """Whether gradients are asked for too."""
    other: list[Any] | None = None
    """Inputs of a later call, after which the first result is read again; the first call is repeated then."""
    tall: bool = False
    """Whether an interpreter may take longer than its limit, which then says nothing."""


def sizes_of(problem: Problem) -> list[dict[str, int]]:
    """The written sizes (an empty substitution), then `CORNERS`, then random ones; all legal."""
    from lethe.verifier.axes import size_model
    from lethe.verifier.problem import ProblemError

    model = size_model(problem)
    rng = random.Random(f"{SEED}:{problem.name}")
    found: list[dict[str, int]] = [{}]

    def add(values: list[int], cost: int) -> None:
        sizes = {
            n: v
            for axis, wish in zip(model.axes, values, strict=True)
            for v in [next(axis.near(wish))]
            for n in axis.names
        }
        try:
            if sizes not in found and model.prober.run(sizes, cost).cost <= cost:
                found.append(sizes)
        except ProblemError:
            return

    for pair in CORNERS if model.axes else ():
        add(_corner(model.axes, pair), CORNER_COST)
    for _ in range(60 * SIZES):
        if len(found) > SIZES + len(CORNERS) or not model.axes:
            break
        large = {rng.randrange(len(model.axes)) for _ in range(2)}
        add([_random(rng, axis, i in large) for i, axis in enumerate(model.axes)], COST)
    return found


def adjacent_sizes(problem: Problem) -> list[dict[str, int]]:
    """`ADJACENT` for one axis after another, all others as small as is legal; then `TALL`."""
    from lethe.verifier.axes import size_model
    from lethe.verifier.problem import ProblemError

    model = size_model(problem)
    found: list[dict[str, int]] = []

    def add(wanted: Axis, value: int, others: int) -> bool:
        sizes = {
            n: v
            for axis in model.axes
            for v in [next(axis.near(value if axis is wanted else others))]
            for n in axis.names
        }
        try:
            legal = sizes not in found and model.prober.run(sizes, CORNER_COST).cost <= CORNER_COST
        except ProblemError:
            return False
        found.extend([sizes] if legal else [])
        return legal

    for axis in sorted(model.axes, key=lambda a: -a.value)[:ADJACENT_AXES]:
        for value in ADJACENT:
            add(axis, value, 3)
    leading = [a for a in model.axes if (0, 0) in a.moves]
    for axis in leading[:1]:
        if not add(axis, TALL, 2):
            add(axis, TALL, 1)
    return found


def _corner(axes: Sequence[Axis], pair: tuple[int, int]) -> list[int]:
    """`pair` for the axes of the last two dimensions of the first input, 1 for the others."""
    place = [max((d for i, d in a.moves if i == 0), default=-1) for a in axes]
    last = sorted(range(len(axes)), key=lambda i: -place[i])[:2]
    values = [1] * len(axes)
    for i, value in zip(last, reversed(pair), strict=False):
        values[i] = value if len(last) > 1 else math.prod(pair)
    return values


def _random(rng: random.Random, axis: Axis, large: bool) -> int:
    if not large:
        return rng.choice(SMALL)
    return rng.choice(BATCH if axis.role == "batch" else LARGE)


def samples(problem: Problem) -> Iterator[Sample]:
    """All samples of a problem, the most telling first."""
    from lethe.verifier.inputs import KINDS, layouts
    from lethe.verifier.problem import instantiate

    sizes = sizes_of(problem)
    structured = [k for k in KINDS if k != "normal"]
    for n, at in enumerate(sizes):
        instance = instantiate(problem, at, seed=0)
        label = "written" if not at else f"size{n}"
        kinds = [*EVERY_SIZE, "spike", *((*structured, "inf") if n < ALL_KINDS else ())]
        for k, kind in enumerate(kinds):
            drawn = _draw(instance, kind, SEED + 1000 * n + k)
            if drawn is not None:
                yield Sample(
                    f"{label}:{kind}:{k}", at, drawn, varied=k % 2 == 1, gradient=k == 0 and n < ALL_KINDS
                )
        own = instance.draw(SEED + 1000 * n + 500)
        if n < ALL_KINDS:
            for name, laid_out in layouts(own):
                yield Sample(f"{label}:layout:{name}", at, laid_out)
            yield Sample(f"{label}:repeated", at, own, other=instance.draw(SEED + 1000 * n + 501))
    for n, at in enumerate(adjacent_sizes(problem)):
        tall = max(at.values()) >= TALL - 1
        drawn = instantiate(problem, at, seed=0).draw(SEED - 1 - n)
        yield Sample(f"{'tall' if tall else 'adjacent'}{n}", at, drawn, tall=tall)


def _draw(instance: Instance, kind: str, seed: int) -> list[Any] | None:
    """Inputs of a kind, or None where the operator's domain has none."""
    from lethe.verifier import inputs
    from lethe.verifier.structure import flatten, unflatten

    if kind in inputs.KINDS:
        try:
            return inputs.draw(instance, kind, seed)
        except inputs.IllegalDraw:
            return None
    tensors, skeleton = flatten(instance.draw(seed))
    free = [i for i, d in enumerate(inputs.describe(instance)) if d.kind == "real" and tensors[i].numel()]
    if not free:
        return None
    for i in free:
        d = inputs.describe(instance)[i]
        x = _values(tensors[i], kind, seed + i)
        if d.sign in ("positive", "nonnegative"):
            x = x.abs()
        tensors[i] = x if d.zeros is None else x.masked_fill(d.zeros, 0.0)
    drawn: list[Any] = unflatten(tensors, skeleton)
    return drawn


def _values(x: Tensor, kind: str, seed: int) -> Tensor:
    import torch

    g = torch.Generator().manual_seed(seed)
    if kind == "negative":
        return -x.abs() * 40 - (200.0, 2e5, 1e12)[seed % 3]
    if kind in ("nan", "inf"):
        x = x.clone()
        at = torch.randint(x.numel(), (1,), generator=g)
        x.view(-1)[at] = math.nan if kind == "nan" else math.copysign(math.inf, seed % 2 - 0.5)
        return x
    bits = torch.randint(-(2**31), 2**31, x.shape, generator=g).to(torch.int32)
    if kind == "finite_bits":  # exponents from 2^-24 to 2^7, random signs and mantissas
        exponent = torch.randint(103, 135, x.shape, generator=g).to(torch.int32)
        bits = (bits & ~0x7F800000) | (exponent << 23)
    return bits.view(torch.float32)
