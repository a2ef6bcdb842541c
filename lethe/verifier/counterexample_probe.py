"""Does a finding still show on another case? Asked of the candidate, by the gate that made the finding.

The gates are not repeated here: they are run before a docket on which one case lies, so that what is
confirmed is what the gate itself would charge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lethe.verifier import inputs, integrity, oracle
from lethe.verifier.blame import is_loud
from lethe.verifier.custody import RunReport
from lethe.verifier.docket import Case, Docket, Sizes, Truth, same_bytes
from lethe.verifier.gates import GATES
from lethe.verifier.minimise import Budget
from lethe.verifier.problem import Instance, ProblemError, instantiate
from lethe.verifier.shapes import ShapeCase
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet, SkipCase
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.trial import Trial
from lethe.verifier.verdict import Blame, Finding
from lethe.verifier.weights import vary_uniform

if TYPE_CHECKING:
    from lethe.verifier.profiling import OperatorProfile

INSTANCES_KEPT = 4
LONGEST_HISTORY = 256
"""Calls after which an answer that depends on earlier calls is no longer waited for."""
NAMED_BY_LENGTH = "PRC-02"
"""The gate whose cases are named by their length of reduction, which changes with the sizes."""


class Bench(Docket):
    """The reference side of one finding, at any sizes.

    With a case on it, a gate is answered with that case, whatever its kind and seed call for; without one,
    the gate draws its case itself at the sizes of the bench.
    """

    def __init__(self, docket: Docket, gate: str, wanted: Case) -> None:
        """`wanted` is the case of the finding."""
        self.__dict__.update(docket.__dict__)
        self.whole = docket
        self.gate = gate
        self.wanted = wanted
        self.finite = True
        """Whether values are judged only where the reference stays finite, as it does on the first case."""
        self.now: Case | None = None
        self._memo = dict(docket._memo)
        self._frozen = docket.operator
        self._built: dict[tuple[Any, ...], Instance] = {}
        self._known: dict[Any, Any] = {}

    def put(self, case: Case | None, sizes: Sizes) -> None:
        """Replace the case (or take it away), and forget what was known of the last one."""
        self.now, self.base = case, dict(sizes)
        self._known.clear()

    @property
    def operator(self) -> OperatorProfile:
        """That of the whole problem, whatever the case's sizes."""
        return self._frozen

    @property
    def shape_cases(self) -> list[ShapeCase]:
        return []

    def instance(self, sizes: Sizes | None = None, varied: bool = False) -> Instance:
        sizes = self.base if sizes is None else sizes
        key = (tuple(sorted(sizes.items())), varied)
        if key not in self._built:
            made = instantiate(self.problem, sizes, seed=self.settings.seed, device=self.settings.device)
            if varied:
                vary_uniform(made.module, self.settings.seed)
            if len(self._built) >= INSTANCES_KEPT:
                del self._built[next(iter(self._built))]
            self._built[key] = made
        return self._built[key]

    def case(self, kind: str, seed: int, which: int | None = None, sizes: Sizes | None = None) -> Case:
        """The case on the bench, where a gate asks for its kind and seed; its finite form where a gate asks
        for the draw that a non-finite was put into; else a draw at its sizes."""
        now = self.now
        if now is not None and kind == now.kind and (seed == now.seed or self.gate == "CMP-02"):
            return now
        if self.gate == "PRC-02" and kind not in ("normal", self.wanted.kind):
            raise SkipCase("another case is asked about")
        if now is not None and now.kind == "nonfinite" and seed == now.seed:
            return self._made("clean", "normal", seed, lambda: map_tensors(now.inputs, _finite))
        name = kind if which is None else f"{kind}:input{which}"
        return self._made(name, kind, seed, lambda: inputs.draw(self.instance(), kind, seed, which))

    def derived(self, base: Case, name: str, kind: str, make: Callable[[], list[Any]]) -> Case:
        if self.now is not None and name == self.now.id:
            return self.now
        return self._made(name, kind, base.seed, make)

    def _made(self, name: str, kind: str, seed: int, make: Callable[[], list[Any]]) -> Case:
        key = ("case", name, kind, seed)
        if key not in self._known:
            try:
                self._known[key] = Case(name, kind, seed, self.base, make())
            except inputs.IllegalDraw as e:
                raise SkipCase(str(e)) from None
        found: Case = self._known[key]
        return found

    def truth(self, case: Case, dtype: str = "float32") -> Truth:
        key = ("truth", id(case.inputs), dtype)
        if key not in self._known:
            self._known[key] = (case.inputs, self._evaluate(case, dtype))
        found: Truth = self._known[key][1]
        return found

    def remembered(self, key: str, find: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]


def _finite(t: Any) -> Any:
    return t.masked_fill(~t.isfinite(), 1.0) if t.is_floating_point() else t


class OneCase(Trial):
    """A trial in which a gate's cases are passed over, but for the one that its bench is about."""

    def try_case(
        self,
        sheet: Sheet,
        draw: Callable[[], Case],
        label: str,
        check: Callable[[Case, RunReport], list[Finding] | None],
        **options: Any,
    ) -> None:
        assert isinstance(self.docket, Bench)
        now = self.docket.now
        if label == self.docket.wanted.id:
            super().try_case(sheet, draw if now is None else lambda: now, label, check, **options)


@dataclass
class Probe:
    """One finding of one gate, and a suspect of its own to ask. Every question costs one trial."""

    trial: Trial
    """A `OneCase` before a `Bench`."""
    gate: str
    finding: Finding
    budget: Budget

    @property
    def bench(self) -> Bench:
        assert isinstance(self.trial.docket, Bench)
        return self.trial.docket

    def on(self, case: Case) -> Finding | None:
        """The finding that the gate makes on `case`: same mechanism, same output; None if there is none.

        Raises Exhausted where the budget is spent.
        """
        found = self._ask(case, case.sizes)
        return found[1] if found is not None else None

    def at(self, sizes: Sizes) -> tuple[Case, Finding] | None:
        """The gate's own case at other sizes, and the finding that it makes there, if it makes it.

        Raises Exhausted where the budget is spent.
        """
        return self._ask(None, sizes)

    def passes(self, case: Case) -> bool:
        """Whether the candidate's value is right on `case` (no trial is counted)."""
        self.bench.put(case, case.sizes)
        try:
            return not self.trial.check_value(case, self.trial.run(case)[0], Sheet("CMP-01"))
        except (CandidateStopped, SkipCase, ProblemError, oracle.ReferenceFailed):
            return False

    def ordinary(self, sizes: Sizes) -> Case:
        """The reference's own draw at `sizes`, under the seed of the case. Raises ProblemError."""
        drawn = self.bench.instance(sizes).draw(self.bench.wanted.seed)
        return Case("normal", "normal", self.bench.wanted.seed, sizes, drawn)

    def _ask(self, case: Case | None, sizes: Sizes) -> tuple[Case, Finding] | None:
        self.budget.take()
        self.bench.put(case, sizes)
        self.trial.cases.clear()
        self.trial.rebuild()
        try:
            found = next((f for f in self._findings() if self._same(f)), None)
            asked = self.trial.cases.get(found.case) if found is not None else None
            if found is None or asked is None or not self._legal(asked):
                return None
        except (CandidateStopped, NotApplicable, SkipCase, ProblemError, oracle.ReferenceFailed):
            return None
        except (RuntimeError, ValueError, ArithmeticError, LookupError):
            return None  # the reference side of the gate cannot work with these inputs
        return asked, found

    def _legal(self, case: Case) -> bool:
        """False where a value is wrong only outside of what the operator is defined for."""
        value = self.finding.extra.get("breaks", self.finding.mechanism) in ("value", "inexact_integer")
        return not (value and self.bench.finite) or all_finite(self.bench.truth(case))

    def _same(self, f: Finding) -> bool:
        named = f.case == self.bench.wanted.id or self.gate == NAMED_BY_LENGTH
        return named and f.mechanism == self.finding.mechanism and f.output == self.finding.output

    def _findings(self) -> list[Finding]:
        if self.gate == "CMP-03":
            return self._at_a_shape()
        if self.gate != "INTEGRITY":
            return list(GATES[self.gate](self.trial).findings)
        case = self._case()
        if self.finding.mechanism == "call_history":
            return self._history(case)
        return integrity.probe(self.trial, case, self.trial.run(case)[0], []).findings

    def _case(self) -> Case:
        """The case on the bench, or the one wanted drawn at the sizes of the bench."""
        bench, wanted = self.bench, self.bench.wanted
        if bench.now is not None:
            return bench.now
        case = bench.case("normal", wanted.seed)
        if wanted.kind == "layout":
            relaid = dict(inputs.layouts(case.inputs))
            name = wanted.id.removeprefix("layout:")
            if name not in relaid:
                raise SkipCase(f"no input can be {name}")
            case = bench.derived(case, wanted.id, "layout", lambda: list(relaid[name]))
        return replace(case, id=wanted.id)

    def _at_a_shape(self) -> list[Finding]:
        """What CMP-03 makes of one of its cases."""
        case = self._case()
        try:
            report = self.trial.run(case)[0]
        except CandidateStopped as e:
            return _loud(case, e)
        found = self.trial.check_value(case, report, Sheet(self.gate))
        return found + integrity.out_of_bounds(case, report)

    def _history(self, case: Case) -> list[Finding]:
        self.trial.close()
        first: list[Any] = []
        for k in range(1, LONGEST_HISTORY + 1):
            outputs, _ = flatten(self.trial.run(case, need_inputs_after=True)[0].outputs)
            first = first or outputs
            if not all(same_bytes(a, b) for a, b in zip(first, outputs, strict=False)):
                return [replace(self.finding, extra={"calls": k})]
        return []


def all_finite(truth: Truth) -> bool:
    """Whether the reference's own floating outputs are finite."""
    return all(bool(t.isfinite().all()) for t in truth.working if t.is_floating_point())


def _loud(case: Case, stop: CandidateStopped) -> list[Finding]:
    """A legal case is refused, or ends the candidate's process."""
    if stop.blame is not Blame.CANDIDATE:
        return []
    mechanism = "rejects" if is_loud(stop.status) else str(stop.status)
    kind = case.id.split(":")[0]
    message = f"a legal {kind} is refused: {stop.message}" if is_loud(stop.status) else stop.message
    return [Finding(case=case.id, seed=case.seed, channel="T", mechanism=mechanism, message=message)]
