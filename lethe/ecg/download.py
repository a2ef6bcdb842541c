"""Fetch PTB-XL from PhysioNet: ``python -m lethe.ecg fetch --to FOLDER``.

The release publishes the sha256 of each of its files in ``SHA256SUMS.txt``; a file whose sum differs is not
kept, and one that is there with the right sum is not fetched again, so the same command resumes. The
release's version is fixed; its list of sums is taken as PhysioNet serves it, and the folder keeps the list
that it was checked by.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lethe.ecg.ptbxl import RATES, DataError

RELEASE = "https://physionet.org/files/ptb-xl/1.0.3"
SUMS = "SHA256SUMS.txt"
TABLES = ("ptbxl_database.csv", "scp_statements.csv", "LICENSE.txt")
SECONDS = 60.0
"""Without a byte for so long, a file is given up."""
ATTEMPTS = 3


def fetch(
    folder: Path,
    *,
    rate: int = 100,
    limit: int | None = None,
    release: str = RELEASE,
    threads: int = 8,
    tell: Callable[[str], None] = print,
) -> Path:
    """The tables and the first `limit` records (None: all 21,799; at 100 Hz about 600 MB) into `folder`.

    Raises DataError, in one sentence, without a connection and where a checksum differs.
    """
    if rate not in RATES:
        raise DataError(f"the rate is {rate}; PTB-XL has 100 and 500 Hz")
    folder.mkdir(parents=True, exist_ok=True)
    sums = checksums(_read(f"{release}/{SUMS}").decode("utf-8"))
    for name in TABLES:
        _have(folder, name, release, sums)
    table = csv.DictReader(io.StringIO((folder / TABLES[0]).read_text(encoding="utf-8")))
    records = [line[RATES[rate]] for line in table][:limit]
    files = [f"{record}.{kind}" for record in records for kind in ("hea", "dat")]
    tell(f"{len(records):,} records of {release}, checked against its {SUMS}")
    with ThreadPoolExecutor(threads) as pool:
        for i, fetched in enumerate(pool.map(lambda name: _have(folder, name, release, sums), files)):
            if (i + 1) % 2000 == 0:
                tell(f"{i + 1:,} of {len(files):,} files{'' if fetched else ' (there already)'}")
    _write(folder / SUMS, "".join(f"{sums[name]} {name}\n" for name in [*TABLES, *files]).encode())
    return folder


def checksums(text: str) -> dict[str, str]:
    """File -> sha256 from lines ``<sha256> <file>``. Raises DataError for another text."""
    found = {}
    for line in text.splitlines():
        digest, _, name = line.strip().partition(" ")
        if len(digest) != 64 or not name.strip(" *"):
            raise DataError(f"the release's {SUMS} is not a list of checksums: {line[:60]!r}")
        found[name.strip(" *")] = digest.lower()
    return found


def _have(folder: Path, name: str, release: str, sums: dict[str, str]) -> bool:
    """Have a file with its published sum in the folder; whether it had to be fetched."""
    if name not in sums:
        raise DataError(f"the release's {SUMS} does not list {name}")
    target = folder / name
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == sums[name]:
        return False
    data = _read(f"{release}/{name}")
    found = hashlib.sha256(data).hexdigest()
    if found != sums[name]:
        raise DataError(f"{release}/{name} has sha256 {found}, not {sums[name]}; it was not kept")
    _write(target, data)
    return True


def _read(url: str) -> bytes:
    why: object = ""
    for _ in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                data: bytes = answer.read()
                return data
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise DataError(f"{url} answers {error.code}: {error.reason}") from None
            why = error
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            why = getattr(error, "reason", None) or error
    raise DataError(f"{url} cannot be reached ({why}); the same command resumes where it stopped")


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    os.replace(part, target)
