"""Forward and backward times of the Mamba-3 kernels, beside mamba-ssm's ``selective_scan_cuda`` if present.

    python tests/benchmarks/bench_mamba3.py [--out FILE.json] [--repeats 20] [--quick]

Every time is device time of a captured CUDA graph that holds one forward, or one forward and backward; the
backward's time is the difference of the medians. Each sample replays the graph often enough to last a few
milliseconds. Ours and the baseline alternate in one process. JSON: per row the samples, median, spread
(interquartile range), and the ratio baseline / ours (above one: ours is faster).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SHAPES = [(b, length, d) for b in (1, 2, 8) for length in (512, 2048, 4096) for d in (256, 1024, 2048)]
QUICK = [(1, 2048, 2048), (8, 2048, 2048)]
STATES = 16


def operands(batch: int, length: int, width: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    io = {"device": "cuda", "dtype": dtype}
    o = {
        "u": torch.randn(batch, length, width, **io), "dt": torch.randn(batch, length, width, **io) - 4,
        "A": -torch.arange(1, STATES + 1, device="cuda", dtype=torch.float32).repeat(width, 1),
        "B": torch.randn(batch, length, STATES, **io), "C": torch.randn(batch, length, STATES, **io),
        "D": torch.ones(width, device="cuda"), "z": torch.randn(batch, length, width, **io),
        "dt_bias": torch.zeros(width, device="cuda"),
    }  # fmt: skip
    return {name: value.requires_grad_() for name, value in o.items()}


def ours(o: dict[str, torch.Tensor], mode: str) -> Callable[[], torch.Tensor]:
    from lethe.kernels.mamba3.scan import selective_scan

    return lambda: selective_scan(**o, softplus=True, mode=mode)[0]


def fused(o: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    from lethe.kernels.mamba3.scan import fused_block

    width = o["D"].shape[0]
    o = {("x" if name == "u" else name): value for name, value in o.items()}
    o["conv_weight"] = torch.randn(width, 4, device="cuda").requires_grad_()
    o["conv_bias"] = torch.zeros(width, device="cuda").requires_grad_()
    return lambda: fused_block(**o)


def baseline(o: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor] | None:
    """mamba-ssm's CUDA scan on the layout that it wants, [B, D, L], laid out before the clock starts."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError:
        return None

    def across(t: torch.Tensor) -> torch.Tensor:
        return t.detach().transpose(1, 2).contiguous().requires_grad_()

    u, dt, z, B, C = (across(o[name]) for name in ("u", "dt", "z", "B", "C"))
    A, D, bias = (o[name].detach().clone().requires_grad_() for name in ("A", "D", "dt_bias"))
    return lambda: selective_scan_fn(u, dt, A, B, C, D, z=z, delta_bias=bias, delta_softplus=True)


def graph(run: Callable[[], torch.Tensor], backward: bool) -> torch.cuda.CUDAGraph:
    def step() -> None:
        y = run()
        if backward:
            y.backward(torch.ones_like(y))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured


def sample(captured: torch.cuda.CUDAGraph, replays: int) -> float:
    """Microseconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        captured.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / replays


def measure(runs: dict[str, Callable[[], torch.Tensor]], repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for direction, backward in (("forward", False), ("both", True)):
        graphs = {name: graph(run, backward) for name, run in runs.items()}
        replays = {name: max(1, int(5000 / sample(g, 3))) for name, g in graphs.items()}
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(repeats):
            for name, captured in graphs.items():
                samples[name].append(sample(captured, replays[name]))
        for name, values in samples.items():
            low, middle, high = statistics.quantiles(values, n=4)
            found.setdefault(name, {})[direction] = {
                "median_us": middle,
                "spread_us": high - low,
                "samples_us": values,
            }
    for times in found.values():
        times["backward_us"] = times["both"]["median_us"] - times["forward"]["median_us"]
    return found


def row(batch: int, length: int, width: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    from lethe.kernels.mamba3.scan import scan_plan

    o = operands(batch, length, width, dtype)
    runs = {
        "auto": ours(o, "auto"),
        "serial": ours(o, "serial"),
        "chunked": ours(o, "chunked"),
        "fused": fused(o),
    }
    other = baseline(o)
    if other is not None:
        runs["selective_scan_cuda"] = other
    times = measure(runs, repeats)
    result = {"B": batch, "L": length, "D": width, "N": STATES, "dtype": str(dtype).removeprefix("torch.")}
    result |= {"plan": vars(scan_plan(o["u"], STATES)), "times": times}
    if other is not None:
        theirs = times["selective_scan_cuda"]
        result["ratio"] = {
            name: {
                "forward": theirs["forward"]["median_us"] / t["forward"]["median_us"],
                "backward": theirs["backward_us"] / t["backward_us"],
            }
            for name, t in times.items()
            if name != "selective_scan_cuda"
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_mamba3 needs a CUDA device")
    rows = []
    for batch, length, width in QUICK if arguments.quick else SHAPES:
        rows.append(row(batch, length, width, torch.bfloat16, arguments.repeats))
        latest = rows[-1]
        short = {
            n: [round(t["forward"]["median_us"]), round(t["backward_us"])] for n, t in latest["times"].items()
        }
        print(
            f"B{batch} L{length} D{width}",
            latest["plan"]["mode"],
            short,
            latest.get("ratio", "no baseline"),
            flush=True,
        )
    if arguments.out:
        device = torch.cuda.get_device_properties(0)
        report = {
            "device": device.name,
            "multiprocessors": device.multi_processor_count,
            "torch": torch.__version__,
        }
        arguments.out.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
