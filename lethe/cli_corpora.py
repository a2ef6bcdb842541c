"""What the commands about corpora share: options, opening what a config names, and where lines are."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli import SEEDS, Mistake, console_for

if TYPE_CHECKING:
    from lethe.audit.corpora import Corpus, Row
    from lethe.audit.run import Selection

RESULTS = Path("data/results/audit")
CONFIG = Path("config.yaml")

CORPORA = (
    "directory (your own kernels), house, dlblas, cuda_l1, drkernel or sakana; redteam, honest, mutants or "
    "controls (evidence, right verdicts known)."
)

ConfigOption = Annotated[Path | None, typer.Option(help="Take corpora and settings from this file.")]
CorpusOption = Annotated[str, typer.Option(help=CORPORA)]
PathOption = Annotated[Path | None, typer.Option(help="Where the corpus is.")]
ProblemsOption = Annotated[Path | None, typer.Option(help="Its references, e.g. a KernelBench checkout.")]
OutOption = Annotated[Path, typer.Option(help="Folder for the JSON lines, one file for each corpus.")]


def plan_of(config: Path | None, corpus: str, path: Path | None, problems: Path | None) -> dict[str, Any]:
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
    _check(config, plan)
    return plan


def _check(config: Path, plan: dict[str, Any]) -> None:
    """Raises Mistake for a value that the commands cannot use, before anything is judged."""
    for name, entry in plan["corpora"].items():
        if not isinstance(entry, str | dict | None):
            raise Mistake(f"{config}: corpora.{name} is {entry!r}; give a path, a mapping or null")
    section = plan.get("audit")
    if not isinstance(section, dict | None):
        raise Mistake(f"{config}: audit is {section!r}; give a mapping, e.g. {{limit: 10}}")
    limit, gates = (section or {}).get("limit"), (section or {}).get("gates")
    if limit is not None and not (_whole(limit) and limit >= 1):
        raise Mistake(f"{config}: audit.limit is {limit!r}; give a whole number from 1, or null")
    if not isinstance(gates, list | None) or any(not isinstance(g, str) for g in gates or ()):
        raise Mistake(f"{config}: audit.gates is {gates!r}; give a list, e.g. [EXC-01, ORD-02], or null")
    seed = plan.get("seed", 0)
    if not (_whole(seed) and SEEDS["min"] <= seed <= SEEDS["max"]):
        raise Mistake(
            f"{config}: seed is {seed!r}; give a whole number from {SEEDS['min']} to {SEEDS['max']}"
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def options_of(
    config: Path | None, corpus: str, path: Path | None, problems: Path | None, out: Path = RESULTS
) -> str:
    """Options that name a corpus as a person types them, with a leading space; none for the house corpus."""
    given = {
        "--config": config if config != CONFIG else None,
        "--corpus": corpus,
        "--path": path,
        "--problems": problems,
        "--out": out if out != RESULTS else None,
    }
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value)


FETCHED = {
    "dlblas-oe-": "--corpus dlblas --path ROWS --problems KERNELBENCH",
    "cudal1-": "--corpus cuda_l1 --path ROWS",
}
"""How rows of public corpora begin, and the options with which they are found."""


def opened(plan: dict[str, Any]) -> list[Corpus]:
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


def find(corpora: list[Corpus], row_id: str) -> Row:
    from lethe.audit.corpora import CorpusError

    errors = []
    for c in corpora:
        try:
            return c.get(row_id)
        except CorpusError as e:
            errors.append(str(e))
    if len(corpora) == 1 and corpora[0].name == "house":
        errors += [
            f"such a row needs {options}, from lethe fetch"
            for start, options in FETCHED.items()
            if row_id.startswith(start)
        ]
    raise CorpusError("; ".join(errors))


@dataclass(frozen=True)
class Files:
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


def recorded_line(out: Path, row: Row) -> dict[str, Any] | None:
    from lethe.audit import lines

    found = None
    for file in Files(out, row.corpus).all():
        found = lines.latest(lines.read(file)).get((row.corpus, row.id), found)
    return found
