"""Levers that were tried and dropped, with what each did: two candidates of a tuning record, compared.

A lever names what is built (`kept`) and what was tried instead by facts of the record's rows. What the table
says was measured is computed from these rows, so that a new record changes it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.paper.kernel_tables import MISSING

Row = Mapping[str, Any]

SHAPE = ("suite", "batch", "length", "width", "states", "ranks")
"""What identifies the problem of a row."""
COLUMNS = ("lever", "pass", "meant to bring", "time over what is built", "outcome")


def noted(path: Path) -> list[dict[str, Any]]:
    """The levers of a file. Raises OSError or ValueError where it cannot be read."""
    return list(json.loads(path.read_text(encoding="utf-8"))["levers"])


def ratios(lever: Row, rows: Sequence[Row]) -> list[float]:
    """Time of the tried candidate over that of the kept one, for each shape that both were timed at."""
    kept, tried = (dict(_timed(lever[which], rows)) for which in ("kept", "tried"))
    return [tried[shape] / kept[shape] for shape in kept if shape in tried]


def _timed(facts: Row, rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], float]]:
    for row in rows:
        if "us" in row and all(k in row and row[k] == v for k, v in facts.items()):
            yield tuple(row.get(k) for k in SHAPE), row["us"]["median"]


def table(levers: Sequence[Row], rows: Sequence[Row]) -> pd.DataFrame:
    """One line a lever: geometric mean of its ratios with their range; faster ones say so."""
    return pd.DataFrame([_line(lever, ratios(lever, rows)) for lever in levers], columns=list(COLUMNS))


def _line(lever: Row, found: Sequence[float]) -> list[str]:
    first = [lever["lever"], lever["kept"]["pass"], lever["expected"]]
    if not found:
        return [*first, MISSING, ""]
    mean = math.exp(statistics.fmean(map(math.log, found)))
    low, high = min(found), max(found)
    outcome = "slower everywhere" if low > 1 else "faster everywhere" if high < 1 else "by shape"
    return [*first, f"{mean:.2f} ({low:.2f} to {high:.2f})", outcome]
