"""Atomic text files: a reader sees the old content or the new, never half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write `text` (UTF-8) beside `path` and rename it into place, making parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def writable_folder(folder: Path | None) -> None:
    """Raise ValueError with one sentence if no files can be written below `folder`, which need not exist."""
    if folder is None:
        return
    there = Path(folder)
    if there.exists() and not there.is_dir():
        raise ValueError(f"cannot write to {folder}: it is a file, not a folder")
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write to {folder}: {there} is not a writable folder")
