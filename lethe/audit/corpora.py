"""Corpora: where rows (a reference and a kernel that somebody accepted) come from.

Each loader lives in a file of its own and documents its licence, its acceptance
predicate, what it leaves out and why, and its row ids. A new loader is one more
entry in `LOADERS`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, TypeVar

from lethe.verifier.problem import Candidate, Problem


class CorpusError(ValueError):
    """A corpus cannot be read; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Row:
    """One kernel of a corpus, beside the reference it claims to replace."""

    id: str
    corpus: str
    problem: Problem
    candidate: Candidate
    family: str
    """Operator class: matmul, attention, softmax, scan, norm, conv, reduction, activation, ..."""
    language: str
    """What the kernel is written in, in the corpus's own words: triton, cpp, cuda_inline, torch_only."""
    accepted: bool | None
    """Whether the corpus's own check accepted it; None where the corpus does not say."""
    licence: str
    order: int = 0
    """Position in the corpus's own order; merged shards are sorted by it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Corpus-specific facts that a table may group by (level, gpu, generation, ...)."""


class Corpus(Protocol):
    """A named, ordered set of rows."""

    name: str
    notes: tuple[str, ...]
    """One sentence for each thing that was left out, with its number."""

    def rows(self) -> Iterator[Row]:
        """All rows in corpus order."""

    def get(self, row_id: str) -> Row:
        """The row with this id. Raises CorpusError naming ids that look like it."""


class ListedCorpus:
    """A corpus whose rows fit in memory."""

    def __init__(self, name: str, rows: Iterable[Row], notes: Sequence[str] = ()) -> None:
        self.name = name
        self.notes = tuple(notes)
        self._rows = [replace(row, order=i) for i, row in enumerate(rows)]
        self._by_id = {row.id: row for row in self._rows}
        if len(self._by_id) < len(self._rows):
            twice = next(r.id for r in self._rows if self._by_id[r.id].order != r.order)
            raise CorpusError(f"corpus {name} holds the row id {twice!r} twice; row ids must be unique")

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> Iterator[Row]:
        return iter(self._rows)

    def get(self, row_id: str) -> Row:
        if row_id in self._by_id:
            return self._by_id[row_id]
        import difflib

        near = [i for i in self._by_id if row_id and row_id in i][:3]
        near = near or difflib.get_close_matches(row_id, self._by_id, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise CorpusError(f"corpus {self.name} has no row {row_id!r}{hint}")


Loader = Callable[..., Corpus]

LOADERS: dict[str, str] = {
    "house": "lethe.audit.house:load",
    "dlblas": "lethe.audit.dlblas:load",
    "cuda_l1": "lethe.audit.cuda_l1:load",
    "directory": "lethe.audit.directory:load",
    "drkernel": "lethe.audit.drkernel:load",
    "sakana": "lethe.audit.sakana:load",
    "redteam": "lethe.evidence.redteam:load",
    "honest": "lethe.evidence.honest:load",
    "mutants": "lethe.evidence.mutants:load",
    "controls": "lethe.evidence.controls:load",
}
"""Loader by corpus name: ``module:function``, imported on use. Each takes keywords of its own, most ``path``.
The last four are evidence about the verifier: their right verdicts are known beforehand."""


NO_CORPUS = ("kernelbench", "published")
"""Entries of a config's ``corpora`` section that are no corpora; see `configured`."""


def open_corpus(name: str, **settings: Any) -> Corpus:
    """Open a corpus by name; `settings` are the loader's keywords (``path``, ``problems``, ...).

    Raises CorpusError for an unknown name, a setting the loader does not know, or a missing path.
    """
    if name not in LOADERS:
        raise CorpusError(f"no corpus {name!r}; the corpora are {', '.join(LOADERS)}")
    load = _loader(name)
    known = inspect.signature(load).parameters
    for key in settings:
        if key not in known:
            raise CorpusError(f"corpus {name} has no setting {key!r}; it knows {', '.join(known)}")
    missing = [k for k in _needed(name) if settings.get(k) is None]
    if missing:
        raise CorpusError(f"corpus {name} needs {' and '.join(missing)}, which no option or config gives")
    return load(**{k: v for k, v in settings.items() if v is not None})


def _loader(name: str) -> Loader:
    module, _, function = LOADERS[name].partition(":")
    load: Loader = getattr(import_module(module), function)
    return load


def _needed(name: str) -> list[str]:
    """Keywords without which the loader cannot work."""
    parameters = inspect.signature(_loader(name)).parameters
    return [k for k, p in parameters.items() if p.default is p.empty]


def configured(section: Mapping[str, Any]) -> tuple[list[Corpus], list[str]]:
    """Open the corpora of a config's ``corpora`` section.

    Each entry is a path, a mapping of loader keywords, or null. An entry whose
    path (or any needed keyword) is null is skipped, and a note says so. Two entries are
    no corpora: ``kernelbench`` is the `problems` of loaders that need them, ``published``
    the file of published verdicts, to whose rows drkernel is then confined.

    Returns (corpora in the section's order, notes). Raises CorpusError otherwise.
    """
    corpora: list[Corpus] = []
    notes: list[str] = []
    bench = section.get("kernelbench")
    for name, entry in section.items():
        if name in NO_CORPUS:
            continue
        settings = dict(entry) if isinstance(entry, Mapping) else {"path": entry}
        if name in LOADERS and "problems" in _needed(name):
            settings.setdefault("problems", bench)
        if name == "drkernel" and section.get("published") is not None:
            settings.setdefault("published", section["published"])
        empty = [k for k, v in settings.items() if v is None]
        if name in LOADERS and (empty or not settings):
            notes.append(f"corpus {name} is skipped: the config gives no {' and no '.join(empty) or 'path'}")
            continue
        corpora.append(open_corpus(name, **settings))
    return corpora, notes


def stratified(rows: Iterable[Row], by: Callable[[Row], str] = lambda row: row.family) -> list[Row]:
    """Reorder rows so that any prefix is a proportional random sample of the strata.

    Inside a stratum rows are shuffled by a hash of their id (no seed to choose);
    the k-th of n rows sits at (k + u) / n of the way, u being the stratum's own
    offset, and rows are sorted by that position.
    """
    strata: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        strata[by(row)].append(row)
    placed: list[tuple[float, str, Row]] = []
    for name, members in strata.items():
        members.sort(key=lambda row: _unit("row:" + row.id))
        offset = _unit("stratum:" + name)
        placed += [((k + offset) / len(members), row.id, row) for k, row in enumerate(members)]
    return [row for _, _, row in sorted(placed, key=lambda p: p[:2])]


Item = TypeVar("Item")


def spread(items: Iterable[Item], key: Callable[[Item], str]) -> list[Item]:
    """Items in an order that looks random and depends on their keys alone."""
    return sorted(items, key=lambda item: (_unit("row:" + key(item)), key(item)))


def in_shard(row_id: str, shard: int, shards: int) -> bool:
    """Whether a row belongs to shard `shard` of `shards` (counted from 1); depends on the id alone."""
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards == shard - 1


def _unit(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
