"""Fitting a problem into a time and memory budget.

KernelBench draws up to 17 GB of inputs for one problem. Sizes are halved, largest
axis first, until the reference's predicted bytes and work fit (found on the meta
device, without data), then until its measured first run does. Sizes stay odd and
above one tile where that is possible: bugs hide below a tile and behind even sizes.
A step that makes the output constant or non-finite is taken back, since nothing
could be judged there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lethe.verifier.axes import Axis, SizeModel, size_model
from lethe.verifier.problem import Problem, ProblemError, instantiate

if TYPE_CHECKING:
    from lethe.verifier.probe import Facts

ELEMENTS_PER_SECOND = 0.3e9
"""Work of the reference on one CPU thread (see `probe.FLOPS_PER_ELEMENT`), for the first guess."""
FLOORS = ({"batch": 7}, 131), ({"batch": 3}, 33), ({"batch": 1}, 2)
"""Stages: floor of the batch and of other axes. 131 is above a tile of 128, 33 above one of 32.
The last stage is entered only if the budget can be met there."""
MAX_MEASUREMENTS = 5


@dataclass(frozen=True)
class Shrunk:
    """Sizes at which a problem is judged, and why they are not those written."""

    sizes: dict[str, int]
    """Substitution for `instantiate`; empty if the problem fits as written."""
    reason: str
    """``""`` if it fits as written."""
    elements_before: int
    """Elements of inputs, parameters and outputs as written (0 if unknown)."""
    elements_after: int
    seconds: float
    """Measured first run of the reference at these sizes, with drawing its inputs."""
    fits: bool
    """False if no legal size fits the budget; `sizes` is then the smallest that is worth judging."""


@dataclass(frozen=True)
class _Budget:
    seconds: float
    max_bytes: int
    max_cost: int | None
    device: str

    def excess(self, facts: Facts) -> str:
        """Why the predicted needs are too large, or ``""``."""
        if facts.peak_bytes > self.max_bytes:
            return f"needs {facts.peak_bytes / 1e6:.0f} MB of {self.max_bytes / 1e6:.0f}"
        if self.max_cost is not None and facts.cost > self.max_cost:
            return f"works through {facts.cost:.3g} elements of {self.max_cost:.3g}"
        if self.device == "cpu" and facts.cost > 2 * self.seconds * ELEMENTS_PER_SECOND:
            return f"would run {facts.cost / ELEMENTS_PER_SECOND:.3g} s of {self.seconds:g}"
        return ""


def shrink(
    problem: Problem,
    seconds: float = 2.0,
    max_bytes: int = 1 << 30,
    max_cost: int | None = None,
    device: str = "cpu",
) -> Shrunk:
    """Sizes at which the reference runs within `seconds` and `max_bytes` on `device`.

    `max_cost` bounds its work in elements (see `probe.Facts.cost`), for executors that
    are much slower than the reference. Raises ProblemError if the reference cannot run.
    """
    model = size_model(problem)
    budget = _Budget(seconds, max_bytes, max_cost, device)
    reason = budget.excess(model.facts)
    walk = _Walk(model)
    while budget.excess(walk.facts) and walk.halve():
        pass
    if budget.excess(walk.facts):
        walk.leave_last_stage()
    elapsed, flaw = _measure(problem, walk.sizes, device, seconds)
    if flaw and walk.path:
        elapsed, flaw = _take_back(problem, walk, budget, elapsed, flaw)
    measurements = 1
    while elapsed > seconds and measurements < MAX_MEASUREMENTS:
        reason = reason or f"runs {elapsed:.2g} s of {seconds:g}"
        target = walk.facts.cost * seconds / elapsed
        before = len(walk.path)
        while walk.facts.cost > target and walk.halve():
            pass
        if len(walk.path) == before:
            break
        slower = elapsed
        elapsed, new_flaw = _measure(problem, walk.sizes, device, seconds)
        if new_flaw and not flaw:
            del walk.path[before:]
            elapsed = slower
            break
        measurements += 1
    fits = not budget.excess(walk.facts) and elapsed <= seconds
    if flaw and walk.path:
        reason = f"{reason}; {flaw} at every size tried"
    return Shrunk(walk.sizes, reason, model.facts.elements, walk.facts.elements, elapsed, fits)


class _Walk:
    """The way from the written sizes down, one halved axis at a time."""

    def __init__(self, model: SizeModel) -> None:
        self.model = model
        self.path: list[tuple[dict[Axis, int], Facts]] = []
        self._last_stage: int | None = None
        """Length of the path when the last stage was entered."""

    @property
    def values(self) -> dict[Axis, int]:
        return self.path[-1][0] if self.path else {a: a.value for a in self.model.axes}

    @property
    def facts(self) -> Facts:
        return self.path[-1][1] if self.path else self.model.facts

    @property
    def sizes(self) -> dict[str, int]:
        return self.sizes_of(self.values)

    def sizes_of(self, values: dict[Axis, int]) -> dict[str, int]:
        return {n: v for a, v in values.items() if v != a.value for n in a.names}

    def halve(self) -> bool:
        """Halve the axis furthest above its floor; False if none can be, or the search took too long."""
        if self.model.prober.exhausted:
            return False
        for stage, (floors, other) in enumerate(FLOORS):
            if stage == len(FLOORS) - 1 and self._last_stage is None:
                self._last_stage = len(self.path)
            values = self.values
            above = {a: v / floors.get(a.role, other) for a, v in values.items()}
            for axis in sorted(above, key=lambda a: -above[a]):
                if above[axis] > 1 and self._lower(axis, floors.get(axis.role, other)):
                    return True
        return False

    def leave_last_stage(self) -> None:
        """Go back to sizes above a tile: the last stage did not help."""
        if self._last_stage is not None:
            del self.path[self._last_stage :]

    def _lower(self, axis: Axis, floor: int) -> bool:
        values, facts = self.values, self.facts
        target = max(floor, values[axis] // 2) | 1
        for v in axis.near(target):
            if not floor <= v < values[axis]:
                continue
            there = {**values, axis: v}
            try:
                found = self.model.prober.run(self.sizes_of(there))
            except ProblemError:
                continue
            if found.cost < facts.cost or found.peak_bytes < facts.peak_bytes:
                self.path.append((there, found))
                return True
        return False


def _take_back(
    problem: Problem, walk: _Walk, budget: _Budget, elapsed: float, flaw: str
) -> tuple[float, str]:
    """Undo the lowering of one axis after the other, as far as the budget allows, until the output is
    neither constant nor non-finite. Leaves the walk at the sizes found, or as it was."""
    last = walk.values
    for axis in last:
        heights = sorted({values[axis] for values, _ in walk.path} | {axis.value})
        for v in heights[1:]:
            there = {**last, axis: v}
            try:
                facts = walk.model.prober.run(walk.sizes_of(there))
            except ProblemError:
                continue
            if budget.excess(facts):
                break
            again, still = _measure(problem, walk.sizes_of(there), budget.device, budget.seconds)
            if not still:
                walk.path.append((there, facts))
                return again, ""
    return elapsed, flaw


def _measure(problem: Problem, sizes: dict[str, int], device: str, limit: float) -> tuple[float, str]:
    """Seconds to draw and run the reference, and what is wrong with its output (or ``""``).

    A run over `limit` is measured again and the shorter one counts: the first on a device pays for its
    context and for libraries that load on demand, which says nothing of the problem.
    """
    first, flaw = _run_once(problem, sizes, device)
    return (first, flaw) if first <= limit else (min(first, _run_once(problem, sizes, device)[0]), flaw)


def _run_once(problem: Problem, sizes: dict[str, int], device: str) -> tuple[float, str]:
    from lethe.verifier.reference import run_reference
    from lethe.verifier.structure import flatten

    instance = instantiate(problem, sizes, device=device)
    start = time.perf_counter()
    outputs, _ = flatten(run_reference(instance, instance.draw(0)))
    finite = all(bool(t.isfinite().all()) for t in outputs)  # also waits for the device
    elapsed = time.perf_counter() - start
    if not finite:
        return elapsed, "the output is not finite"
    if outputs and all(t.numel() > 1 and bool((t == t.flatten()[0]).all()) for t in outputs):
        return elapsed, "the output is constant"
    return elapsed, ""
