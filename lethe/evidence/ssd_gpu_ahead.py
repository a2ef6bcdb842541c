"""Compiling beforehand for `ssd_gpu`: every kernel of a run, by several processes, into Triton's cache.

A kernel takes seconds to compile and a run has hundreds; the official operator has hundreds more. `launches`
lists ours, `compile_shard` compiles a share of them and touches no device; `warm` calls the official operator
with a share of its configurations.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lethe import provenance

SETS = ("search", "speed", "checks")
"""What is compiled for: the search for tiles; the speed table; values and promises."""

COMPILERS = {"search": 6, "speed": 4, "checks": 10}
"""Processes for each set, on a machine of 16 cores."""

SHARES = 3
"""Processes that share the official configurations of one chunk size."""

Row = dict[str, Any]
Children = list[subprocess.Popen[bytes]]


def launches(which: str, target: int) -> Iterator[Any]:
    """Every launch of one of `SETS`, each once; the last two with the tiles of the table in force."""
    from lethe.evidence.ssd_cases import FULL, described
    from lethe.kernels.ssd import tune as search
    from lethe.kernels.ssd.bench import OURS
    from lethe.kernels.ssd.cases import PLAIN, graphs, speed
    from lethe.kernels.ssd.engine import specialisation
    from lethe.kernels.ssd.plan import layout

    def laid_out() -> Iterator[Any]:
        if which == "checks":
            for case in (PLAIN, *map(described, FULL)):
                for graph in graphs(case):
                    yield from layout(graph.nodes[0], "", target).launches
        elif which == "search":
            for case in search.cases():
                for graph in graphs(case):
                    for _, tiles in search.variants(case, graph.nodes[0].op):
                        yield from layout(graph.nodes[0], "", target, tiles).launches
        else:
            for case in speed():
                for change in OURS.values():
                    for graph in graphs(replace(case, **change)):  # type: ignore[arg-type]
                        yield from layout(graph.nodes[0], "", target).launches

    seen = set()
    for launch in laid_out():
        key = specialisation(launch)
        if key not in seen:
            seen.add(key)
            yield launch


def compile_shard(which: str, target: int, shard: int, shards: int) -> int:
    """Compile every `shards`-th launch into Triton's cache; a failure is printed and the next one goes on."""
    from lethe.kernels.ssd import engine

    failed = 0
    for index, launch in enumerate(launches(which, target)):
        if index % shards == shard:
            try:
                engine.compiled(launch, target)
            except Exception as error:  # a cut that does not compile is a row of the search
                failed += 1
                print(launch.kernel, dict(launch.constants), str(error)[:200], flush=True)
    return failed


def compilers(which: str, target: int, shards: int | None = None) -> Children:
    """Processes that compile one of `SETS` beside each other; each exits with the number of its failures."""
    shards = shards or COMPILERS[which]
    command = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "compile", which, "--target", str(target)]
    return [_quiet([*command, "--shard", f"{i}/{shards}"]) for i in range(shards)]


def warmers(official: str | None) -> Children:
    """Processes that compile the official operator, `SHARES` for each chunk size."""
    if not official:
        return []
    from lethe.kernels.ssd.baseline import CHUNKS

    command = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "warm", "--official", official]
    pairs = [(chunk, share) for chunk in CHUNKS for share in range(SHARES)]
    return [_quiet([*command, "--chunk", str(c), "--shard", f"{i}/{SHARES}"]) for c, i in pairs]


def _quiet(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=provenance.ROOT, stdout=subprocess.DEVNULL)


def joined(children: Children, end: float, stop: bool = True) -> list[int | None]:
    """Wait for children until `end`, then stop those that still run, or leave them; their statuses."""
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            if stop:
                child.kill()
                child.wait()
    return [child.poll() for child in children]


def warm(official: str, chunk: int, share: int, shares: int) -> int:
    """One forward and backward pass of the official operator, with a share of its configurations, for each
    set of kernels that the speed table needs: they differ by chunk, state size and gate, whatever the length
    and the groups. Returns how many did not run."""
    import torch

    from lethe.kernels.mamba3 import official as sources
    from lethe.kernels.ssd import baseline
    from lethe.kernels.ssd.cases import operands, speed

    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        operator = baseline.load(sources.unpack(sources.locate(official), Path(folder)))
        baseline.compile_only(share, shares)
        for case in [c for c in speed() if (c.length, c.groups) == (2048, 1)]:
            if chunk not in baseline.chunks(case):
                continue
            try:
                o = operands(case, "cuda", drawn_on="cuda")
                o = {k: t.requires_grad_() for k, t in o.items()}
                y = baseline.run(operator, case, o, chunk)()
                torch.autograd.grad(y, list(o.values()), torch.ones_like(y))
                torch.cuda.synchronize()
            except Exception as error:  # what does not compile here does not compile in the speed table
                failed += 1
                print(f"{case.id}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return failed
