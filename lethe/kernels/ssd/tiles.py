"""How the kernels are cut for a shape: read from ``tiles.json``, which a search on a GPU wrote (see `tune`).

Imports no GPU module.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("tiles.json")

WIDTH = 64
"""Channels of a head."""

ALL_REGISTERS = 255
"""What a thread can have at most."""

VARIABLE = "LETHE_SSD_TILES"
"""Environment variable that names another table, as a search in progress has one."""


@dataclass(frozen=True)
class Tiles:
    """Compile-time choices of one plan; the numbers of warps and stages are Triton's options."""

    tile: int = 64
    """Tokens that a program handles at once, at most the chunk."""
    scan_p: int = 32
    scan_n: int = 64
    """Piece of a head's state that a program of the scan carries."""
    scan_warps: int = 4
    scan_stages: int = 3
    output_heads: int = 4
    """Heads that share one C B^T in a program of `output`."""
    output_warps: int = 4
    output_stages: int = 3
    output_registers: int = ALL_REGISTERS
    """What a thread of `output` may take; with 168 a multiprocessor holds three blocks instead of two."""
    gradient_heads: int = 8
    """Heads whose dB and dC a program adds up in registers."""
    gradient_warps: int = 4
    gradient_stages: int = 2

    def record(self) -> dict[str, int]:
        return asdict(self)


def table() -> Path:
    """The table in force: `TABLE`, or the file that `VARIABLE` names."""
    return Path(os.environ.get(VARIABLE) or TABLE)


@functools.cache
def rows(file: Path) -> tuple[dict[str, Any], ...]:
    """A table: each row a `where` (op, chunk, n, gated, target; a key left out matches all), `tiles`, and
    the `source` of the choice."""
    return tuple(json.loads(file.read_text())["rows"])


def lookup(*, op: str, chunk: int, n: int, gated: bool, target: int) -> tuple[Tiles, str]:
    """The tiles of the row that agrees in most keys, and where they come from; sizes never exceed the
    shape's own."""
    asked = {"op": op, "chunk": chunk, "n": n, "gated": gated, "target": target}
    best, source, score = Tiles(), "default", -1
    for row in rows(table()):
        where = row["where"]
        if all(asked[k] == v for k, v in where.items()) and len(where) > score:
            best, source, score = Tiles(**row["tiles"]), row["source"], len(where)
    return fitted(best, chunk, n), source


def fitted(tiles: Tiles, chunk: int, n: int) -> Tiles:
    """`tiles` cut down to a chunk and a state size. ValueError where they do not divide those then."""
    cut = replace(tiles, tile=min(tiles.tile, chunk), scan_n=min(tiles.scan_n, n))
    if min(cut.record().values()) < 1 or chunk % cut.tile or WIDTH % cut.scan_p or n % cut.scan_n:
        raise ValueError(
            f"tiles {cut.record()} do not divide a chunk of {chunk} and a state of {WIDTH} x {n}"
        )
    return cut
