"""The commands that run over corpora: audit, merge, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.cli import (
    INTERRUPTED,
    OK,
    SEEDS,
    UNDECIDED,
    VIOLATED,
    DeviceOption,
    FolderOption,
    GatesOption,
    Mistake,
    choice,
    console_for,
    deliver,
    gate_ids,
    say,
)
from lethe.cli_corpora import (
    RESULTS,
    ConfigOption,
    CorpusOption,
    Files,
    OutOption,
    PathOption,
    ProblemsOption,
    find,
    opened,
    plan_of,
    recorded_line,
)

if TYPE_CHECKING:
    from rich.console import Console

    from lethe.audit.corpora import Corpus, Row
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import Selection, Summary


def audit(
    config: ConfigOption = None,
    corpus: CorpusOption = "",
    path: PathOption = None,
    problems: ProblemsOption = None,
    out: OutOption = RESULTS,
    row: Annotated[str, typer.Option(metavar="ID", help="Judge this row alone and show it.")] = "",
    shard: Annotated[str, typer.Option(metavar="i/n", help="Judge one of n parts, counted from 1.")] = "1/1",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many rows.")] = None,
    order: Annotated[
        str,
        typer.Option(help="corpus, stratified (any prefix is a fair sample), reversed or shuffled."),
    ] = "corpus",
    accepted: Annotated[
        bool | None,
        typer.Option("--accepted/--rejected", help="Only rows that the corpus accepted, or rejected."),
    ] = None,
    call_seconds: Annotated[
        float | None, typer.Option(min=0, help="Only rows of which one call takes at most so long.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 judges in this one.")] = 2,
    gate: GatesOption = None,
    profile: Annotated[str, typer.Option(help="derived or paper.")] = "derived",
    device: DeviceOption = "",
    seed: Annotated[int | None, typer.Option(help="First seed of every draw.", **SEEDS)] = None,
    quick: Annotated[bool | None, typer.Option("--quick/--full", help="Fewer draws per gate.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Judge rows again that the file holds.")] = False,
    undecided: Annotated[
        bool, typer.Option("--undecided", help="Judge rows again that the file holds and nobody could judge.")
    ] = False,
    counterexamples: FolderOption = None,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Factor on time limits, for candidates that compile at run time.")
    ] = 1.0,
) -> None:
    """Judge a corpus, a JSON line for each kernel; the same command again resumes."""
    from lethe.audit.corpora import CorpusError
    from lethe.audit.lines import LogError
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import ORDERS, Selection

    if out.exists() and not out.is_dir():
        raise Mistake(f"--out {out} is a file; give the folder for the JSON lines")
    part, parts = _shard(shard)
    plan = plan_of(config, corpus, path, problems)
    settings = JudgeSettings(
        profile=choice("profile", profile, ("derived", "paper")),
        device=choice("device", device or plan.get("device", "auto"), ("auto", "cpu", "cuda")),
        seed=plan.get("seed", 0) if seed is None else seed,
        gates=gate_ids(gate or (plan.get("audit") or {}).get("gates")),
        quick=plan.get("profile") == "quick" if quick is None else quick,
        counterexamples=str(counterexamples) if counterexamples else None,
        patience=patience,
        factory="lethe.audit.extensions:judge",
    )
    selection = Selection(
        shard=part,
        shards=parts,
        limit=limit if limit is not None else (plan.get("audit") or {}).get("limit"),
        order=choice("order", order, ORDERS),
        accepted=accepted,
        call_seconds=call_seconds,
    )
    try:
        corpora = opened(plan)
        if row:
            _one_row(find(corpora, row), settings, out)
        _judge_all(corpora, out, settings, selection, workers, again=again, undecided=undecided)
    except (CorpusError, LogError, ValueError) as e:
        raise Mistake(str(e)) from None


def merge(
    shards: Annotated[list[Path], typer.Argument(help="Files that audit --shard wrote.")],
    out: Annotated[Path, typer.Option(help="The merged file.")],
) -> None:
    """Merge shards of an audit into one file in corpus order."""
    from lethe.audit.lines import LogError
    from lethe.audit.run import merge as merged
    from lethe.audit.run import write

    try:
        found = merged(shards)
        write(out, found)
    except LogError as e:
        raise Mistake(str(e)) from None
    except OSError as e:
        raise Mistake(f"cannot write {out}: {e.strerror}") from None
    say(f"{out}: {len(found)} rows of {len(shards)} files")


def fetch(
    corpus: Annotated[
        str, typer.Argument(help="dlblas, cuda_l1, drkernel, sakana, kernelbench[-later] or published.")
    ],
    to: Annotated[Path, typer.Option(help="The folder to put it into.")],
) -> None:
    """Download a corpus from its public source, checked and resumable."""
    from lethe.audit.corpora import CorpusError
    from lethe.audit.download import fetch as fetched

    err = console_for(stderr=True)
    try:
        paths = fetched(corpus, to, tell=lambda text: err.print(text, markup=False, soft_wrap=True))
    except CorpusError as e:
        raise Mistake(str(e)) from None
    except OSError as e:
        raise Mistake(f"cannot write under {to}: {e.strerror}") from None
    for path in paths:
        say(str(path))


def _shard(text: str) -> tuple[int, int]:
    first, _, second = text.partition("/")
    if not (first.isdigit() and second.isdigit() and 1 <= int(first) <= int(second)):
        raise Mistake(f"--shard {text!r} is not of the form i/n with 1 <= i <= n, e.g. 2/8")
    return int(first), int(second)


def _judge_all(
    corpora: list[Corpus],
    out: Path,
    settings: JudgeSettings,
    selection: Selection,
    workers: int,
    **which: bool,
) -> None:
    from lethe.audit.progress import shown
    from lethe.audit.run import run

    for c in corpora:
        summary = run(
            c,
            Files(out, c.name).of(selection),
            settings=settings,
            selection=selection,
            workers=workers,
            progress=shown(console_for(stderr=True)),
            **which,
        )
        _tell(c.name, summary, selection, console_for())
        if summary.interrupted:
            raise typer.Exit(INTERRUPTED)
    raise typer.Exit(OK)


def _tell(name: str, summary: Summary, selection: Selection, console: Console) -> None:
    done = summary.done_before + summary.judged
    text = f"{name}: {done} of {summary.selected} rows judged ({summary.judged} now) -> {summary.path}"
    if summary.interrupted:
        text += "; interrupted, the same command resumes"
    console.print(text, markup=False, soft_wrap=True)
    if not summary.selected:
        why = "the options leave no row"
        if selection.accepted is not None:
            why += "; a corpus that does not say what it accepted has none for --accepted or --rejected"
        console.print(f"{name}: {why}", markup=False, soft_wrap=True)
        return
    console.print(_ends(name, summary.path), markup=False, soft_wrap=True)


def _ends(name: str, path: Path) -> str:
    """How the rows that the file holds ended, and which of them nobody could judge."""
    from lethe.audit import lines
    from lethe.display import exit_code

    rows: dict[int, list[str]] = {OK: [], VIOLATED: [], UNDECIDED: []}
    for (corpus, row), line in lines.latest(lines.read(path)).items():
        if corpus == name:
            rows[exit_code(lines.verdict_of(line))].append(row)
    kept, broken, undecided = rows[OK], rows[VIOLATED], rows[UNDECIDED]
    text = f"{name}: {len(kept)} keep their contract, {len(broken)} break it, {len(undecided)} undecided"
    return text + (f" ({', '.join(undecided[:3])}{', ...' * (len(undecided) > 3)})" if undecided else "")


def _one_row(row: Row, settings: JudgeSettings, out: Path) -> None:
    """Judge one row, show it, and compare with the line that `out` holds of it."""
    from lethe.audit import lines
    from lethe.audit.pool import judged
    from lethe.verifier.replay import first_difference

    (result,) = judged([row], settings, workers=0)
    recorded = recorded_line(out, row)
    if recorded is not None:
        console = console_for(stderr=True)
        line = lines.make(row, result.verdict, settings.record(), result.wall)
        if lines.canonical(line) == lines.canonical(recorded):
            console.print(f"Same as recorded under {out}.", soft_wrap=True)
        else:
            difference = first_difference(
                {k: recorded[k] for k in ("settings", "verdict")},
                {k: line[k] for k in ("settings", "verdict")},
            )
            console.print(
                f"Not as recorded under {out}: {difference or 'the row is described otherwise'}.",
                soft_wrap=True,
                markup=False,
            )
    deliver(result.verdict, "")
