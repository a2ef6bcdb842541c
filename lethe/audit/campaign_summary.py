"""What a campaign's folder amounts to so far: rates, throughput, where time goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.audit import cost, ledger
from lethe.audit.campaign_record import shards
from lethe.audit.run import merge

if TYPE_CHECKING:
    import pandas as pd

AUDITS = ("dlblas_accepted", "cuda_l1", "dlblas_rejected", "house", "dlblas_paper", "dlblas_stack")


def told(out: Path) -> list[str]:
    """Lines to print; only about what is there. Raises LogError for a foreign file."""
    from lethe.audit.differential import read

    text = []
    samples: dict[str, list[cost.Sample]] = {}
    for name in AUDITS:
        merged = merge(shards(out, name))
        if merged:
            samples[name] = cost.samples(merged, name)
            text.append(_rates(name, merged))
    for r in _rows(cost.throughput(e for file in shards(out, "steps") for e in ledger.read(file))):
        text.append(
            f"{r['step']}: {r['rows']} in {3600 * r['hours']:.0f} s of one device, {r['workers']} workers: "
            f"{r['rows_per_hour']:,.0f} an hour, {r['core_seconds']:.1f} core-seconds each"
        )
    for name in ("dlblas_accepted", "cuda_l1"):
        parts = _rows(cost.breakdown(samples.get(name, [])))
        if samples.get(name):
            shares = [f"{r['part']} {r['seconds']:.2f} s ({100 * r['share']:.0f}%)" for r in parts]
            text.append(f"{name}, a row: {', '.join(shares)}")
        checks = [c for file in shards(out, f"{name.split('_acc')[0]}_differential") for c in read(file)]
        by = "theirs" if any(c["implementation"] == "theirs" for c in checks) else "ours"
        for r in _rows(cost.against_check(samples.get(name, []), checks, by)):
            warm = "" if r["compiles"] else " (it compiled before)"
            text.append(
                f"{name}: a verdict {r['audit']:.1f} s, KernelBench {r['variant']} ({by}) {r['check']:.1f} s "
                f"on the same {r['rows']} rows, ratio {r['ratio']:.2f}{warm}"
            )
    return text


def _rates(name: str, merged: list[dict[str, Any]]) -> str:
    from lethe.audit import report
    from lethe.audit.floor import in_floor

    frame = report.frame(merged)
    decided = frame[frame["decided"].astype(bool)]
    ended = ", ".join(f"{status} {n}" for status, n in frame["status"].value_counts().items())
    convicted, floor = int(decided["violated"].sum()), sum(in_floor(c) for c in decided["channels"])
    return f"{name}: {len(frame)} rows ({ended}), {convicted} convicted, {floor} in the floor"


def _rows(table: pd.DataFrame) -> Iterable[dict[str, Any]]:
    return ({str(k): v for k, v in r.items()} for r in table.to_dict("records"))
