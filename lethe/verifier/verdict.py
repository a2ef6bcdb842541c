"""Verdicts: typed statuses, findings, and their JSON form.

A verdict has a *canonical* part (statuses, cases, seeds, metrics, hashes) that a
replay must reproduce byte for byte, and a rest (times, host) that it need not.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "lethe.verdict/1"
RULES_VERSION = "2026.12.2"
"""Version of the gates and fairness rules; every verdict names the one it was reached by."""


class Status(StrEnum):
    """Where a verdict ended, before or after the gates."""

    JUDGED = "judged"
    """The candidate loaded and ran; the gates say the rest."""
    MALFORMED_CANDIDATE = "malformed_candidate"
    """The source cannot be read or parsed, or holds no entry point."""
    IMPORT_FAILED = "import_failed"
    """Executing the candidate's module raised."""
    BUILD_FAILED = "build_failed"
    """Constructing the entry point (``ModelNew(*init)``) raised."""
    COMPILE_FAILED = "compile_failed"
    """The kernel's own compiler (Triton, C++) refused the source."""
    RUN_FAILED = "run_failed"
    """The first call on the reference's own inputs raised an exception."""
    WRONG_TYPE = "wrong_type"
    """The candidate returned something that is not a (container of) tensors or scalars."""
    TIMED_OUT = "timed_out"
    """It used up its processor or wall time."""
    OUT_OF_MEMORY = "out_of_memory"
    """It asked for more memory than it may have."""
    CRASHED = "crashed"
    """The process died: a signal, or an exit that nobody asked for."""
    GARBAGE = "garbage"
    """The suspect wrote something on the pipe that is not a frame of the protocol."""
    RESOURCE_LIMIT = "resource_limit"
    """A process, file-size or descriptor limit stopped the candidate."""
    NO_CUSTOM_KERNEL = "no_custom_kernel"
    """The candidate ran, but no kernel of its own was launched."""
    NOT_AUDITABLE = "not_auditable"
    """Nothing fair can be said: ambiguous weights, or it runs only at sizes too large to judge."""
    EXECUTOR_FAILED = "executor_failed"
    """The executor (e.g. Triton's interpreter) cannot run this program; says nothing of the kernel."""
    REFERENCE_FAILED = "reference_failed"
    """The reference itself raised or is not usable."""
    HARNESS_FAILED = "harness_failed"
    """The judge could not do its work; never the candidate's fault."""


UNREPEATED = "the failure did not show again in another process, so it is not charged"

CANDIDATE_FAULTS = frozenset(
    {
        Status.MALFORMED_CANDIDATE,
        Status.IMPORT_FAILED,
        Status.BUILD_FAILED,
        Status.COMPILE_FAILED,
        Status.RUN_FAILED,
        Status.WRONG_TYPE,
        Status.CRASHED,
        Status.GARBAGE,
        Status.RESOURCE_LIMIT,
        Status.TIMED_OUT,
        Status.OUT_OF_MEMORY,
    }
)
"""Statuses that are a finding against the candidate although no gate ran."""


class GateStatus(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"
    """Never counted as a pass; `GateResult.reason` says why."""
    ERROR = "error"
    """Could not be decided; `GateResult.whose` says because of whom."""


class Reason(StrEnum):
    """Why a gate does not apply."""

    REFERENCE_RAISES = "reference_raises"
    REFERENCE_VARIES = "reference_varies"
    STOCHASTIC = "stochastic_operator"
    NO_GRADIENT = "no_gradient"
    FORWARD_ONLY = "forward_only"
    """The candidate carries no gradient at all, so that calling backward raises."""
    NO_FREE_DIMENSION = "no_free_dimension"
    NO_FLOATING_INPUT = "no_floating_input"
    NOT_A_REDUCTION = "not_a_reduction"
    NOT_LINEAR_OR_AFFINE = "not_linear_or_affine"
    DTYPE_NOT_DECLARED = "dtype_not_declared"
    INTERPRETER = "interpreter"
    """The interpreter is not faithful here, so nothing may be concluded."""
    NO_COMPILED_ARTIFACT = "no_compiled_artifact"
    VACUOUS = "vacuous"
    """Empty output, or an output that does not depend on the input."""
    HIDDEN_STATE = "hidden_state"
    NO_CHARGEABLE_ELEMENT = "no_chargeable_element"
    DISCRETE_OUTPUT = "discrete_output"
    BUDGET = "budget"
    """The reference does not fit the time or memory budget at this case."""
    NOT_REQUESTED = "not_requested"
    HARD_CODED_SIZE = "hard_coded_size"
    TF32_REFERENCE = "tf32_reference"
    NARROW_OPERANDS = "narrow_operands"
    """The operands are narrower than declared, which hides what the accumulator does."""
    EARLIER_FAILURE = "earlier_failure"
    """A failure elsewhere explains this gate's cases (e.g. no value agrees at all)."""


class Blame(StrEnum):
    REFERENCE = "reference"
    CANDIDATE = "candidate"
    EXECUTOR = "executor"
    HARNESS = "harness"


@dataclass(frozen=True)
class Finding:
    """One breach: where, by how much, against which bound."""

    case: str
    """Readable case id, e.g. ``"zeros"``, ``"shape:width=193"``, ``"nan:x:last"``."""
    channel: str
    """``"T"`` or ``"B"``."""
    mechanism: str
    """What went wrong in one or two words: ``"value"``, ``"swallowed"``, ``"minted"``, ``"raises"``..."""
    message: str
    """One sentence for a person."""
    seed: int = 0
    output: str = ""
    """Path of the output in its structure, e.g. ``"out"``, ``"out[1]"``, ``"grad:weight"``."""
    where: tuple[int, ...] = ()
    """Index of the worst element."""
    metric: float | None = None
    bound: float | None = None
    expected: float | None = None
    got: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GateResult:
    gate: str
    status: GateStatus
    channel: str
    cases: int = 0
    """How many cases were evaluated and could have failed."""
    findings: tuple[Finding, ...] = ()
    reason: Reason | None = None
    whose: Blame | None = None
    detail: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    """Named statistics, e.g. the worst error/bound ratio seen, also where the gate passes."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Cases that were not evaluated, with their reason."""
    elapsed: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Everything that was found out about one candidate."""

    problem: str
    candidate: str
    profile: str
    status: Status
    message: str
    gates: tuple[GateResult, ...] = ()
    integrity: tuple[Finding, ...] = ()
    """Findings of the probes that belong to no single gate."""
    unprobed: dict[str, str] = field(default_factory=dict)
    """Probes that the candidate stopped, with how it stopped."""
    problem_sha256: str = ""
    candidate_sha256: str = ""
    executor: str = ""
    rules: str = RULES_VERSION
    weights: str = ""
    """How weights were aligned: ``"none"``, ``"seeded"``, ``"copied"``."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that were substituted to fit the budget; empty if the problem ran as written."""
    options: dict[str, Any] = field(default_factory=dict)
    """What a replay needs: seed, device, gates requested, budgets."""
    counterexample: str | None = None
    """Path of the script that tells most, if one was asked for and could be written."""
    counterexamples: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each failing gate the ``path`` of its script and how small its input became, or ``none``: why
    there is no script."""
    environment: dict[str, Any] = field(default_factory=dict)
    elapsed: dict[str, float] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the gates that failed."""
        return tuple(g.gate for g in self.gates if g.status is GateStatus.FAIL)

    @property
    def violated(self) -> bool:
        """True if the candidate broke a contract (a gate, a probe, or it could not run)."""
        return bool(self.failed) or bool(self.integrity) or self.status in CANDIDATE_FAULTS

    @property
    def clean(self) -> bool:
        """True if it was judged, nothing failed, nothing errored and something passed."""
        statuses = {g.status for g in self.gates}
        return (
            self.status is Status.JUDGED
            and not self.violated
            and GateStatus.ERROR not in statuses
            and GateStatus.PASS in statuses
        )

    def gate(self, identifier: str) -> GateResult:
        for g in self.gates:
            if g.gate == identifier:
                return g
        raise KeyError(f"this verdict holds no gate {identifier!r}")

    def to_dict(self) -> dict[str, Any]:
        return _plain(asdict(self))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    def canonical(self) -> str:
        """The part that a replay must reproduce, as one line of sorted JSON."""
        d = self.to_dict()
        for key in ("environment", "elapsed", "counterexample", "counterexamples"):
            d.pop(key)
        for g in d["gates"]:
            g.pop("elapsed")
        return json.dumps(d, sort_keys=True, allow_nan=False)

    def digest(self) -> str:
        """sha256 of the canonical part."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Verdict:
        """Inverse of `to_dict`. Raises ValueError on another schema."""
        if d.get("schema") != SCHEMA:
            raise ValueError(
                f"this file holds schema {d.get('schema')!r}, this version of lethe reads {SCHEMA!r}"
            )
        d = _special(d)
        d["status"] = Status(d["status"])
        d["integrity"] = tuple(_finding(f) for f in d["integrity"])
        d["gates"] = tuple(
            GateResult(
                **{
                    **g,
                    "status": GateStatus(g["status"]),
                    "reason": Reason(g["reason"]) if g.get("reason") else None,
                    "whose": Blame(g["whose"]) if g.get("whose") else None,
                    "findings": tuple(_finding(f) for f in g["findings"]),
                }
            )
            for g in d["gates"]
        )
        return cls(**d)


def _finding(d: dict[str, Any]) -> Finding:
    return Finding(**{"message": "", **d, "where": tuple(d.get("where", ()))})


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(x: Any) -> Any:
    """JSON has no NaN or Inf: they travel as ``{"float": "NaN"}``; floats keep 12 digits."""
    if isinstance(x, float):
        if math.isnan(x):
            return {"float": "NaN"}
        if math.isinf(x):
            return {"float": "Infinity" if x > 0 else "-Infinity"}
        return float(f"{x:.12g}")
    if isinstance(x, StrEnum):
        return str(x)
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    return x


def _special(x: Any) -> Any:
    if isinstance(x, dict):
        if set(x) == {"float"} and x["float"] in _SPECIAL:
            return _SPECIAL[x["float"]]
        return {k: _special(v) for k, v in x.items()}
    if isinstance(x, list):
        return [_special(v) for v in x]
    return x
