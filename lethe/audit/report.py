"""Lines -> tables: everything that the book says about an audit is computed here.

`load` makes one data frame row for each audited kernel. Every rate comes with its
Wilson 95% interval. The denominator of the headline rates is `in_denominator`:
rows that their own corpus accepted and about which a verdict was reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.audit import lines
from lethe.audit.floor import VARIANTS, channels, in_floor
from lethe.audit.run import merge
from lethe.audit.statics import NO_KERNEL
from lethe.audit.statistics import cluster_interval, wilson
from lethe.verifier.catalog import CONTRACTS, IDS, SET_ASIDE
from lethe.verifier.verdict import CANDIDATE_FAULTS, GateStatus, Status

UNDECIDED = frozenset(
    str(s)
    for s in (
        Status.MALFORMED_CANDIDATE,
        Status.IMPORT_FAILED,
        Status.COMPILE_FAILED,
        Status.TIMED_OUT,
        Status.OUT_OF_MEMORY,
        Status.NO_CUSTOM_KERNEL,
        Status.NOT_AUDITABLE,
        Status.EXECUTOR_FAILED,
        Status.REFERENCE_FAILED,
        Status.HARNESS_FAILED,
    )
)
"""Statuses outside the denominator: for a kernel that its corpus accepted elsewhere they speak of
this tool chain, this machine or the reference, not of the contract."""

REFERENCE = frozenset({str(Status.REFERENCE_FAILED)})
TOOLCHAIN = frozenset(
    str(s)
    for s in (
        Status.MALFORMED_CANDIDATE,
        Status.IMPORT_FAILED,
        Status.COMPILE_FAILED,
        Status.TIMED_OUT,
        Status.OUT_OF_MEMORY,
        Status.EXECUTOR_FAILED,
        Status.HARNESS_FAILED,
    )
)


def load(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Audit files (shards of any number of corpora) as one frame, a row for each kernel.

    Columns: id, corpus, order, problem, family, language, accepted (True, False or None),
    licence, extra, status, message, executor, weights, rules, violated, decided,
    in_denominator, one column for each gate (its status, missing if it did not run), failed
    (tuple of gate ids), reasons (gate -> reason of not_applicable), findings (list of
    dicts with their gate), reassociated (whether EXC-01 met an infinity that a legal reassociation explains),
    integrity, channels (of the floor), counterexample, wall.
    Raises LogError where a file cannot be read or shards do not belong together.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    return frame(merge(files))


def frame(audit_lines: Iterable[lines.Line]) -> pd.DataFrame:
    """The frame of `load` from lines at hand."""
    rows = [_row(line) for line in audit_lines]
    return pd.DataFrame(rows, columns=[*COLUMNS[:14], *IDS, *COLUMNS[14:]])


COLUMNS = (
    "id",
    "corpus",
    "order",
    "problem",
    "family",
    "language",
    "accepted",
    "licence",
    "extra",
    "status",
    "message",
    "executor",
    "weights",
    "rules",
    "failed",
    "violated",
    "decided",
    "in_denominator",
    "reasons",
    "findings",
    "reassociated",
    "integrity",
    "channels",
    "counterexample",
    "wall",
)


def _row(line: lines.Line) -> dict[str, Any]:
    verdict, timing = line["verdict"], line.get("timing", {})
    gates = {g["gate"]: g for g in verdict["gates"]}
    findings = [{**f, "gate": name} for name, g in gates.items() for f in g["findings"]]
    failed = tuple(name for name in IDS if name in gates and gates[name]["status"] == "fail")
    status = verdict["status"]
    if status == Status.JUDGED and line["language"] in NO_KERNEL:  # the judge counts Triton's launches only
        status = str(Status.NO_CUSTOM_KERNEL)
    decided = status not in UNDECIDED
    faults = {str(s) for s in CANDIDATE_FAULTS}
    return {
        **{
            key: line[key]
            for key in ("id", "corpus", "order", "problem", "family", "language", "accepted", "licence")
        },
        "extra": line.get("extra", {}),
        "status": status,
        "message": verdict["message"],
        "executor": verdict["executor"],
        "weights": verdict["weights"],
        "rules": verdict["rules"],
        **{name: gates[name]["status"] if name in gates else None for name in IDS},
        "failed": failed,
        "violated": decided and (bool(failed) or bool(verdict["integrity"]) or status in faults),
        "decided": decided,
        "in_denominator": decided and line["accepted"] is not False,
        "reasons": {n: g.get("reason") for n, g in gates.items() if g["status"] == "not_applicable"},
        "findings": findings,
        "reassociated": _reassociated(gates),
        "integrity": verdict["integrity"],
        "channels": channels(status, findings, verdict["integrity"], bool(verdict.get("sizes"))),
        "counterexample": timing.get("counterexample"),
        "wall": timing.get("wall"),
    }


def _reassociated(gates: dict[str, Any]) -> bool:
    measured = gates.get("EXC-01", {}).get("measured") or {}
    return bool(measured.get("inf_by_reassociation", 0.0) > 0)


def denominator(df: pd.DataFrame) -> pd.DataFrame:
    """Rows that the corpus accepted (or did not judge) and about which a verdict was reached."""
    return df[df["in_denominator"].astype(bool)]


def funnel(df: pd.DataFrame) -> pd.DataFrame:
    """From all rows to convicted ones: stage, rows, of (what it is a share of), rate, low, high."""
    accepted = df[pd.Series([a is not False for a in df["accepted"]], index=df.index, dtype=bool)]
    usable = accepted[~accepted["status"].isin(REFERENCE)]
    built = usable[~usable["status"].isin(TOOLCHAIN)]
    base = denominator(df)
    floor_rows = sum(in_floor(c) for c in base["channels"])
    stages = [
        ("rows audited", len(df), len(df)),
        ("accepted by the corpus's own check", len(accepted), len(df)),
        ("reference usable", len(usable), len(accepted)),
        ("compiled and ran in this environment", len(built), len(usable)),
        ("own kernel launched, weights aligned: the denominator", len(base), len(built)),
        ("at least one violation", int(base["violated"].sum()), len(base)),
        ("tolerance-free floor", floor_rows, len(base)),
    ]
    return _table(stages, "stage", "rows", "of")


def gate_table(df: pd.DataFrame) -> pd.DataFrame:
    """Per gate over the denominator: gate, name, channel, load_bearing, applicable (pass + fail), pass, fail,
    not_applicable, error, rate (fail / applicable) with its interval."""
    base = denominator(df)
    rows = []
    for c in CONTRACTS:
        counts = base[c.identifier].value_counts()
        passed, failed = (int(counts.get(str(s), 0)) for s in (GateStatus.PASS, GateStatus.FAIL))
        low, high = wilson(failed, passed + failed)
        rows.append(
            {
                "gate": c.identifier,
                "name": c.name,
                "channel": str(c.channel),
                "load_bearing": c.identifier not in SET_ASIDE,
                "applicable": passed + failed,
                "pass": passed,
                "fail": failed,
                "not_applicable": int(counts.get("not_applicable", 0)),
                "error": int(counts.get("error", 0)),
                "rate": failed / (passed + failed) if passed + failed else float("nan"),
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def class_table(df: pd.DataFrame) -> pd.DataFrame:
    """Per operator family over the denominator: rows, violated and floor, both rates with intervals."""
    rows = []
    base = denominator(df)
    for family in sorted(set(base["family"])):
        group = base[base["family"] == family]
        violated, floored = int(group["violated"].sum()), sum(in_floor(c) for c in group["channels"])
        low, high = wilson(violated, len(group))
        floor_low, floor_high = wilson(floored, len(group))
        rows.append(
            {
                "family": family,
                "rows": len(group),
                "violated": violated,
                "rate": violated / len(group),
                "low": low,
                "high": high,
                "floor": floored,
                "floor_rate": floored / len(group),
                "floor_low": floor_low,
                "floor_high": floor_high,
            }
        )
    measures = ["floor", "floor_rate", "floor_low", "floor_high"]
    return pd.DataFrame(rows, columns=["family", "rows", "violated", "rate", "low", "high", *measures])


MAXNUM = " (IEEE maxNum)"
"""Follows the mechanism of a finding that a NaN-keeping twin of the kernel does not show."""
MECHANISMS: dict[str, str] = {
    "swallowed": "finite where the reference is not",
    "swallowed (IEEE maxNum)": "the same, gone where its maxima keep NaN",
    "minted": "not finite where the reference is",
    "nan_for_inf": "NaN where the reference is infinite",
    "inf_for_nan": "infinite where the reference is NaN",
    "inf_for_nan (IEEE maxNum)": "the same, gone where its maxima keep NaN",
    "wrong_sign": "the other infinity",
    "reassociation": "explained by a legal reassociation; not charged",
}


def exc01_mechanisms(df: pd.DataFrame) -> pd.DataFrame:
    """EXC-01 by mechanism over the denominator: mechanism, meaning, rows (a row may show several), only (rows
    that show no other), and their share of the rows that EXC-01 was applicable to."""
    base = denominator(df)
    applicable = int(base["EXC-01"].isin(["pass", "fail"]).sum())
    shown = [
        {_mechanism(f) for f in found if f["gate"] == "EXC-01"} | ({"reassociation"} if legal else set())
        for found, legal in zip(base["findings"], base["reassociated"], strict=True)
    ]
    names = [*MECHANISMS, *sorted(set().union(*shown) - set(MECHANISMS))]
    rows = []
    for name in names:
        count = sum(name in s for s in shown)
        low, high = wilson(count, applicable)
        rows.append(
            {
                "mechanism": name,
                "meaning": _meaning(name),
                "rows": count,
                "only": sum(s == {name} for s in shown),
                "applicable": applicable,
                "rate": count / applicable if applicable else float("nan"),
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def _mechanism(f: dict[str, Any]) -> str:
    extra = f.get("extra") or {}
    if extra.get("reassociation"):
        return "reassociation"
    return f"{f['mechanism']}{MAXNUM}" if extra.get("maxnum") else str(f["mechanism"])


def _meaning(name: str) -> str:
    plain = name.removesuffix(MAXNUM)
    if plain != name:
        return MECHANISMS.get(name, "the same, gone where its maxima keep NaN")
    return MECHANISMS.get(name, "not a mask: the call did not answer")


def floor(df: pd.DataFrame, variants: Sequence[str] = tuple(VARIANTS)) -> pd.DataFrame:
    """The tolerance-free floor over the denominator, strict and with each variant (see `floor`'s module):
    variant, channels, rows, of, rate, low, high (Wilson), cluster_low, cluster_high (by resampling problems),
    change (against strict, in rows)."""
    base = denominator(df)
    strict = sum(in_floor(c) for c in base["channels"])
    rows = []
    for variant in variants:
        hits = [in_floor(c, variant) for c in base["channels"]]
        count = sum(hits)
        low, high = wilson(count, len(base))
        cluster_low, cluster_high = cluster_interval(hits, list(base["problem"]))
        rows.append(
            {
                "variant": variant,
                "channels": ", ".join(VARIANTS[variant][0]),
                "rows": count,
                "of": len(base),
                "rate": count / len(base) if len(base) else float("nan"),
                "low": low,
                "high": high,
                "cluster_low": cluster_low,
                "cluster_high": cluster_high,
                "change": count - strict,
            }
        )
    return pd.DataFrame(rows)


def channel_table(df: pd.DataFrame) -> pd.DataFrame:
    """Rows of the denominator by channel: channel, rows (a row may be in several), only."""
    spoken = list(denominator(df)["channels"])
    names = [*VARIANTS["+ all of these, maxNum kept"][0]]
    return pd.DataFrame(
        [
            {"channel": n, "rows": sum(n in s for s in spoken), "only": sum(set(s) == {n} for s in spoken)}
            for n in names
        ]
    )


def status_table(df: pd.DataFrame) -> pd.DataFrame:
    """How many rows ended in each status, and whether it counts: status, rows, decided."""
    counts = df["status"].value_counts()
    return pd.DataFrame(
        [{"status": s, "rows": int(n), "decided": s not in UNDECIDED} for s, n in counts.items()],
        columns=["status", "rows", "decided"],
    )


def spot_check_rows(df: pd.DataFrame) -> pd.DataFrame:
    """For the book's searchable table, one row for each kernel, all of it text.

    Columns: id, corpus, problem, family, language, accepted (yes, no, unknown), status, failed
    (gate ids), finding (the first one's sentence), counterexample (path or "").
    """
    rows = []
    for record in df.to_dict("records"):
        first = next(iter(record["findings"] or record["integrity"]), None)
        rows.append(
            {
                **{k: record[k] for k in ("id", "corpus", "problem", "family", "language")},
                "accepted": {True: "yes", False: "no"}.get(record["accepted"], "unknown"),
                "status": record["status"],
                "failed": ", ".join(record["failed"]),
                "finding": first["message"] if first else record["message"],
                "counterexample": script if isinstance(script := record["counterexample"], str) else "",
            }
        )
    outcome = ["accepted", "status", "failed", "finding", "counterexample"]
    return pd.DataFrame(rows, columns=["id", "corpus", "problem", "family", "language", *outcome])


def published() -> dict[str, Any]:
    """The figures that the paper printed, from ``data/published/figures.json``.

    Raises FileNotFoundError naming the places that were looked at.
    """
    return _published("figures.json")


def recomputed() -> dict[str, Any]:
    """What `published_check` made of the published row verdicts, from ``data/published/recomputed.json``."""
    return _published("recomputed.json")


@cache
def _published(name: str) -> dict[str, Any]:
    inside = Path("data/published") / name
    places = [inside, Path(__file__).resolve().parents[2] / inside]
    for place in places:
        if place.is_file():
            figures: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
            return figures
    raise FileNotFoundError(f"no published figures at {' or '.join(str(p) for p in places)}")


def _table(stages: list[tuple[str, int, int]], *names: str) -> pd.DataFrame:
    rows = []
    for label, count, of in stages:
        low, high = wilson(count, of)
        rate = count / of if of else float("nan")
        rows.append({names[0]: label, names[1]: count, names[2]: of, "rate": rate, "low": low, "high": high})
    return pd.DataFrame(rows)
