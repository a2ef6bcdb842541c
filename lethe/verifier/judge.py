"""The judge: from a problem and a candidate to a verdict.

The judge never imports or executes candidate code; it asks a suspect process, which sees inputs
only. Whatever the suspect does ends in a typed status or a finding, never in an exception here.
"""

from __future__ import annotations

import hashlib
import platform
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from lethe.verifier import blame, catalog, formats, integrity, semantics
from lethe.verifier.ahead import Ahead, start
from lethe.verifier.cascade import accounted_for, without_cascade
from lethe.verifier.counterexample import write_counterexamples
from lethe.verifier.docket import Docket
from lethe.verifier.gating import run_gate
from lethe.verifier.limits import one_thread
from lethe.verifier.oracle import (
    MEMORY_ENDS,
    OracleError,
    ReferenceFailed,
    first_line,
    reference_errors,
)
from lethe.verifier.problem import (
    Candidate,
    CandidateError,
    OpSpec,
    Problem,
    ProblemError,
    candidate_from_callable,
    load_candidate,
    load_problem,
    problem_from_spec,
)
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Budget, Settings, choose_executor, usual_budget
from lethe.verifier.sheet import CandidateStopped, Sheet, SkipCase, not_applicable
from lethe.verifier.textfile import writable_folder
from lethe.verifier.trial import Trial
from lethe.verifier.venue import StoppedAsWritten, Venue, find_venue, without_kernel
from lethe.verifier.verdict import (
    UNREPEATED,
    Blame,
    GateResult,
    GateStatus,
    Reason,
    Status,
    Verdict,
)

PROBLEMS_KEPT = {"cpu": 2, "interpreter": 2, "cuda": 1}
"""Problems whose reference side stays in memory, by executor; candidates of one problem usually come
together, and a GPU's memory is what many judges share."""

REFERENCE_ENDS = (ProblemError, ReferenceFailed, OracleError, SkipCase, *MEMORY_ENDS)
"""What a problem that cannot be judged raises outside the gates, where no candidate has a part in it."""

KEPT_DEVICE_BYTES = 1 << 30
"""GPU memory that no tensor uses and a judge yet holds back between gates for its own reuse."""


class Judge:
    """A warm judge: keeps its fork servers and the reference side of recent problems.

    Args:
        profile: ``"derived"`` or ``"paper"``.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        seed: first seed of every draw.
        gates: ids to run; None runs all twelve.
        quick: fewer draws and placements per gate.
        budget: limits; by default chosen by the executor.
        server: a server of suspects that is already starting; the judge closes it.
        counterexamples: folder for ``<candidate>-<digest>/counterexample*.py`` files; None writes none.
            Raises ValueError where it cannot be written.
    """

    def __init__(
        self,
        *,
        profile: str = "derived",
        device: str = "auto",
        seed: int = 0,
        gates: Sequence[str] | None = None,
        quick: bool = False,
        budget: Budget | None = None,
        counterexamples: Path | None = None,
        server: SuspectServer | None = None,
    ) -> None:
        if profile not in ("derived", "paper"):
            raise ValueError(f"unknown profile {profile!r}; use derived or paper")
        if not isinstance(seed, int) or not 0 <= seed < 1 << 32:
            raise ValueError(f"seed is {seed!r}; give a whole number from 0 to {(1 << 32) - 1}")
        self._device = device
        self._options: dict[str, Any] = {
            "profile": profile,
            "seed": seed,
            "quick": quick,
            "gates": _known(gates),
        }
        self._budget = budget
        writable_folder(counterexamples)
        self._counterexamples = counterexamples
        self._server = server or SuspectServer()
        self._dockets: OrderedDict[tuple[str, str, bool], Docket] = OrderedDict()
        self._caches = tempfile.TemporaryDirectory(prefix="lethe-cache-")

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the fork servers and remove the build caches."""
        self._server.close()
        self._caches.cleanup()

    @one_thread()
    def verify(self, problem: Problem, candidate: Candidate, gates: Sequence[str] | None = None) -> Verdict:
        """Judge one candidate. Never raises on account of the candidate or the reference.

        `gates` replaces the judge's own choice for this verdict.
        """
        start = time.perf_counter()
        executor = choose_executor(self._device, candidate.language)
        compiles = semantics.compiles_at_run_time(candidate.source)
        budget = self._budget or usual_budget(executor, compiles)
        settings = Settings(executor=executor, budget=budget, **self._options)
        if gates is not None:
            settings = replace(settings, gates=_known(gates))
        blank = Verdict(
            problem=problem.name,
            candidate=candidate.name,
            profile=settings.profile,
            status=Status.HARNESS_FAILED,
            message="",
            problem_sha256=problem.sha256,
            candidate_sha256=candidate.sha256,
            executor=executor,
            options=settings.record()
            | {"candidate_path": candidate.path, "reference_path": problem.path, "entry": candidate.entry},
        )
        ahead = self._ahead(candidate, settings)
        try:
            docket = self._docket(problem, settings)
        except REFERENCE_ENDS as e:
            ahead.discard()
            return _reference_failed(blank, e)
        except BaseException:
            ahead.discard()
            raise
        prepared = time.perf_counter()
        trial = Trial(docket, candidate, self._server, settings, self.cache_of(candidate), ahead)
        try:
            venue = find_venue(trial, partial(self._as_written, trial))
            trial, docket = venue.trial, venue.trial.docket
            verdict = self._judge(blank, venue)
        except CandidateStopped as e:
            sizes = {} if isinstance(e, StoppedAsWritten) else docket.base
            verdict = replace(blank, sizes=sizes, status=e.status, message=e.message)
        except REFERENCE_ENDS as e:
            verdict = _reference_failed(blank, e)
        finally:
            trial.close()
            _release_device(executor)
        done = time.perf_counter()
        return replace(
            verdict,
            environment=_environment(executor) | {"isolation": dict(trial.isolation)},
            elapsed={"reference": prepared - start, "candidate": done - prepared, "total": done - start},
        )

    def _as_written(self, trial: Trial) -> Trial:
        """The same candidate before the same problem at its own sizes, in a process of its own."""
        docket = self._docket(trial.docket.problem, trial.settings, as_written=True)
        return Trial(docket, trial.candidate, self._server, trial.settings, self.cache_of(trial.candidate))

    def _ahead(self, candidate: Candidate, settings: Settings) -> Ahead:
        return Ahead(partial(start, self._server, candidate, settings, self.cache_of(candidate)))

    def _judge(self, blank: Verdict, venue: Venue) -> Verdict:
        trial, docket = venue.trial, venue.trial.docket
        case = docket.case("normal", trial.settings.seed)
        first = trial.run(case)[0]
        blank = replace(blank, sizes=docket.base, weights=trial.weights)
        if without_kernel(trial, first):
            return replace(
                blank,
                status=Status.NO_CUSTOM_KERNEL,
                message="the candidate ran, but launched no kernel of its own",
            )
        results = without_cascade(self._gates(venue))
        if venue.denied:
            probed = Sheet("INTEGRITY", skipped={"all": venue.denied})
        else:
            probed = integrity.probe(trial, case, first, results)
        left = {Reason.EARLIER_FAILURE, *([Reason.BUDGET] if venue.denied else [])}
        results = accounted_for(results, bool(probed.findings), left)
        verdict = replace(
            blank,
            status=Status.JUDGED,
            gates=tuple(results),
            integrity=tuple(probed.findings),
            unprobed=probed.skipped,
        )
        verdict = replace(verdict, message=_summary(verdict))
        if self._counterexamples is not None and verdict.violated:
            path, told = write_counterexamples(verdict, trial, self._counterexamples)
            verdict = replace(verdict, counterexample=str(path) if path else None, counterexamples=told)
        return verdict

    def _gates(self, venue: Venue) -> list[GateResult]:
        """All gates in the catalog's order.

        RES-02 goes first on a GPU, where it reads what the second process loaded before that process is asked
        anything else; elsewhere it compiles in a process of its own, beside the others.
        """
        trial = venue.trial
        wanted = [g for g in catalog.IDS if trial.settings.gates is None or g in trial.settings.gates]
        why = trial.docket.undecidable
        if why is not None:
            return [not_applicable(g, *why) for g in wanted]
        if venue.denied:
            return [
                self._confirmed(g, trial) if g == "CMP-03" else not_applicable(g, Reason.BUDGET, venue.denied)
                for g in wanted
            ]
        known = {"CMP-01": venue.cmp01}
        if trial.settings.executor == "cuda":
            ordered = sorted(wanted, key=lambda g: g != "RES-02")
            by_id = {g: self._confirmed(g, trial, known.get(g)) for g in ordered}
            return [by_id[g] for g in wanted]
        apart = trial.fresh()
        try:
            with ThreadPoolExecutor(1) as pool:
                compiled = pool.submit(self._confirmed, "RES-02", apart) if "RES-02" in wanted else None
                results = [self._confirmed(g, trial, known.get(g)) for g in wanted if g != "RES-02"]
                return results + ([compiled.result()] if compiled is not None else [])
        finally:
            apart.close()

    def _confirmed(self, identifier: str, trial: Trial, known: GateResult | None = None) -> GateResult:
        """Run a gate, unless its result is known; a failure must show again in the other process (rule 26).

        One other process confirms every gate: a CUDA context is made and ended one after the other on a
        device, and with many judges on it that is what they wait for.
        """
        result = known or run_gate(identifier, trial)
        _release_device(trial.settings.executor)
        if result.status is not GateStatus.FAIL:
            return result
        again = run_gate(identifier, trial.second)
        if blame.is_reproduced([True, again.status is GateStatus.FAIL]):
            return result
        return replace(
            result,
            status=GateStatus.ERROR,
            whose=Blame.HARNESS,
            detail=UNREPEATED,
        )

    def _docket(self, problem: Problem, settings: Settings, as_written: bool = False) -> Docket:
        name = problem.sha256 if problem.spec is None else f"{problem.sha256}:{id(problem.spec)}"
        key = (name, settings.executor, as_written)
        if key not in self._dockets:
            others = list(dict.fromkeys(k[0] for k in self._dockets if k[0] != name))
            leaving = others[: max(0, len(others) + 1 - PROBLEMS_KEPT[settings.executor])]
            for old in [k for k in self._dockets if k[0] in leaving]:
                del self._dockets[old]  # before the next one asks for memory
            with reference_errors("first"):
                self._dockets[key] = Docket(problem, settings, as_written=as_written)
        self._dockets.move_to_end(key)
        return self._dockets[key]

    def cache_of(self, candidate: Candidate) -> Path:
        """The folder in which this candidate's suspects keep what they build, as long as the judge lives."""
        path = Path(self._caches.name) / candidate.sha256[:24]
        path.mkdir(exist_ok=True)
        return path


def _reference_failed(blank: Verdict, end: BaseException) -> Verdict:
    """The verdict on any candidate of a problem that cannot be judged; memory is told as such, since others
    may hold it (fairness rule 21)."""
    short = isinstance(end, MEMORY_ENDS)
    told = f"The reference cannot be judged: memory ran out ({first_line(end)})." if short else str(end)
    return replace(blank, status=Status.REFERENCE_FAILED, message=told)


def _release_device(executor: str) -> None:
    """Give GPU memory back that no tensor uses, if it is much."""
    if executor == "cuda":
        import torch

        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > KEPT_DEVICE_BYTES:
            torch.cuda.empty_cache()


def _known(gates: Sequence[str] | None) -> tuple[str, ...] | None:
    if gates is None:
        return None
    if isinstance(gates, str) or not gates:
        raise ValueError(f"gates is {gates!r}; give a list such as ['CMP-01', 'EXC-01'], or None for all")
    wanted = tuple(str(g).upper() for g in gates)
    for given, g in zip(gates, wanted, strict=True):
        if g not in catalog.IDS:
            raise ValueError(f"unknown gate {given!r}; the gates are {', '.join(catalog.IDS)}")
    return wanted


def _summary(verdict: Verdict) -> str:
    if verdict.failed:
        return f"breaks {len(verdict.failed)} contract(s): {', '.join(verdict.failed)}"
    if verdict.integrity:
        return f"an integrity probe found: {verdict.integrity[0].message}"
    passed = sum(g.status is GateStatus.PASS for g in verdict.gates)
    applicable = sum(g.status is not GateStatus.NOT_APPLICABLE for g in verdict.gates)
    if not applicable:
        return "no gate applies"
    return f"keeps {passed} of {applicable} applicable contract(s)"


def _environment(executor: str) -> dict[str, Any]:
    import torch

    return {
        "executor": executor,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "device": torch.cuda.get_device_name()
        if executor == "cuda"
        else platform.processor() or platform.machine(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def verify(
    candidate: Any,
    reference: Any,
    *,
    profile: str = "derived",
    device: str = "auto",
    gates: Sequence[str] | None = None,
    seed: int = 0,
    entry: str = "ModelNew",
    quick: bool = False,
    budget: Budget | None = None,
    counterexamples: Path | None = None,
) -> Verdict:
    """Judge one candidate against one reference.

    Args:
        candidate: path of a Python file with a ``ModelNew`` class, its source text, a `Candidate`,
            or a function or ``nn.Module`` class defined at module level.
        reference: path or text of a KernelBench-format reference, a `Problem`, or an `OpSpec`.
        profile, device, gates, seed, quick, budget, counterexamples: see `Judge`.
        entry: name of the candidate's class or function.

    Returns:
        The verdict. A candidate that is no valid program is a verdict too (``malformed_candidate``).

    Raises:
        ValueError: an unknown profile, gate or device, a bad seed, or a path at which there is no file.
        TypeError: a candidate that is none of the above.
        ProblemError: the reference cannot be read.
    """
    problem = _as_problem(reference)
    with Judge(
        profile=profile,
        device=device,
        seed=seed,
        gates=gates,
        quick=quick,
        budget=budget,
        counterexamples=counterexamples,
    ) as judge:
        try:
            suspect = _as_candidate(candidate, entry)
        except CandidateError as e:
            text = str(candidate)
            return Verdict(
                problem=problem.name,
                candidate=text[:80],
                profile=profile,
                status=Status.MALFORMED_CANDIDATE,
                message=str(e),
                problem_sha256=problem.sha256,
                candidate_sha256=hashlib.sha256(text.encode()).hexdigest(),
            )
        return judge.verify(problem, suspect)


def _as_problem(reference: Any) -> Problem:
    if isinstance(reference, Problem):
        return reference
    if isinstance(reference, OpSpec):
        return problem_from_spec(reference)
    return load_problem(reference)


def _as_candidate(candidate: Any, entry: str) -> Candidate:
    if isinstance(candidate, Candidate):
        return candidate
    if isinstance(candidate, (str, Path)):
        if formats.is_path(candidate) and not Path(candidate).is_file():
            raise ValueError(f"there is no file {str(candidate)!r}; give a path or the source text")
        return load_candidate(candidate, entry)
    if not callable(candidate):
        kind = type(candidate).__name__
        raise TypeError(f"a candidate is a path, a source text, a function or a class, not {kind}")
    return candidate_from_callable(candidate)
