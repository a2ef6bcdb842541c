"""At which sizes a candidate is judged: those that the judge chose, or those of its problem.

To save time and memory the judge may choose smaller sizes than those written. A kernel may hold the written
ones, or be right only where a tile divides them; that is CMP-03's business, and no other gate's. So one that
refuses or fails at the sizes chosen is tried as written too, and judged there if it is right there (fairness
rule 45).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lethe.verifier import blame
from lethe.verifier.gates import cmp01
from lethe.verifier.gating import BROKEN, run_gate
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.sheet import CandidateStopped, SkipCase
from lethe.verifier.verdict import CANDIDATE_FAULTS, GateResult, GateStatus, Status

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.trial import Trial

REFUSALS = frozenset(
    {
        Status.RUN_FAILED,
        Status.BUILD_FAILED,
        Status.COMPILE_FAILED,
        Status.WRONG_TYPE,
        Status.GARBAGE,
        Status.CRASHED,
    }
)
"""Ends that the sizes at hand may have brought about, as opposed to a candidate that never works."""

LIMITS = frozenset({Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.RESOURCE_LIMIT})
"""Ends that at a problem's own sizes, which may be far above the budget, say nothing of the candidate."""

MISSHAPEN = frozenset({"structure", "shape"})
FIRST_DRAW = f"{cmp01.ORDINARY}:0"


class StoppedAsWritten(CandidateStopped):
    """The candidate ended by its own fault at the sizes written."""


class _Denied(Exception):
    """Why the candidate cannot be tried at the sizes written."""


@dataclass(frozen=True)
class Venue:
    """Where a candidate is judged."""

    trial: Trial
    cmp01: GateResult | None = None
    """What CMP-01 says there, if it was asked already."""
    denied: str = ""
    """Why nothing but CMP-03 may be charged: it fails at the sizes chosen, and as written nobody can tell."""


def find_venue(trial: Trial, move: Callable[[], Trial]) -> Venue:
    """Run the candidate, and say at which sizes it is judged. `move` makes the trial at the sizes written.

    Raises CandidateStopped where it runs at neither, or where it refuses the sizes chosen and cannot be
    tried as written. Whichever trial is not returned is closed.
    """
    docket = trial.docket
    try:
        first = trial.run(docket.case("normal", trial.settings.seed))[0]
    except CandidateStopped as e:
        if e.status not in REFUSALS or not docket.base:
            raise
        return _after_refusal(trial, e, move)
    if not docket.base or docket.undecidable is not None or without_kernel(trial, first):
        return Venue(trial)
    if trial.settings.executor == "cuda":
        trial.second.begin()  # RES-02 reads from it, and its context takes as long as CMP-01
    if trial.settings.gates is not None and "CMP-01" not in trial.settings.gates:
        try:
            failed = frozenset(f.case for f in cmp01.look(trial, {FIRST_DRAW}).findings)
        except (CandidateStopped, ReferenceFailed, ProblemError, SkipCase, *BROKEN):
            failed = frozenset()  # whatever it is, the gates that were asked for meet it too
        return _after_failure(trial, failed, None, move) if failed else Venue(trial)
    found = run_gate("CMP-01", trial)
    if found.status is not GateStatus.FAIL:
        return Venue(trial, found)
    return _after_failure(trial, frozenset(f.case for f in found.findings), found, move)


def without_kernel(trial: Trial, report: RunReport) -> bool:
    """Whether a call of a Triton candidate launched no kernel, where launches are counted."""
    counted = trial.settings.executor != "cpu" and trial.candidate.language == "triton"
    return counted and report.launches == 0


def _after_refusal(trial: Trial, refusal: CandidateStopped, move: Callable[[], Trial]) -> Venue:
    trial.close()
    try:
        home = _home(trial, move)
    except _Denied as e:
        told = f"at the sizes chosen for judging: {refusal}; and {e}"
        raise CandidateStopped(Status.NOT_AUDITABLE, told) from None
    home.failed_elsewhere = trial.docket.base, frozenset({FIRST_DRAW})
    return Venue(home)


def _after_failure(
    trial: Trial, failed: frozenset[str], found: GateResult | None, move: Callable[[], Trial]
) -> Venue:
    """The draws that failed are tried as written: if the reference's own are among them, those alone, since
    a kernel that is wrong there is wrong. One that returns another structure or shape is judged as written
    in any case, so that no row is counted as such for sizes that are not its problem's."""
    asked = frozenset(d for d in failed if d.startswith(cmp01.ORDINARY)) or failed
    try:
        home = _home(trial, move)
        tried, wrong, misshapen = _as_written(home, asked)
    except _Denied as e:
        if not blame.sizes_explain(failed, None):
            return Venue(trial, found)
        trial.failed_elsewhere = trial.docket.base, failed
        return Venue(trial, denied=f"it fails at the sizes chosen for judging, and {e}")
    if not misshapen and not blame.sizes_explain(tried, wrong):
        home.close()
        return Venue(trial, found)
    trial.close()
    if tried - wrong:
        home.failed_elsewhere = trial.docket.base, failed - wrong
    return Venue(home)


def _home(trial: Trial, move: Callable[[], Trial]) -> Trial:
    """The trial at the sizes written, where the candidate ran once."""
    try:
        home = move()
    except (ProblemError, ReferenceFailed, SkipCase) as e:
        raise _Denied(str(e)) from None
    except BROKEN as e:
        raise _Denied(f"as written, the reference ends with {type(e).__name__}") from None
    try:
        home.run(home.docket.case("normal", home.settings.seed))
    except (ProblemError, ReferenceFailed, SkipCase, *BROKEN) as e:
        home.close()
        raise _Denied(f"as written, no input can be drawn: {e}") from None
    except CandidateStopped as e:
        home.close()
        if e.status in CANDIDATE_FAULTS - LIMITS:
            raise StoppedAsWritten(e.status, e.message) from None
        raise _Denied(f"as written, {e}") from None
    return home


def _as_written(home: Trial, asked: Collection[str]) -> tuple[frozenset[str], frozenset[str], bool]:
    """Of the draws asked for: those that could be judged as written, those wrong there, and whether one has
    another structure or shape."""
    try:
        sheet = cmp01.look(home, asked)
    except (CandidateStopped, ReferenceFailed, ProblemError, SkipCase, *BROKEN) as e:
        home.close()
        raise _Denied(f"as written, no value can be judged: {e}") from None
    tried = frozenset(asked) - set(sheet.skipped)
    if not tried:
        home.close()
        raise _Denied(f"as written, {next(iter(sheet.skipped.values()), 'no draw can be judged')}")
    wrong = frozenset(f.case for f in sheet.findings)
    return tried, wrong, any(f.mechanism in MISSHAPEN for f in sheet.findings)
