"""Spawn overhead: what a fresh, sandboxed process costs per candidate.

Run as ``python tests/benchmarks/bench_spawn.py [executor] [count]``. Prints the median and
the 5th and 95th percentile of each stage in milliseconds, and the start of the server.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise

import torch

from lethe.verifier.custody import Limits
from lethe.verifier.problem import Candidate
from lethe.verifier.server import SuspectServer

RELU = """
import torch, triton, triton.language as tl
import torch.nn as nn
@triton.jit
def relu(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    tl.store(y + o, tl.maximum(tl.load(x + o, mask=m), 0.0), mask=m)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024)
        return y
"""
PLAIN = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
STAGES = ("spawn", "load", "build", "first run", "second run", "close", "total")


def measure(server: SuspectServer, executor: str) -> list[float]:
    """Milliseconds per stage for one candidate."""
    candidate = Candidate("relu", PLAIN if executor == "cpu" else RELU, "triton")
    x = torch.randn(4096)
    clock = [time.perf_counter()]

    def stage() -> None:
        clock.append(time.perf_counter())

    suspect = server.spawn(candidate, executor=executor, limits=Limits())
    stage()
    suspect.load()
    stage()
    suspect.build([], 0)
    stage()
    suspect.run([x])
    stage()
    (report,) = suspect.run([x])
    stage()
    suspect.close()
    stage()
    assert torch.equal(report.outputs, torch.relu(x))
    stages = [1e3 * (b - a) for a, b in pairwise(clock)]
    return [*stages, sum(stages)]


def main() -> None:
    executor = sys.argv[1] if len(sys.argv) > 1 else "interpreter"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    torch.set_num_threads(1)
    with SuspectServer() as server:
        print(f"server start: {server.start(executor):.2f} s")
        measure(server, executor)
        rows = [measure(server, executor) for _ in range(count)]
        refused = {k: v for k, v in server.isolation.items() if v is not True}
        print(f"{executor}, {count} candidates; not in force: {refused or 'nothing'}")
        print(f"{'stage':<12}{'median':>9}{'p5':>9}{'p95':>9}   (ms)")
        for name, values in zip(STAGES, zip(*rows, strict=True), strict=True):
            v = sorted(values)
            low, high = v[len(v) // 20], v[-1 - len(v) // 20]
            print(f"{name:<12}{statistics.median(v):>9.1f}{low:>9.1f}{high:>9.1f}")


if __name__ == "__main__":
    main()
