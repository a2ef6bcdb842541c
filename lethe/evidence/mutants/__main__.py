"""``python -m lethe.evidence.mutants``: choose bases, look for equivalents, report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lethe.evidence import common_check, parallel
from lethe.evidence.mutants import MUTANTS, bases, generate, record
from lethe.evidence.mutants.worker import examine
from lethe.verifier.textfile import write_atomically


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    choose = commands.add_parser("bases", help="judge the cheap house kernels and record the clean ones")
    choose.add_argument("--out", type=Path, required=True, help="folder of the audit's lines; resumes")
    choose.add_argument("--full", action="store_true", help="all draws of every gate, not the quick set")
    same = commands.add_parser("equivalents", help="compare every mutant with its base; resumes")
    for command in (choose, same):
        command.add_argument("--workers", type=int, default=2)
    show = commands.add_parser("report", help="kill rates and the matrix")
    show.add_argument("--audit", type=Path, nargs="+", required=True, help="lines of audit --corpus mutants")
    show.add_argument("--check", type=Path, help="lines of the evidence run's step mutants_check")
    same.add_argument("--limit", type=int, default=None, help="only the first so many mutants")
    same.add_argument("--only", nargs="*", default=None, metavar="ID", help="only these mutants")
    given = parser.parse_args(arguments)
    run = {"bases": _bases, "equivalents": _equivalents, "report": _report}
    run[given.command](given)


def _bases(given: Any) -> None:
    from lethe.audit import lines
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import run

    rows = bases.candidates()
    file = given.out / "bases.jsonl"
    run(rows, file, settings=JudgeSettings(device="cpu", quick=not given.full), workers=given.workers)
    found = bases.record(rows, list(lines.latest(lines.read(file)).values()))
    write_atomically(bases.data_folder() / "bases.json", json.dumps(found, indent=1) + "\n")
    print(f"{len(found['bases'])} bases, {len(found['left_out'])} left out")


def _equivalents(given: Any) -> None:
    """Write the record again after each base, so that an interrupted run resumes; forget what is gone."""
    chosen = generate.corpus(limit=MUTANTS if given.limit is None else given.limit, only=given.only)
    known = record.outcomes()
    entries = {m.id: known[m.id] for m in chosen if known.get(m.id, {}).get("sha256") == m.candidate.sha256}
    if given.only is not None:
        entries = {**known, **entries}
    pending: dict[str, list[generate.Mutant]] = {}
    for m in chosen:
        if m.id not in entries or given.only is not None:
            pending.setdefault(m.base.row.id, []).append(m)
    file = bases.data_folder() / "equivalents.json"
    for examined in parallel.results(examine, pending.values(), given.workers):
        for mutant, outcome in examined:
            entries[mutant.id] = record.entry(mutant.candidate, outcome)
            if outcome.equivalent:
                print(f"{mutant.id}: {outcome.how} on {outcome.samples} samples", flush=True)
        write_atomically(file, json.dumps(record.document(entries), indent=1) + "\n")
    print(f"{sum(e['equivalent'] for e in entries.values())} of {len(entries)} mutants are equivalent")


def _report(given: Any) -> None:
    from lethe.audit.run import merge
    from lethe.evidence.mutants import report

    checks = common_check.read(given.check) if given.check else []
    df = report.frame(merge(given.audit), record.recorded(), checks)
    print(report.text(df))


if __name__ == "__main__":
    main()
