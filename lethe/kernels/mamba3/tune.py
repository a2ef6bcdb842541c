"""Times of the scan's tiles and chunk lengths on a GPU, for choosing the defaults: CUDA graphs' device time.

    python -m lethe.kernels.mamba3.tune --out FILE.jsonl [--seconds 100] [--suite scan|block]
        [--repeats 7] [--workers 16]

Every candidate is compiled first, each in a process of its own; then each is timed at each shape, a JSON line
at a time. A candidate that does not compile or run has its error in its line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from lethe.kernels import timing
from lethe.kernels.mamba3 import scan_launch
from lethe.kernels.mamba3.cases import Case, operands
from lethe.kernels.mamba3.scan_launch import Tile

SIZES = (
    (1, 2048, 2048),
    (8, 2048, 2048),
    (1, 16384, 256),
    (8, 512, 1024),
    (1, 512, 256),
    (16, 2048, 2048),
    (32, 1024, 2048),
)
"""Batch, length, width; N = 16."""

CHUNKS = (32, 64, 128, 256, None)
"""Tokens of a forward chunk; None is serial."""

FORWARD_TILES = (
    (scan_launch.WIDE_TILE, True),
    (scan_launch.NARROW_TILE, True),
    (scan_launch.NARROW_TILE, False),
)
"""Timed with every chunk; with B and C rewritten by state, or not."""

MORE_FORWARD_TILES = (
    (scan_launch.WIDE_TILE, False),
    (Tile(16, 1, 64), True),
    (Tile(4, 1, 128), True),
    (Tile(8, 1, 32), True),
    (Tile(16, 4, 16), True),
    (Tile(16, 4, 16), False),
    (Tile(8, 1, 64, registers=96), True),
)
"""Timed with chunks of 64 tokens and serial."""

TILES = (
    Tile(8, 4, 16, registers=200),
    Tile(8, 4, 16, registers=168),
    Tile(8, 4, 16),
    Tile(4, 4, 16, registers=128),
    Tile(4, 4, 16, registers=168),
    Tile(4, 4, 32, registers=200),
    Tile(4, 8, 16, registers=168),
    Tile(4, 8, 16, registers=200),
    Tile(8, 2, 32, registers=200),
    Tile(4, 8, 8, registers=128),
    Tile(8, 8, 8, registers=200),
    Tile(6, 4, 16, registers=168),
    Tile(4, 2, 32, registers=128),
    Tile(8, 8, 16, warps=2, registers=200),
)


@dataclass(frozen=True)
class Candidate:
    """A tile of the backward pass; or, with `by_state`, one of the forward pass with a chunk length."""

    tile: Tile
    chunk: int | None = None
    by_state: bool | None = None

    def facts(self) -> dict[str, Any]:
        """What a line says about it."""
        if self.by_state is not None:
            return {"pass": "forward", "chunk": self.chunk, "by_state": self.by_state, **asdict(self.tile)}
        return {"pass": "backward", **asdict(self.tile)}

    def step(self, case: Case, device: str) -> Callable[[], Any]:
        """The pass at `case` with this choice, its operands drawn beforehand."""
        o = operands(case, device)
        given = scan_launch.Operands(
            o["u"] if "u" in o else o["x"], o["dt"], o["A"], o["B"], o["C"], o["D"], o["z"], o["dt_bias"],
            None, None, o.get("conv_weight"), o.get("conv_bias"), None, True,
        )  # fmt: skip
        if self.by_state is not None:
            chunk = case.length if self.chunk is None else self.chunk
            return lambda: scan_launch.forward(given, chunk, self.tile, self.by_state)
        dy = torch.empty_like(o["z"]) if device == "meta" else torch.randn_like(o["z"])
        dfinal = torch.zeros(case.batch, case.states, case.width, device=device)
        return lambda: scan_launch.backward(given, dy, dfinal, self.tile)


def candidates() -> list[Candidate]:
    """Everything to time, the backward pass first."""
    forward = [(tile, chunk) for tile in FORWARD_TILES for chunk in CHUNKS]
    forward += [(tile, chunk) for tile in MORE_FORWARD_TILES for chunk in (64, None)]
    return [
        *(Candidate(tile) for tile in TILES),
        *(Candidate(tile, chunk, by_state) for (tile, by_state), chunk in forward),
    ]


def compiled(candidate: Candidate, cases: list[Case]) -> str | None:
    """Compile the launches of `candidate` into Triton's cache without running any; the error, if any.

    Turns this process into one that launches nothing.
    """
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_only
    try:
        for case in cases:
            candidate.step(case, "meta")()
    except Exception as error:  # a compiler may fail in any way; the line says how
        return _words(error)
    finally:
        JITFunction.run = run
    return None


def rows(suite: str, seconds: float, repeats: int, workers: int) -> Iterator[dict[str, Any]]:
    """A row for each candidate and shape, until the time is spent."""
    end = time.monotonic() + seconds
    cases = [Case(suite, *size) for size in SIZES]
    failed: dict[Candidate, str | None] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(compiled, candidate, cases): candidate for candidate in candidates()}
        for job in as_completed(jobs):
            failed[jobs[job]] = job.result()
    yield {"suite": suite, "compiled": len(failed), "seconds": round(seconds - end + time.monotonic(), 1)}
    for case in cases:
        for candidate in candidates():
            row = {**case.facts(), **candidate.facts()}
            if failed[candidate] is not None:
                yield {**row, "error": failed[candidate]}
            elif time.monotonic() > end:
                yield {**row, "skipped": "the time was spent"}
            else:
                yield {**row, **_timed(candidate, case, repeats)}
        torch.cuda.empty_cache()


def _timed(candidate: Candidate, case: Case, repeats: int) -> dict[str, Any]:
    try:
        samples = timing.measured({"us": candidate.step(case, "cuda")}, repeats)["us"]
    except Exception as error:  # a launch may fail in any way; the line says how
        return {"error": _words(error)}
    return {"us": timing.summary(samples), "samples_us": samples}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.kernels.mamba3.tune", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--suite", choices=("scan", "block"), default="scan")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1))
    given = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("tune: no CUDA device is visible to torch", file=sys.stderr)
        return 2
    with given.out.open("a", encoding="utf-8") as file:
        for row in rows(given.suite, given.seconds, given.repeats, given.workers):
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
