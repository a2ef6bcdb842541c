"""A self-contained script for each failing gate: anybody with torch can run it without this package.

``counterexample_<GATE>.py`` shows the gate's plainest finding on the smallest input found for it, and
``counterexample.py`` is the most telling of them: one without a tolerance if there is any, then the smallest.
Nothing of this is part of the verdict's canonical form.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.verifier import inputs, sites
from lethe.verifier.counterexample_probe import Bench, OneCase, Probe
from lethe.verifier.counterexample_source import NoSource, reference_source
from lethe.verifier.counterexample_text import Inputs, script
from lethe.verifier.docket import Case, same_bytes
from lethe.verifier.gates.ord02 import MANY_REPEATS, REPEATS
from lethe.verifier.limits import ProblemError
from lethe.verifier.minimise import Budget
from lethe.verifier.minimise_case import Smallest, minimise
from lethe.verifier.structure import flatten
from lethe.verifier.textfile import write_atomically
from lethe.verifier.verdict import Finding, Verdict

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial

TRIALS = 160
"""Questions to the candidate for one gate: sizes take about 30, values about as many."""
LEAST_SECONDS = 5.0
"""A verdict that was reached sooner may still spend so long on its counterexamples."""
LARGEST_INPUT = 4 << 20
"""Bytes of inputs that a script may hold where they cannot be drawn again."""
PROCESSES = 4
"""Processes that a script compares where the answer differs between two of them now and then."""
FINDINGS_TRIED = 3
HINTS = 2
"""Sizes that served another gate of the same candidate and are tried first."""

RAISING = frozenset(
    {
        "rejects", "raises", "build_failed", "compile_failed", "import_failed", "malformed_candidate",
        "wrong_type", "run_failed",
    }
)  # fmt: skip
MECHANISMS = {
    "shape": ("structure", "shape"),
    "value": ("value", "nonfinite", "inexact_integer"),
    "nonfinite": ("swallowed", "minted", "nan_for_inf", "inf_for_nan", "wrong_sign", "flushed", "zero_sign"),
    "repeats": ("nondeterministic", "call_history"),
    "process": ("process",),
    "aliasing": ("aliasing",),
    "overwritten": ("input_overwritten",),
    "mode": ("stream", "graph"),
    "placement": ("dtype", "layout", "device"),
    "guards": ("out_of_bounds_write", "out_of_bounds_read"),
    "stale": ("stale",),
    "decoy": ("decoy",),
    "resources": ("resources",),
    "crashes": ("crashed",),
}
"""What a script does (``check_...`` in `counterexample_checks`) -> the mechanisms that it shows so."""
CHECKS = {mechanism: check for check, shown in MECHANISMS.items() for mechanism in shown}


class NoScript(ValueError):
    """A finding cannot be shown by a script; the message says why."""


@dataclass(frozen=True)
class Exhibit:
    """One failing gate's script."""

    gate: str
    path: Path
    text: str
    finding: Finding
    summary: dict[str, Any]

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Without tolerance first, then few elements, then short."""
        return self.finding.channel != "T", self.summary["elements"], len(self.text)


def write_counterexamples(
    verdict: Verdict, trial: Trial, folder: Path
) -> tuple[Path | None, dict[str, dict[str, Any]]]:
    """Write the scripts of a verdict to ``<folder>/<candidate>-<digest>/``.

    The scripts embed the candidate's and the reference's source, so they belong on the disk of
    whoever ran the audit and are never committed. Scripts of an earlier verdict on the same candidate are
    replaced.

    Returns:
        The path of ``counterexample.py`` (None if there is no script at all), and for each failing gate
        (and ``INTEGRITY``) either ``path``, ``elements``, ``sizes``, ``trials``, ``ended_by``, or
        ``none``: the sentence that says why there is no script.
    """
    found: dict[str, list[Finding]] = {
        g.gate: sorted(g.findings, key=lambda f: f.channel != "T")
        for g in verdict.gates
        if g.gate in verdict.failed
    }
    if verdict.integrity:
        found["INTEGRITY"] = list(verdict.integrity)
    writer = _Writer(
        verdict,
        trial,
        folder / f"{_slug(verdict.candidate)}-{verdict.candidate_sha256[:8]}",
        time.monotonic() + max(LEAST_SECONDS, trial.seconds),
    )
    for old in writer.place.glob("counterexample*.py"):
        old.unlink()
    order = sorted(found, key=lambda g: all(f.channel != "T" for f in found[g]))
    told: dict[str, dict[str, Any]] = {}
    for k, gate in enumerate(order):
        try:
            made = writer.exhibit(gate, found[gate], len(order) - k)
            write_atomically(made.path, made.text)
        except NoScript as e:
            told[gate] = {"none": str(e)}
            continue
        except Exception as e:  # a verdict is not lost because its illustration is
            told[gate] = {"none": f"the script could not be made ({type(e).__name__}: {e})"[:300]}
            continue
        writer.made.append(made)
        told[gate] = {"path": str(made.path), **made.summary}
    told = {g: told[g] for g in found}
    if not writer.made:
        return None, told
    first = writer.place / "counterexample.py"
    write_atomically(first, min(writer.made, key=lambda e: e.rank).text)
    return first, told


@dataclass
class _Writer:
    """Makes the scripts of one verdict."""

    verdict: Verdict
    trial: Trial
    place: Path
    end: float
    """When (by the monotonic clock) no more questions should be asked."""
    made: list[Exhibit] = field(default_factory=list)

    def exhibit(self, gate: str, findings: list[Finding], left: int) -> Exhibit:
        """The script of one gate of the `left` ones, from the first finding that can be shown.

        Raises NoScript.
        """
        seconds = max(0.0, self.end - time.monotonic()) / left
        kept: dict[tuple[str, str], Finding] = {}
        for f in sorted(findings, key=lambda f: (f.channel != "T", _size(self.trial.cases.get(f.case)))):
            kept.setdefault((f.mechanism, f.output), f)
        reasons = []
        for finding in list(kept.values())[:FINDINGS_TRIED]:
            try:
                return self._shown(gate, finding, Budget(TRIALS, seconds))
            except (NoScript, NoSource) as e:
                reasons.append(str(e))
        raise NoScript(reasons[0] if reasons else "the gate failed without a finding")

    def _shown(self, gate: str, finding: Finding, budget: Budget) -> Exhibit:
        check = check_of(gate, finding)
        trial, docket = self.trial, self.trial.docket
        case = trial.cases.get(finding.case)
        if check == "resources":
            case = docket.case("normal", trial.settings.seed)
        if case is None:
            raise NoScript(f"the inputs of {finding.case} were not kept")
        smallest = Smallest(case, finding)
        reference_source(docket.problem, case.sizes)  # asks nothing of the candidate where there is no source
        if check != "resources":
            smallest = self._smallest(gate, smallest, budget)
        case, finding = smallest.case, smallest.finding
        written = _inputs(trial, case)
        sources = reference_source(docket.problem, case.sizes), _candidate_source(trial, case)
        record = _record(trial, gate, smallest, check)
        title = f"Counterexample: {self.verdict.candidate} breaks {gate} of {self.verdict.problem}."
        text = script(title, finding.message, record, sources, written)
        summary = {
            "elements": written.elements,
            "sizes": dict(case.sizes),
            "trials": budget.spent,
            "ended_by": budget.ended_by,
        }
        return Exhibit(gate, self.place / f"counterexample_{gate}.py", text, finding, summary)

    def _smallest(self, gate: str, start: Smallest, budget: Budget) -> Smallest:
        """The smallest case found, or `start` where the finding did not show again."""
        hints = sorted((e.summary["sizes"] for e in self.made), key=lambda s: sum(s.values()))[:HINTS]
        bench = Bench(self.trial.docket, gate, start.case)
        probe = Probe(self.trial.beside(bench, OneCase), gate, start.finding, budget)
        try:
            found = minimise(probe, start.case, hints)
        finally:
            probe.trial.close()
        if found is None and start.finding.mechanism == "call_history":
            raise NoScript("the answer changed only after the calls of all gates, which no script repeats")
        return found or start


def _size(case: Case | None) -> int:
    return sum(t.numel() for t in flatten(case.inputs)[0]) if case is not None else 1 << 62


def check_of(gate: str, finding: Finding) -> str:
    """What a script does to show a finding. Raises NoScript for a mechanism that none can show."""
    if finding.mechanism in RAISING:
        return "raises"
    if gate == "CMP-02":
        return "gradient"
    if gate in ("PRC-01", "PRC-02") and not finding.output and finding.bound is not None:
        return "statistic"
    shown = finding.extra.get("breaks", finding.mechanism)
    if shown not in CHECKS:
        raise NoScript(f"no script can show {shown}: it needs the verifier's sandbox")
    return CHECKS[shown]


def _inputs(trial: Trial, case: Case) -> Inputs:
    drawn: list[Any] = []
    if trial.docket.problem.spec is None:
        try:
            drawn, _ = flatten(trial.docket.instance(case.sizes).draw(case.seed))
        except ProblemError:
            drawn = []
    found = Inputs(case.inputs, drawn, case.seed)
    if sum(len(line) for line in found.lines) > LARGEST_INPUT:
        raise NoScript(f"the smallest failing input is too large for a script ({found.elements} elements)")
    return found


def _candidate_source(trial: Trial, case: Case) -> str:
    candidate = trial.candidate
    own = sites.hard_coded_sizes(candidate.source, case.sizes, trial.docket.written) if case.sizes else {}
    return sites.substitute(candidate.source, own) if own else candidate.source


def _record(trial: Trial, gate: str, smallest: Smallest, check: str) -> dict[str, Any]:
    """What the script needs to know, as literals."""
    case, finding, candidate = smallest.case, smallest.finding, trial.candidate
    record: dict[str, Any] = {
        "gate": gate,
        "mechanism": finding.extra.get("breaks", finding.mechanism),
        "check": check,
        "reason": finding.message,
        "case": case.id,
        "executor": trial.settings.executor,
        "language": candidate.language,
        "entry": candidate.entry,
        "kind": candidate.kind,
        "seed": trial.settings.seed,
        "weights": trial.weights,
        "varied": case.varied,
        "dtype": case.id.split(":")[0] if gate == "PRC-01" else "float32",
    }
    if check in ("value", "nonfinite", "gradient", "statistic"):
        names = trial.docket.truth(trial.docket.case("normal", trial.settings.seed)).names
        record |= {
            "output": names.index(finding.output) if finding.output in names else 0,
            "where": list(finding.where),
            "expected": finding.expected,
            "bound": finding.bound if finding.bound is None or math.isfinite(finding.bound) else None,
        }
    if "configuration" in finding.extra:
        record["configuration"] = finding.extra["configuration"]
    if check == "gradient":
        record |= {"gradient": finding.output.removeprefix("grad:"), "upstream_seed": case.seed}
    if check in ("repeats", "process"):
        repeats = REPEATS if trial.settings.executor == "interpreter" else MANY_REPEATS
        calls = {"process": PROCESSES, "repeats": repeats}[check]
        record["calls"] = finding.extra.get("calls", calls)
    if check in ("aliasing", "overwritten"):
        written, allowed = trial.docket.reference_memory
        record |= {
            "written": sorted(written),
            "allowed": {str(i): sorted(names) for i, names in allowed.items()},
        }
    if check == "decoy":
        record["bound"] = finding.bound
    if check == "stale":
        record["turned"] = _turned(trial, case)
    if check == "resources":
        record["kernel"] = list(finding.case.rpartition(":")[::2])
    return record


def _turned(trial: Trial, case: Case) -> list[int]:
    """Positions of the input tensors whose inner elements are the other draw's in reverse order."""
    drawn, _ = flatten(case.inputs)
    try:
        first, _ = flatten(inputs.draw(trial.docket.instance(case.sizes), "exact_integer", case.seed))
    except inputs.IllegalDraw:
        first, _ = flatten(trial.docket.instance(case.sizes).draw(case.seed))
    return [i for i, (a, b) in enumerate(zip(first, drawn, strict=True)) if not same_bytes(a, b)]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80] or "candidate"
