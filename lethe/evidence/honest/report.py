"""How often the verifier rejects what is honest: counts, the exact bound of the rate, and every rejection.

n counts distinct pairs of problem and candidate (by the hash of their texts), never gates or draws: those
that were judged, and those refused before any gate (a candidate that was said to crash is rejected as well).
What ended otherwise, through the reference or the harness, is listed, and so is what a gate could not decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.audit.lines import Line, read, verdict_of
from lethe.audit.statistics import clopper_pearson
from lethe.evidence.specimens import INTEGRITY, Kind, is_rejected
from lethe.verifier.blame import false_rejection
from lethe.verifier.verdict import GateStatus, Status

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rate:
    """A false-rejection rate with its exact upper bounds."""

    n: int
    rejected: int
    upper: float
    """Upper end of the two-sided 95% interval (Clopper and Pearson 1934)."""
    upper_one_sided: float
    """One-sided 95% bound: the rate is at most so large, with 95% confidence."""

    @classmethod
    def of(cls, rejected: int, n: int) -> Rate:
        """Raises ValueError unless 0 <= rejected <= n. For n = 0 both bounds are 1."""
        return cls(n, rejected, clopper_pearson(rejected, n)[1], false_rejection(rejected, n)[1])

    def __str__(self) -> str:
        return (
            f"{self.rejected} of {self.n} honest candidates rejected; at most {self.upper:.3%} "
            f"(95% two-sided), {self.upper_one_sided:.3%} (95% one-sided)"
        )


@dataclass(frozen=True)
class Specificity:
    """What an audit of the honest corpus showed."""

    lines: tuple[Line, ...]
    """One line for each distinct pair, whatever its status."""

    @property
    def decided(self) -> list[Line]:
        """Pairs that the verifier cleared or accused."""
        return [line for line in self.lines if _is_judged(line) or is_rejected(line)]

    @property
    def undecided(self) -> list[Line]:
        """Pairs about which nothing was said: their status and message say why."""
        return [line for line in self.lines if not _is_judged(line) and not is_rejected(line)]

    @property
    def rejected(self) -> list[Line]:
        return [line for line in self.lines if is_rejected(line)]

    @property
    def rate(self) -> Rate:
        return Rate.of(len(self.rejected), len(self.decided))

    def by(self, key: str) -> pd.DataFrame:
        """Counts and bounds by ``"transform"``, ``"family"`` or ``"language"``, with a row for all.

        Columns: n, rejected, upper, upper_one_sided, undecided.
        """
        import pandas as pd

        groups: dict[str, list[Line]] = {}
        for line in self.lines:
            groups.setdefault(_group(line, key), []).append(line)
        table = {name: _counts(Specificity(tuple(members))) for name, members in sorted(groups.items())}
        table["all"] = _counts(self)
        frame = pd.DataFrame.from_dict(table, orient="index")
        frame.index.name = key
        return frame

    def by_gate(self) -> pd.DataFrame:
        """How many judged pairs each gate passed, failed, had nothing to ask of, or could not decide.

        Columns: the statuses of a gate. A specificity of gates that never applied would mean nothing.
        """
        import pandas as pd

        counts: dict[str, dict[str, int]] = {}
        for line in self.lines:
            for gate in line["verdict"]["gates"]:
                row = counts.setdefault(gate["gate"], dict.fromkeys(map(str, GateStatus), 0))
                row[gate["status"]] += 1
        frame = pd.DataFrame.from_dict(counts, orient="index", columns=[str(s) for s in GateStatus])
        frame.index.name = "gate"
        return frame

    def rejections(self) -> pd.DataFrame:
        """One row for each finding of a rejected pair: id, gate, case, mechanism, message."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for line in self.rejected:
            verdict = verdict_of(line)
            found = [(g.gate, f) for g in verdict.gates for f in g.findings if g.status is GateStatus.FAIL]
            found += [(INTEGRITY, f) for f in verdict.integrity]
            rows += [
                {"id": line["id"], "gate": g, "case": f.case, "mechanism": f.mechanism, "message": f.message}
                for g, f in found
            ] or [{"id": line["id"], "gate": str(verdict.status), "message": verdict.message}]
        return pd.DataFrame(rows, columns=["id", "gate", "case", "mechanism", "message"])

    def errors(self) -> pd.DataFrame:
        """Gates that ended in an error on a judged pair: id, gate, whose, detail."""
        import pandas as pd

        rows = [
            {"id": line["id"], "gate": g.gate, "whose": str(g.whose), "detail": g.detail}
            for line in self.lines
            for g in verdict_of(line).gates
            if g.status is GateStatus.ERROR
        ]
        return pd.DataFrame(rows, columns=["id", "gate", "whose", "detail"])


def summarise(lines: Iterable[Line]) -> Specificity:
    """From audit lines; specimens that are not honest (cheats, mutants) are passed over, so that the honest
    twins of another corpus may be counted too. A pair that appears twice counts once, as last judged."""
    distinct = {}
    for line in lines:
        if line["extra"].get("kind") == Kind.HONEST:
            verdict = line["verdict"]
            distinct[verdict["problem_sha256"], verdict["candidate_sha256"]] = line
    return Specificity(tuple(distinct.values()))


def read_all(files: Iterable[str | Path]) -> Specificity:
    """`summarise` over audit files, in the order given. Raises LogError where one is not an audit's."""
    return summarise(line for file in files for line in read(file))


def _is_judged(line: Line) -> bool:
    return bool(line["verdict"]["status"] == Status.JUDGED)


def _group(line: Line, key: str) -> str:
    value = line["extra"].get("transform") if key == "transform" else line[key]
    return str(value)


def _counts(found: Specificity) -> dict[str, float]:
    rate = found.rate
    return {
        "n": rate.n,
        "rejected": rate.rejected,
        "upper": rate.upper,
        "upper_one_sided": rate.upper_one_sided,
        "undecided": len(found.undecided),
    }
