"""Forward and backward times of the six kernels beside the official ones: device time of CUDA graphs.

    python -m lethe.kernels.mamba3.bench --out FILE.jsonl [--official PATH]
        [--extension selective_scan_cuda.so] [--suite scan ...] [--seconds 240] [--repeats 15]

Ours and the baselines alternate in one process. A graph holds one forward, or one forward and backward; the
backward's time is the difference of the medians. A JSON line for each case, as it is measured: samples,
medians, spreads, the plan that the selector chose, and the least memory traffic of each direction.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels import timing
from lethe.kernels.mamba3 import baselines, official
from lethe.kernels.mamba3.cases import Case, grid, operands, traffic

SUITES = ("scan", "block", "siso", "mimo")
MODES = ("auto", "serial", "chunked")
PLAIN_TOKENS = 1024
"""The official PyTorch form launches several kernels a token: longer sequences say nothing new."""

FOREIGN = "official"
"""How the names of contestants begin whose launches may not bear to be captured."""

Runs = dict[str, tuple[Callable[[], Tensor], list[Tensor]]]
Row = dict[str, Any]


def ours(case: Case, o: dict[str, Any], mode: str) -> Callable[[], Tensor]:
    """Our operator on the operands of `case`, in a mode."""
    from lethe.kernels.mamba3 import fused_block, head_scan, selective_scan

    if case.suite == "scan":
        return lambda: selective_scan(**o, softplus=True, mode=mode)[0]
    if case.suite == "block":
        return lambda: fused_block(**o, mode=mode)
    return lambda: head_scan(**o, pairwise=case.ranks == 1, mode=mode)[0]


def plan_of(case: Case, o: dict[str, Any], mode: str = "auto") -> dict[str, Any]:
    """The plan that the selector chooses for `case`, or that `mode` forces."""
    from lethe.kernels.mamba3.head import head_plan
    from lethe.kernels.mamba3.scan import scan_plan

    plan = head_plan(o["v"], mode=mode) if "v" in o else scan_plan(o["dt"], mode=mode)
    return dict(vars(plan))


def runs(case: Case, root: Path | None, extension: Any, problems: list[str]) -> Runs:
    """Everything to time at `case`; what a baseline lacks is added to `problems`."""
    o = {k: t.requires_grad_() for k, t in operands(case, "cuda").items()}
    leaves = list(o.values())
    found: Runs = {f"ours {mode}": (ours(case, o, mode), leaves) for mode in MODES}
    if case.suite == "scan" and extension is not None:
        found["selective_scan CUDA"] = baselines.selective_scan(extension, baselines.across(o))
    if case.suite == "block" and extension is not None:
        found["conv1d, selective_scan CUDA"] = baselines.block(extension, baselines.across(o))
    if case.suite == "scan" and extension is None and case.length <= PLAIN_TOKENS:
        found["selective_scan PyTorch"] = baselines.plain_scan(o)
    if case.suite == "siso" and root is not None:
        for name, crippled in (("official SISO", False), ("official SISO, two warps", True)):
            try:
                run, live = baselines.siso(root, o, crippled=crippled)
                both(run, live)()
                found[name] = (run, live)
            except Exception as error:  # another project's kernels may fail in any way; the row says how
                problems.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return found


def both(run: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], Any]:
    """One forward and backward, with an upstream gradient drawn beforehand."""
    dy = torch.randn_like(run())
    return lambda: torch.autograd.grad(run(), leaves, dy)


def forward_only(run: Callable[[], Tensor]) -> Callable[[], Any]:
    def step() -> Tensor:
        with torch.no_grad():
            return run()

    return step


def row(case: Case, root: Path | None, extension: Any, repeats: int) -> Row:
    """Time one case."""
    problems: list[str] = []
    prepared = runs(case, root, extension, problems)
    o = operands(case, "meta")
    found: Row = {**case.facts(), "dtype": "bfloat16", "traffic_bytes": traffic(case, o)}
    found["plan"] = plan_of(case, operands(case, "cuda"))
    steps = {k: (forward_only(run), both(run, leaves)) for k, (run, leaves) in prepared.items()}
    known = {k: pair for k, pair in steps.items() if not k.startswith(FOREIGN)}
    forward = timing.measured({k: pair[0] for k, pair in known.items()}, repeats)
    whole = timing.measured({k: pair[1] for k, pair in known.items()}, repeats)
    clocks = dict.fromkeys(known, "graph")
    for name in steps.keys() - known.keys():
        forward[name], first = timing.alone(steps[name][0], repeats)
        whole[name], second = timing.alone(steps[name][1], repeats)
        clocks[name] = first if first == second else f"{first} and {second}"
    times: dict[str, Any] = {}
    for name in prepared:
        f, w = timing.summary(forward[name]), timing.summary(whole[name])
        times[name] = {
            "forward_us": f, "both_us": w, "backward_us": w["median"] - f["median"], "clock": clocks[name],
            "samples_us": {"forward": forward[name], "both": whole[name]},
        }  # fmt: skip
    return {**found, "times": times, "problems": problems}


def rows(suites: list[str], root: Path | None, extension: Any, repeats: int, seconds: float) -> Iterator[Row]:
    """Rows of all suites in turn, the most telling cases first, until the time is spent."""
    end = time.monotonic() + seconds
    queues = [grid(suite) for suite in suites]
    turns = [queue[i] for i in range(max(map(len, queues))) for queue in queues if i < len(queue)]
    for case in turns:
        if time.monotonic() > end:
            yield {**case.facts(), "skipped": "the time was spent"}
            continue
        try:
            yield row(case, root, extension, repeats)
        except torch.OutOfMemoryError:
            yield {**case.facts(), "skipped": "out of memory"}
        torch.cuda.empty_cache()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.kernels.mamba3.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--official", help="mamba-ssm's source archive, an unpacked copy, or a checkout")
    parser.add_argument("--extension", type=Path, help="a selective_scan_cuda library (see baselines.build)")
    parser.add_argument("--suite", action="append", choices=SUITES)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("bench: no CUDA device is visible to torch", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        root = official.unpack(official.locate(given.official), Path(folder)) if given.official else None
        extension = baselines.load(given.extension) if given.extension else None
        with given.out.open("a", encoding="utf-8") as file:
            for found in rows(given.suite or list(SUITES), root, extension, given.repeats, given.seconds):
                file.write(json.dumps(found) + "\n")
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
