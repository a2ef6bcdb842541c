"""One candidate before one docket: what the gates may ask of the suspect, and how answers are compared."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.verifier import fairness, inputs, oracle, sites, tolerance, weights
from lethe.verifier.ahead import Ahead, start
from lethe.verifier.custody import Isolation, RunReport, Suspect, SuspectError
from lethe.verifier.docket import Case, Docket, Sizes, Truth, cast_floating, trim
from lethe.verifier.problem import Candidate, ProblemError
from lethe.verifier.settings import Settings
from lethe.verifier.sheet import CandidateStopped, Sheet, SkipCase
from lethe.verifier.structure import flatten, map_tensors
from lethe.verifier.verdict import Finding, Status

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.server import SuspectServer


REPORTS_KEPT = 8
SCALAR_ULPS = 16
"""float32 spacings by which a Python float in the output may differ: the elementwise c of the bands."""


@dataclass(frozen=True)
class Built:
    """What the suspect's process holds at the moment."""

    sizes: tuple[tuple[str, int], ...]
    dtype: str
    varied: bool


class Trial:
    """The suspect's side of a verdict: builds it at the sizes a case needs, runs it, compares.

    Every method that talks to the suspect raises CandidateStopped, never SuspectError.
    """

    def __init__(
        self,
        docket: Docket,
        candidate: Candidate,
        server: SuspectServer,
        settings: Settings,
        cache_dir: Path,
        ahead: Ahead | None = None,
    ) -> None:
        """`ahead` is the first process, if it was started already."""
        self.docket = docket
        self.candidate = candidate
        self.settings = settings
        self._server = server
        self._cache_dir = cache_dir
        self._suspect: Suspect | None = None
        self._ahead = ahead
        self._second: Trial | None = None
        self._built: Built | None = None
        self._reports: OrderedDict[tuple[int, str], tuple[list[Any], list[RunReport]]] = OrderedDict()
        self.weights = "none"
        self.isolation: Isolation = {}
        self.parameters: set[str] = set()
        """Names of the candidate's own parameters."""
        self.launches = 0
        self.kernels: set[str] = set()
        self.choices = 0
        """The most configurations that an autotuned kernel chose from (`RunReport.choices`)."""
        self.notes: dict[str, Any] = {}
        """What a gate found out about the candidate and later gates ask for again."""
        self.cases: dict[str, Case] = {}
        """Cases that were run, by id, for the counterexample."""
        self.twins: dict[str, Any] = {}
        """What gates learned from rewritten copies of the candidate (`rewritten`), under names of theirs."""
        self.failed_elsewhere: tuple[Sizes, frozenset[str]] | None = None
        """Sizes that the judge chose, and CMP-01's draws that failed there: CMP-03's business (`venue`)."""
        self._started = time.monotonic()

    def close(self) -> None:
        """End the suspect's processes; the next request starts a fresh one."""
        self.restart()
        if self._second is not None:
            self._second.close()
        self._second = None

    def restart(self) -> None:
        """End the process of this trial alone; the next request starts a fresh one."""
        if self._ahead is not None:
            self._ahead.discard()
        self._ahead = None
        if self._suspect is not None:
            self._suspect.close()
        self._suspect = None
        self._built = None

    def rebuild(self) -> None:
        """Build the candidate again before its next run (fairness rule 34)."""
        self._built = None

    def begin(self) -> None:
        """Start the process now, beside whatever is done until it is asked for the first time."""
        if self._suspect is None and self._ahead is None:
            self._ahead = Ahead(self._start)

    def _start(self) -> Suspect:
        return start(self._server, self.candidate, self.settings, self._cache_dir)

    def _talk(self, request: Callable[[Suspect], Any]) -> Any:
        try:
            if self._suspect is None:
                ahead, self._ahead = self._ahead, None
                try:
                    self._suspect = ahead.take() if ahead is not None else self._start()
                finally:
                    self.isolation = self._server.isolation
            return request(self._suspect)
        except SuspectError as e:
            if not e.alive or e.stage == "load":
                self.restart()
            raise CandidateStopped(e.status, e.message) from e

    def build(self, sizes: Sizes, dtype: str = "float32", varied: bool = False) -> None:
        """Construct the candidate at `sizes`, with weights aligned to the reference's.

        Raises CandidateStopped, with status NOT_AUDITABLE where the mapping of weights is ambiguous,
        and SkipCase where `varied` weights (see `Case.varied`) cannot be handed over by name.
        """
        want = Built(tuple(sorted(sizes.items())), dtype, varied)
        if self._built == want:
            return
        instance = self.docket.instance(sizes)
        self._built = None
        built = self._construct(sizes, dtype)
        if self.candidate.kind == "module":
            held = map_tensors(dict(instance.module.state_dict()), lambda t: t.cpu())
            reference = cast_floating(held, dtype)
            alignment = weights.align(reference, built)
            if alignment.how == "not_auditable":
                raise CandidateStopped(Status.NOT_AUDITABLE, alignment.reason)
            if alignment.how == "copied":
                self._construct(sizes, dtype, alignment.state)
            self.weights = alignment.how
            self.parameters = set(built.parameters)
            if varied:
                self._construct(sizes, dtype, self._varied_state(sizes, reference, dict(built.state)))
        self._built = want

    def _construct(self, sizes: Sizes, dtype: str = "float32", state: dict[str, Tensor] | None = None) -> Any:
        instance = self.docket.instance(sizes)
        own = sites.hard_coded_sizes(self.candidate.source, sizes, self.docket.written) if sizes else {}
        return self._talk(
            lambda s: s.build(instance.init, instance.seed, dtype=dtype, sizes=own or None, state=state)
        )

    def _varied_state(
        self, sizes: Sizes, reference: dict[str, Tensor], own: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        varied = self.docket.instance(sizes, varied=True).module.state_dict()
        names = weights.uniform_names(self.docket.instance(sizes).module)
        if not own:
            return {}  # no tensor under any name, so nothing that trained weights could reach
        if any(n not in own or own[n].shape != varied[n].shape for n in names):
            raise SkipCase("the candidate does not hold these weights by name")
        if set(own) - set(reference):
            raise SkipCase("weights that only the candidate holds could go stale")
        return {n: t.cpu() for n, t in varied.items() if n in own and own[n].shape == t.shape}

    def run(self, case: Case, *, dtype: str = "float32", **options: Any) -> list[RunReport]:
        """Run the candidate on a case; one report per repetition.

        A plain run on the reference's own draws is answered from memory the second time, since several
        gates look at the same one; whether calls repeat is ORD-02's question, which asks for repeats.
        """
        self.cases.setdefault(case.id, case)
        key = (id(case.inputs), dtype)
        if case.kind == "normal" and not options and key in self._reports:
            return self._reports[key][1]
        if self.docket.keeps_state:
            self.rebuild()
        self.build(case.sizes, dtype, case.varied)
        drawn = self.docket.on_host(case, dtype)
        reports: list[RunReport] = self._talk(lambda s: s.run(drawn, **options))
        for r in reports:
            self.launches += r.launches
            self.kernels.update(r.kernels)
            self.choices = max(self.choices, r.choices)
        if case.kind == "normal" and not options:
            # The inputs are kept beside the reports, so that no other list can take their identity.
            self._reports[key] = case.inputs, reports
            trim(self._reports, REPORTS_KEPT)
        return reports

    def with_weights(
        self, case: Case, state: dict[str, Tensor], needed: set[str], dtype: str = "float32"
    ) -> RunReport:
        """A run of the candidate built with the weights `state`. Leaves it to be rebuilt.

        Raises SkipCase where it does not hold those `needed` by name and shape, or holds others, which could
        go stale.
        """
        own = self._construct(case.sizes, dtype).state
        self._built = None
        given = {n: t for n, t in state.items() if n in own and own[n].shape == t.shape}
        if needed - set(given) or set(own) - set(given):
            raise SkipCase("the candidate does not hold these weights by name")
        self._construct(case.sizes, dtype, cast_floating({n: t.cpu() for n, t in given.items()}, dtype))
        drawn = self.docket.on_host(case, dtype)
        reports: list[RunReport] = self._talk(lambda s: s.run(drawn))
        return reports[0]

    def after_update(self, case: Case) -> tuple[list[Tensor], list[Tensor]] | None:
        """Outputs of a second call, before which the candidate's own weights were written in place, and of
        the first call of one built with those weights; None if it holds none. Leaves it to be rebuilt.
        """
        built = self._construct(case.sizes)
        state = weights.stirred(built.state, self.settings.seed)
        self._built = None
        if not state:
            return None
        drawn = self.docket.on_host(case)

        def second(s: Suspect) -> list[RunReport]:
            s.run(drawn)
            s.update(state)
            return s.run(drawn)

        later = self._talk(second)
        self._construct(case.sizes, state=state)
        anew = self._talk(lambda s: s.run(drawn))
        return flatten(later[0].outputs)[0], flatten(anew[0].outputs)[0]

    def read(self, name: str) -> list[Tensor]:
        """The present values of outputs that an earlier run was asked to hold."""
        value = self._talk(lambda s: s.read(name))
        return flatten(value)[0]

    def resources(self, target: str, traced: bool = False) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._talk(lambda s: s.resources(target, traced=traced))
        return result

    def fresh(self) -> Trial:
        """The same trial with a process of its own, for confirming a finding."""
        other = Trial(self.docket, self.candidate, self._server, self.settings, self._cache_dir)
        other.weights, other.cases, other.twins = self.weights, self.cases, self.twins
        other.failed_elsewhere = self.failed_elsewhere
        return other

    def rewritten(self, source: str) -> Trial:
        """The trial of the candidate with another source, in a process of its own, for an experiment on it.

        Whoever asks closes it.
        """
        twin = replace(self.candidate, source=source)
        return Trial(self.docket, twin, self._server, self.settings, self._cache_dir)

    @property
    def second(self) -> Trial:
        """The same trial in one other process, with a history of its own, kept until this one is closed.

        For whoever asks what another process answers: on a GPU the context of a process costs more than most
        gates. What needs a process without history takes a `fresh` one.
        """
        if self._second is None:
            self._second = self.fresh()
        self._second.weights, self._second.failed_elsewhere = self.weights, self.failed_elsewhere
        return self._second

    def beside(self, docket: Docket, kind: type[Trial]) -> Trial:
        """The same candidate before another docket, in a process of its own: for use after the gates."""
        other = kind(docket, self.candidate, self._server, self.settings, self._cache_dir)
        other.weights, other.parameters, other.twins = self.weights, self.parameters, self.twins
        return other

    @property
    def seconds(self) -> float:
        """How long this trial has lasted so far."""
        return time.monotonic() - self._started

    def try_case(
        self,
        sheet: Sheet,
        draw: Callable[[], Case],
        label: str,
        check: Callable[[Case, RunReport], list[Finding] | None],
        **options: Any,
    ) -> None:
        """Draw, run and check one case, named `label`, booking whatever happens on the sheet.

        `check` returns None if the case turned out to decide nothing (and says so on the sheet).
        """
        try:
            case = replace(draw(), id=label)
            self.docket.truth(case)
        except SkipCase as e:
            sheet.skip(label, str(e))
            return
        except (oracle.ReferenceFailed, ProblemError) as e:
            if not fairness.reference_raises(e):
                raise
            sheet.skip(label, str(e))
            return
        try:
            report = self.run(case, **options)[0]
        except SkipCase as e:
            sheet.skip(label, str(e))
            return
        except CandidateStopped as e:
            sheet.halt(case.id, e)
            return
        findings = check(case, report)
        if findings is not None:
            sheet.add(findings)

    def check_value(
        self, case: Case, report: RunReport, sheet: Sheet, *, dtype: str = "float32", relax: float = 1.0
    ) -> list[Finding]:
        """Compare structure, shape and value with the docket's truth; notes the worst ratio on the sheet.

        Findings name the configurations that autotuned kernels ran.
        """
        found = self._wrong_values(case, report, sheet, dtype, relax)
        if not report.configurations:
            return found
        ran = {"configurations": report.configurations}
        told = f" ({'; '.join(report.configurations)})"
        return [replace(f, message=f.message + told, extra=f.extra | ran) for f in found]

    def _wrong_values(
        self, case: Case, report: RunReport, sheet: Sheet, dtype: str, relax: float
    ) -> list[Finding]:
        truth = self.docket.truth(case, dtype)
        got, skeleton = flatten(report.outputs)
        mismatch = structure_finding(case, truth, got, skeleton)
        if mismatch is not None:
            return [mismatch]
        findings = []
        exact = self._exact(case, dtype)
        bands = truth.exact_bands() if exact else truth.bands(sheet.gate)
        for i, name in enumerate(truth.names):
            c = tolerance.compare(got[i], truth.expected[i], bands[i])
            if exact and c.checked and c.error != 0:
                message = f"{name}{list(c.index)} is {c.got:.9g}, expected exactly {c.expected:.9g}"
                found = replace(value_finding(case, name, c, relax), bound=0.0, message=message)
                exactly = replace(found, channel="T", mechanism="inexact_integer")
                findings.append(exactly if c.finite else found)
                continue
            ratio = c.ratio / relax
            sheet.worst("worst_ratio", ratio)
            if ratio <= 1.0 or self._approximation(case, truth, i, got[i], bands[i]):
                continue
            finding = value_finding(case, name, c, relax)
            looks = fairness.further_looks(ratio, bands[i].at_rest(c.index), c.rare)
            if looks:
                other = tolerance.widest([truth.bands(sheet.gate, salt)[i] for salt in range(looks + 1)])
                second = tolerance.compare(got[i], truth.expected[i], other).ratio / relax
                if second <= 1.0:
                    sheet.worst("borderline_ratio", ratio)
                    continue
                finding = replace(finding, extra={"ratio": ratio, "ratio_with_second_seed": second})
            findings.append(finding)
        return findings

    def _exact(self, case: Case, dtype: str) -> bool:
        """True where every partial sum is a small integer, or one at the scale of fine draws, so that all
        orders agree to the bit.

        Convolution is left out: a transform of integers may hold fractions (fairness rule 29).
        """
        operator = self.docket.operator
        if case.kind not in ("exact_integer", "fine") or tolerance.judged_normwise(operator):
            return False
        fine = case.kind == "fine"
        step = inputs.FINE if fine else 1.0
        if not tolerance.exact_integer_applies(operator, case.inputs, dtype, step):
            return False
        return not fine or self.docket.homogeneous(case)

    def _approximation(self, case: Case, truth: Truth, i: int, got: Tensor, band: tolerance.Band) -> bool:
        """Fairness rule 38: the value is that of GELU's tanh form, a legitimate approximation."""
        if "gelu" not in self.docket.operator.ops and "erf" not in self.docket.operator.ops:
            return False
        form, _ = flatten(oracle.tanh_form(self.docket.instance(case.sizes), case.inputs))
        return fairness.approximation_explains(got, truth.expected[i], form[i], band)


def structure_finding(case: Case, truth: Truth, got: list[Tensor], skeleton: Any) -> Finding | None:
    """A finding if the candidate returned another structure or other shapes than the reference."""
    if not _same_structure(skeleton, truth.skeleton):
        return Finding(
            case=case.id,
            seed=case.seed,
            channel="T",
            mechanism="structure",
            message=f"returns {describe(skeleton)}, the reference returns {describe(truth.skeleton)}",
        )
    for name, a, b in zip(truth.names, got, truth.working, strict=True):
        if a.shape != b.shape:
            return Finding(
                case=case.id,
                seed=case.seed,
                channel="T",
                mechanism="shape",
                output=name,
                message=f"{name} has shape {tuple(a.shape)}, the reference's is {tuple(b.shape)}",
            )
    return None


def value_finding(case: Case, name: str, c: tolerance.Comparison, relax: float) -> Finding:
    kind = "value" if c.finite else "nonfinite"
    return Finding(
        case=case.id,
        seed=case.seed,
        channel="B",
        mechanism=kind,
        output=name,
        where=c.index,
        metric=c.error,
        bound=c.bound * relax,
        expected=c.expected,
        got=c.got,
        message=(
            f"{name}{list(c.index)} is {c.got:.6g}, expected {c.expected:.6g}: error {c.error:.3g} "
            f"against a bound of {c.bound * relax:.3g} on {case.id} inputs"
        ),
    )


def _same_structure(a: Any, b: Any) -> bool:
    """Equal containers and scalars. Lists and tuples are told alike; floats may differ by `SCALAR_ULPS`."""
    ((tag, v),), ((other, w),) = a.items(), b.items()
    if {tag, other} <= {"tuple", "list"}:
        return len(v) == len(w) and all(_same_structure(x, y) for x, y in zip(v, w, strict=True))
    if tag != other:
        return False
    if tag == "dict":
        keys = [k for k, _ in v] == [k for k, _ in w]
        return keys and all(_same_structure(x, y) for (_, x), (_, y) in zip(v, w, strict=True))
    if tag == "f":
        x, y = float.fromhex(v), float.fromhex(w)
        return x == y or (x != x and y != y) or abs(x - y) <= SCALAR_ULPS * 2.0**-23 * abs(y)
    return tag == "t" or v == w


def describe(skeleton: Any) -> str:
    """A skeleton in words: ``a tensor``, ``2 values``."""
    ((tag, v),) = skeleton.items()
    if tag == "t":
        return "a tensor"
    if tag in ("tuple", "list"):
        return f"{len(v)} values"
    if tag == "dict":
        return f"a dict of {', '.join(k for k, _ in v) or 'nothing'}"
    return str(float.fromhex(v)) if tag == "f" else str(v)
