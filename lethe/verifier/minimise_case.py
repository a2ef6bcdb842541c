"""The smallest case on which a finding still shows: first fewer and shorter dimensions, then plainer values.

Sizes are lowered along the problem's own axes, and the gate draws its case again at them. Values are then
made plain (see `minimise_values`), which often allows for still smaller sizes. Every step that is kept was
confirmed by the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lethe.verifier import shapes
from lethe.verifier.axes import Axis
from lethe.verifier.counterexample_probe import all_finite
from lethe.verifier.docket import Case, Sizes
from lethe.verifier.minimise import Exhausted, lower_sizes
from lethe.verifier.minimise_values import moved, simplify
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.verdict import Finding

if TYPE_CHECKING:
    from lethe.verifier.counterexample_probe import Bench, Probe

WHOLE = frozenset({"PRC-01", "PRC-02"})
"""Gates whose statistic is about generic draws: their values stay as they were drawn."""
DRAWN = frozenset({"stale"})
"""Mechanisms that need two draws which resemble one another."""


@dataclass(frozen=True)
class Smallest:
    """A case and the finding that the gate made on it."""

    case: Case
    finding: Finding


@dataclass
class Search:
    """The best case so far, and the probe that says whether another one is as good."""

    probe: Probe
    best: Smallest

    @property
    def bench(self) -> Bench:
        return self.probe.bench

    def takes(self, there: Case | Sizes) -> bool:
        """Whether the finding shows on a case, or on what the gate draws at some sizes: then that is the
        best. Raises Exhausted."""
        if isinstance(there, Case):
            finding = self.probe.on(there)
            found = (there, finding) if finding is not None else None
        else:
            found = self.probe.at(there)
        if found is not None:
            self.best = Smallest(*found)
        return found is not None


def minimise(probe: Probe, case: Case, hints: Sequence[Sizes] = ()) -> Smallest | None:
    """The smallest failing case found from `case`; None if the finding did not show again on `case` itself.

    `hints` are sizes at which other findings of the same candidate still show: they are tried first.
    Never raises on account of the candidate or the reference.
    """
    bench = probe.bench
    try:
        bench.put(case, case.sizes)
        bench.finite = all_finite(bench.truth(case))
        first = probe.on(case)
    except (Exhausted, ProblemError, ReferenceFailed):
        return None
    if first is None:
        return None
    search = Search(probe, Smallest(case, first))
    if probe.finding.mechanism == "call_history":
        return search.best
    try:
        for sizes in hints:
            _jump(search, sizes)
        _shorten(search, guarded=False)
        if _slipped(probe, case, search.best):
            search.best = Smallest(case, first)
            _shorten(search, guarded=True)
        if probe.gate not in WHOLE and probe.finding.mechanism not in DRAWN:
            values, plain = simplify(search), search.best
            if values is not None:
                _lower(search, lambda sizes: moved(values, search.bench, sizes))
                if _slipped(probe, plain.case, search.best):
                    search.best = plain
    except Exhausted:
        pass
    return search.best


# ---------------------------------------------------------------- sizes


def _axes(bench: Bench) -> tuple[Axis, ...]:
    """The problem's axes around its base sizes, found once for all candidates."""

    def find() -> tuple[Axis, ...]:
        try:
            return shapes.size_model(bench.problem, bench.whole.base).axes
        except ProblemError:
            return ()

    found: tuple[Axis, ...] = bench.whole.remembered("axes", find)
    return found


def _jump(search: Search, sizes: Sizes) -> None:
    """Go to `sizes` at once, where they are smaller and the finding shows there."""
    before, written = search.best.case.sizes, search.bench.written
    there = {**before, **sizes}
    if there != before and all(v <= before.get(n, written.get(n, v)) for n, v in there.items()):
        search.takes(there)


def _shorten(search: Search, guarded: bool) -> None:
    """Lower the sizes; with `guarded` only to those at which the candidate is right on ordinary inputs."""
    _lower(search, lambda sizes: sizes if not guarded or _right(search.probe, sizes) else None)


def _lower(search: Search, made: Callable[[Sizes], Case | Sizes | None]) -> None:
    """Lower the sizes, each time asking about what `made` gives for them: a case, or what the gate draws."""
    before = search.best.case.sizes
    axes = {a.label: a for a in _axes(search.bench)}
    sizes = {label: before.get(a.names[0], a.value) for label, a in axes.items()}

    def fails(there: dict[str, int]) -> bool:
        what = made({**before, **{n: v for label, v in there.items() for n in axes[label].names}})
        return what is not None and search.takes(what)

    lower_sizes(sizes, lambda label, v: next(axes[label].near(v)), fails)


def _right(probe: Probe, sizes: dict[str, int]) -> bool:
    """Whether the candidate is right on the reference's own inputs at `sizes`."""
    try:
        return probe.passes(probe.ordinary(sizes))
    except ProblemError:
        return False


def _slipped(probe: Probe, start: Case, found: Smallest) -> bool:
    """Whether the smaller sizes show another defect: the candidate is wrong there on ordinary inputs too,
    and was right on them before."""
    if found.case.sizes == start.sizes or probe.gate == "CMP-03":
        return False
    return not _right(probe, found.case.sizes) and _right(probe, start.sizes)
