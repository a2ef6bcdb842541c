"""All mutants of a base, and the selection of a stratified set of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lethe.audit.corpora import CorpusError, Row
from lethe.evidence.mutants import cpp, loops, memory, values, wrapper  # noqa: F401 (they register operators)
from lethe.evidence.mutants.bases import Base
from lethe.evidence.mutants.bases import load as load_bases
from lethe.evidence.mutants.catalog import OPERATORS, edits
from lethe.evidence.mutants.cpp import CppText
from lethe.evidence.mutants.kernel import kernels
from lethe.evidence.mutants.source import Edit, Text
from lethe.evidence.mutants.wrapper import Wrapper
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier.problem import Candidate

__all__ = ["OPERATORS", "Mutant", "corpus"]

KERNEL_GROUPS = ("memory", "loop", "value", "precision")


@dataclass(frozen=True)
class Mutant:
    """A base with one edit."""

    id: str
    """``<base>/<operator>/L<line>``, with ``.2`` and so on for further ones of that line."""
    base: Base
    edit: Edit
    candidate: Candidate

    def row(self) -> Row:
        """Its row in the corpus."""
        op = OPERATORS[self.edit.operator]
        row = self.base.row
        return specimen(
            self.id,
            Kind.MUTANT,
            row.problem,
            self.candidate,
            corpus="mutants",
            family=row.family,
            language=row.language,
            twin=row.id,
            operator=op.name,
            group=op.group,
            base=row.id,
            line=self.edit.line,
        )


def mutants(base: Base) -> Iterator[Mutant]:
    """Every mutant of a base that compiles as Python and differs from the base and from those before it."""
    seen = {base.row.candidate.source}
    numbers: Counter[str] = Counter()
    for edit in _edits(base):
        source = edit.apply(base.row.candidate.source)
        if source in seen or not _compiles(source):
            continue
        seen.add(source)
        name = f"{base.row.id}/{edit.operator}/L{edit.line}"
        numbers[name] += 1
        label = name if numbers[name] == 1 else f"{name}.{numbers[name]}"
        candidate = replace(base.row.candidate, name=label.replace("/", "."), source=source, path="")
        yield Mutant(label, base, edit, candidate)


def _edits(base: Base) -> Iterator[Edit]:
    source = base.row.candidate.source
    text = Text(source)
    for kernel in kernels(text):
        yield from edits(KERNEL_GROUPS, kernel)
    if base.row.language == "cpp":
        yield from edits(("cpp",), CppText(source))
    yield from edits(("wrapper",), Wrapper(text, base.shapes))


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def stratified(found: Iterable[Mutant], seed: int = 0) -> list[Mutant]:
    """Reorder mutants so that any prefix is balanced over operators first, and over bases within each.

    Greedy: the operator with the fewest mutants so far is next, and of its mutants the one whose base has
    the fewest; ties are decided by a hash of the seed and the id.
    """
    waiting: dict[str, list[Mutant]] = {}
    for mutant in found:
        waiting.setdefault(mutant.edit.operator, []).append(mutant)
    by_operator: Counter[str] = Counter()
    by_base: Counter[str] = Counter()
    by_both: Counter[tuple[str, str]] = Counter()
    order: list[Mutant] = []
    while waiting:
        op = min(waiting, key=lambda name: (by_operator[name], _hash(seed, name)))
        chosen = min(
            waiting[op],
            key=lambda m: (by_both[op, m.base.row.id], by_base[m.base.row.id], _hash(seed, m.id)),
        )
        waiting[op].remove(chosen)
        if not waiting[op]:
            del waiting[op]
        by_operator[op] += 1
        by_base[chosen.base.row.id] += 1
        by_both[op, chosen.base.row.id] += 1
        order.append(chosen)
    return order


def _hash(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()


def corpus(
    path: Path | None = None, limit: int | None = None, seed: int = 0, only: list[str] | None = None
) -> list[Mutant]:
    """The first `limit` mutants of the stratified order over all bases, or those named in `only`.

    Raises CorpusError where the bases cannot be read, or a name is of no mutant.
    """
    return sample(path, limit, seed, only)[0]


def sample(
    path: Path | None = None, limit: int | None = None, seed: int = 0, only: list[str] | None = None
) -> tuple[list[Mutant], list[str]]:
    """`corpus`, and a note for each thing that was left out."""
    found, notes = load_bases(path)
    every = [m for base in found for m in mutants(base)]
    if only is not None:
        by_id = {m.id: m for m in every}
        unknown = [i for i in only if i not in by_id]
        if unknown:
            raise CorpusError(f"corpus mutants: there is no mutant {unknown[0]}")
        return [by_id[i] for i in only], notes
    chosen = stratified(every, seed)[:limit]
    notes.append(f"{len(every) - len(chosen)} of {len(every)} possible mutants are not in the sample")
    return chosen, notes
