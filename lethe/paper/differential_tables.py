"""The tables of the differential against KernelBench's own check, and of the hand audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lethe.audit import agreement, report, review
from lethe.audit.kernelbench_check import VARIANTS
from lethe.audit.measured import NOT_RECORDED
from lethe.paper.rigor_tables import or_note
from lethe.paper.tables import DASH, interval, rate, words

NAMES = {"48642c5c": "paper-era (48642c5c)", "later": "later (423217d9)"}
PUBLISHED = {"48642c5c": "paper_era", "later": "hardened"}


def implementations(checks: pd.DataFrame) -> pd.DataFrame:
    """Theirs and ours on the same rows, with the published agreement."""
    k = report.published()["kernelbench_agreement"]
    rows = [r for r in agreement.implementations(checks).to_dict("records") if r["pairs"]]
    if not rows:
        return or_note(checks, 0)
    shown = [
        {
            "variant": NAMES[r["variant"]],
            "pairs": r["pairs"],
            "both accept": r["both_accept"],
            "both reject": r["both_reject"],
            "theirs accepts, ours rejects": r["theirs_only"],
            "ours accepts, theirs rejects": r["ours_only"],
            "agreement (95%, Wilson)": f"{rate(r['rate'])} ({interval(r['low'], r['high'])})",
        }
        for r in rows
    ]
    shown.append(
        {
            "variant": "published (B200)",
            "pairs": k["pairs"],
            "both accept": k["both_pass"],
            "both reject": k["both_fail"],
            "theirs accepts, ours rejects": k["theirs_pass_ours_fail"],
            "ours accepts, theirs rejects": k["theirs_fail_ours_pass"],
            "agreement (95%, Wilson)": rate(k["rate"]),
        }
    )
    return pd.DataFrame(shown)


def judge_of(checks: pd.DataFrame) -> str:
    """The implementation that the tables use: theirs where it answered at all, else ours."""
    return "theirs" if (checks["implementation"] == "theirs").any() else "ours"


def contingency(audit: pd.DataFrame, checks: pd.DataFrame, implementation: str) -> pd.DataFrame:
    """Both variants beside the published tables, cells down."""
    found = {r["variant"]: r for r in agreement.contingency(audit, checks, implementation).to_dict("records")}
    if not any(r["rows"] for r in found.values()):
        return or_note(audit, 0)
    d = report.published()["differential"]
    cells = {
        "both accept": ("both_accept", "both_pass"),
        "the check accepts, a contract is broken": ("check_only", "external_pass_ours_fail"),
        "the check rejects, every contract holds": ("verifier_only", "external_fail_ours_pass"),
        "both reject": ("both_reject", "both_fail"),
    }
    rows: list[dict[str, Any]] = []
    for text, (ours, theirs) in cells.items():
        row: dict[str, Any] = {"cell": text}
        for variant in VARIANTS:
            row[NAMES[variant]] = f"{found[variant][ours]:,}"
            row[f"published, {words(PUBLISHED[variant])}"] = f"{d[PUBLISHED[variant]][theirs]:,}"
        rows.append(row)
    for text, part in (("the check accepts", "accept"), ("load-bearing cell", "cell")):
        row = {"cell": f"{text}, rate (95%)"}
        for variant in VARIANTS:
            r, p = found[variant], d[PUBLISHED[variant]]
            row[NAMES[variant]] = (
                f"{rate(r[f'{part}_rate'])} ({interval(r[f'{part}_low'], r[f'{part}_high'])})"
            )
            whole = sum(p.values())
            shown = p["external_pass_ours_fail"] + (p["both_pass"] if part == "accept" else 0)
            row[f"published, {words(PUBLISHED[variant])}"] = rate(shown / whole)
        rows.append(row)
    for text, key in (
        ("McNemar's exact p", "p"),
        ("no verdict", "undecided"),
        ("no answer of the check", "no_answer"),
    ):
        row = {"cell": text}
        for variant in VARIANTS:
            value = found[variant][key]
            row[NAMES[variant]] = _p(value) if key == "p" else f"{value:,}"
            row[f"published, {words(PUBLISHED[variant])}"] = DASH
        rows.append(row)
    return pd.DataFrame(rows)


def _p(value: float) -> str:
    return f"{value:.2g}" if value else "below 10⁻³⁰⁰"


def in_cell(audit: pd.DataFrame, checks: pd.DataFrame, implementation: str) -> pd.DataFrame:
    """The load-bearing cell by gate for both variants, beside the published counts."""
    d = report.published()["differential"]
    published = {**d["by_gate_in_cell"], "floor": d["tolerance_free_in_cell"]}
    by = {v: agreement.load_bearing(audit, checks, v, implementation) for v in VARIANTS}
    first = by["48642c5c"]
    shown = pd.DataFrame({"gate": [words(g) for g in first["gate"]]})
    for variant, table in by.items():
        shown[f"rows, {NAMES[variant]}"] = list(table["rows"])
    shown["no other gate"] = list(first["only"])
    shown["published, paper era (B200)"] = [published.get(g, DASH) for g in first["gate"]]
    return or_note(shown, int(first["rows"].sum()))


def cell_counts(
    audit: pd.DataFrame, checks: pd.DataFrame, implementation: str
) -> tuple[list[str], list[int]]:
    """The load-bearing cell of the paper-era check by gate, for the figure."""
    table = agreement.load_bearing(audit, checks, "48642c5c", implementation)
    return [words(g) for g in table["gate"]], [int(n) for n in table["rows"]]


def reverse(audit: pd.DataFrame, checks: pd.DataFrame, implementation: str) -> pd.DataFrame:
    """Every row that the check rejects although each contract holds."""
    rows = [
        {
            "row": r["id"],
            "problem": r["problem"],
            "variant": NAMES[variant],
            "what the check says": str(r["check_message"] or r["check_status"])[:160],
        }
        for variant in VARIANTS
        for r in agreement.reverse(audit, checks, variant, implementation).to_dict("records")
    ]
    if not len(checks):
        return or_note(checks, 0)
    return pd.DataFrame(rows or [{"row": "none", "problem": "", "variant": "", "what the check says": ""}])


def review_classes(rows: Sequence[review.Review]) -> pd.DataFrame:
    """The hand audit by class, beside the published counts of its 31 rows."""
    if not rows:
        return or_note(pd.DataFrame(), 0)
    h = report.published()["hand_audit"]
    table = review.summary(rows)
    return pd.DataFrame(
        {
            "class": [words(c) for c in table["class"]],
            "meaning": table["meaning"],
            "load-bearing cell": table[review.LOAD_BEARING],
            "reverse cell": table[review.REVERSE],
            "published": [h.get(c, DASH) for c in table["class"]],
        }
    )


def review_rows(rows: Sequence[review.Review]) -> pd.DataFrame:
    """Every row that was read: where it stands, its class and the sentence."""
    if not rows:
        return or_note(pd.DataFrame(), 0)
    return pd.DataFrame(
        {
            "row": [r["id"] for r in rows],
            "cell": [r["cell"] for r in rows],
            "channel": [words(r["channel"]) or DASH for r in rows],
            "fails": [", ".join(r["failed"]) or "nothing" for r in rows],
            "class": [words(r["class"] or "not read yet") for r in rows],
            "what was found": [r["sentence"] or DASH for r in rows],
        }
    )


def mistakes(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Convictions that reading showed to be wrong, each with the rule that forbids it since."""
    return pd.DataFrame(
        [
            {
                "rows": ", ".join(r["rows"]),
                "gate": r["gate"],
                "what was charged": r["charged"],
                "why it was wrong": r["why"],
                "rule": r["rule"],
            }
            for r in rows
        ]
    )


def review_clause(rows: Sequence[review.Review]) -> str:
    """How far the hand audit is, as a clause."""
    if not rows:
        return NOT_RECORDED
    read = [r for r in rows if r["class"] is not None]
    mistakes = sum(r["class"] == "our_mistake" for r in read)
    return f"{len(read):,} of {len(rows):,} drawn rows were read; {mistakes:,} show a mistake of the verifier"
