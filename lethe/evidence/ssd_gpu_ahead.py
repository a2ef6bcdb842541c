"""Compiling beforehand for `ssd_gpu`: every kernel of a run, by several processes, into Triton's cache.

A kernel takes seconds to compile and a run has hundreds. `launches` lists them, `compile_shard` compiles a
share of them and touches no device; `warm` lets the official operator compile and tune itself.
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

COMPILERS = 14
"""Processes that compile beside each other."""

Row = dict[str, Any]


def launches(which: str, target: int) -> Iterator[Any]:
    """Every launch of the ``checks`` (values, promises) or the ``rest`` (search, speed), each once."""
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
            return
        for case in search.cases():
            for graph in graphs(case):
                for _, tiles in search.variants(case, graph.nodes[0].op):
                    yield from layout(graph.nodes[0], "", target, tiles).launches
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


def compiler(target: int, which: str, shard: int, shards: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "compile", which, "--target", str(target)]
    command += ["--shard", f"{shard}/{shards}"]
    return subprocess.Popen(command, cwd=provenance.ROOT, stdout=subprocess.DEVNULL)


def joined(children: list[subprocess.Popen[bytes]], end: float) -> list[int | None]:
    """Wait for children until `end`, then stop those that still run."""
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
    return [child.poll() for child in children]


def compile_all(target: int, which: str, seconds: float) -> Row:
    """Compile by `COMPILERS` processes at once."""
    children = [compiler(target, which, i, COMPILERS) for i in range(COMPILERS)]
    return {"which": which, "failures": joined(children, time.monotonic() + seconds)}


def warming(official: str | None) -> list[subprocess.Popen[bytes]]:
    """Processes that let the official operator tune itself, so that its kernels are compiled when it is
    timed. One for each chunk size."""
    if not official:
        return []
    from lethe.kernels.ssd.baseline import CHUNKS

    command = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "warm", "--official", official]
    return [
        subprocess.Popen([*command, "--chunk", str(c)], cwd=provenance.ROOT, stdout=subprocess.DEVNULL)
        for c in CHUNKS
    ]


def warm(official: str, chunk: int) -> int:
    """One forward and backward pass of the official operator for each set of kernels that the speed table
    needs: they are tuned by chunk, state size and gate, whatever the length and the groups."""
    import torch

    from lethe.kernels.mamba3 import official as sources
    from lethe.kernels.ssd import baseline
    from lethe.kernels.ssd.cases import operands, speed

    with tempfile.TemporaryDirectory() as folder:
        operator = baseline.load(sources.unpack(sources.locate(official), Path(folder)))
        for case in [c for c in speed() if (c.length, c.groups) == (2048, 1)]:
            o = {k: t.requires_grad_() for k, t in operands(case, "cuda").items()}
            y = baseline.run(operator, case, o, chunk)()
            torch.autograd.grad(y, list(o.values()), torch.ones_like(y))
    torch.cuda.synchronize()
    return 0
