"""The commands about corpora: audit, merge, show, fetch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli import (
    INTERRUPTED,
    OK,
    DeviceOption,
    FolderOption,
    GatesOption,
    Mistake,
    choice,
    console_for,
    deliver,
    gate_ids,
    print_json,
    say,
)

if TYPE_CHECKING:
    from rich.console import Console

    from lethe.audit.corpora import Corpus, Row
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import Selection, Summary

RESULTS = Path("data/results/audit")
CONFIG = Path("config.yaml")

ConfigOption = Annotated[Path | None, typer.Option(help="Take corpora and settings from this file.")]
CorpusOption = Annotated[str, typer.Option(help="house, dlblas, cuda_l1, drkernel, sakana or directory.")]
PathOption = Annotated[Path | None, typer.Option(help="Where the corpus is.")]
ProblemsOption = Annotated[Path | None, typer.Option(help="Its references, e.g. a KernelBench checkout.")]
OutOption = Annotated[Path, typer.Option(help="Folder for the JSON lines, one file for each corpus.")]


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
    seed: Annotated[int | None, typer.Option(help="First seed of every draw.")] = None,
    quick: Annotated[bool | None, typer.Option("--quick/--full", help="Fewer draws per gate.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Judge rows again that the file holds.")] = False,
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

    part, parts = _shard(shard)
    plan = _plan(config, corpus, path, problems)
    settings = JudgeSettings(
        profile=choice("profile", profile, ("derived", "paper")),
        device=choice("device", device or plan.get("device", "auto"), ("auto", "cpu", "cuda")),
        seed=plan.get("seed", 0) if seed is None else seed,
        gates=gate_ids(gate or (plan.get("audit") or {}).get("gates")),
        quick=plan.get("profile") == "quick" if quick is None else quick,
        counterexamples=str(counterexamples) if counterexamples else None,
        patience=patience,
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
        corpora = _open(plan)
        if row:
            _one_row(_find(corpora, row), settings, out)
        _judge_all(corpora, out, settings, selection, workers, again)
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


def show(
    row: Annotated[str, typer.Argument(metavar="ROW_ID")],
    config: ConfigOption = None,
    corpus: CorpusOption = "",
    path: PathOption = None,
    problems: ProblemsOption = None,
    out: OutOption = RESULTS,
    source: Annotated[bool, typer.Option("--source", help="Print both sources as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything known as JSON.")] = False,
) -> None:
    """What is known about one row: where it comes from, and its recorded verdict."""
    from lethe import display
    from lethe.audit import lines
    from lethe.audit.corpora import CorpusError
    from lethe.audit.lines import LogError

    if config is None and not corpus and CONFIG.is_file():
        config = CONFIG
    try:
        found = _find(_open(_plan(config, corpus, path, problems)), row)
        recorded = _recorded(out, found)
    except (CorpusError, LogError) as e:
        raise Mistake(str(e)) from None
    facts = _facts(found)
    if json:
        sources = {"reference": found.problem.source, "candidate": found.candidate.source} if source else {}
        print_json({**facts, **sources, "line": recorded})
        return
    console = console_for()
    for key, value in facts.items():
        console.print(f"{key:12} {value}", markup=False, soft_wrap=True)
    if recorded is None:
        console.print(f"Not judged yet under {out}; judge it with: lethe audit --row {row}", soft_wrap=True)
    else:
        console.print()
        display.show_verdict(lines.verdict_of(recorded), console)
        if not lines.is_current(recorded, found):
            console.print(
                "The recorded verdict is about other sources or rules than today's.", soft_wrap=True
            )
    if source:
        for title, text in (("reference", found.problem.source), ("candidate", found.candidate.source)):
            console.print(f"\n--- {title} ---", markup=False)
            say(text)


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


def _plan(config: Path | None, corpus: str, path: Path | None, problems: Path | None) -> dict[str, Any]:
    """The config's content, with `corpora` replaced by the one that the options name."""
    if config is not None and (corpus or path or problems):
        raise Mistake("give either --config, or --corpus with --path and --problems")
    if config is None:
        if not corpus and (path or problems):
            raise Mistake("--path and --problems need --corpus, e.g. --corpus directory")
        given = {"path": path, "problems": problems}
        return {"corpora": {corpus or "house": {k: v for k, v in given.items() if v}}, "strict": True}
    try:
        import yaml
    except ModuleNotFoundError:
        raise Mistake("reading a config needs PyYAML; install it with: pip install 'lethe[paper]'") from None
    try:
        plan = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as e:
        raise Mistake(f"cannot read {config}: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise Mistake(f"{config} is not YAML: {' '.join(str(e).split())}") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("corpora"), dict):
        raise Mistake(f"{config} has no corpora section")
    return plan


def _open(plan: dict[str, Any]) -> list[Corpus]:
    """The corpora of a plan; what is skipped or left out is noted on stderr."""
    from lethe.audit.corpora import configured, open_corpus

    if plan.get("strict"):
        corpora: list[Corpus] = [open_corpus(name, **entry) for name, entry in plan["corpora"].items()]
        notes: list[str] = []
    else:
        corpora, notes = configured(plan["corpora"])
    notes += [f"corpus {c.name}: {note}" for c in corpora for note in c.notes]
    console = console_for(stderr=True)
    for note in notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not corpora:
        raise Mistake("no corpus to read: every entry of the config is skipped")
    return corpora


def _find(corpora: list[Corpus], row_id: str) -> Row:
    from lethe.audit.corpora import CorpusError

    errors = []
    for c in corpora:
        try:
            return c.get(row_id)
        except CorpusError as e:
            errors.append(str(e))
    raise CorpusError("; ".join(errors))


@dataclass(frozen=True)
class _Files:
    """Where the lines of a corpus are: one file, or one for each shard."""

    folder: Path
    corpus: str

    def of(self, selection: Selection) -> Path:
        part = f".{selection.shard}-of-{selection.shards}" if selection.shards > 1 else ""
        return self.folder / f"{self.corpus}{part}.jsonl"

    def all(self) -> list[Path]:
        whole = self.folder / f"{self.corpus}.jsonl"
        return [
            *sorted(self.folder.glob(f"{self.corpus}.*-of-*.jsonl")),
            *([whole] if whole.is_file() else []),
        ]


def _judge_all(
    corpora: list[Corpus], out: Path, settings: JudgeSettings, selection: Selection, workers: int, again: bool
) -> None:
    from lethe.audit.progress import shown
    from lethe.audit.run import run

    for c in corpora:
        summary = run(
            c,
            _Files(out, c.name).of(selection),
            settings=settings,
            selection=selection,
            workers=workers,
            progress=shown(console_for(stderr=True)),
            again=again,
        )
        _tell(c.name, summary, console_for())
        if summary.interrupted:
            raise typer.Exit(INTERRUPTED)
    raise typer.Exit(OK)


def _tell(name: str, summary: Summary, console: Console) -> None:
    done = summary.done_before + summary.judged
    text = f"{name}: {done} of {summary.selected} rows judged ({summary.judged} now) -> {summary.path}"
    if summary.interrupted:
        text += "; interrupted, the same command resumes"
    console.print(text, markup=False, soft_wrap=True)


def _one_row(row: Row, settings: JudgeSettings, out: Path) -> None:
    """Judge one row, show it, and compare with the line that `out` holds of it."""
    from lethe.audit import lines
    from lethe.audit.pool import judged
    from lethe.verifier.replay import first_difference

    (result,) = judged([row], settings, workers=0)
    recorded = _recorded(out, row)
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


def _recorded(out: Path, row: Row) -> dict[str, Any] | None:
    from lethe.audit import lines

    found = None
    for file in _Files(out, row.corpus).all():
        found = lines.latest(lines.read(file)).get((row.corpus, row.id), found)
    return found


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
