"""Fitting a problem into a time and memory budget.

KernelBench draws up to 17 GB of inputs for one problem. Sizes are halved, largest
axis first, until the reference's predicted bytes and work fit (counted on the meta
device, without data). Sizes stay odd and above one tile where that is possible: bugs
hide below a tile and behind even sizes. A step that makes the output constant or
non-finite is taken back, since nothing could be judged there.

The clock does not choose sizes, or the same problem would be judged at others on a
loaded machine. It only stops what the count gets wrong by far: a run beyond `SLACK`
times the budget loses a fixed part of its work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lethe.verifier.axes import Axis, SizeModel, size_model
from lethe.verifier.problem import Problem, ProblemError, instantiate

if TYPE_CHECKING:
    from lethe.verifier.probe import Facts

ELEMENTS_PER_SECOND = {"cpu": 0.3e9, "cuda": 1e11}
"""Work of the reference (see `probe.FLOPS_PER_ELEMENT`) on one CPU thread, and on a GPU: one that reads and
writes 3 TB of float32 a second moves 4e11 elements, of which a quarter is assumed."""
ROUNDING_UP = 2.0
"""A counted run may seem to take so many times the budget: the count is no better than that."""
SLACK = 8.0
"""A measured run may take so many times the budget. On 14 operators at KernelBench's sizes (contractions,
convolutions, scans, sorts, recurrences) the processor time was 0.2 to 6 times the counted one, and never more
than 1.5 times the budget after counting, while wall time rose eightfold under load."""
RELIEF = 16.0
"""By so much the work is cut when a run takes too long: a fixed factor, so that the time itself is of no
consequence beyond the one comparison, and large enough that the next run is far from it."""
FLOORS = ({"batch": 7}, 131), ({"batch": 3}, 33), ({"batch": 1}, 2)
"""Stages: floor of the batch and of other axes. 131 is above a tile of 128, 33 above one of 32.
The last stage is entered only if the budget can be met there."""
MAX_MEASUREMENTS = 4


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
    """What a run of the reference took at these sizes, with drawing its inputs (see `_run_once`)."""
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
        predicted = facts.cost / ELEMENTS_PER_SECOND[self.device]
        if predicted > ROUNDING_UP * self.seconds:
            return f"would run {predicted:.3g} s of {self.seconds:g}"
        return ""

    @property
    def patience(self) -> float:
        """Seconds that a measured run may take."""
        return SLACK * self.seconds


def shrink(
    problem: Problem,
    seconds: float = 2.0,
    max_bytes: int = 1 << 30,
    max_cost: int | None = None,
    device: str = "cpu",
) -> Shrunk:
    """Sizes at which the reference runs within about `seconds` and `max_bytes` on `device`.

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
    elapsed, flaw = _measure(problem, walk.sizes, budget)
    if flaw and walk.path:
        elapsed, flaw = _take_back(problem, walk, budget, elapsed, flaw)
    measurements = 1
    while elapsed > budget.patience and measurements < MAX_MEASUREMENTS:
        reason = reason or f"runs far beyond {seconds:g} s"
        target = walk.facts.cost / RELIEF
        before = len(walk.path)
        while walk.facts.cost > target and walk.halve():
            pass
        if len(walk.path) == before:
            break
        slower = elapsed
        elapsed, new_flaw = _measure(problem, walk.sizes, budget)
        if new_flaw and not flaw:
            del walk.path[before:]
            elapsed = slower
            break
        measurements += 1
    fits = not budget.excess(walk.facts) and elapsed <= budget.patience
    if flaw and walk.path:
        reason = f"{reason}; {flaw} at every size tried"
    return Shrunk(walk.sizes, reason, model.facts.elements, walk.facts.elements, elapsed, fits)


def require_bytes(problem: Problem, max_bytes: int) -> None:
    """Raise ProblemError unless the tensors of `problem`, at its own sizes, take at most `max_bytes`."""
    needed = size_model(problem).facts.peak_bytes
    if needed > max_bytes:
        raise ProblemError(
            f"{problem.name} as written needs {needed / 1e6:.0f} MB, more than {max_bytes / 1e6:.0f} MB"
        )


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
            again, still = _measure(problem, walk.sizes_of(there), budget)
            if not still:
                walk.path.append((there, facts))
                return again, ""
    return elapsed, flaw


def _measure(problem: Problem, sizes: dict[str, int], budget: _Budget) -> tuple[float, str]:
    """Seconds to draw and run the reference, and what is wrong with its output (or ``""``).

    A run beyond the budget's patience is measured again and the shorter one counts: the first on a device
    pays for its context and for libraries that load on demand, which says nothing of the problem.
    """
    first, flaw = _run_once(problem, sizes, budget.device)
    if first <= budget.patience:
        return first, flaw
    return min(first, _run_once(problem, sizes, budget.device)[0]), flaw


def _run_once(problem: Problem, sizes: dict[str, int], device: str) -> tuple[float, str]:
    """Wall or processor time, whichever is less: the first grows with what else the machine does, the second
    with the number of threads that wait for one another."""
    from lethe.verifier.reference import run_reference
    from lethe.verifier.structure import flatten

    instance = instantiate(problem, sizes, device=device)
    start = time.perf_counter(), time.process_time()
    outputs, _ = flatten(run_reference(instance, instance.draw(0)))
    finite = all(bool(t.isfinite().all()) for t in outputs)  # also waits for the device
    elapsed = min(time.perf_counter() - start[0], time.process_time() - start[1])
    if not finite:
        return elapsed, "the output is not finite"
    if outputs and all(t.numel() > 1 and bool((t == t.flatten()[0]).all()) for t in outputs):
        return elapsed, "the output is constant"
    return elapsed, ""
