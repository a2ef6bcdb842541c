"""PTB-XL (Wagner et al. 2020): records, diagnostic superclasses and folds, from its official layout.

Two forms are read, from a folder or from a tar archive of one: the data set itself (``ptbxl_database.csv``,
``scp_statements.csv``, ``records100/``, ``records500/``) and an excerpt whose ``manifest.csv`` gives labels,
folds and the sha256 of every signal file. Labels are the five superclasses as the data set's authors
aggregate them: every diagnostic statement counts, whatever its likelihood. Folds 1 to 8 train, 9 validates,
10 tests; a patient is never in two folds. A record that cannot be used is named with the reason, and counted.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lethe.ecg.wfdb import RecordError, decode, parse_header

CLASSES = ("NORM", "MI", "STTC", "CD", "HYP")
"""Normal, myocardial infarction, ST/T change, conduction disturbance, hypertrophy."""

TRAIN, VALIDATION, TEST = tuple(range(1, 9)), (9,), (10,)
RATES = {100: "filename_lr", 500: "filename_hr"}
SECONDS = 10
"""Length of every record."""

GENERATED = "GENERATED.txt"
"""A file of this name says that the records beside it were drawn by `lethe.ecg.synthetic`."""


class DataError(ValueError):
    """Data that cannot be used at all; one sentence."""


@dataclass(frozen=True)
class Skipped:
    """A record that was left out."""

    ecg_id: str
    why: str


@dataclass(frozen=True)
class Recordings:
    """Usable records, in the order of their ids."""

    signals: NDArray[np.float32]
    """[n, 12, samples] in millivolts."""
    labels: NDArray[np.float32]
    """[n, 5] in the order of `CLASSES`, 0 or 1."""
    folds: NDArray[np.int64]
    ids: tuple[str, ...]
    rate: int
    skipped: tuple[Skipped, ...]
    source: str
    """What the records are, for people."""
    generated: bool = False
    """True for records that `synthetic` drew: nothing about medicine follows from them."""

    def __len__(self) -> int:
        return len(self.ids)

    def fold(self, folds: Iterable[int]) -> NDArray[np.int64]:
        """Positions of the records of these folds."""
        return np.flatnonzero(np.isin(self.folds, list(folds)))

    def standardised(self) -> Recordings:
        """Each lead less its mean, over its standard deviation, both of the training folds alone."""
        train = self.signals[self.fold(TRAIN)]
        if not len(train):
            raise DataError("no usable record is in folds 1 to 8: there is nothing to train on")
        mean = train.mean((0, 2), dtype=np.float64)[:, None]
        spread = train.std((0, 2), dtype=np.float64)[:, None]
        spread = np.where(spread > 0, spread, 1.0)
        return replace(self, signals=((self.signals - mean) / spread).astype(np.float32))

    def told(self) -> str:
        """What was left out, in one sentence."""
        if not self.skipped:
            return f"{len(self):,} records, none skipped."
        counts = Counter(s.why for s in self.skipped).most_common()
        reasons = "; ".join(f"{n} because {why}" for why, n in counts[:3]) + ("; ..." if counts[3:] else "")
        names = ", ".join(s.ecg_id for s in self.skipped[:8]) + (", ..." if self.skipped[8:] else "")
        return f"{len(self):,} records; {len(self.skipped)} skipped ({names}): {reasons}."


@dataclass(frozen=True)
class _Row:
    """A record as the tables describe it."""

    ecg_id: str
    file: str
    fold: int | None
    labels: tuple[float, ...]
    sha256: str = ""


def load(path: str | Path, rate: int = 100) -> Recordings:
    """Everything usable under `path`, a folder or a tar archive. `rate` is 100 or 500 Hz.

    Raises DataError if `path` is neither form, or if nothing in it is usable.
    """
    if rate not in RATES:
        raise DataError(f"the rate is {rate}; PTB-XL has 100 and 500 Hz")
    read = _reader(Path(path))
    rows, what = _rows(read, rate, Path(path))
    signals, labels, folds, ids, skipped = [], [], [], [], []
    for row in rows:
        try:
            signal = _signal(read, row, rate)
        except RecordError as error:
            skipped.append(Skipped(row.ecg_id, str(error)))
            continue
        signals.append(signal)
        labels.append(row.labels)
        folds.append(row.fold)
        ids.append(row.ecg_id)
    try:
        generated = bool(read(GENERATED))
    except OSError:
        generated = False
    if not ids:
        first = f" (record {skipped[0].ecg_id}: {skipped[0].why})" if skipped else ""
        raise DataError(f"{path} holds no usable record{first}")
    return Recordings(
        np.stack(signals), np.array(labels, np.float32), np.array(folds, np.int64), tuple(ids), rate,
        tuple(skipped), "generated records (drawn by our own code)" if generated else what, generated,
    )  # fmt: skip


def _signal(read: Callable[[str], bytes], row: _Row, rate: int) -> NDArray[np.float32]:
    if not any(row.labels):
        raise RecordError("it has no diagnostic superclass")
    if row.fold is None or row.fold not in range(1, 11):
        raise RecordError("it has no fold from 1 to 10")
    try:
        header = parse_header(read(f"{row.file}.hea").decode("ascii"))
        data = read(str(Path(row.file).with_name(header.data)))
    except UnicodeDecodeError:
        raise RecordError("its header is not text") from None
    except OSError:
        raise RecordError("a file of it is missing") from None
    if row.sha256 and hashlib.sha256(data).hexdigest() != row.sha256:
        raise RecordError("its signal file does not have the manifest's sha256")
    if header.rate != rate or header.samples != rate * SECONDS:
        raise RecordError(f"it has {header.samples} samples at {header.rate:g} Hz, not {SECONDS} s at {rate}")
    return decode(header, data)


# --- the tables -------------------------------------------------------------------------------


def _rows(read: Callable[[str], bytes], rate: int, path: Path) -> tuple[list[_Row], str]:
    """The rows of whichever table is there, and what the records are."""
    for table, rows in (("manifest.csv", _manifest), ("ptbxl_database.csv", _database)):
        try:
            lines = csv.DictReader(io.StringIO(read(table).decode("utf-8")))
        except OSError:
            continue
        try:
            found = sorted(rows(lines, read, rate), key=lambda row: int(row.ecg_id))
        except (KeyError, ValueError, SyntaxError, TypeError) as error:
            raise DataError(f"{table} of {path} is not PTB-XL's: {type(error).__name__} {error}") from None
        except OSError:
            raise DataError(f"{path} has {table} but no scp_statements.csv") from None
        if table == "manifest.csv" and rate != 100:
            raise DataError(f"{path} is an excerpt at 100 Hz; {rate} Hz needs the whole data set")
        excerpt = table == "manifest.csv"
        return found, f"an excerpt of PTB-XL ({len(found):,} records)" if excerpt else "PTB-XL"
    raise DataError(f"{path} has neither ptbxl_database.csv nor manifest.csv: it is not PTB-XL's layout")


def _fold(text: str) -> int | None:
    return int(float(text)) if text else None


def _manifest(lines: Iterable[dict[str, str]], read: Callable[[str], bytes], rate: int) -> Iterator[_Row]:
    for line in lines:
        labels = tuple(float(line[name] or 0) for name in CLASSES)
        yield _Row(line["ecg_id"], line["file"], _fold(line["strat_fold"]), labels, line["dat_sha256"])


def _database(lines: Iterable[dict[str, str]], read: Callable[[str], bytes], rate: int) -> Iterator[_Row]:
    statements = superclasses(read("scp_statements.csv").decode("utf-8"))
    for line in lines:
        codes = ast.literal_eval(line["scp_codes"])
        present = {statements[code] for code in codes if code in statements}
        labels = tuple(float(name in present) for name in CLASSES)
        ecg_id = str(int(float(line["ecg_id"])))
        yield _Row(ecg_id, line[RATES[rate]], _fold(line["strat_fold"]), labels)


def superclasses(text: str) -> dict[str, str]:
    """Diagnostic statement -> superclass, from the text of ``scp_statements.csv``."""
    found = {}
    for line in csv.DictReader(io.StringIO(text)):
        if line["diagnostic"] and float(line["diagnostic"]) == 1:
            found[line[""]] = line["diagnostic_class"]
    return found


# --- where the bytes are ----------------------------------------------------------------------


def _reader(path: Path) -> Callable[[str], bytes]:
    """Name relative to the data set's top -> its bytes; OSError where there is none."""
    if path.is_dir():
        return lambda name: (path / name).read_bytes()
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        with tarfile.open(path) as archive:
            files = {m.name.removeprefix("./"): archive.extractfile(m) for m in archive if m.isfile()}
            held = {name: file.read() for name, file in files.items() if file is not None}
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path} is neither a folder nor a whole tar archive: {error}") from None
    top = next(
        (name.rpartition("/")[0] for name in held if name.endswith(("manifest.csv", "ptbxl_database.csv"))),
        "",
    )

    def read(name: str) -> bytes:
        try:
            return held[f"{top}/{name}" if top else name]
        except KeyError:
            raise FileNotFoundError(name) from None

    return read
