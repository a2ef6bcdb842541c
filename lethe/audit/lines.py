"""The audit's file: one JSON line per judged row, append-only.

A line is ``{"schema", "id", "corpus", "order", "problem", "family", "language",
"accepted", "licence", "extra", "settings", "verdict", "timing"}``. `verdict` is the
canonical part of the row's verdict; everything that may differ between two runs
(times, host, where a counterexample was written) is in `timing`. Without `timing`
a line is a pure function of the row, the settings and the rules.

A row may be judged more than once (its source or the rules changed): the last line wins.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lethe.audit.corpora import Row
from lethe.verifier.blame import same_rules
from lethe.verifier.verdict import Verdict

SCHEMA = "lethe.audit/1"

LINE_START = b'{"accepted": '
"""How every line begins (keys are sorted): tells a torn line from a file that is not ours."""

NEEDED = ("id", "corpus", "settings", "verdict", "timing")
"""What every line holds, in every version of the schema."""

Line = dict[str, Any]


class LogError(ValueError):
    """An audit file cannot be read or continued; the message is one sentence."""


def make(row: Row, verdict: Verdict, settings: dict[str, Any], wall: float) -> Line:
    """The line of a judged row; `settings` is how the audit was run, `wall` its seconds."""
    plain = verdict.to_dict()
    return {
        "schema": SCHEMA,
        "id": row.id,
        "corpus": row.corpus,
        "order": row.order,
        "problem": row.problem.name,
        "family": row.family,
        "language": row.language,
        "accepted": row.accepted,
        "licence": row.licence,
        "extra": row.extra,
        "settings": settings,
        "verdict": json.loads(verdict.canonical()),
        "timing": {
            "wall": round(wall, 3),
            "elapsed": plain["elapsed"],
            "gates": {g.gate: round(g.elapsed, 4) for g in verdict.gates},
            "environment": plain["environment"],
            "counterexample": plain["counterexample"],
            "counterexamples": plain["counterexamples"],
        },
    }


def verdict_of(line: Line) -> Verdict:
    """The verdict that a line records, its times included."""
    timing = line.get("timing", {})
    recorded = dict(line["verdict"])
    recorded["gates"] = [
        {**g, "elapsed": timing.get("gates", {}).get(g["gate"], 0.0)} for g in recorded["gates"]
    ]
    for key in ("elapsed", "environment", "counterexample", "counterexamples"):
        recorded[key] = timing.get(key) if key == "counterexample" else timing.get(key) or {}
    return Verdict.from_dict(recorded)


def canonical(line: Line) -> str:
    """The part of a line that does not depend on the run, as sorted JSON."""
    return json.dumps({k: v for k, v in line.items() if k != "timing"}, sort_keys=True, allow_nan=False)


KEPT_OF_A_FINDING = frozenset(
    {
        "case",
        "channel",
        "mechanism",
        "output",
        "metric",
        "bound",
        "expected",
        "got",
        "extra",
        "message",
        "where",
    }
)


def compact(line: Line) -> Line:
    """A line for the record: every status, one finding of each kind, no skipped cases, no host facts.

    `report` makes the same tables of it, but a verdict cannot be replayed from it. About a kilobyte.
    """
    verdict = {k: v for k, v in line["verdict"].items() if k != "options" and (v or k != "unprobed")}
    verdict["gates"] = [_compact_gate(g) for g in verdict["gates"]]
    verdict["integrity"] = [_compact_finding(f) for f in verdict["integrity"]]
    wall = line.get("timing", {}).get("wall")
    gates = line.get("timing", {}).get("gates", {})
    return {**line, "verdict": verdict, "timing": {"wall": wall, "gates": gates}}


def _compact_gate(gate: dict[str, Any]) -> dict[str, Any]:
    kinds = {_kind(f): f for f in reversed(gate["findings"])}
    kept = {k: v for k, v in gate.items() if k in ("gate", "status", "channel", "cases", "reason", "whose")}
    if gate["status"] == "error" or gate["status"] == "not_applicable":
        kept["detail"] = gate["detail"]
    if gate["measured"]:
        kept["measured"] = gate["measured"]
    kept["findings"] = [_compact_finding(f) for f in reversed(kinds.values())]
    return {k: v for k, v in kept.items() if v is not None}


def _kind(finding: dict[str, Any]) -> tuple[Any, ...]:
    """What the floor tells apart: see `floor.channels`."""
    extra = finding.get("extra") or {}
    labels = (bool(extra.get(label)) for label in ("maxnum", "reassociation", "detached"))
    return finding["mechanism"], finding["channel"], *labels


def _compact_finding(finding: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in finding.items() if k in KEPT_OF_A_FINDING}
    return {k: v for k, v in kept.items() if v not in (None, "", {}, [])}


def is_current(line: Line, row: Row) -> bool:
    """Whether a recorded line still speaks about this row: same sources, same rules."""
    verdict = line["verdict"]
    return (
        verdict.get("candidate_sha256") == row.candidate.sha256
        and verdict.get("problem_sha256") == row.problem.sha256
        and same_rules(verdict.get("rules", ""))
    )


def read(path: str | Path) -> Iterator[Line]:
    """The lines of an audit file in file order; a torn last line is ignored.

    Raises LogError where the file is missing, or a line before the last is not one of ours.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise LogError(f"cannot read {path}: {e.strerror}") from None
    whole = data[: data.rfind(b"\n") + 1]
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError:
            raise LogError(f"line {number} of {path} is not JSON; this is not an audit file") from None
        if not isinstance(line, dict) or line.get("schema") != SCHEMA:
            raise LogError(
                f"line {number} of {path} does not have schema {SCHEMA}; this is not an audit file"
            )
        if lacking := [key for key in NEEDED if key not in line]:
            raise LogError(f"line {number} of {path} lacks {', '.join(lacking)}; this is not an audit file")
        yield line


def latest(lines: Iterable[Line]) -> dict[tuple[str, str], Line]:
    """The last line of each (corpus, id)."""
    return {(line["corpus"], line["id"]): line for line in lines}


class Log:
    """An audit file opened for appending; a context manager.

    A line torn by an earlier kill is cut off when the file is opened. Each
    `append` is one write of a whole line followed by fsync. Only one process may
    hold the file: a second raises LogError.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as e:
            raise LogError(f"cannot write {self.path}: {e.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise LogError(
                f"another audit is writing {self.path}; wait for it or choose another --out"
            ) from None
        try:
            self.lines = latest(read(self.path))
            self._cut_torn_line()
        except BaseException:
            self._file.close()
            raise

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        torn = data[whole:]
        if not torn:
            return
        if not torn.startswith(LINE_START[: len(torn)]):
            raise LogError(f"{self.path} does not end with a line of an audit; choose another --out")
        self._file.truncate(whole)
        os.fsync(self._file.fileno())

    def append(self, line: Line) -> None:
        text = json.dumps(line, sort_keys=True, allow_nan=False) + "\n"
        view = memoryview(text.encode())
        while view:
            view = view[self._file.write(view) or 0 :]
        os.fsync(self._file.fileno())
        self.lines[line["corpus"], line["id"]] = line

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
