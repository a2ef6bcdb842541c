"""Reading data sets that come as Parquet (or the same records as JSON lines), a record at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.textio import records

BATCH = 256
"""Records in memory at a time; one of them can hold a megabyte of text."""


def rows_of(
    path: str | Path, corpus: str, needed: Sequence[str], wanted: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The records of a ``.parquet``, ``.jsonl`` or ``.jsonl.gz`` file, or of a folder of them in name order.

    Only the columns `needed` and `wanted` are read. Raises CorpusError where something is missing,
    is of another kind, or lacks a needed column; or where pyarrow is not installed.
    """
    for file in files_of(path, corpus):
        if file.suffix == ".parquet":
            yield from _parquet(file, corpus, needed, wanted)
        else:
            yield from records(file, corpus, tuple(needed))


def files_of(path: str | Path, corpus: str) -> list[Path]:
    """The data files at `path`. Raises CorpusError where there are none."""
    path = Path(path)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.name.endswith((".parquet", ".jsonl", ".jsonl.gz")))
        if not found:
            raise CorpusError(f"corpus {corpus}: no .parquet or .jsonl file under {path}")
        return found
    if not path.is_file():
        raise CorpusError(
            f"corpus {corpus}: no file {path}; get it with: lethe fetch {corpus} --to {path.parent}"
        )
    return [path]


def _parquet(
    file: Path, corpus: str, needed: Sequence[str], wanted: Sequence[str]
) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise CorpusError(
            f"corpus {corpus}: reading {file.name} needs pyarrow; install it with: pip install pyarrow"
        ) from None
    try:
        with parquet.ParquetFile(file) as table:
            names = table.schema_arrow.names
            lacking = [c for c in needed if c not in names]
            if lacking:
                raise CorpusError(f"corpus {corpus}: {file} has no column {', '.join(lacking)}")
            columns = [c for c in (*needed, *wanted) if c in names]
            for batch in table.iter_batches(batch_size=BATCH, columns=columns):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as e:
        raise CorpusError(f"corpus {corpus}: {file} is not a readable Parquet file ({e})") from e
