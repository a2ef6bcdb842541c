"""From the audit's lines, the equivalents and the usual check: kill rates and the matrix operator x gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lethe.audit.lines import Line
from lethe.audit.statistics import wilson
from lethe.evidence.mutants.generate import OPERATORS  # with every operator registered
from lethe.evidence.specimens import INTEGRITY, is_rejected, rejected_by
from lethe.verifier import catalog
from lethe.verifier.verdict import CANDIDATE_FAULTS, Status

if TYPE_CHECKING:
    import pandas as pd

LOUD = "loud"
"""Column of the matrix: the mutant raised, crashed or hung before any gate."""
COLUMNS = (*catalog.IDS, INTEGRITY, LOUD)


@dataclass(frozen=True)
class Rate:
    """A share with its Wilson 95% interval."""

    killed: int
    of: int

    @property
    def rate(self) -> float:
        return self.killed / self.of if self.of else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.killed, self.of)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.killed}/{self.of} = {self.rate:.1%} [{low:.1%}, {high:.1%}]"


def frame(
    lines: Iterable[Line], equivalents: dict[str, dict[str, Any]], checks: Iterable[dict[str, Any]] = ()
) -> pd.DataFrame:
    """One row for each mutant that was judged.

    Columns: id, operator, group, base, family, language, killed (by the verifier), loud (it failed before
    any gate), gates (tuple that rejected it), equivalent (True, False, or None where it was not examined
    or the record is of another text), reason, and accepted at each tolerance of the check (None: not run).
    """
    import pandas as pd

    from lethe.evidence.common_check import TOLERANCES

    by_id = {c["id"]: c for c in checks}
    rows = []
    for line in lines:
        sha, known = line["verdict"]["candidate_sha256"], equivalents.get(line["id"])
        same = known is not None and known["sha256"] == sha
        check = by_id.get(line["id"])
        usable = check is not None and check["sha256"] == sha
        rows.append(
            {
                "id": line["id"],
                **{k: line["extra"][k] for k in ("operator", "group", "base")},
                "family": line["family"],
                "language": line["language"],
                "killed": is_rejected(line),
                "loud": Status(line["verdict"]["status"]) in CANDIDATE_FAULTS,
                "gates": tuple(c for c in COLUMNS if c in _columns(line)),
                "equivalent": known["equivalent"] if known is not None and same else None,
                "reason": known.get("reason") if known is not None and same else None,
                **{
                    f"accepted_{t:g}": check["accepted"][f"{t:g}"] if check is not None and usable else None
                    for t in TOLERANCES
                },
            }
        )
    return pd.DataFrame(rows)


def _columns(line: Line) -> set[str]:
    found = rejected_by(line) & set(COLUMNS)
    return found | ({LOUD} if Status(line["verdict"]["status"]) in CANDIDATE_FAULTS else set())


def rates(df: pd.DataFrame) -> dict[str, Rate]:
    """The headline figures, by what they say."""
    equivalent = df["equivalent"] == True  # noqa: E712 (None is neither)
    rest = df[~equivalent]
    silent = rest[~rest["loud"]]
    found = {
        "verifier, equivalents left out": _rate(rest["killed"]),
        "verifier, equivalents counted as survivors": Rate(int(rest["killed"].sum()), len(df)),
        "verifier, silent mutants only": _rate(silent["killed"]),
    }
    for column in [c for c in df.columns if c.startswith("accepted_")]:
        ran, quiet = rest[rest[column].notna()], silent[silent[column].notna()]
        if ran.empty:
            continue
        tolerance = column.removeprefix("accepted_")
        found[f"allclose {tolerance}, equivalents left out"] = _rate(~ran[column].astype(bool))
        found[f"allclose {tolerance}, silent mutants only"] = _rate(~quiet[column].astype(bool))
    return found


def _rate(killed: pd.Series[bool]) -> Rate:
    return Rate(int(killed.sum()), len(killed))


def matrix(df: pd.DataFrame) -> pd.DataFrame:
    """Operator x gate: how many of an operator's non-equivalent mutants each gate rejects.

    Further columns: group, bug, mutants, equivalent, killed, survivors. Rows in the register's order.
    """
    import pandas as pd

    rows = []
    for name, op in OPERATORS.items():
        of = df[df["operator"] == name]
        if of.empty:
            continue
        rest = of[~(of["equivalent"] == True)]  # noqa: E712 (None is neither)
        rows.append(
            {
                "operator": name,
                "group": op.group,
                "bug": op.bug,
                "mutants": len(of),
                "equivalent": len(of) - len(rest),
                "killed": int(rest["killed"].sum()),
                "survivors": int((~rest["killed"].astype(bool)).sum()),
                **{c: sum(c in gates for gates in rest["gates"]) for c in COLUMNS},
            }
        )
    return pd.DataFrame(rows)


def survivors(df: pd.DataFrame) -> pd.DataFrame:
    """Mutants that were not rejected and are not known to be equivalent."""
    return df[~df["killed"].astype(bool) & ~(df["equivalent"] == True)]  # noqa: E712 (None is neither)


def contradictions(df: pd.DataFrame) -> pd.DataFrame:
    """Mutants that were rejected although no sample tells them from their base: a rejection of what seems
    honest, or a sample that is too small. Either must be looked into."""
    return df[df["killed"].astype(bool) & (df["equivalent"] == True)]  # noqa: E712 (None is neither)


def text(df: pd.DataFrame) -> str:
    """The report for a terminal."""
    equivalent = int((df["equivalent"] == True).sum())  # noqa: E712 (None is neither)
    unknown = int(df["equivalent"].isna().sum())
    parts = [
        f"{len(df)} mutants of {df['base'].nunique()} bases by {df['operator'].nunique()} operators; "
        f"{equivalent} equivalent ({equivalent / len(df):.1%}), {unknown} not examined",
        *(f"{name}: {rate}" for name, rate in rates(df).items()),
        "",
        _table(matrix(df)),
        "",
        "Survivors:",
        *(f"  {i}" for i in survivors(df)["id"]),
        "Rejected, though no sample tells them from their base:",
        *(f"  {i}" for i in contradictions(df)["id"]),
        "Equivalent:",
        *(f"  {r.id}: {r.reason}" for r in df[df["equivalent"] == True].itertuples()),  # noqa: E712
    ]
    return "\n".join(parts)


def _table(counts: pd.DataFrame) -> str:
    shown: Sequence[str] = ("operator", "mutants", "equivalent", "killed", "survivors", *COLUMNS)
    used = [c for c in shown if c not in COLUMNS or counts[c].any()]
    return str(counts[used].to_string(index=False))
