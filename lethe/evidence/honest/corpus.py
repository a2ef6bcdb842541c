"""The honest corpus: every reference of the house corpus rewritten in every way that keeps its meaning.

* Where: made on loading from ``data/corpus/house/problems``; what may be done to which reference was
  measured once and stands in ``data/corpus/honest/applicability.json``. Loading runs no torch.
* Row id: ``<problem>__<rewriting>``, with ``_<axis>`` where there are several.
* Left out: rewritings that a reference does not allow; the table says why for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lethe.audit import house
from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.kernelbench import KernelBench, family_of
from lethe.audit.textio import source_of
from lethe.evidence.honest import libraries
from lethe.evidence.honest.registry import TRANSFORMS
from lethe.evidence.honest.traits import Traits
from lethe.evidence.honest.transform import Transform
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.textfile import write_atomically

NAME = "honest"
SCHEMA = "lethe.honest/1"
TABLE = Path("data/corpus/honest/applicability.json")
FEW = 4
"""So many references a note names."""
REMAKE = "make it again with: python -m lethe.evidence.honest"


def load(
    path: str | Path | None = None,
    kernelbench: str | Path | None = None,
    transforms: Iterable[str] | str | None = None,
) -> ListedCorpus:
    """The rows of the honest corpus, references in order of their names.

    Args:
        path: folder of the house corpus; the repository's own by default.
        kernelbench: a KernelBench checkout, whose levels 1 and 2 are rewritten too, in the ways that ask
            nothing of the reference.
        transforms: only these rewritings (names, or one string with commas); ``libraries`` for the rows of
            published libraries. All by default.

    Raises CorpusError where a folder or the table is missing, the table is about other sources, or a
    rewriting does not exist.
    """
    wanted = _wanted(transforms)
    rows: list[Row] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    table = read_table()
    for problem in problems(Path(path) if path is not None else house.default_folder()):
        traits = table.get(problem.name)
        if traits is None:
            raise CorpusError(f"corpus honest: nothing was measured about {problem.name}; {REMAKE}")
        if traits[0] != problem.sha256:
            raise CorpusError(f"corpus honest: {problem.path} changed since it was measured; {REMAKE}")
        family = problem.name.split("_")[0]
        rows += _rewritten(problem, traits[1], family, (t for n, t in TRANSFORMS.items() if n in wanted))
        for way, why in traits[1].left_out.items():
            if way in wanted:
                left_out.setdefault((way, why), []).append(problem.name)
    notes = _notes(left_out)
    if kernelbench is not None:
        universal = [t for n, t in TRANSFORMS.items() if n in wanted and t.universal]
        for problem in _bench(kernelbench):
            rows += _rewritten(problem, Traits(), family_of(problem.name), universal)
    if libraries.NAME in wanted:
        found, missing = libraries.rows(NAME)
        rows += found
        notes += missing
    return ListedCorpus(NAME, rows, notes)


def problems(folder: Path) -> Iterator[Problem]:
    """The references of a house corpus in order of their names. Raises CorpusError if there are none."""
    files = sorted((folder / "problems").glob("*.py"))
    if not files:
        raise CorpusError(f"corpus honest: no references (problems/*.py) in {folder}")
    for file in files:
        yield Problem(file.stem, source_of(file, NAME), path=f"problems/{file.name}")


def table_file() -> Path:
    """`TABLE` under the working directory, else beside the package's source tree."""
    here = Path(__file__).resolve().parents[3] / TABLE
    return TABLE if TABLE.is_file() or not here.is_file() else here


def read_table(file: Path | None = None) -> dict[str, tuple[str, Traits]]:
    """Reference -> (sha256 of its source, what was measured). Raises CorpusError."""
    file = file or table_file()
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        if table["schema"] != SCHEMA:
            raise CorpusError(f"corpus honest: {file} has schema {table['schema']!r}, expected {SCHEMA!r}")
        return {n: (e["sha256"], Traits.from_dict(e["traits"])) for n, e in table["problems"].items()}
    except OSError as e:
        raise CorpusError(f"corpus honest: cannot read {file} ({e.strerror}); {REMAKE}") from None
    except (ValueError, KeyError, TypeError) as e:
        if isinstance(e, CorpusError):
            raise
        raise CorpusError(f"corpus honest: {file} is not the table of traits ({e!r}); {REMAKE}") from None


def write_table(measured: Mapping[str, tuple[str, Traits]], torch_version: str, file: Path) -> None:
    """Write the table, whole or not at all."""
    entries = {n: {"sha256": sha, "traits": t.to_dict()} for n, (sha, t) in sorted(measured.items())}
    table = {"schema": SCHEMA, "torch": torch_version, "problems": entries}
    write_atomically(file, json.dumps(table, indent=1) + "\n")


def _rewritten(problem: Problem, traits: Traits, family: str, chosen: Iterable[Transform]) -> Iterator[Row]:
    for transform in chosen:
        if transform.name in traits.left_out:
            continue
        for variant, text in transform.texts(problem.source, traits).items():
            way = f"{transform.name}_{variant}" if variant else transform.name
            name = f"{problem.name}__{way}"
            yield specimen(
                name,
                Kind.HONEST,
                problem,
                Candidate(name, text, "python", transform.entry, transform.kind),
                corpus=NAME,
                family=family,
                language=transform.language,
                transform=transform.name,
                what=transform.what,
            )


def _wanted(transforms: Iterable[str] | str | None) -> set[str]:
    known = {*TRANSFORMS, libraries.NAME}
    if transforms is None:
        return known
    names = {t.strip() for t in (transforms.split(",") if isinstance(transforms, str) else transforms)}
    unknown = sorted(names - known)
    if unknown:
        raise CorpusError(f"corpus honest: no rewriting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return names


def _notes(left_out: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """(rewriting, reason) -> references, in a sentence each; the table names them all."""
    notes = []
    for (way, why), names in left_out.items():
        whom = ", ".join(names) if len(names) <= FEW else f"{len(names)} references"
        notes.append(f"{way} does not apply to {whom}: {why}")
    return notes


def _bench(checkout: str | Path) -> Iterator[Problem]:
    bench = KernelBench(checkout)
    for file in sorted(bench.root.glob("level[12]/*.py")):
        yield bench.problem(f"{file.parent.name}/{file.name}")
