"""Reading the JSON-lines files that corpora come as, with errors that a person can act on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.verifier.formats import FormatError, read_source


def records(path: str | Path, corpus: str, needed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects of a ``.jsonl`` or ``.jsonl.gz`` file, each checked for its needed keys.

    Raises CorpusError where the file is missing, is not JSON lines, or lacks a key.
    """
    path = Path(path)
    if not path.is_file():
        raise CorpusError(f"corpus {corpus}: no file {path}; set its path to the .jsonl or .jsonl.gz file")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                record = json.loads(text)
                if not isinstance(record, dict):
                    raise CorpusError(f"corpus {corpus}: line {number} of {path} is not a JSON object")
                lacking = [k for k in needed if k not in record]
                if lacking:
                    raise CorpusError(f"corpus {corpus}: line {number} of {path} has no {', '.join(lacking)}")
                yield record
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CorpusError(f"corpus {corpus}: {path} is not a readable JSON-lines file ({e})") from e


def source_of(path: Path, corpus: str) -> str:
    """A source file's text with LF line ends. Raises CorpusError where it is missing or not text."""
    try:
        return read_source(path)[0]
    except FormatError as e:
        raise CorpusError(f"corpus {corpus}: {path} {e}") from None


def unix(text: str) -> str:
    """Text with LF line ends, as the verifier reads files, so that hashes agree."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
