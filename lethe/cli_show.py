"""``lethe show``: what is known about one row, wherever it is known.

A row is looked for in the corpora at hand, among the recorded audits (``data/measured``), and among the
published verdicts of the paper's own audit; a corpus that is not at hand hides no recorded verdict.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli import Mistake, console_for, print_json, say
from lethe.cli_corpora import (
    CONFIG,
    RESULTS,
    ConfigOption,
    CorpusOption,
    OutOption,
    PathOption,
    ProblemsOption,
    find,
    opened,
    options_of,
    plan_of,
    recorded_line,
)

if TYPE_CHECKING:
    from rich.console import Console

    from lethe.audit.corpora import Row

PublishedOption = Annotated[
    Path | None, typer.Option(help="The paper's published verdicts, from lethe fetch published.")
]


@dataclass
class Known:
    """Everything that is known about a row id."""

    row: Row | None = None
    line: dict[str, Any] | None = None
    """The verdict under ``--out``."""
    recorded: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(where and when, line) of each recorded audit that holds the row."""
    published: dict[str, Any] | None = None
    why_no_row: str = ""


def show(
    row: Annotated[str, typer.Argument(metavar="ROW_ID")],
    config: ConfigOption = None,
    corpus: CorpusOption = "",
    path: PathOption = None,
    problems: ProblemsOption = None,
    published: PublishedOption = None,
    out: OutOption = RESULTS,
    source: Annotated[bool, typer.Option("--source", help="Print both sources as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything known as JSON.")] = False,
) -> None:
    """What is known about one row: where it comes from, its verdicts, and what the paper published of it."""
    from lethe.audit.corpora import CorpusError
    from lethe.audit.lines import LogError
    from lethe.provenance import ProvenanceError

    if config is None and not corpus and CONFIG.is_file():
        config = CONFIG
    try:
        known = _look_up(row, plan_of(config, corpus, path, problems), published, out)
    except (CorpusError, LogError, ProvenanceError) as e:
        raise Mistake(str(e)) from None
    if json:
        _print_json(known, source)
    else:
        _print(known, row, out, source, options_of(config, corpus, path, problems, out))


def _look_up(row_id: str, plan: dict[str, Any], published: Path | None, out: Path) -> Known:
    """Raises CorpusError where nobody knows the row."""
    from lethe.audit.corpora import CorpusError

    known = Known()
    try:
        known.row = find(opened(plan), row_id)
        known.line = recorded_line(out, known.row)
    except (CorpusError, Mistake) as e:
        known.why_no_row = str(e)
    known.recorded = _recorded(row_id)
    rows = published or (None if plan.get("strict") else plan["corpora"].get("published"))
    if rows is not None:
        from lethe.audit.published_rows import read

        known.published = next((r for r in read(rows) if r["id"] == row_id), None)
    if known.row is None and not known.recorded and known.published is None:
        hint = "; the paper's own ids need --published FILE" if row_id.isdigit() and rows is None else ""
        raise CorpusError(known.why_no_row + hint)
    return known


def _recorded(row_id: str) -> list[tuple[str, dict[str, Any]]]:
    from lethe.audit.measured import Campaign, recorded_audits

    found = []
    for path in recorded_audits():
        campaign = Campaign(path.parent)
        lines = [line for line in campaign.samples(path.stem) if line["id"] == row_id]
        found += [(campaign.origin(path.stem), line) for line in lines]
    return found


def _print_json(known: Known, source: bool) -> None:
    row = known.row
    facts = _facts(row) if row is not None else {}
    texts = {}
    if source and row is not None:
        texts = {"reference": row.problem.source, "candidate": row.candidate.source}
    print_json(
        {
            **facts,
            **texts,
            "line": known.line,
            "recorded": [{"origin": origin, "line": line} for origin, line in known.recorded],
            "published": known.published,
        }
    )


def _print(known: Known, row_id: str, out: Path, source: bool, options: str) -> None:
    """`options`: how this command found the row, for the command that judges it."""
    from lethe import display
    from lethe.audit import lines

    console = console_for()
    row = known.row
    if row is not None:
        for key, value in _facts(row).items():
            console.print(f"{key:12} {value}", markup=False, soft_wrap=True)
        if known.line is None:
            console.print(
                f"Not judged yet under {out}; judge it with: "
                f"lethe audit --row {shlex.quote(row_id)}{options}",
                markup=False,
                soft_wrap=True,
            )
        else:
            console.print()
            display.show_verdict(lines.verdict_of(known.line), console)
            if not lines.is_current(known.line, row):
                console.print(
                    "The recorded verdict is about other sources or rules than today's.", soft_wrap=True
                )
    for origin, line in known.recorded:
        console.print(f"\n{row_id} of {line['corpus']}, {origin}:", markup=False, soft_wrap=True)
        display.show_verdict(lines.verdict_of(line), console)
    if known.published is not None:
        _print_published(known.published, console)
    if row is None:
        console.print(f"The sources are not at hand: {known.why_no_row}", markup=False, soft_wrap=True)
    elif source:
        for title, text in (("reference", row.problem.source), ("candidate", row.candidate.source)):
            console.print(f"\n--- {title} ---", markup=False)
            say(text)


def _print_published(found: dict[str, Any], console: Console) -> None:
    """A published verdict, with what its own audit counts it as."""
    from lethe.audit import published_rows as rows

    counted = rows.denominator([found])
    said = "outside the published denominator"
    if counted:
        said = "counted as a violation" if rows.violated(found) else "counted as clean"
        said += ", in the tolerance-free floor" if rows.in_floor(found) else ""
    console.print(
        f"\n{found['id']} of drkernel, published (B200): {found['op_class']}, {found['status']}, {said}.",
        markup=False,
        soft_wrap=True,
    )
    for gate, outcome in found.get("gates", {}).items():
        reason = " ".join(str(outcome.get("reason") or "").split())[:160]
        console.print(f"  {gate} {outcome['status']:14} {reason}", markup=False, soft_wrap=True)
    if found.get("error"):
        console.print(f"  {' '.join(str(found['error']).split())[:300]}", markup=False, soft_wrap=True)


def _facts(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "corpus": row.corpus,
        "problem": row.problem.name,
        "family": row.family,
        "language": row.language,
        "accepted": {True: "yes", False: "no", None: "unknown"}[row.accepted],
        "licence": row.licence,
        "reference": f"{row.problem.path or '(text)'} sha256 {row.problem.sha256[:16]}",
        "candidate": f"{row.candidate.path or '(text)'} sha256 {row.candidate.sha256[:16]}",
        **{k: v for k, v in row.extra.items() if v is not None},
    }
