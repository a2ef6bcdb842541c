"""The full evidence run: every corpus, both profiles, the usual check, calibration and stability.

``python -m lethe.evidence run --out DIR`` does what is missing, step by step, and resumes;
``python -m lethe.evidence record --out DIR`` writes what DIR holds to ``data/measured/<device>``. On two
cores the run takes some hours, on a large machine minutes; the paper itself judges samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.audit import lines
from lethe.audit.corpora import open_corpus
from lethe.audit.pool import JudgeSettings
from lethe.audit.run import Selection, merge, run
from lethe.evidence import elsewhere
from lethe.provenance import ROOT

PAPER_SAMPLE = 160
"""Rows of each corpus that are judged in the profile `paper` too, for comparison only."""
STABLE_ROWS = 100
CALIBRATION = "calibration"
STABILITY = "stability"


@dataclass(frozen=True)
class Plan:
    """How the evidence is run."""

    out: Path
    device: str = "cpu"
    workers: int = 2
    shard: int = 1
    shards: int = 1
    limit: int | None = None
    """Only so many rows of each corpus (a stratified sample)."""
    stable_rows: int = STABLE_ROWS
    stable_corpus: tuple[str, dict[str, str]] = ("house", {})

    def settings(self, profile: str = "derived") -> JudgeSettings:
        return JudgeSettings(device=self.device, quick=True, profile=profile)

    def selection(self, limit: int | None) -> Selection:
        return Selection(shard=self.shard, shards=self.shards, limit=limit, order="stratified")

    def file(self, name: str) -> Path:
        part = "" if self.shards == 1 else f".{self.shard}-of-{self.shards}"
        return self.out / f"{name}{part}.jsonl"


def steps(plan: Plan) -> dict[str, Callable[[], object]]:
    """Each step by name, in order; a step does only what its file does not hold yet."""
    found: dict[str, Callable[[], object]] = {
        "redteam": lambda: _audit(plan, "redteam"),
        "honest": lambda: _audit(plan, "honest"),
    }
    if plan.device == "cpu":
        found |= {
            "mutants": lambda: _audit(plan, "mutants"),
            "mutants_check": lambda: _check(plan, "mutants"),
            "honest_check": lambda: _check(plan, "honest"),
            "mutants_paper": lambda: _audit(plan, "mutants", "paper", PAPER_SAMPLE),
            "honest_paper": lambda: _audit(plan, "honest", "paper", PAPER_SAMPLE),
        }
    return found | {CALIBRATION: lambda: _calibration(plan), STABILITY: lambda: _stability(plan)}


def execute(plan: Plan, wanted: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Run the steps (all, or those `wanted`), yielding each with its seconds.

    Raises ValueError for a step that does not exist.
    """
    known = steps(plan)
    for name in wanted:
        if name not in known:
            raise ValueError(f"unknown step {name!r}; the steps are {', '.join(known)}")
    elsewhere.note(plan.out, plan.device)
    for name in wanted or known:
        start = time.perf_counter()
        known[name]()
        yield name, time.perf_counter() - start


def _audit(plan: Plan, corpus: str, profile: str = "derived", sample: int | None = None) -> None:
    name = corpus if profile == "derived" else f"{corpus}_{profile}"
    limit = min((n for n in (sample, plan.limit) if n is not None), default=None)
    summary = run(
        open_corpus(corpus),
        plan.file(name),
        settings=plan.settings(profile),
        selection=plan.selection(limit),
        workers=plan.workers,
    )
    if summary.interrupted:
        raise KeyboardInterrupt


def _check(plan: Plan, corpus: str) -> None:
    from lethe.evidence import common_check

    rows = plan.selection(plan.limit).of(open_corpus(corpus))
    common_check.run(rows, plan.file(f"{corpus}_check"), plan.workers)


def _calibration(plan: Plan) -> None:
    from lethe.evidence.calibration import run as calibration

    for _ in calibration.run(plan.file(CALIBRATION), plan.device, workers=plan.workers):
        pass


def _stability(plan: Plan) -> None:
    from lethe.evidence import stability

    name, options = plan.stable_corpus
    corpus = open_corpus(name, **options)
    passes = [
        stability.Pass("first", "corpus", plan.workers),
        stability.Pass("loaded", "reversed", max(1, plan.workers // 2), load=2),
        stability.Pass("mixed", "shuffled", plan.workers),
    ]
    rows = stability.sample(corpus, plan.stable_rows)
    stability.record(corpus, plan.out / STABILITY, plan.settings(), rows, passes)


# ---------------------------------------------------------------- recording


def record(out: Path, device: str, measured: Path = ROOT / "data" / "measured") -> list[Path]:
    """Write what `out` holds to ``<measured>/<device>``; returns the files. Shards are merged.

    The machine is the one that ran it, which may be another than this.
    """
    folder = measured / elsewhere.device(out).slug
    written = []
    for name, samples in _samples(out):
        path = folder / f"{name}.json"
        elsewhere.record(
            path,
            out,
            experiment=name,
            samples=samples,
            parameters={"device": device, "quick": True, "seed": 0, "order": "stratified"},
            script="lethe/evidence/campaign.py",
            sources=[f"lethe/evidence/{name.split('_')[0]}"] if "_" in name else [],
            command=f"python -m lethe.evidence run --device {device}",
            units={"wall": "s"},
        )
        written.append(path)
    return written


def _samples(out: Path) -> Iterator[tuple[str, list[Any]]]:
    for name in ("redteam", "honest", "mutants", "mutants_paper", "honest_paper"):
        files = sorted([*out.glob(f"{name}.jsonl"), *out.glob(f"{name}.*-of-*.jsonl")])
        if files:
            yield f"{name}_audit", [lines.compact(line) for line in merge(files)]
    for name in ("mutants_check", "honest_check"):
        if (out / f"{name}.jsonl").exists():
            yield name, _checks(out / f"{name}.jsonl")
    if (out / f"{CALIBRATION}.jsonl").exists():
        from lethe.evidence.calibration import run as calibration

        yield CALIBRATION, calibration.read(out / f"{CALIBRATION}.jsonl")
    runs = sorted((out / STABILITY).glob("*.jsonl"))
    if len(runs) > 1:
        yield STABILITY, compared(runs)


def _checks(file: Path) -> list[dict[str, Any]]:
    from lethe.evidence import common_check

    kept = ("id", "sha256", "accepted", "status")
    return [{k: c[k] for k in kept} for c in common_check.read(file)]


def compared(runs: list[Path]) -> list[dict[str, Any]]:
    """Each row of several audits of the same rows: how the worst of its comparisons with the first ended."""
    from lethe.evidence.stability import Outcome, compare

    order = list(Outcome)
    worst: dict[str, Any] = {}
    for other in runs[1:]:
        for c in compare(lines.read(runs[0]), lines.read(other)):
            before = worst.get(c.row)
            if before is None or order.index(c.outcome) > order.index(before.outcome):
                worst[c.row] = c
    return [
        {
            "row": c.row,
            "corpus": c.corpus,
            "runs": len(runs),
            "outcome": str(c.outcome),
            "where": c.where,
            "racy": c.racy,
        }
        for c in worst.values()
    ]
