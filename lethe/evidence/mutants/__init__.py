"""Mutants: honest kernels with one edit each, which the verifier must reject unless the edit changes nothing.

`load` is the corpus; ``python -m lethe.evidence.mutants`` chooses the bases, finds the equivalent mutants,
runs the usual five-trial check on the same rows and prints the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lethe.audit.corpora import ListedCorpus

MUTANTS = 480
"""Size of the corpus: what a 16-core machine judges in about half an hour."""


def load(path: str | Path | None = None, limit: int | None = None, seed: int = 0) -> ListedCorpus:
    """The corpus named ``mutants``: `limit` (default `MUTANTS`) edited house kernels, balanced over operators
    and bases in any prefix.

    Args:
        path: folder of the house corpus (default: the one of this tree).
        limit: how many; a smaller corpus is a prefix of a larger one.
        seed: which of the possible mutants are taken.

    Raises CorpusError where the house corpus or the record of bases is missing or out of date.
    """
    from lethe.audit.corpora import ListedCorpus
    from lethe.evidence.mutants import generate

    folder = Path(path) if path is not None else None
    chosen, notes = generate.sample(folder, MUTANTS if limit is None else limit, seed)
    return ListedCorpus("mutants", [m.row() for m in chosen], notes)
