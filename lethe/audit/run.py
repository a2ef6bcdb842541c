"""Run an audit: rows in, JSON lines out; resumable, sharded, with progress.

What the file holds in the end does not depend on interruptions, on the number of
workers or on the order in which rows finished: `merge` sorts lines by corpus order,
and a line without its `timing` is a function of the row, the settings and the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lethe.audit import lines
from lethe.audit.corpora import Corpus, CorpusError, Row, in_shard, stratified
from lethe.audit.lines import Line, Log, LogError
from lethe.audit.pool import JudgeSettings, judged
from lethe.audit.progress import Progress, quiet
from lethe.verifier.textfile import write_atomically
from lethe.verifier.verdict import CANDIDATE_FAULTS, Status, Verdict

ORDERS = ("corpus", "stratified", "reversed", "shuffled")


@dataclass(frozen=True)
class Selection:
    """Which rows of a corpus to judge, and in which order."""

    shard: int = 1
    shards: int = 1
    limit: int | None = None
    """Only the first so many rows of the order (before sharding)."""
    order: str = "corpus"
    """``"corpus"``; ``"stratified"``: any prefix is a proportional sample of the families; ``"reversed"`` and
    ``"shuffled"`` (by a hash of the ids), to show that verdicts do not depend on the order."""
    rows: tuple[str, ...] = ()
    """Only these row ids, if any are given; `order` arranges them, and neither `limit` nor shards apply."""
    accepted: bool | None = None
    """Only rows that the corpus's own check accepted (True) or rejected (False)."""
    call_seconds: float | None = None
    """Only rows of which one call takes at most so long, as their corpus recorded it (unknown: kept)."""

    def of(self, corpus: Corpus) -> list[Row]:
        """The selected rows. Raises CorpusError for an unknown row id, shard or order."""
        if not 1 <= self.shard <= self.shards:
            raise CorpusError(f"there is no shard {self.shard} of {self.shards}; shards count from 1")
        if self.order not in ORDERS:
            raise CorpusError(f"unknown order {self.order!r}; use {', '.join(ORDERS)}")
        if self.rows:
            return _arranged([corpus.get(i) for i in self.rows], self.order)
        rows = [r for r in corpus.rows() if self.accepted is None or r.accepted is self.accepted]
        if self.call_seconds is not None:
            rows = [r for r in rows if (r.extra.get("call_seconds") or 0.0) <= self.call_seconds]
        rows = _arranged(rows, self.order)[: self.limit]
        return [r for r in rows if in_shard(r.id, self.shard, self.shards)]


def _arranged(rows: list[Row], order: str) -> list[Row]:
    if order == "stratified":
        return stratified(rows)
    if order == "shuffled":
        return stratified(rows, by=lambda _: "")
    return rows[::-1] if order == "reversed" else rows


@dataclass(frozen=True)
class Summary:
    """How one run of an audit ended."""

    path: Path
    selected: int
    done_before: int
    judged: int
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        return self.done_before + self.judged == self.selected


def run(
    corpus: Corpus,
    path: str | Path,
    *,
    settings: JudgeSettings | None = None,
    selection: Selection | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    again: bool = False,
    undecided: bool = False,
) -> Summary:
    """Judge the selected rows that `path` does not hold yet, appending one line for each.

    Rows that the file already holds, with the same sources and rules, are judged again
    only with `again`, and those of them that nobody could judge with `undecided`.
    KeyboardInterrupt ends the run early (`Summary.interrupted`); the file stays valid.
    Raises LogError where the file is not an audit's, is in use, or was written with
    other settings; CorpusError where the selection names what does not exist;
    ValueError where the judge cannot be made.
    """
    settings = settings or JudgeSettings()
    selected = (selection or Selection()).of(corpus)
    progress = progress or quiet()
    with Log(path) as log:
        require_same_settings(log, corpus, settings)
        done = [] if again else [row for row in selected if is_done(log, row)]
        if undecided:
            done = [row for row in done if was_decided(log, row)]
        known = {row.id for row in done}
        pending = [row for row in selected if row.id not in known]
        count = 0
        interrupted = False
        with progress:
            progress.start(corpus.name, len(selected), len(done), sum(was_found(log, row) for row in done))
            try:
                with closing(judged(pending, settings, workers)) as results:
                    for result in results:
                        log.append(lines.make(result.row, result.verdict, settings.record(), result.wall))
                        count += 1
                        progress.advance(result.row.id, finding(result.verdict))
            except KeyboardInterrupt:
                interrupted = True
        return Summary(Path(path), len(selected), len(done), count, interrupted)


def finding(verdict: Verdict) -> bool:
    """Whether the progress display counts this verdict as a finding."""
    return verdict.violated


def was_found(log: Log, row: Row) -> bool:
    """Whether the line that a log holds of a row counts as a finding."""
    verdict = log.lines[row.corpus, row.id]["verdict"]
    failed = any(g["status"] == "fail" for g in verdict["gates"])
    return failed or bool(verdict["integrity"]) or Status(verdict["status"]) in CANDIDATE_FAULTS


def was_decided(log: Log, row: Row) -> bool:
    """Whether the line that a log holds of a row says that the contract is kept, or that it is broken."""
    verdict = lines.verdict_of(log.lines[row.corpus, row.id])
    return verdict.violated or verdict.clean


def is_done(log: Log, row: Row) -> bool:
    """Whether a log holds a line of the row, with the same sources and rules."""
    line = log.lines.get((row.corpus, row.id))
    return line is not None and lines.is_current(line, row)


def require_same_settings(log: Log, corpus: Corpus, settings: JudgeSettings) -> None:
    """Raises LogError where the log holds rows of the corpus that were judged with other settings."""
    wanted = settings.record()
    for line in log.lines.values():
        if line["corpus"] == corpus.name and line["settings"] != wanted:
            differ = (k for k in wanted | line["settings"] if line["settings"].get(k) != wanted.get(k))
            name = next(differ)
            raise LogError(
                f"{log.path} holds rows judged with {name}={json.dumps(line['settings'].get(name))}, "
                f"this run has {json.dumps(wanted.get(name))}; choose another --out or the same settings"
            )


def merge(shards: Iterable[str | Path]) -> list[Line]:
    """The lines of all shards, one per row (the last wins), sorted by corpus and corpus order.

    Raises LogError where a shard cannot be read or two shards of a corpus differ in settings.
    """
    merged: dict[tuple[str, str], Line] = {}
    settings: dict[str, tuple[str, object]] = {}
    for shard in shards:
        for line in lines.read(shard):
            corpus = line["corpus"]
            first = settings.setdefault(corpus, (str(shard), line["settings"]))
            if line["settings"] != first[1]:
                raise LogError(
                    f"{first[0]} and {shard} were written with different settings; do not mix them"
                )
            merged[corpus, line["id"]] = line
    return sorted(merged.values(), key=lambda line: (line["corpus"], line["order"], line["id"]))


def write(path: str | Path, merged: Sequence[Line]) -> None:
    """Write merged lines to a file, whole or not at all."""
    text = "".join(json.dumps(line, sort_keys=True, allow_nan=False) + "\n" for line in merged)
    write_atomically(Path(path), text)
