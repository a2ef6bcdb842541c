"""The search for tiles: every launch of a plan timed alone, with each way of cutting it.

`search` yields raw samples; `chosen` makes of them the table that `tiles` reads (``tiles.json``). With tiles
of a given number of tokens the launches do not influence each other, so each kernel is searched for itself;
how many tokens a tile has is then decided by the sum. `search` needs a GPU, `variants` does not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lethe.kernels.ssd.cases import Case
from lethe.kernels.ssd.device import lost
from lethe.kernels.ssd.tiles import Tiles

if TYPE_CHECKING:
    from lethe.kernels.ssd.bound import Bound

SCANS = [
    {"scan_p": 32, "scan_n": 64, "scan_warps": 4, "scan_stages": 3},
    {"scan_p": 32, "scan_n": 64, "scan_warps": 4, "scan_stages": 4},
    {"scan_p": 32, "scan_n": 64, "scan_warps": 2, "scan_stages": 3},
    {"scan_p": 64, "scan_n": 64, "scan_warps": 4, "scan_stages": 3},
    {"scan_p": 64, "scan_n": 32, "scan_warps": 4, "scan_stages": 3},
    {"scan_p": 32, "scan_n": 32, "scan_warps": 4, "scan_stages": 3},
    {"scan_p": 32, "scan_n": 32, "scan_warps": 2, "scan_stages": 4},
    {"scan_p": 16, "scan_n": 64, "scan_warps": 2, "scan_stages": 3},
    {"scan_p": 16, "scan_n": 64, "scan_warps": 4, "scan_stages": 4},
]
OUTPUTS = [
    {"output_heads": heads, "output_warps": 4, "output_stages": stages, "output_registers": registers}
    for stages, registers in ((3, 255), (3, 168), (2, 168), (2, 255), (1, 168))
    for heads in (16, 8, 4)
]  # 168 registers let a third block onto a multiprocessor, if its shared memory does
GRADIENTS = [
    {"gradient_heads": heads, "gradient_warps": warps, "gradient_stages": stages}
    for warps, stages in ((4, 2), (4, 1), (8, 1))
    for heads in (8, 4, 16, 32)
]  # heads cost no compilation; eight warps spill least and are alone on a multiprocessor
BIG_OUTPUTS = [
    {"output_heads": heads, "output_warps": 8, "output_stages": 2} for heads in (4, 2, 8)
]  # with 128 tokens a program needs eight warps

Row = dict[str, Any]


def cases() -> list[Case]:
    """What the table has rows for: without and with a gate, both state sizes, chunks of 64 and 128."""
    base = Case("", length=2048, heads=64, groups=1, initial=False, final=False, checkpoint="bfloat16")
    return [
        replace(base, id=f"N{n}-chunk{chunk}-{'gated' if gated else 'plain'}", n=n, chunk=chunk, gated=gated)
        for n, chunk in ((64, 64), (128, 64), (64, 128))
        for gated in (False, True)
    ]


def variants(case: Case, op: str) -> Iterator[tuple[str, Tiles]]:
    """Each kernel of the plan with each of its cuts: the kernel's name, and the tiles of the whole plan."""
    for tile in (64, 128) if op == "SSD" and case.chunk == 128 else (64,):
        base = Tiles(tile=tile, output_warps=8 if tile == 128 else 4)
        for cut in SCANS:
            yield "scan", replace(base, **cut)
        if "output" in searched(case, op):
            for cut in BIG_OUTPUTS if tile == 128 else OUTPUTS:
                yield "output", replace(base, **cut)
        if "gradient" in searched(case, op):
            for cut in GRADIENTS:
                yield "gradient", replace(base, **cut)


def searched(case: Case, op: str) -> set[str]:
    """The kernels of a plan that can be cut in several ways; a gated backward pass launches `output` too."""
    if op == "SSD":
        return {"scan", "output"}
    return {"scan", "gradient"} | ({"output"} if case.gated else set())


def timed(base: Bound, kernel: str, tiles: Tiles, place: tuple[str, int | None], repeats: int) -> Row:
    """Samples of one launch (for the gradient: with the launch that adds its parts up), on the tensors of
    `base`."""
    from lethe.kernels.ssd.bench import alone
    from lethe.kernels.ssd.bound import cut_anew

    bound = cut_anew(base, place[1], tiles)
    bound.execute()
    names = [one.launch.kernel for one in bound.plan.prepared]
    wanted = [names.index(kernel)] + ([names.index("finish")] if kernel == "gradient" else [])

    def step() -> None:
        for index in wanted:
            bound.launch(index)

    samples = alone(step, repeats, place[0])
    return {"samples_us": samples, "median_us": statistics.median(samples)}


def search(target: int, seconds: float, found: list[Row], repeats: int = 5) -> Iterator[Row]:
    """A row for each variant that `found` does not have, until the time is spent or the device lost; one that
    does not run is a row with its error."""
    from lethe.kernels.ssd.bound import bind

    end = time.monotonic() + seconds
    known = [variant(row) for row in found]
    for case in cases():
        for op in ("SSD", "SSD_BWD"):
            base = None
            for kernel, tiles in variants(case, op):
                about = {"case": case.id, "op": op, "kernel": kernel, "tiles": tiles.record()}
                if variant(about) in known:
                    continue
                if time.monotonic() > end:
                    return
                try:
                    base = base or bind(case, op, "cuda", target, drawn_on="cuda")
                    yield {**about, **timed(base, kernel, tiles, ("cuda", target), repeats)}
                except Exception as error:  # a cut that does not fit the device; the row says why
                    yield {**about, "error": f"{type(error).__name__}: {str(error)[:200]}"}
                    if lost():
                        return


def variant(row: Row) -> tuple[Any, ...]:
    """What a row is about."""
    return (row["case"], row["op"], row["kernel"], row["tiles"])


def chosen(found: list[Row], source: str) -> list[Row]:
    """Rows of the table: for each case and pass the fastest cut of each kernel, then the faster tile."""
    table = []
    for case in cases():
        for op in ("SSD", "SSD_BWD"):
            best: dict[int, dict[str, Row]] = {}
            for row in found:
                if (row["case"], row["op"]) == (case.id, op) and "median_us" in row:
                    kernels = best.setdefault(row["tiles"]["tile"], {})
                    if row["median_us"] < kernels.get(row["kernel"], row)["median_us"] or (
                        row["kernel"] not in kernels
                    ):
                        kernels[row["kernel"]] = row
            whole = {tile: k for tile, k in best.items() if k.keys() == searched(case, op)}
            if not whole:
                continue
            tile = min(whole, key=lambda t: sum(row["median_us"] for row in whole[t].values()))
            cut: dict[str, int] = {"tile": tile}
            for kernel, row in whole[tile].items():
                cut |= {k: v for k, v in row["tiles"].items() if k.startswith(kernel)}
            where = {"op": op, "n": case.n, "gated": case.gated, "chunk": case.chunk}
            table.append({"where": where, "source": source, "tiles": cut})
            if case.chunk == 128:  # a longer chunk holds the same tiles
                table.append({"where": {**where, "chunk": 256}, "source": source, "tiles": cut})
    fallback = {"where": {}, "source": "chosen by counting registers, not measured", "tiles": {}}
    return [fallback, *table]
