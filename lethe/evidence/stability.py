"""Do verdicts repeat? The same rows judged in another order and under other load, compared byte by byte.

``python -m lethe.evidence.stability A.jsonl B.jsonl [C.jsonl ...]`` compares audits that exist (each with
the first) and exits 1 if any row differs. With ``--record FOLDER`` it first judges a stratified sample of a
corpus once for each of `PASSES`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lethe.audit import lines
from lethe.audit.corpora import Corpus, open_corpus, stratified
from lethe.audit.lines import Line, LogError
from lethe.audit.pool import JudgeSettings
from lethe.audit.run import Selection, run
from lethe.verifier.replay import first_difference

Key = tuple[str, str]


class Outcome(StrEnum):
    """How two lines of one row compare."""

    IDENTICAL = "identical"
    DETAIL = "detail"
    """Every status is the same; a number, a message or a skipped case is not."""
    STATUS = "status"
    """The verdict itself differs: its status, a gate's, or which probes found something."""
    MISSING = "missing"
    """One of the files does not hold the row."""


@dataclass(frozen=True)
class Comparison:
    """One row of two audits."""

    corpus: str
    row: str
    outcome: Outcome
    where: str = ""
    """The first differing path in the JSON, with both values; empty if identical."""
    racy: bool = False
    """ORD-02 found, in either audit, that the kernel itself does not repeat: then its metrics cannot."""


def compare(first: Iterable[Line], second: Iterable[Line]) -> list[Comparison]:
    """Row by row in the order of `first`, then what only `second` holds; the last line of a row counts.

    The canonical part of a line is compared: everything but its timing.
    """
    a, b = lines.latest(first), lines.latest(second)
    return [_compared(key, a.get(key), b.get(key)) for key in [*a, *(k for k in b if k not in a)]]


def _compared(key: Key, a: Line | None, b: Line | None) -> Comparison:
    if a is None or b is None:
        return Comparison(*key, Outcome.MISSING, "only in the second" if a is None else "only in the first")
    racy = _races(a) or _races(b)
    if lines.canonical(a) == lines.canonical(b):
        return Comparison(*key, Outcome.IDENTICAL, racy=racy)
    outcome = Outcome.DETAIL if _statuses(a) == _statuses(b) else Outcome.STATUS
    where = first_difference(_untimed(a), _untimed(b))
    return Comparison(*key, outcome, where, racy)


def _untimed(line: Line) -> Line:
    return {k: v for k, v in line.items() if k != "timing"}


def _statuses(line: Line) -> tuple[Any, ...]:
    """What a table counts: the verdict's status, each gate's with its kinds of finding, and the probes."""
    verdict = line["verdict"]
    gates = [(g["gate"], g["status"], sorted({_kind(f) for f in g["findings"]})) for g in verdict["gates"]]
    return verdict["status"], gates, sorted({_kind(f) for f in verdict["integrity"]})


def _kind(finding: dict[str, Any]) -> tuple[str, str]:
    return finding["channel"], finding["mechanism"]


def _races(line: Line) -> bool:
    return any(g["gate"] == "ORD-02" and g["status"] == "fail" for g in line["verdict"]["gates"])


def table(comparisons: Sequence[Comparison]) -> str:
    """Counts by outcome, then a line for each row that differs."""
    counts = Counter(c.outcome for c in comparisons)
    said = [f"{o:10}{counts[o]:6}" for o in Outcome if counts[o]]
    for c in comparisons:
        if c.outcome is not Outcome.IDENTICAL:
            racy = " (the kernel does not repeat: ORD-02)" if c.racy else ""
            said.append(f"{c.outcome}: {c.corpus} {c.row}: {c.where}{racy}")
    return "\n".join(said)


def stable(comparisons: Sequence[Comparison]) -> bool:
    """True if there is a row and every row is identical."""
    return bool(comparisons) and all(c.outcome is Outcome.IDENTICAL for c in comparisons)


# ---------------------------------------------------------------- judging twice


@dataclass(frozen=True)
class Pass:
    """One run of the audit."""

    name: str
    order: str
    workers: int
    load: int = 0
    """Processes that keep a core and the caches busy meanwhile."""


PASSES = (Pass("alone", "corpus", 1), Pass("loaded", "reversed", 2, load=1), Pass("mixed", "shuffled", 2))
"""One worker in the corpus's order; two in reverse beside a busy process; two in a third order. Each worker
hashes with a seed of its own, so that an order taken from a set shows too."""

_BUSY = """
import os, sys
parent, block = int(sys.argv[1]), bytearray(1 << 23)
while os.getppid() == parent:
    block = bytearray(block)
    sum(range(200_000))
"""


@contextmanager
def busy(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep so many processes computing and copying memory for the block; they end with it or with us."""
    command = [sys.executable, "-c", _BUSY, str(os.getpid())]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield running
    finally:
        for p in running:
            p.kill()
            p.wait()


def sample(corpus: Corpus, rows: int | None, call_seconds: float | None = None) -> tuple[str, ...]:
    """Ids of a stratified sample (all rows for None), of rows whose call takes at most `call_seconds`."""
    cheap = Selection(call_seconds=call_seconds).of(corpus)
    return tuple(r.id for r in stratified(cheap)[:rows])


def record(
    corpus: Corpus,
    folder: Path,
    settings: JudgeSettings,
    rows: tuple[str, ...],
    passes: Sequence[Pass] = PASSES,
) -> list[Path]:
    """Judge `rows` once for each pass; returns the files, ``<folder>/<pass>.jsonl``. Resumes like any audit.

    Raises KeyboardInterrupt where a pass was interrupted, and what `lethe.audit.run.run` raises.
    """
    paths = []
    for p in passes:
        path = folder / f"{p.name}.jsonl"
        with busy(p.load):
            summary = run(
                corpus,
                path,
                settings=settings,
                selection=Selection(rows=rows, order=p.order),
                workers=p.workers,
            )
        if summary.interrupted:
            raise KeyboardInterrupt
        paths.append(path)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 1 if any row differs, 2 for a file that is no audit."""
    parser = argparse.ArgumentParser(
        prog="lethe.evidence.stability", description="Compare audits row by row."
    )
    parser.add_argument("files", nargs="*", type=Path, help="audits; each is compared with the first")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="judge a sample there first")
    parser.add_argument("--corpus", default="house")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--call-seconds", type=float, help="only rows whose call takes at most so long")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--full", action="store_true", help="all draws of each gate")
    given = parser.parse_args(arguments)
    files = list(given.files)
    if given.record is not None:
        corpus = open_corpus(given.corpus)
        settings = JudgeSettings(device=given.device, quick=not given.full)
        files += record(corpus, given.record, settings, sample(corpus, given.rows, given.call_seconds))
    if len(files) < 2:
        parser.error("two audits are needed, or --record")
    good = True
    try:
        for file in files[1:]:
            found = compare(lines.read(files[0]), lines.read(file))
            print(f"{files[0]} and {file}:\n{table(found)}")
            good &= stable(found)
    except LogError as e:
        print(e, file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
