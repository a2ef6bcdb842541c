"""The differential's tables: audit lines and differential lines of the same rows, joined.

* `implementations`: do theirs and ours agree on the same rows?
* `contingency`: the verifier against each variant of KernelBench's check, with McNemar's exact test.
* `load_bearing`: the rows that the check accepts and the verifier rejects, by gate.
* `reverse`: the rows of the other off-diagonal cell, which have to be read one by one.

Only rows about which both sides gave an answer are counted; how many were set aside, and why, is a column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.audit.differential import key_of, read
from lethe.audit.kernelbench_check import VARIANTS
from lethe.audit.statistics import wilson

if TYPE_CHECKING:
    import pandas as pd


def load(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Differential files as one frame, the last line of each check.

    Columns: corpus, id, problem, family, accepted_by_corpus, variant, implementation, precision, accepted
    (True, False, or None where there is no answer), status, passed, message, seconds, and the texts' hashes.
    Raises LogError where a file cannot be read.
    """
    return frame(line for path in paths for line in read(path))


def frame(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The frame of `load` from lines at hand."""
    import pandas as pd

    latest = {key_of(line): line for line in lines}
    plain = ("corpus", "id", "problem", "family", "variant", "implementation", "precision")
    hashes = ("candidate_sha256", "problem_sha256")
    outcome = ("accepted", "status", "passed", "message", "seconds")
    rows = [
        {
            **{k: line[k] for k in (*plain, *hashes)},
            "accepted_by_corpus": line["accepted"],
            **{k: line["outcome"][k] for k in outcome},
        }
        for line in latest.values()
    ]
    return pd.DataFrame(rows, columns=[*plain, *hashes, "accepted_by_corpus", *outcome], dtype=object)


def implementations(checks: pd.DataFrame) -> pd.DataFrame:
    """Theirs against ours, for each variant.

    Columns: variant, pairs, both_accept, both_reject, theirs_only, ours_only, rate (of agreement) with its
    Wilson interval, no_answer (pairs set aside).
    """
    import pandas as pd

    rows = []
    for variant in VARIANTS:
        both = _side_by_side(checks, variant)
        answered = [(a, b) for a, b in both if a is not None and b is not None]
        agree = sum(a == b for a, b in answered)
        low, high = wilson(agree, len(answered))
        rows.append(
            {
                "variant": variant,
                "pairs": len(answered),
                "both_accept": sum(a and b for a, b in answered),
                "both_reject": sum(not a and not b for a, b in answered),
                "theirs_only": sum(a and not b for a, b in answered),
                "ours_only": sum(b and not a for a, b in answered),
                "rate": agree / len(answered) if answered else math.nan,
                "low": low,
                "high": high,
                "no_answer": len(both) - len(answered),
            }
        )
    return pd.DataFrame(rows)


def disagreements(checks: pd.DataFrame) -> pd.DataFrame:
    """Rows on which the implementations differ: id, variant, and status and message of each."""
    import pandas as pd

    columns = ["corpus", "id", "variant"]
    facts = ["accepted", "status", "message"]
    if checks.empty:
        return pd.DataFrame(columns=columns)
    theirs, ours = (checks[checks["implementation"] == i][columns + facts] for i in ("theirs", "ours"))
    both = theirs.merge(ours, on=columns, suffixes=("_theirs", "_ours"))
    a, b = both["accepted_theirs"], both["accepted_ours"]
    differ = a.notna() & b.notna() & (a != b)
    return both[differ.astype(bool)].reset_index(drop=True)


def _side_by_side(checks: pd.DataFrame, variant: str) -> list[tuple[Any, Any]]:
    chosen = checks[checks["variant"] == variant]
    found: dict[str, dict[tuple[str, str], Any]] = {"theirs": {}, "ours": {}}
    for row in chosen.to_dict("records"):
        found[row["implementation"]][row["corpus"], row["id"]] = row["accepted"]
    theirs, ours = found["theirs"], found["ours"]
    return [(_plain(theirs[k]), _plain(ours[k])) for k in theirs if k in ours]


def _plain(value: Any) -> bool | None:
    return None if value is None or value != value else bool(value)


def joined(audit: pd.DataFrame, checks: pd.DataFrame, variant: str, implementation: str) -> pd.DataFrame:
    """Audit rows (`report.frame`) with the check's answer: the audit's columns and check, check_status.

    Only rows whose corpus accepted them (or does not say) are kept. A row whose verdict is undecided, or
    which the check did not answer, stays, with `decided` False or `check` None.
    """
    chosen = checks[(checks["variant"] == variant) & (checks["implementation"] == implementation)]
    answers: Mapping[tuple[str, str], Mapping[str, Any]] = {
        (r["corpus"], r["id"]): {str(k): v for k, v in r.items()} for r in chosen.to_dict("records")
    }
    keys = list(zip(audit["corpus"], audit["id"], strict=True))
    kept = audit[[key in answers for key in keys]]
    kept = kept[[a is not False for a in kept["accepted"]]].copy()
    own = [answers[key] for key in zip(kept["corpus"], kept["id"], strict=True)]
    kept["check"] = [_plain(a["accepted"]) for a in own]
    kept["check_status"] = [a["status"] for a in own]
    kept["reference_failed"] = [a["status"] == "reference_failed" for a in own]
    return kept


def contingency(audit: pd.DataFrame, checks: pd.DataFrame, implementation: str = "theirs") -> pd.DataFrame:
    """The verifier against the check, a row for each variant.

    Columns: variant, rows, both_accept, check_only (the check accepts, the verifier rejects: the load-bearing
    cell), verifier_only (the reverse cell), both_reject, accept_rate (of the check) and cell_rate (of the
    load-bearing cell), each with its Wilson interval, p (McNemar, exact, two-sided), undecided (no verdict),
    no_answer (of the check).
    """
    import pandas as pd

    rows = []
    for variant in VARIANTS:
        all_rows = joined(audit, checks, variant, implementation)
        decided = [bool(d) for d in all_rows["decided"]]
        answered = [c is not None for c in all_rows["check"]]
        base = all_rows[[d and a for d, a in zip(decided, answered, strict=True)]]
        cells = [(bool(c), bool(v)) for c, v in zip(base["check"], base["violated"], strict=True)]
        check_only, verifier_only = cells.count((True, True)), cells.count((False, False))
        accepts = sum(c for c, _ in cells)
        rows.append(
            {
                "variant": variant,
                "rows": len(cells),
                "both_accept": cells.count((True, False)),
                "check_only": check_only,
                "verifier_only": verifier_only,
                "both_reject": cells.count((False, True)),
                **_rate("accept", accepts, len(cells)),
                **_rate("cell", check_only, len(cells)),
                "p": mcnemar(check_only, verifier_only),
                "undecided": len(decided) - sum(decided),
                "no_answer": sum(d and not a for d, a in zip(decided, answered, strict=True)),
            }
        )
    return pd.DataFrame(rows)


def _rate(name: str, part: int, whole: int) -> dict[str, float]:
    low, high = wilson(part, whole)
    return {
        f"{name}_rate": part / whole if whole else math.nan,
        f"{name}_low": low,
        f"{name}_high": high,
    }


def _cell(
    audit: pd.DataFrame, checks: pd.DataFrame, variant: str, implementation: str, check: bool, violated: bool
) -> pd.DataFrame:
    rows = joined(audit, checks, variant, implementation)
    wanted = [
        bool(d) and c is check and bool(v) is violated
        for d, c, v in zip(rows["decided"], rows["check"], rows["violated"], strict=True)
    ]
    return rows[wanted]


def load_bearing(
    audit: pd.DataFrame, checks: pd.DataFrame, variant: str, implementation: str = "theirs"
) -> pd.DataFrame:
    """Rows of the load-bearing cell by what rejects them: gate, rows (a row may be in several), only.

    Besides the gates: ``integrity``, ``status`` (the kernel ended before the gates) and ``floor``
    (rejected without any tolerance, the strict floor).
    """
    import pandas as pd

    from lethe.audit.floor import in_floor
    from lethe.verifier.catalog import IDS

    cell = _cell(audit, checks, variant, implementation, check=True, violated=True)
    spoken: list[set[str]] = []
    for row in cell.to_dict("records"):
        found = set(row["failed"]) | ({"integrity"} if row["integrity"] else set())
        spoken.append(found or {"status"})
    rows = [
        {"gate": g, "rows": sum(g in s for s in spoken), "only": sum(s == {g} for s in spoken)}
        for g in (*IDS, "integrity", "status")
    ]
    tolerance_free = sum(in_floor(c) for c in cell["channels"])
    rows.append({"gate": "floor", "rows": tolerance_free, "only": tolerance_free})
    return pd.DataFrame(rows)


def reverse(
    audit: pd.DataFrame, checks: pd.DataFrame, variant: str, implementation: str = "theirs"
) -> pd.DataFrame:
    """The rows that the verifier accepts and the check rejects, with why the check does."""
    cell = _cell(audit, checks, variant, implementation, check=False, violated=False)
    chosen = checks[(checks["variant"] == variant) & (checks["implementation"] == implementation)]
    why = chosen[["corpus", "id", "message"]].rename(columns={"message": "check_message"})
    columns = ["corpus", "id", "problem", "family", "check_status"]
    return cell[columns].merge(why, on=["corpus", "id"]).reset_index(drop=True)


def mcnemar(b: int, c: int) -> float:
    """McNemar's exact two-sided p of discordant counts `b` and `c` (binomial with p = 1/2); 1.0 for none.

    Raises ValueError for a negative count.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts are not negative: {b}, {c}")
    n, small = b + c, min(b, c)
    tail = sum(math.comb(n, i) for i in range(small + 1))
    return min(1.0, _ratio(2 * tail, 2**n))


def _ratio(a: int, b: int) -> float:
    """a / b for integers beyond the range of floats; 0.0 where the quotient is below it."""
    try:
        return a / b
    except OverflowError:
        return 0.0
