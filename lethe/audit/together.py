"""Several steps of a campaign in one pool, so that no worker waits for the slowest row of a step.

The steps keep their order: a row of a later step is taken only when every row of those before it is in hand.
What a row needs no judge for (`decided`) is written first and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from lethe.audit import lines
from lethe.audit.corpora import Corpus, Row
from lethe.audit.ledger import Share
from lethe.audit.lines import Log
from lethe.audit.pool import JudgeSettings, judged
from lethe.audit.progress import Progress
from lethe.audit.run import Selection, finding, is_done, require_same_settings, was_found
from lethe.verifier.verdict import Verdict

Key = tuple[str, str]
"""Corpus and row id."""

BLOCK = 100
"""So many rows of a step are taken before any row after them. A worker may choose among them the problem that
it holds; what a run that is cut short leaves is still a prefix of the selection, but for its last block."""


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
        order: dict[Key, int] = {}

        def rank(row: Row) -> int:
            return order[row.corpus, row.id]

        before = found = 0
        for number, part in enumerate(parts):
            log = logs[part.path]
            require_same_settings(log, part.corpus, settings)
            first = max(order.values(), default=-1) + 1
            for position, row in enumerate(part.selection.of(part.corpus)):
                if (row.corpus, row.id) in home:
                    continue
                home[row.corpus, row.id] = number
                order[row.corpus, row.id] = first + position // BLOCK
                if not is_done(log, row) and (verdict := decided(row)) is not None:
                    log.append(lines.make(row, verdict, settings.record(), 0.0))
                if is_done(log, row):
                    before, found = before + 1, found + was_found(log, row)
                else:
                    pending.append(row)
        with progress:
            progress.start(", ".join(p.share.step for p in parts), before + len(pending), before, found)
            try:
                with closing(judged(pending, settings, workers, rank)) as results:
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
            if is_done(logs[part.path], row):
                part.share.rows += 1
                part.share.seconds += logs[part.path].lines[row.corpus, row.id]["timing"]["wall"]
            else:
                part.share.complete = False
