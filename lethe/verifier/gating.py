"""Running one gate: whatever happens in it ends in a typed result, never in an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lethe.verifier import catalog, fairness
from lethe.verifier.gates import GATES
from lethe.verifier.oracle import ReferenceFailed
from lethe.verifier.problem import ProblemError
from lethe.verifier.sheet import CandidateStopped, NotApplicable, SkipCase, not_applicable
from lethe.verifier.verdict import Blame, GateResult, GateStatus, Reason

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial


BROKEN = (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError)
"""What may go wrong on our own side of a run, a device's errors and torch's among them."""


def run_gate(identifier: str, trial: Trial) -> GateResult:
    """The gate's result on a candidate that is built anew for it."""
    start = time.perf_counter()
    gate: Callable[[Trial], GateResult] = GATES[identifier]
    channel = str(catalog.contract(identifier).channel)
    trial.rebuild()
    try:
        result = gate(trial)
    except NotApplicable as e:
        result = not_applicable(identifier, e.reason, e.detail)
    except CandidateStopped as e:
        result = GateResult(identifier, GateStatus.ERROR, channel, whose=e.blame, detail=f"{e.status}: {e}")
    except (ReferenceFailed, ProblemError) as e:
        result = GateResult(identifier, GateStatus.ERROR, channel, whose=Blame.REFERENCE, detail=str(e))
        if fairness.reference_raises(e):
            result = not_applicable(identifier, Reason.REFERENCE_RAISES, str(e))
    except SkipCase as e:
        result = GateResult(identifier, GateStatus.ERROR, channel, whose=Blame.REFERENCE, detail=str(e))
    except BROKEN as e:
        detail = f"{type(e).__name__}: {e}".splitlines()[0]
        result = GateResult(identifier, GateStatus.ERROR, channel, whose=Blame.HARNESS, detail=detail)
    return replace(result, elapsed=time.perf_counter() - start)
