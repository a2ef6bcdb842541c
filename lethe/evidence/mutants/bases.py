"""The honest kernels that mutants are made of, and how they were chosen.

A base is a house kernel of which one call is cheap in the interpreter, and which the verifier judges
clean: otherwise each of its mutants would be rejected for the base's own fault. Triton bases have proved
a launch (a verdict without one is ``no_custom_kernel``); C++ bases hold no other code path. The C++ kernels
are built without ``-ffast-math``, which makes NaN undefined and is charged by EXC-01: a base is the
kernel with that flag removed.

``bases.json`` records the choice as facts. Write it again with::

    python -m lethe.evidence.mutants bases --out DIR
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lethe.audit import house
from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.lines import Line

SCHEMA = "lethe.mutants.bases/1"
DATA = Path("data/corpus/mutants")
CALL_SECONDS = 0.25
"""One call of a base in the interpreter takes at most so long: a verdict makes a few hundred."""
ALSO = ("matmul_square__a", "matmul_linear_bias__a")
"""Slower ones that are taken all the same, since no cheaper Triton kernel multiplies matrices."""
FAST_MATH = ('"-ffast-math", ', "")
REPAIR = "built without -ffast-math"


@dataclass(frozen=True)
class Base:
    """An honest kernel to be mutated."""

    row: Row
    """The house row; its candidate has the repair applied."""
    shapes: list[list[int] | None]
    """Shape of each argument of ``forward`` as the problem is written."""


def data_folder() -> Path:
    """``data/corpus/mutants`` under the working directory, else beside the package's source tree."""
    here = Path(__file__).resolve().parents[3] / DATA
    return DATA if DATA.is_dir() or not here.is_dir() else here


def repaired(row: Row) -> Row:
    """A C++ row without ``-ffast-math``; other rows as they are."""
    if row.language != "cpp":
        return row
    source = row.candidate.source.replace(*FAST_MATH)
    return replace(row, candidate=replace(row.candidate, source=source))


def candidates(path: Path | None = None) -> ListedCorpus:
    """Rows among which bases are sought: cheap house kernels, repaired, as a corpus named ``bases``."""
    rows = [
        r
        for r in house.load(path).rows()
        if (r.extra["call_seconds"] or CALL_SECONDS) <= CALL_SECONDS or r.id in ALSO
    ]
    return ListedCorpus("bases", [replace(repaired(r), corpus="bases") for r in rows])


def load(path: Path | None = None, data: Path | None = None) -> tuple[list[Base], list[str]]:
    """The recorded bases whose kernels the house corpus at `path` holds, and notes about those it does not.

    Raises CorpusError where the record is missing, or was made for another text of a kernel.
    """
    file = (data or data_folder()) / "bases.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise CorpusError(f"corpus mutants: no {file}; {_REMEDY}") from None
    if record.get("schema") != SCHEMA:
        raise CorpusError(f"corpus mutants: {file} has schema {record.get('schema')!r}, expected {SCHEMA!r}")
    rows = {r.id: repaired(r) for r in house.load(path).rows()}
    found, notes = [], []
    for entry in record["bases"]:
        row = rows.get(entry["id"])
        if row is None:
            notes.append(f"the base {entry['id']} is not in this house corpus")
            continue
        if _hashes(row) != entry["sha256"]:
            raise CorpusError(f"corpus mutants: {entry['id']} changed since {file} was made; {_REMEDY}")
        found.append(Base(row, entry["shapes"]))
    return found, notes


_REMEDY = "make it with: python -m lethe.evidence.mutants bases --out DIR"


def _hashes(row: Row) -> dict[str, str]:
    return {"problem": row.problem.sha256, "kernel": row.candidate.sha256}


def record(rows: ListedCorpus, lines: list[Line]) -> dict[str, Any]:
    """What ``bases.json`` holds, from the audit lines of `candidates`."""
    from lethe.audit.lines import verdict_of

    by_id = {line["id"]: line for line in lines}
    chosen, left_out = [], {}
    for row in rows.rows():
        if row.id not in by_id:
            left_out[row.id] = "not judged"
            continue
        verdict = verdict_of(by_id[row.id])
        if not verdict.clean:
            left_out[row.id] = verdict.message
            continue
        chosen.append(
            {
                "id": row.id,
                "sha256": _hashes(row),
                "repair": REPAIR if row.language == "cpp" and FAST_MATH[0] in _original(row) else None,
                "call_seconds": row.extra["call_seconds"],
                "shapes": _shapes(row),
            }
        )
    first = lines[0]
    return {
        "schema": SCHEMA,
        "how": "house kernels of which a call takes at most "
        f"{CALL_SECONDS:g} s in the interpreter and whose verdict is clean; C++ {REPAIR}",
        "command": "python -m lethe.evidence.mutants bases --out DIR",
        "settings": first["settings"],
        "rules": first["verdict"]["rules"],
        "bases": chosen,
        "left_out": left_out,
    }


def _original(row: Row) -> str:
    return (house.default_folder() / row.candidate.path).read_text(encoding="utf-8")


def _shapes(row: Row) -> list[list[int] | None]:
    """Shapes of the inputs that the problem itself draws."""
    from lethe.verifier.problem import instantiate

    drawn = instantiate(row.problem).draw(0)
    return [list(t.shape) if hasattr(t, "shape") else None for t in drawn]
