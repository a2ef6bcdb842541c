"""How long one verdict takes: the command from nothing, and the judge's own share once it is warm.

    python tests/benchmarks/bench_verify.py [n]

Prints median and range of: wall seconds of ``lethe verify`` on an honest softmax (process start,
imports, fork server, twelve gates); and, for a further candidate of a known problem, wall seconds and
the processor seconds of the judge itself (what is not the kernel's own running time).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tests" / "meta" / "kernels"
REFERENCE, CANDIDATE = KERNELS / "softmax_reference.py", KERNELS / "softmax_honest.py"
CPU = ("--device", "cpu")


def line(name: str, samples: list[float]) -> str:
    middle = statistics.median(samples)
    return f"{name:46s} {middle:6.2f} s   ({min(samples):.2f} to {max(samples):.2f}, n={len(samples)})"


def command(n: int, *options: str) -> list[float]:
    samples = []
    for _ in range(n):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "lethe", "verify", CANDIDATE, "--reference", REFERENCE, *CPU, *options],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        samples.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return samples


def warm(n: int) -> tuple[list[float], list[float]]:
    from lethe.verifier.judge import Judge
    from lethe.verifier.problem import load_candidate, load_problem

    wall, own = [], []
    with Judge(device="cpu") as judge:
        problem, candidate = load_problem(REFERENCE), load_candidate(CANDIDATE)
        judge.verify(problem, candidate)
        for _ in range(n):
            start, used = time.perf_counter(), time.process_time()
            assert judge.verify(problem, candidate).clean
            wall.append(time.perf_counter() - start)
            own.append(time.process_time() - used)
    return wall, own


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(line("lethe verify, from nothing", command(n)))
    print(line("lethe verify --quick, from nothing", command(n, "--quick")))
    wall, own = warm(n)
    print(line("a further candidate, warm judge, wall", wall))
    print(line("a further candidate, the judge's own time", own))


if __name__ == "__main__":
    main()
