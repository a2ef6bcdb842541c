"""Running the calibration: which rows there are, appended to a file that a later run continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lethe.evidence import parallel
from lethe.evidence.calibration import carry, measure
from lethe.evidence.calibration.measure import Bench
from lethe.evidence.calibration.operators import BY_NAME, CARRY, OPERATORS, Operator
from lethe.provenance import ROOT

SCHEMA = "lethe.calibration/1"
PROFILES = ("derived", "paper")
QUICK_OPERATORS = ("row_sum", "softmax")
QUICK_LENGTHS = (64, 512, 8192)

Row = dict[str, Any]
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Plan:
    """One row to be measured."""

    gate: str
    operator: str
    pattern: str
    profile: str

    def key(self, device: str) -> Key:
        return self.gate, self.operator, self.pattern, self.profile, device


FEWER_PATTERNS = {
    "CMP-02": ("uniform",),
    "CMP-03": ("uniform", "element"),
    "ORD-03": ("uniform", CARRY),
    "PRC-02": ("uniform", CARRY),
}
"""Gates whose patterns are cut to those that tell something: an error at one place of the output is no
error of that size at any place of the gradient, CMP-03 compares with CMP-01's kind of band at other shapes,
ORD-03 is a backstop, PRC-02 asks about carries."""


def plans(quick: bool = False, operators: Sequence[str] = ()) -> Iterator[Plan]:
    """Every row, grouped so that neighbours share a judge and its reference side.

    Profile `derived`: every gate and operator, with the patterns that fit. Profile `paper`, for comparison:
    the gates whose published formula bounds values, with a uniform error. Then the carry sweep. `operators`
    names the only ones to measure, if any; ValueError where one does not exist.
    """
    for name in set(operators) - set(BY_NAME):
        raise ValueError(
            f"there is no operator {name!r} to calibrate; there are {', '.join(sorted(BY_NAME))}"
        )
    for profile in PROFILES:
        for operator in OPERATORS:
            if quick and (operator.name not in QUICK_OPERATORS or profile != "derived"):
                continue
            if operators and operator.name not in operators:
                continue
            for gate in measure.GATES if profile == "derived" else measure.PAPER_GATES:
                for pattern in ("uniform",) if quick or profile != "derived" else _patterns(gate, operator):
                    yield Plan(gate, operator.name, pattern, profile)
    for name, n in carry.points():
        if operators and name not in operators:
            continue
        if not quick or (name in QUICK_OPERATORS and n in QUICK_LENGTHS):
            yield Plan("PRC-02", name, f"sweep:N={n}", "derived")


def _patterns(gate: str, operator: Operator) -> tuple[str, ...]:
    if gate in measure.SUMS and not operator.accumulates:
        return ("uniform",)  # one row says that the gate does not apply
    return tuple(p for p in operator.patterns if p in FEWER_PATTERNS.get(gate, operator.patterns))


def digest(device: str) -> str:
    """Sixteen hex digits that change with the verifier's sources, this package, torch and the device."""
    import torch

    h = hashlib.sha256(f"{torch.__version__} {_device_name(device)}".encode())
    here = Path(__file__).resolve().parent
    for file in [*sorted((ROOT / "lethe" / "verifier").rglob("*.py")), *sorted(here.glob("*.py"))]:
        h.update(file.read_bytes())
    return h.hexdigest()[:16]


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def key_of(row: Row) -> Key:
    return row["gate"], row["operator"], row["pattern"], row["profile"], row["device"]


def read(path: str | Path) -> list[Row]:
    """The rows of a calibration file, the last of each key, in file order; a torn last line is ignored.

    Raises ValueError where the file is not a calibration's.
    """
    found: dict[Key, Row] = {}
    text = Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        row = json.loads(line)
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise ValueError(f"line {number} of {path} does not have schema {SCHEMA}")
        found.pop(key_of(row), None)
        found[key_of(row)] = row
    return list(found.values())


def rows(wanted: Sequence[Plan], device: str = "cpu", *, quick: bool = False) -> Iterator[Row]:
    """Measure the planned rows one after the other.

    Every row holds ``gate``, ``operator``, ``pattern``, ``profile``, ``device``, ``digest`` and ``status``
    (``"measured"``, ``"not_applicable"``, ``"undecidable"``, or ``"rejected"`` where an honest kernel is
    rejected); the others are described at `measure.row` and `carry.row`.
    """
    import torch

    from lethe.verifier.judge import Judge

    torch.set_num_threads(1)
    stamp = digest(device)
    for profile in PROFILES:
        mine = [p for p in wanted if p.profile == profile]
        if not mine:
            continue
        with Judge(profile=profile, device=device, quick=quick) as judge:
            for plan in mine:
                found = measure.each(partial(_measured, judge, plan, device))
                yield {
                    "schema": SCHEMA,
                    "gate": plan.gate,
                    "operator": plan.operator,
                    "pattern": plan.pattern,
                    "profile": profile,
                    "device": device,
                    "digest": stamp,
                    "quick": quick,
                    **found,
                }


def _measured(judge: Any, plan: Plan, device: str) -> Row:
    if plan.pattern.startswith("sweep:"):
        return carry.row(plan.operator, int(plan.pattern.partition("N=")[2]), device)
    operator = BY_NAME[plan.operator]
    return measure.row(Bench(judge, operator, operator.problem()), plan.gate, plan.pattern)


def run(
    path: str | Path,
    device: str = "cpu",
    *,
    quick: bool = False,
    workers: int = 0,
    operators: Sequence[str] = (),
) -> Iterator[Row]:
    """Append to `path` what it does not hold yet (with today's digest), yielding each new row.

    `workers` processes measure an operator each; with 0 this one measures all; `operators` as in `plans`. A
    last line that an interruption tore is cut off first. Raises ValueError where the file is not a
    calibration's.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = digest(device)
    before = read(path) if path.exists() else []
    held = {key_of(r) for r in before if r["digest"] == stamp and r["quick"] == quick}
    wanted = [p for p in plans(quick, operators) if p.key(device) not in held]
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        for row in _spread(wanted, device, quick, workers) if workers else rows(wanted, device, quick=quick):
            file.write((json.dumps(row, sort_keys=True, allow_nan=False) + "\n").encode())
            file.flush()
            yield row


def _spread(wanted: Sequence[Plan], device: str, quick: bool, workers: int) -> Iterator[Row]:
    """The rows of `wanted`, an operator and profile at a time in each process, as they are done."""
    groups: dict[tuple[str, str], list[Plan]] = {}
    for p in wanted:
        groups.setdefault((p.operator, p.profile), []).append(p)
    work = partial(_listed, device=device, quick=quick)
    for measured in parallel.results(work, groups.values(), workers):
        yield from measured


def _listed(wanted: Sequence[Plan], device: str, quick: bool) -> list[Row]:
    return list(rows(wanted, device, quick=quick))
