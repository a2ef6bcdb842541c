"""The red-team table: which gate rejects which cheat, read from the lines of an audit.

Cells are ``fail``, ``pass``, ``n/a`` or ``error``; a gate that never ran, because the candidate was refused
before, is ``n/a``. The probes outside the gates have the column ``INTEGRITY``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lethe.audit.lines import Line, verdict_of
from lethe.evidence.specimens import INTEGRITY, Kind, is_caught, is_rejected
from lethe.verifier import catalog
from lethe.verifier.verdict import GateStatus

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (*catalog.IDS, INTEGRITY)
SHORT = {
    GateStatus.FAIL: "fail",
    GateStatus.PASS: "pass",
    GateStatus.NOT_APPLICABLE: "n/a",
    GateStatus.ERROR: "error",
}
TARGET = "*"
"""Marks the gate that a cheat was written for."""


def cells(line: Line) -> dict[str, str]:
    """What each gate, and the probes together, said of one row."""
    verdict = verdict_of(line)
    said = {g.gate: SHORT[g.status] for g in verdict.gates}
    probes = "fail" if verdict.integrity else "pass" if verdict.gates else "n/a"
    return {gate: said.get(gate, "n/a") for gate in catalog.IDS} | {INTEGRITY: probes}


def matrix(lines: Iterable[Line]) -> pd.DataFrame:
    """One row for each cheat, indexed by its id.

    Columns: ``attack``, ``operator``, ``family``, ``target`` (the gate or status it was written for),
    ``status`` (how the verdict ended), one for each gate and ``INTEGRITY``, ``caught`` (rejected by its
    target) and ``twin_clean`` (None where the twin was not judged).
    """
    import pandas as pd

    lines = list(lines)
    clean = {line["id"]: verdict_of(line).clean for line in lines if _kind(line) is Kind.HONEST}
    rows = []
    for line in lines:
        if _kind(line) is Kind.CHEAT:
            extra = line["extra"]
            rows.append(
                {"id": line["id"], "attack": extra["attack"], "operator": extra["operator"]}
                | {"family": line["family"], "target": extra["gate"], "status": line["verdict"]["status"]}
                | cells(line)
                | {"caught": is_caught(line), "twin_clean": clean.get(extra["twin"])}
            )
    names = ["attack", "operator", "family", "target", "status", *COLUMNS, "caught", "twin_clean"]
    return pd.DataFrame(rows, columns=["id", *names]).set_index("id")


def by_attack(table: pd.DataFrame) -> pd.DataFrame:
    """A small table of `matrix`: one row for each attack, in the order of the corpus.

    A cell counts the operators on which the gate failed: ``3/4``, empty for none; ``*`` marks the target,
    also where the target is a status (column ``status``).
    """
    import pandas as pd

    rows = []
    for attack, group in table.groupby("attack", sort=False):
        targets = set(group["target"])
        row: dict[str, Any] = {"attack": attack, "operators": len(group)}
        for gate in COLUMNS:
            failed = int((group[gate] == "fail").sum())
            text = f"{failed}/{len(group)}" if failed or gate in targets else ""
            row[gate] = text + (TARGET if gate in targets else "")
        refused = sorted(targets - set(COLUMNS))
        hits = sum(int((group["status"] == status).sum()) for status in refused)
        row["status"] = f"{hits}/{len(group)} {refused[0]}{TARGET}" if refused else ""
        rows.append(row)
    return pd.DataFrame(rows, columns=["attack", "operators", *COLUMNS, "status"]).set_index("attack")


def twins(lines: Iterable[Line]) -> pd.DataFrame:
    """One row for each honest twin: ``clean``, ``status``, and the gates that failed or could not decide."""
    import pandas as pd

    rows = []
    for line in lines:
        if _kind(line) is Kind.HONEST:
            said = cells(line)
            rows.append(
                {
                    "id": line["id"],
                    "of": line["extra"]["twin"],
                    "status": line["verdict"]["status"],
                    "clean": verdict_of(line).clean,
                    "passed": sum(cell == "pass" for cell in said.values()),
                    "failed": ", ".join(gate for gate, cell in said.items() if cell == "fail"),
                    "undecided": ", ".join(gate for gate, cell in said.items() if cell == "error"),
                }
            )
    names = ["of", "status", "clean", "passed", "failed", "undecided"]
    return pd.DataFrame(rows, columns=["id", *names]).set_index("id")


def counts(lines: Iterable[Line]) -> dict[str, int]:
    """``attacks`` and ``cheats`` tried; those ``caught`` by their gate and ``rejected`` at all; ``twins`` and
    those ``clean``."""
    lines = list(lines)
    cheats = [line for line in lines if _kind(line) is Kind.CHEAT]
    honest = [line for line in lines if _kind(line) is Kind.HONEST]
    return {
        "attacks": len({line["extra"]["attack"] for line in cheats}),
        "cheats": len(cheats),
        "caught": sum(map(is_caught, cheats)),
        "rejected": sum(is_rejected(line) or is_caught(line) for line in cheats),
        "twins": len(honest),
        "clean": sum(verdict_of(line).clean for line in honest),
    }


def _kind(line: Line) -> Kind:
    return Kind(line["extra"]["kind"])
