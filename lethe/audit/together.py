"""Several steps of a campaign in one pool, so that no worker waits for the slowest row of a step.

The steps keep their order: a row of a later step is taken only when every row of those before it is in hand.
What a row needs no judge for (`decided`) is written first and costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from lethe.audit import lines
from lethe.audit.corpora import Corpus, Row
from lethe.audit.ledger import Share
from lethe.audit.lines import Log
from lethe.audit.pool import JudgeSettings, Result, _Pool, _Worker, judged
from lethe.audit.progress import Progress
from lethe.audit.run import Selection, _done, _found, _same_settings, finding
from lethe.verifier.verdict import Verdict

Key = tuple[str, str]
"""Corpus and row id."""


@dataclass(frozen=True)
class Part:
    """The rows of one step, and the file that holds their lines; parts may share a file."""

    share: Share
    corpus: Corpus
    path: Path
    selection: Selection


def run(
    parts: Sequence[Part],
    settings: JudgeSettings,
    workers: int,
    progress: Progress,
    decided: Callable[[Row], Verdict | None] = lambda row: None,
) -> None:
    """Judge what the files of `parts` do not hold yet, and enter what was done into the `share` of each.

    KeyboardInterrupt ends the run early, and the parts that it cut are not `complete`; the files stay valid.
    Raises what `lethe.audit.run.run` raises.
    """
    with ExitStack() as stack:
        logs = {path: stack.enter_context(Log(path)) for path in {part.path for part in parts}}
        pending: list[Row] = []
        home: dict[Key, int] = {}
        before = found = 0
        for number, part in enumerate(parts):
            log = logs[part.path]
            _same_settings(log, part.corpus, settings)
            for row in part.selection.of(part.corpus):
                if (row.corpus, row.id) in home:
                    continue
                home[row.corpus, row.id] = number
                if not _done(log, row) and (verdict := decided(row)) is not None:
                    log.append(lines.make(row, verdict, settings.record(), 0.0))
                if _done(log, row):
                    before, found = before + 1, found + _found(log, row)
                else:
                    pending.append(row)
        with progress:
            progress.start(", ".join(p.share.step for p in parts), before + len(pending), before, found)
            try:
                with closing(_in_order(pending, home, settings, workers)) as results:
                    for r in results:
                        part = parts[home[r.row.corpus, r.row.id]]
                        logs[part.path].append(lines.make(r.row, r.verdict, settings.record(), r.wall))
                        progress.advance(r.row.id, finding(r.verdict))
            except KeyboardInterrupt:
                pass
        for log in logs.values():
            log.lines = lines.latest(lines.read(log.path))  # what was written, however it was interrupted
        for part in parts:
            part.share.complete = True
        for row in pending:
            part = parts[home[row.corpus, row.id]]
            if _done(logs[part.path], row):
                part.share.rows += 1
                part.share.seconds += logs[part.path].lines[row.corpus, row.id]["timing"]["wall"]
            else:
                part.share.complete = False


def _in_order(
    rows: Sequence[Row], home: dict[Key, int], settings: JudgeSettings, workers: int
) -> Generator[Result, None, None]:
    if workers == 0:
        yield from judged(rows, settings, 0)
        return
    pool = _InOrder(settings, workers, home)
    try:
        yield from pool.run(deque((row, 0) for row in rows))
    finally:
        pool.stop()


class _InOrder(_Pool):
    """A pool that looks for the row which costs a worker least among those of the first part at hand."""

    def __init__(self, settings: JudgeSettings, workers: int, home: dict[Key, int]) -> None:
        super().__init__(settings, workers)
        self.home = home

    def _next(self, worker: _Worker, pending: deque[tuple[Row, int]]) -> tuple[Row, int]:
        numbers = [self.home[row.corpus, row.id] for row, _ in pending]
        first = min(numbers)
        own = deque(item for item, number in zip(pending, numbers, strict=True) if number == first)
        chosen = super()._next(worker, own)
        del pending[next(i for i, item in enumerate(pending) if item is chosen)]
        return chosen
