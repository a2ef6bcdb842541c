"""``python -m lethe.evidence.mutants``: choose bases, look for equivalents, run the usual check, report."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lethe.evidence.mutants import MUTANTS, bases, common_check, generate, record
from lethe.evidence.mutants.worker import examine


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    choose = commands.add_parser("bases", help="judge the cheap house kernels and record the clean ones")
    choose.add_argument("--out", type=Path, required=True, help="folder of the audit's lines; resumes")
    choose.add_argument("--full", action="store_true", help="all draws of every gate, not the quick set")
    same = commands.add_parser("equivalents", help="compare every mutant with its base; resumes")
    check = commands.add_parser("check", help="five trials of allclose at 1e-2 and 1e-4; resumes")
    check.add_argument("--out", type=Path, required=True, help="JSON lines")
    for command in (choose, same, check):
        command.add_argument("--workers", type=int, default=2)
    show = commands.add_parser("report", help="kill rates and the matrix")
    show.add_argument("--audit", type=Path, nargs="+", required=True, help="lines of audit --corpus mutants")
    show.add_argument("--check", type=Path, help="lines of the command check")
    for command in (same, check):
        command.add_argument("--limit", type=int, default=None, help="only the first so many mutants")
        command.add_argument("--only", nargs="*", default=None, metavar="ID", help="only these mutants")
    given = parser.parse_args(arguments)
    run = {"bases": _bases, "equivalents": _equivalents, "check": _check, "report": _report}
    run[given.command](given)


def _bases(given: Any) -> None:
    from lethe.audit import lines
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import run

    rows = bases.candidates()
    file = given.out / "bases.jsonl"
    run(rows, file, settings=JudgeSettings(device="cpu", quick=not given.full), workers=given.workers)
    found = bases.record(rows, list(lines.latest(lines.read(file)).values()))
    write_json(bases.data_folder() / "bases.json", found)
    print(f"{len(found['bases'])} bases, {len(found['left_out'])} left out")


def _chosen(given: Any) -> list[generate.Mutant]:
    return generate.corpus(limit=MUTANTS if given.limit is None else given.limit, only=given.only)


def _equivalents(given: Any) -> None:
    """Write the record again after each base, so that an interrupted run resumes; forget what is gone."""
    chosen = _chosen(given)
    known = record.outcomes()
    entries = {m.id: known[m.id] for m in chosen if known.get(m.id, {}).get("sha256") == m.candidate.sha256}
    if given.only is not None:
        entries = {**known, **entries}
    pending: dict[str, list[generate.Mutant]] = {}
    for m in chosen:
        if m.id not in entries or given.only is not None:
            pending.setdefault(m.base.row.id, []).append(m)
    file = bases.data_folder() / "equivalents.json"
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for task in as_completed([pool.submit(examine, some) for some in pending.values()]):
            for mutant, outcome in task.result():
                entries[mutant.id] = record.entry(mutant.candidate, outcome)
                if outcome.equivalent:
                    print(f"{mutant.id}: {outcome.how} on {outcome.samples} samples", flush=True)
            write_json(file, record.document(entries))
    print(f"{sum(e['equivalent'] for e in entries.values())} of {len(entries)} mutants are equivalent")


def _check(given: Any) -> None:
    rows = [m.row() for m in _chosen(given)]
    print(f"{common_check.run(rows, given.out, given.workers)} mutants checked")


def _report(given: Any) -> None:
    from lethe.audit.run import merge
    from lethe.evidence.mutants import report

    checks = common_check.read(given.check) if given.check else []
    df = report.frame(merge(given.audit), record.recorded(), checks)
    print(report.text(df))


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
