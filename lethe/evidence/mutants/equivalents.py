"""Equivalent mutants: edits that change nothing, recognised by comparing a mutant with its own base.

No gate, band or verdict takes part. Both run in suspect processes, built at the same sizes with the same
weights, on every sample of `samples`. A mutant is *different* as soon as one sample shows it:

* one of the two refuses the call, or they end in different ways;
* outputs differ in structure, shape, dtype, device, or in which memory they share;
* one writes outside its buffers, changes its inputs or an earlier result, and the other does not;
* outputs or gradients differ in any bit (NaN equals NaN), with one exception.

The exception is *rounding*: on every sample the non-finite elements and those whose true value is zero are
the same, and in every tensor the largest and the root-mean-square relative errors against the float64
oracle stay within `ROUNDING` times the base's own, or within `FEW` and one units in the last place where
the base happens to be that exact; gradients agree to eight units in the last place of the largest.

A mutant that no sample distinguishes is equivalent *as far as so many samples show*; each is listed with a
reason that somebody gave after reading it (``reasons.json``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.evidence.mutants.samples import SEED, Sample, samples
from lethe.verifier.problem import Candidate, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.custody import RunReport, Suspect
    from lethe.verifier.server import SuspectServer

ROUNDING = 2.0
"""Another legal order of the same terms has an error of the same size; twice leaves room for luck."""
EPSILON = 2.0**-23
"""The unit in the last place of float32, relative."""
FEW = 4
WALL_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """What the comparison of one mutant with its base found."""

    equivalent: bool
    how: str
    """``"identical"`` or ``"rounding"`` for an equivalent one, else what differs first."""
    samples: int
    """Samples compared, the distinguishing one included."""
    sample: str = ""
    """The sample that told them apart."""


@dataclass
class _Answer:
    """What one candidate did on one sample: its reports, or how it refused."""

    reports: list[RunReport]
    refusal: str = ""
    kept: list[Tensor] = field(default_factory=list)
    """The first call's outputs, read again after a later call."""


class Side:
    """One candidate's process; rebuilt where the sizes or the weights change, restarted if it dies."""

    def __init__(self, server: SuspectServer, problem: Problem, candidate: Candidate, cache: Path) -> None:
        self.server, self.problem, self.candidate, self.cache = server, problem, candidate, cache
        self._suspect: Suspect | None = None
        self._built: tuple[Any, ...] | None = None
        self.own: dict[str, Tensor] = {}
        """The weights that it was last built with, by name."""

    def answer(self, sample: Sample, upstream: list[Tensor | None] | None = None) -> _Answer:
        from lethe.verifier.custody import SuspectError
        from lethe.verifier.structure import flatten

        try:
            suspect = self._ready(sample)
            reports = suspect.run(sample.inputs, upstream=upstream, need_inputs_after=True, hold="first")
            if sample.other is None:
                return _Answer(reports)
            reports += suspect.run(sample.other)
            kept, _ = flatten(suspect.read("first"))
            reports += suspect.run(sample.inputs)
            if self.own:
                suspect.update(varied(self.own))
                self._built = None
                reports += suspect.run(sample.inputs)
            return _Answer(reports, kept=kept)
        except SuspectError as e:
            if not e.alive:
                self.close()
            return _Answer([], str(e.status))

    def _ready(self, sample: Sample) -> Suspect:
        from lethe.verifier.custody import Limits
        from lethe.verifier.problem import instantiate
        from lethe.verifier.settings import choose_executor

        if self._suspect is None:
            executor = choose_executor("cpu", self.candidate.language)
            limits = Limits(wall_seconds=WALL_SECONDS)
            self._suspect = self.server.spawn(
                self.candidate, executor=executor, limits=limits, cache_dir=self.cache
            )
            self._suspect.load()
        want = (tuple(sorted(sample.sizes.items())), sample.varied)
        if self._built != want:
            self._built = None
            instance = instantiate(self.problem, sample.sizes, seed=0)
            built = self._suspect.build(instance.init, 0)
            self.own = built.state
            if sample.varied and self.own:
                self._suspect.build(instance.init, 0, state=varied(self.own))
            self._built = want
        return self._suspect

    def close(self) -> None:
        if self._suspect is not None:
            self._suspect.close()
        self._suspect, self._built = None, None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def varied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with a quarter of noise: what training would have made of them."""
    import torch

    g = torch.Generator().manual_seed(SEED)
    return {
        n: t * (1 + 0.25 * (2 * torch.rand(t.shape, generator=g) - 1)).to(t)
        for n, t in state.items()
        if t.is_floating_point()
    }


class Comparison:
    """All samples of one problem with the base's answers, made as they are first needed."""

    def __init__(self, server: SuspectServer, problem: Problem, base: Candidate) -> None:
        self._stack = ExitStack()
        self._cache = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lethe-mutants-")))
        self._server, self._problem = server, problem
        self._base = self._stack.enter_context(Side(server, problem, base, self._cache / "base"))
        self._samples: Iterator[Sample] = samples(problem)
        self._known: list[tuple[Sample, _Answer, list[Tensor | None] | None]] = []

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _pairs(self) -> Iterator[tuple[Sample, _Answer, list[Tensor | None] | None]]:
        yield from list(self._known)
        for sample in self._samples:
            answer, upstream = self._base.answer(sample), None
            if sample.gradient and answer.reports:
                upstream = _upstream(answer.reports[0])
                answer = self._base.answer(sample, upstream)
            self._known.append((sample, answer, upstream))
            yield self._known[-1]

    def examine(self, mutant: Candidate) -> Outcome:
        """Compare `mutant` with the base on every sample, up to the first that tells them apart."""
        rounded, count = False, 0
        with Side(self._server, self._problem, mutant, self._cache / mutant.sha256[:16]) as side:
            for sample, base, upstream in self._pairs():
                count += 1
                answer = side.answer(sample, upstream)
                if sample.tall and TOO_LONG in (base.refusal, answer.refusal):
                    continue
                found = difference(base, answer)
                if found == VALUE and self._rounding(sample, base, answer):
                    rounded, found = True, ""
                if found:
                    return Outcome(False, found, count, sample.id)
        return Outcome(True, "rounding" if rounded else "identical", count)

    def _rounding(self, sample: Sample, base: _Answer, mutant: _Answer) -> bool:
        """Whether the mutant's outputs are as near to the float64 oracle as the base's; see the module."""
        from lethe.verifier.oracle import ReferenceFailed, run_float64
        from lethe.verifier.problem import ProblemError, instantiate
        from lethe.verifier.structure import flatten

        instance = instantiate(self._problem, sample.sizes, seed=0)
        if sample.varied and not _given(instance.module, varied(self._base.own)):
            return False
        given = [sample.inputs, sample.other, sample.inputs, sample.inputs]
        for n, (b, m, inputs) in enumerate(zip(base.reports, mutant.reports, given, strict=False)):
            if n == len(given) - 1 and not _given(instance.module, varied(self._base.own)):
                return False
            try:
                expected, _ = flatten(run_float64(instance, inputs or []))
            except (ReferenceFailed, ProblemError):
                return False
            outputs = zip(flatten(b.outputs)[0], flatten(m.outputs)[0], expected, strict=True)
            if not all(_as_near(y, x, truth) for y, x, truth in outputs):
                return False
            if not all(_alike(g, (m.grads or {}).get(n)) for n, g in (b.grads or {}).items()):
                return False
        return True


VALUE = "value"
TOO_LONG = "timed_out"


def _upstream(report: RunReport) -> list[Tensor | None]:
    import torch

    from lethe.verifier.structure import flatten

    g = torch.Generator().manual_seed(SEED)
    return [
        torch.randn(t.shape, generator=g) if t.is_floating_point() else None
        for t in flatten(report.outputs)[0]
    ]


def difference(base: _Answer, mutant: _Answer) -> str:
    """What tells two answers apart in a word, ``""`` for nothing; ``"value"`` if only values differ."""
    if base.refusal or mutant.refusal:
        return "" if base.refusal == mutant.refusal else f"ends in {mutant.refusal or 'a result'}"
    pairs = list(zip(base.reports, mutant.reports, strict=True))
    for b, m in pairs:
        found = _structural(b, m)
        if found:
            return found
    if _moved(mutant) and not _moved(base):
        return "changes an earlier result"
    return VALUE if any(_values(b, m) for b, m in pairs) else ""


def _moved(answer: _Answer) -> bool:
    """Whether the first result reads differently after a later call."""
    from lethe.verifier.structure import flatten

    if not answer.kept:
        return False
    first, _ = flatten(answer.reports[0].outputs)
    return any(not _equal(a, b) for a, b in zip(first, answer.kept, strict=True))


def _structural(b: RunReport, m: RunReport) -> str:
    from lethe.verifier.structure import flatten

    y, shape = flatten(b.outputs)
    x, other = flatten(m.outputs)
    if len(x) != len(y) or (not x and shape != other):
        return "structure"
    if any(p.shape != q.shape or p.dtype != q.dtype for p, q in zip(y, x, strict=True)):
        return "shape or dtype"
    if b.guards_intact != m.guards_intact:
        return "writes outside its buffers"
    if [(o.device, o.aliases) for o in b.meta] != [(o.device, o.aliases) for o in m.meta]:
        return "device or aliasing"
    if any(not _equal(p, q) for p, q in zip(b.inputs_after or [], m.inputs_after or [], strict=True)):
        return "changes its inputs"
    return ""


def _values(b: RunReport, m: RunReport) -> bool:
    from lethe.verifier.structure import flatten

    if any(not _equal(p, q) for p, q in zip(flatten(b.outputs)[0], flatten(m.outputs)[0], strict=True)):
        return True
    grads, others = b.grads or {}, m.grads or {}
    return set(grads) != set(others) or any(not _both_equal(g, others[n]) for n, g in grads.items())


def _both_equal(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and _equal(a, b))


def _equal(a: Tensor, b: Tensor) -> bool:
    """The same bits, NaN of any payload alike."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return bool((a == b).all())
    same = (a == b) & (a.signbit() == b.signbit())
    return bool((same | (a.isnan() & b.isnan())).all())


def _as_near(base: Tensor, mutant: Tensor, truth: Tensor) -> bool:
    if not base.is_floating_point():
        return _equal(base, mutant)
    finite = base.isfinite() & truth.isfinite() & (truth != 0)
    if bool((base.isfinite() != mutant.isfinite()).any()) or not _equal(base[~finite], mutant[~finite]):
        return False
    if not bool(finite.any()):
        return True
    b = (base[finite].double() - truth[finite]).abs() / truth[finite].abs()
    m = (mutant[finite].double() - truth[finite]).abs() / truth[finite].abs()
    rms = m.square().mean().sqrt() <= max(ROUNDING * float(b.square().mean().sqrt()), EPSILON)
    return bool(rms) and float(m.max()) <= max(ROUNDING * float(b.max()), FEW * EPSILON)


def _given(module: Any, state: dict[str, Tensor]) -> bool:
    """Copy a candidate's varied weights into the reference; False if it holds others by name or shape."""
    import torch

    own = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    if set(own) != set(state) or any(own[n].shape != t.shape for n, t in state.items()):
        return False
    with torch.no_grad():
        for n, t in state.items():
            own[n].copy_(t)
    return True


def _alike(base: Tensor | None, mutant: Tensor | None) -> bool:
    """Gradients that agree to `ROUNDING` x `FEW` units in the last place of the largest element."""
    if base is None or mutant is None:
        return base is mutant
    if bool((base.isfinite() != mutant.isfinite()).any()):
        return False
    finite = base.isfinite()
    if not bool(finite.any()):
        return True
    distance = float((base - mutant)[finite].abs().max())
    return distance <= ROUNDING * FEW * EPSILON * float(base[finite].abs().max())
