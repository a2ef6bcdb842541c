"""Who answers for what happened: the fairness rules about statuses, runs and counts.

They need no tensors, so that audits can apply them without loading torch. `fairness.RULES` lists them with
the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lethe.verifier.verdict import CANDIDATE_FAULTS, RULES_VERSION, Status

CONFIDENCE = 0.95

LOUD = frozenset({Status.RUN_FAILED, Status.COMPILE_FAILED, Status.BUILD_FAILED, Status.IMPORT_FAILED})


def is_loud(status: Status) -> bool:
    """Rule 20: the candidate raised, which is never silent wrongness."""
    return status in LOUD


OWN_STATUS = frozenset({Status.OUT_OF_MEMORY, Status.TIMED_OUT})


def has_own_status(status: Status) -> bool:
    """Rule 21: running out of memory or time at a case says what this machine allows, not that the kernel
    breaks a contract there. (A compiler's refusal is loud: rule 20.)"""
    return status in OWN_STATUS


def passed_over(status: Status) -> bool:
    """Rule 39: an autotuner passes over a configuration that does not compile or fit, so one that stops is
    not charged. One that ends the process is: a real autotuner tries them all."""
    return status is not Status.CRASHED


def history_chargeable(wrong_at_first: bool) -> bool:
    """Rule 40: a wrong answer is charged to the calls before it only where the same inputs were answered
    right at first. What varies in an answer that is wrong from the start, such as memory that it reads and
    nobody wrote, says nothing about its history."""
    return not wrong_at_first


def counts_for_time(call: int, warm_up: int) -> bool:
    """Rule 24: whether the call with this index (from 0) is timed. Tuning and compiling happen on the first
    calls at a shape, so the warm-up leaves both out."""
    return call >= warm_up


def is_reproduced(failures: Sequence[bool]) -> bool:
    """Rule 26: the failure showed in at least two processes, and in every one that was tried."""
    return len(failures) >= 2 and all(failures)


def false_rejection(rejected: int, honest: int) -> tuple[float, float]:
    """Rule 27: rate of honest kernels rejected and its one-sided 95% upper bound (Clopper and Pearson
    1934)."""
    if honest <= 0:
        return 0.0, 1.0
    return rejected / honest, binomial_upper(rejected, honest, 1 - CONFIDENCE)


def binomial_upper(successes: int, trials: int, tail: float) -> float:
    """The largest p at which `successes` or fewer of `trials` still have probability `tail`, by bisection."""
    if successes >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(80):
        p = (low + high) / 2
        low, high = (p, high) if _at_most(successes, trials, p) > tail else (low, p)
    return high


def _at_most(successes: int, trials: int, p: float) -> float:
    """Binomial distribution function for 0 < p < 1, from logarithms so that large counts do not overflow."""
    log_p, log_q = math.log(p), math.log1p(-p)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(trials - i + 1) + i * log_p + (trials - i) * log_q)
        for i in range(successes + 1)
    )


def same_rules(version: str) -> bool:
    """Rule 28: a verdict reached by other rules is not compared with this version's."""
    return version == RULES_VERSION


VALUE_GATES = frozenset({"CMP-01", "ORD-01", "PRC-01"})
"""Gates that compare values at the problem's own sizes."""


def tile_boundary_only(elsewhere: Collection[str], at_base: Collection[str], passed: Collection[str]) -> bool:
    """Rule 31: values are wrong at substituted sizes only, and right at the problem's own, whatever else is
    wrong there (a NaN that is swallowed, a gradient that is missing).

    elsewhere: gates that failed at substituted sizes only; at_base: the other gates that failed; passed:
    gates that passed.
    """
    return "CMP-03" in elsewhere and not VALUE_GATES & set(at_base) and bool(VALUE_GATES & set(passed))


def executor_fault(status: Status) -> bool:
    """Rule 32: the executor cannot run this program; that says nothing of the kernel."""
    return status is Status.EXECUTOR_FAILED


ALIKE = 64.0
"""An error over its bound differs between sizes where one grows with n and the other with sqrt(n), as a
sum's of rounded operands does: by sqrt(4096) between one term and 4,096. Where this hides a fault that only a
size shows, the candidate stays convicted by CMP-01."""


def fails_alike(here: float, at_base: Collection[float]) -> bool:
    """Rule 46: the same kind of draw breaks its bound at the problem's own sizes and layout as well, about as
    far (within `ALIKE`), so that neither another size nor another layout is to blame.

    here, at_base: errors over their bounds; infinite where a result is not finite, which excuses its like
    alone.
    """
    return any(here <= ALIKE * other and math.isinf(here) == math.isinf(other) for other in at_base)


def library_chose(contraction: bool, kept: bool) -> bool:
    """Rule 47: other bits on a second stream or by graph replay are not charged to an answer that keeps its
    bounds, where the operator holds a product or a convolution: the libraries that these come from choose
    their algorithm by stream, workspace and capture, and promise the same bits in none but the same one.
    """
    return contraction and kept


HARNESS = frozenset(Status) - CANDIDATE_FAULTS - {Status.EXECUTOR_FAILED}


def harness_fault(status: Status) -> bool:
    """Rule 37: an end that is neither the candidate's own doing nor the executor's is the judge's, and is
    never charged."""
    return status in HARNESS


def sizes_explain(failed: Collection[str], as_written: Collection[str] | None) -> bool:
    """Rule 45: some draw that fails at sizes which the judge chose does not fail at those written, so that
    the sizes explain it; or it cannot be tried there, and nobody knows.

    failed: draws that fail at the sizes chosen; as_written: those that fail as written too, None where the
    written sizes are beyond the budget.
    """
    return as_written is None or bool(set(failed) - set(as_written))
