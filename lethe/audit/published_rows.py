"""The 3,134 published row verdicts of the drkernel audit: read, recomputed, and made searchable beside ours.

* Source: ``results/audit_rows.jsonl.gz`` of github RishiShah99/lethe at e255f25 (MIT); get it with
  ``lethe fetch published``. One JSON object a row: ``id``, ``op_class``, ``status``, ``final_speedup``, and
  for ``gated`` rows ``gates`` (gate -> status, reason, skipped) and ``output_aliasing``; others have
  ``error``.
* Accepted: ``final_speedup > 0``. Row id: the corpus's own, as in `drkernel`.

The published definitions, applied here to the rows alone:

* *reference executable*: neither ``ref_broken`` nor ``not_auditable``;
* *tool-chain artefact*: ``cand_native_fail`` whose error is one of `ARTEFACTS`; outside the denominator;
* *pre-gate finding*: any other row that did not reach the gates, time-outs included;
* *crash*: a gated row one of whose reasons names a CUDA error, also where no gate failed;
* *violation*: pre-gate finding, crash, or a failed gate. Aliasing alone is not one, but it is in the floor;
* *shape rejection*: CMP-03 failed with an exception.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.textio import records

ROWS = 3134
NEEDED = ("id", "op_class", "status", "final_speedup")
ARTEFACTS = ("CompilationError", "UnsupportedLanguageConstruct", "OutOfResources", "PTXASError")
UNUSABLE = ("ref_broken", "not_auditable")
FLOOR = ("EXC-01", "ORD-02", "aliasing", "crash", "pre_gate")
"""The published tolerance-free channels."""
LICENCE = "MIT"

PublishedRow = dict[str, Any]


def read(path: str | Path) -> list[PublishedRow]:
    """The rows of the file. Raises CorpusError where it is missing, of another kind, or holds an id twice."""
    if not Path(path).is_file():
        raise CorpusError(f"no published rows at {path}; get them with: lethe fetch published --to FOLDER")
    rows = list(records(path, "published", NEEDED))
    twice = [i for i, n in Counter(str(r["id"]) for r in rows).items() if n > 1]
    if twice:
        raise CorpusError(f"{path} holds the row id {twice[0]!r} twice")
    return [{**row, "id": str(row["id"])} for row in rows]


def accepted(row: Mapping[str, Any]) -> bool:
    """Whether the corpus's own check accepted the row."""
    return (row["final_speedup"] or 0) > 0


def executable(row: Mapping[str, Any]) -> bool:
    """Whether the reference ran and the row could be audited at all."""
    return row["status"] not in UNUSABLE


def artefact(row: Mapping[str, Any]) -> bool:
    """Whether the published tool chain, not the kernel, is held to have failed."""
    return row["status"] == "cand_native_fail" and str(row.get("error", "")).startswith(ARTEFACTS)


def failed(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The gates that failed."""
    return tuple(g for g, found in row.get("gates", {}).items() if found["status"] == "fail")


def channels(row: Mapping[str, Any]) -> frozenset[str]:
    """Which of the floor's channels, ``EXC-02`` and ``shape`` speak against a row of the denominator."""
    if row["status"] != "gated":
        return frozenset({"pre_gate"})
    found = {g for g in failed(row) if g in ("EXC-01", "ORD-02", "EXC-02")}
    if row.get("output_aliasing"):
        found.add("aliasing")
    if any("CUDA error" in g.get("reason", "") for g in row["gates"].values()):
        found.add("crash")
    shape = row["gates"].get("CMP-03", {})
    if shape.get("status") == "fail" and "exception" in shape.get("reason", ""):
        found.add("shape")
    return frozenset(found)


def violated(row: Mapping[str, Any], without: Iterable[str] = ()) -> bool:
    """Whether the published audit counts the row as a violation; `without` are gates that are not counted."""
    spoken = channels(row)
    return bool(spoken & {"pre_gate", "crash"} or set(failed(row)) - set(without))


def in_floor(row: Mapping[str, Any], extra: Iterable[str] = ()) -> bool:
    """Whether the row is in the published floor, or in the floor with further channels."""
    return bool(channels(row) & {*FLOOR, *extra})


def denominator(rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """The rows that the published rates are about: accepted, executable, no tool-chain artefact."""
    return [r for r in rows if accepted(r) and executable(r) and not artefact(r)]


def status_of(row: Mapping[str, Any]) -> str:
    """The row's status in the words of our own lines."""
    if artefact(row):
        return "compile_failed"
    ours = {
        "gated": "judged",
        "cand_native_fail": "run_failed",
        "cand_load_fail": "import_failed",
        "sandbox_timeout": "timed_out",
        "ref_broken": "reference_failed",
        "not_auditable": "not_auditable",
    }
    return ours.get(row["status"], row["status"])


def spot_check_rows(rows: Iterable[PublishedRow]) -> Iterator[dict[str, str]]:
    """Rows in the form of `report.spot_check_rows`, so that both stand in one searchable table."""
    for row in rows:
        gates = failed(row)
        reason = row["gates"][gates[0]].get("reason", "") if gates else row.get("error", "")
        yield {
            "id": row["id"],
            "corpus": "published",
            "problem": f"drkernel/{row['id']}",
            "family": row["op_class"],
            "language": "triton",
            "accepted": "yes" if accepted(row) else "no",
            "status": status_of(row),
            "failed": ", ".join(gates),
            "finding": " ".join(str(reason).split())[:200],
            "counterexample": "",
        }
