"""Audit lines made up for tests: every outcome that the tables distinguish, none of it measured."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from lethe.verifier.catalog import CONTRACTS
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Reason, Status, Verdict

FAMILIES = ("matmul", "softmax", "norm", "reduction", "scan", "conv", "attention", "activation")
MECHANISMS = {"EXC-01": ("swallowed", "minted", "wrong_sign"), "ORD-02": ("aliasing", "nondeterministic")}


def write(path: Path, rows: int = 40, seed: int = 0) -> Path:
    """Write `rows` audit lines and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line(i, seed)) + "\n" for i in range(rows)), encoding="utf-8")
    return path


def line(order: int, seed: int = 0) -> dict[str, Any]:
    """The audit line of one made-up row; the same for the same arguments."""
    rng = random.Random(f"{seed}:{order}")
    family = FAMILIES[order % len(FAMILIES)]
    cpp = order % 7 == 6
    stopped = order % 19 == 18
    gates = () if stopped else tuple(_gate(c.identifier, str(c.channel), rng) for c in CONTRACTS)
    identifier = f"{family}_{order:03d}__{'cpp' if cpp else 'a'}"
    verdict = Verdict(
        problem=f"{family}_{order // 8}",
        candidate=identifier,
        profile="derived",
        status=Status.EXECUTOR_FAILED if stopped else Status.JUDGED,
        message="the interpreter cannot run this program" if stopped else "judged",
        gates=gates,
        problem_sha256="0" * 64,
        candidate_sha256="1" * 64,
        executor="cpu" if cpp else "interpreter",
        weights="none",
    )
    return {
        "schema": "lethe.audit/1",
        "id": identifier,
        "corpus": "house",
        "order": order,
        "problem": verdict.problem,
        "family": family,
        "language": "cpp" if cpp else "triton",
        "accepted": order % 9 != 8,
        "licence": "MIT",
        "extra": {},
        "settings": {},
        "verdict": json.loads(verdict.canonical()),
        "timing": {"wall": 1.0, "elapsed": {}, "gates": {}, "environment": {}, "counterexample": None},
    }


def _gate(identifier: str, channel: str, rng: random.Random) -> GateResult:
    roll = rng.random()
    if roll < 0.12:
        return GateResult(identifier, GateStatus.NOT_APPLICABLE, channel, reason=Reason.INTERPRETER)
    if roll < 0.25:
        mechanism = rng.choice(MECHANISMS.get(identifier, ("value",)))
        finding = Finding(
            case="normal",
            channel="T" if identifier in MECHANISMS else "B",
            mechanism=mechanism,
            message=f"made up: {mechanism} | at one element",
            extra={"maxnum": True} if mechanism == "swallowed" and rng.random() < 0.5 else {},
        )
        return GateResult(identifier, GateStatus.FAIL, channel, cases=3, findings=(finding,))
    return GateResult(identifier, GateStatus.PASS, channel, cases=3)
