"""Fairness: one innocent for each rule of `lethe.verifier.fairness`, who would be charged without it.

`INNOCENTS` are kernels that the judge meets, `SITUATIONS` what the rules outside a verdict protect. The tests
in ``tests/evidence/fairness`` switch each rule off and on and record both outcomes, as lines that `table`
reads; nothing here can switch a rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from lethe.evidence.fairness import custody, nonfinite, numerics, reference
from lethe.evidence.fairness.innocent import Innocent, key, reading
from lethe.evidence.fairness.situations import SITUATIONS, Situation

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CASES", "INNOCENTS", "REPORT", "SITUATIONS", "Innocent", "Situation", "key", "reading", "table"]

REPORT = "LETHE_FAIRNESS_REPORT"
"""Environment variable: the file to which the tests append their outcomes."""

INNOCENTS: tuple[Innocent, ...] = (
    *reference.INNOCENTS,
    *nonfinite.INNOCENTS,
    *numerics.INNOCENTS,
    *custody.INNOCENTS,
)

_ALL: list[Innocent | Situation] = [*INNOCENTS, *SITUATIONS]
CASES: dict[int, Innocent | Situation] = {case.rule: case for case in sorted(_ALL, key=lambda c: c.rule)}
"""Who stands for each rule, by its number."""


def table(report: str | Path) -> pd.DataFrame:
    """What the tests recorded, one row a rule: rule, name, kernel, with_rule, without_rule, why.

    Raises ValueError where there is no outcome, or where a rule was recorded twice with different outcomes.
    """
    import pandas as pd

    rows: dict[int, dict[str, object]] = {}
    for line in Path(report).read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        row = {
            "rule": found["rule"],
            "name": found["name"],
            "kernel": found["title"],
            "with_rule": found["with"],
            "without_rule": found["without"],
            "why": found["why"],
        }
        if rows.setdefault(found["rule"], row) != row:
            raise ValueError(f"rule {found['rule']} was recorded twice, with different outcomes")
    if not rows:
        raise ValueError(f"{report} holds no outcome of any rule")
    return pd.DataFrame([rows[n] for n in sorted(rows)])
