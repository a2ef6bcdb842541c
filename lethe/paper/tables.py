"""The audit's tables as the book prints them: what was measured beside what was published."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from lethe import provenance
from lethe.audit import report
from lethe.audit.floor import in_floor
from lethe.audit.statistics import wilson
from lethe.paper.glue import count
from lethe.paper.numbers import percent
from lethe.verifier.catalog import CONTRACTS, SET_ASIDE

if TYPE_CHECKING:
    from lethe.audit.acceptance import Check
    from lethe.verifier.verdict import Verdict

DASH = "–"


def rate(value: float) -> str:
    """A rate as a percentage; a dash if nothing was applicable."""
    return DASH if value != value else percent(round(float(value), 6))


def words(identifier: str) -> str:
    """``"wrong_sign"`` -> ``"wrong sign"``."""
    return identifier.replace("_", " ")


def interval(low: float, high: float) -> str:
    """A 95% interval of a rate."""
    return DASH if low != low else f"{rate(low)} to {rate(high)}"


def ratio(row: Any, part: str = "rate", low: str = "low", high: str = "high") -> str:
    """A rate with its interval, as one cell."""
    return DASH if row[part] != row[part] else f"{rate(row[part])} ({interval(row[low], row[high])})"


KINDS = ("row", "violation", "floor")


def funnel(df: pd.DataFrame) -> pd.DataFrame:
    """`report.funnel` with the kind of each stage, for plotting."""
    table = report.funnel(df).copy()
    table["kind"] = "row"
    table.loc[table.index[-2:], "kind"] = ["violation", "floor"]
    return table


def published_funnel() -> pd.DataFrame:
    """The published funnel in the same form."""
    a = report.published()["audit"]
    steps = a["funnel"]
    stages = [
        ("rows audited", steps["ssm_adjacent"], "row"),
        ("accepted", steps["accepted"], "row"),
        ("reference usable", steps["reference_executable"], "row"),
        ("denominator", steps["denominator"], "row"),
        ("at least one violation", a["any_violation"], "violation"),
        ("tolerance-free floor", a["tolerance_free"], "floor"),
    ]
    return pd.DataFrame(stages, columns=["stage", "rows", "kind"])


def funnel_table(df: pd.DataFrame) -> pd.DataFrame:
    """Stages with counts and shares."""
    table = report.funnel(df)
    return pd.DataFrame(
        {
            "stage": table["stage"],
            "rows": table["rows"],
            "of": table["of"],
            "share (95% interval)": [ratio(r) for r in table.to_dict("records")],
        }
    )


def gates(df: pd.DataFrame) -> pd.DataFrame:
    """`report.gate_table` with the tolerance-free share and the published rate of each gate."""
    table = report.gate_table(df).copy()
    base = report.denominator(df)
    free = {
        gate: sum(any(f["gate"] == gate and f["channel"] == "T" for f in found) for found in base["findings"])
        for gate in table["gate"]
    }
    table["fail_T"] = [free[g] for g in table["gate"]]
    applicable = table["applicable"].astype(float)
    table["rate_T"] = (table["fail_T"] / applicable.where(applicable > 0)).fillna(0.0)
    table["rate"] = table["rate"].fillna(0.0)
    table["low"] = table["low"].fillna(0.0)
    table["high"] = table["high"].fillna(0.0)
    table["published"] = [published_gate_rate(g) for g in table["gate"]]
    return table


def published_gate_rate(gate: str) -> float:
    """Published fail / (fail + pass); NaN where the gate was idle in the published audit."""
    n = report.published()["audit"]["gates"].get(gate)
    return float("nan") if n is None else n["fail"] / (n["fail"] + n["pass"])


def gates_table(df: pd.DataFrame) -> pd.DataFrame:
    """Per gate: what it could decide, what failed, how, and the published rate."""
    table = gates(df)
    rows = table.to_dict("records")
    return pd.DataFrame(
        {
            "gate": [r["gate"] + (" †" if r["gate"] in SET_ASIDE else "") for r in rows],
            "applicable": table["applicable"],
            "fail": table["fail"],
            "of these tolerance-free": table["fail_T"],
            "not applicable": table["not_applicable"],
            "error": table["error"],
            "rate (95% interval)": [ratio(r) if r["applicable"] else DASH for r in rows],
            "published (B200)": [rate(r["published"]) for r in rows],
        }
    )


def recorded_table(df: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Per gate: this run beside a recorded GPU run of the same corpus (absent: a dash in its columns)."""
    here = gates(df).to_dict("records")
    by_gate: dict[str, Any] = {}
    if file.is_file():
        there = gates(report.frame(provenance.load(file).samples))
        by_gate = {r["gate"]: r for r in there.to_dict("records")}
    blank = {"applicable": DASH, "fail": DASH, "fail_T": DASH, "not_applicable": DASH}
    return pd.DataFrame(
        {
            "gate": [r["gate"] for r in here],
            "applicable here": [r["applicable"] for r in here],
            "fail here": [r["fail"] for r in here],
            "applicable recorded": [by_gate.get(r["gate"], blank)["applicable"] for r in here],
            "fail recorded": [by_gate.get(r["gate"], blank)["fail"] for r in here],
            "of these tolerance-free": [by_gate.get(r["gate"], blank)["fail_T"] for r in here],
            "not applicable": [by_gate.get(r["gate"], blank)["not_applicable"] for r in here],
        }
    )


def recorded_caption(file: Path) -> str:
    """Which device, when, how many rows; or that nothing is recorded."""
    if not file.is_file():
        return "Outcome of each gate, measured here; no GPU run of this corpus is recorded."
    m = provenance.load(file)
    changed = provenance.stale(m)
    state = f" Stale: {len(changed)} source files changed since." if changed else ""
    versions = f"torch {m.versions['torch']}, triton {m.versions['triton']}"
    return (
        f"Outcome of each gate on the house corpus: measured here beside {len(m.samples)} kernels "
        f"recorded on {m.device.name}, {m.date[:10]}, {versions}.{state}"
    )


def classes_table(df: pd.DataFrame) -> pd.DataFrame:
    """Per operator family: rows, rates with intervals, published rates where the class exists there."""
    a = report.published()["audit"]
    rows = report.class_table(df).to_dict("records")
    return pd.DataFrame(
        {
            "class": [r["family"] for r in rows],
            "rows": [r["rows"] for r in rows],
            "any contract (95% interval)": [ratio(r) for r in rows],
            "floor (95% interval)": [ratio(r, "floor_rate", "floor_low", "floor_high") for r in rows],
            "published, any": [rate(a["per_class_rate"].get(r["family"], float("nan"))) for r in rows],
            "published, floor": [rate(a["floor_rate_by_class"].get(r["family"], float("nan"))) for r in rows],
        }
    )


def mechanisms_table(df: pd.DataFrame) -> pd.DataFrame:
    """EXC-01 by mechanism."""
    rows = report.exc01_mechanisms(df).to_dict("records")
    return pd.DataFrame(
        {
            "mechanism": [words(r["mechanism"]) for r in rows],
            "meaning": [r["meaning"] for r in rows],
            "rows": [r["rows"] for r in rows],
            "no other": [r["only"] for r in rows],
            "share (95% interval)": [ratio(r) for r in rows],
        }
    )


def floor_table(df: pd.DataFrame) -> pd.DataFrame:
    """The tolerance-free floor and its variants, with the published rate where there is one."""
    a = report.published()["audit"]
    published = {
        "strict": a["tolerance_free_rate"],
        "+ shape rejection": a["floor_with_shape_rejection_rate"],
        "+ subnormals (EXC-02)": a["floor_with_exc02_rate"],
    }
    rows = report.floor(df).to_dict("records")
    return pd.DataFrame(
        {
            "floor": [r["variant"] for r in rows],
            "rows": [r["rows"] for r in rows],
            "of": [r["of"] for r in rows],
            "rate (95% interval)": [ratio(r) for r in rows],
            "published (B200)": [rate(published.get(r["variant"], float("nan"))) for r in rows],
        }
    )


def corpus(manifest: Path) -> dict[str, str]:
    """What the house corpus holds, from its manifest (an audit may have judged a part of it)."""
    kernels = json.loads(manifest.read_text(encoding="utf-8"))["kernels"]
    languages = Counter(k["language"] for k in kernels)
    return {
        "corpus_kernels": count(len(kernels)),
        "corpus_problems": count(len({k["problem"] for k in kernels})),
        "corpus_families": count(len({k["family"] for k in kernels})),
        "corpus_triton": count(languages["triton"]),
        "corpus_cpp": count(languages["cpp"]),
        "corpus_rejected": count(sum(not k["accepted"] for k in kernels)),
    }


def headline(df: pd.DataFrame) -> dict[str, str]:
    """The numbers that the prose quotes, as it prints them."""
    base = report.denominator(df)
    n = len(base)
    violating = int(base["violated"].sum())
    floored = sum(in_floor(c) for c in base["channels"])
    return {
        "rows": count(len(df)),
        "accepted": count(n),
        "violating": count(violating),
        "violating_rate": rate(violating / n) if n else DASH,
        "violating_interval": interval(*wilson(violating, n)),
        "floor": count(floored),
        "floor_rate": rate(floored / n) if n else DASH,
        "floor_interval": interval(*wilson(floored, n)),
    }


# --- one operator ---------------------------------------------------------------------------


def usual_check(candidate: Path, reference: Path, device: str) -> Check:
    """What a KernelBench-style check (allclose, five trials, the shape in the file) says of one kernel."""
    from lethe.audit.acceptance import Acceptance
    from lethe.verifier.problem import load_candidate, load_problem

    with Acceptance(device) as acceptance:
        return acceptance.check(load_problem(reference), load_candidate(candidate))


WORDS = {"not_applicable": "n/a"}


def verdict_table(verdicts: Mapping[str, Verdict], accepted: Mapping[str, bool]) -> pd.DataFrame:
    """Gates down, kernels across: how each gate ended. The first line is the usual check."""
    rows: list[dict[str, str]] = [
        {"gate": "usual check", "name": "allclose, five trials"}
        | {kernel: "accepts" if ok else "rejects" for kernel, ok in accepted.items()}
    ]
    for contract in CONTRACTS:
        row = {"gate": contract.identifier, "name": contract.name}
        for kernel, verdict in verdicts.items():
            status = {g.gate: str(g.status) for g in verdict.gates}.get(contract.identifier, DASH)
            row[kernel] = "FAIL" if status == "fail" else WORDS.get(status, status)
        rows.append(row)
    return pd.DataFrame(rows)


def failed(verdict: Verdict) -> str:
    """The gates that a verdict failed, in words."""
    return ", ".join(verdict.failed) or "no gate"


def first_findings(verdicts: Mapping[str, Verdict]) -> pd.DataFrame:
    """The first finding of each failing gate, as a sentence."""
    rows = [
        {"kernel": kernel, "gate": g.gate, "case": g.findings[0].case, "finding": g.findings[0].message}
        for kernel, verdict in verdicts.items()
        for g in verdict.gates
        if g.findings
    ]
    return pd.DataFrame(rows, columns=["kernel", "gate", "case", "finding"])


def statuses_table(df: pd.DataFrame) -> pd.DataFrame:
    """Where verdicts ended, and which of them count."""
    table = report.status_table(df)
    return pd.DataFrame(
        {
            "ended as": [words(s) for s in table["status"]],
            "rows": table["rows"],
            "decided": ["yes" if d else "no" for d in table["decided"]],
        }
    )
