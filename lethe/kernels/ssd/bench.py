"""Times of the engine and of the official operator: device time of CUDA graphs, same process, alternating.

    python -m lethe.kernels.ssd.bench --out FILE.jsonl [--official PATH] [--seconds 200] [--repeats 15]
        [--first N]

A graph holds one forward pass, or one forward and backward pass through autograd, with everything that
either needs (steps, decays, recomputed states). The backward's time is the difference of the medians. A JSON
line for each shape: samples, medians, spreads, launches one by one, and the host's time to submit a call.
The first shapes have a line with ours alone before, so that an official operator that takes too long to
compile costs no measurement of ours. A second call leaves out the shapes that FILE has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels import timing
from lethe.kernels.mamba3 import official
from lethe.kernels.ssd import baseline
from lethe.kernels.ssd.bound import bind
from lethe.kernels.ssd.cases import Case, operands, speed
from lethe.kernels.ssd.device import LOST, lost
from lethe.kernels.ssd.operator import ssd
from lethe.kernels.ssd.traffic import traffic

OURS = {
    "ours": {},
    "ours, float32 checkpoints": {"checkpoint": "float32"},
    "ours, recomputed": {"reuse": False},
    "ours, chunk 128": {"chunk": 128},
}
"""Ways of the engine: chunk 64 with bfloat16 checkpoints first, which is what the ratio is taken of."""

FIRST = 2
"""Shapes that are timed in every detail: those of the target."""

SUBMISSIONS = 50
FOREIGN = "official"

Place = tuple[str, int | None]
"""A device and its target: ``("cuda", 90)``, or ``("cpu", None)`` for a rehearsal in the interpreter."""

Row = dict[str, Any]
Runs = dict[str, Callable[[], Tensor]]


def ours(case: Case, o: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The engine's operator on the operands of `case`."""
    options: dict[str, Any] = {
        **o, "chunk_size": case.chunk, "dt_softplus": case.softplus, "dt_limit": case.limits,
        "checkpoint_dtype": case.checkpoint, "reuse_checkpoints": case.reuse,
    }  # fmt: skip

    def step() -> Tensor:
        y = ssd(**options)
        assert isinstance(y, Tensor)
        return y

    return step


def both(run: Callable[[], Tensor], leaves: list[Tensor], dy: Tensor) -> Callable[[], Any]:
    """One forward and backward pass."""
    return lambda: torch.autograd.grad(run(), leaves, dy)


def quiet(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def step() -> Tensor:
        with torch.no_grad():
            return run()

    return step


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def submission(step: Callable[[], Any], device: str) -> float:
    """Host microseconds of one call, median over `SUBMISSIONS`; the device is idle before each."""
    spent = []
    for _ in range(SUBMISSIONS if device == "cuda" else 1):
        _wait(device)
        start = time.perf_counter()
        step()
        spent.append((time.perf_counter() - start) * 1e6)
    _wait(device)
    return round(statistics.median(spent), 2)


def host(case: Case, run: Callable[[], Tensor], leaves: list[Tensor], dy: Tensor, place: Place) -> Row:
    """Submission times: a prepared plan alone, the public operator forward, and with autograd."""
    forward, backward = (bind(case, op, *place, drawn_on=place[0]) for op in ("SSD", "SSD_BWD"))
    for bound in (forward, backward):
        bound.execute()
    return {
        "prepared_forward_us": submission(forward.execute, place[0]),
        "prepared_backward_us": submission(backward.execute, place[0]),
        "public_forward_us": submission(quiet(run), place[0]),
        "public_both_us": submission(both(run, leaves, dy), place[0]),
    }


def launches(case: Case, place: Place, repeats: int) -> list[Row]:
    """Every launch of both plans timed alone, beside the traffic that it must cause."""
    found = []
    for op in ("SSD", "SSD_BWD"):
        bound = bind(case, op, *place, drawn_on=place[0])
        bound.execute()
        for index, one in enumerate(bound.plan.prepared):
            name = one.launch.kernel
            samples = alone(lambda b=bound, i=index: b.launch(i), repeats, place[0])  # type: ignore[misc]
            expected = traffic(bound.plan.node, bound.plan.layout)[name]
            found.append({
                "op": op, "kernel": name, "grid": list(one.launch.grid), "warps": one.launch.warps,
                "us": timing.summary(samples), "samples_us": samples, "bytes": expected,
            })  # fmt: skip
    return found


def official_kernels(step: Callable[[], Any]) -> list[Row]:
    """Device time of each kernel of a call of the official operator, by torch's profiler."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return [
        {"kernel": event.key[:120], "calls": event.count, "us": round(event.device_time_total, 2)}
        for event in sorted(profile.key_averages(), key=lambda e: -e.device_time_total)
        if event.device_time_total > 0
    ]


def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph of `step`, warmed up on the stream that it is then captured on, as the official operator
    needs it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(timing.WARM_UPS):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


def clocked(step: Callable[[], Any], repeats: int) -> list[float]:
    """Microseconds on a CPU by its clock: a rehearsal of the code, no measurement."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        spent.append(round((time.perf_counter() - start) * 1e6, 3))
    return spent


def alone(step: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """Samples in microseconds of one step."""
    return timing.measured({"": step}, repeats)[""] if device == "cuda" else clocked(step, repeats)


def sampled(
    steps: dict[str, Callable[[], Any]], repeats: int, problems: list[str], device: str, end: float
) -> dict[str, list[float]]:
    """Samples in microseconds of every step that can be captured; they alternate. Ours are captured first,
    because a capture that fails may leave the process unfit for another; no other is begun after `end`."""
    if device != "cuda":
        return {name: clocked(step, repeats) for name, step in steps.items()}
    graphs = {}
    for name, step in steps.items():
        if name.startswith(FOREIGN) and time.monotonic() > end:
            problems.append(f"{name}: the time was spent")
            continue
        try:
            graphs[name] = captured(step)
        except Exception as error:  # another project's operator; the row says which and why
            problems.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            torch.cuda.synchronize()
    turns = {
        name: max(1, int(timing.SAMPLE_US / max(timing.sample(g, 2), 1.0))) for name, g in graphs.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(repeats):
        for name, graph in graphs.items():
            samples[name].append(round(timing.sample(graph, turns[name]), 3))
    return samples


def row(case: Case, operator: Any, repeats: int, place: Place, detailed: bool, end: float) -> Row:
    """Time one shape."""
    problems: list[str] = []
    o = {k: t.requires_grad_() for k, t in operands(case, place[0], drawn_on=place[0]).items()}
    leaves = list(o.values())
    dy = torch.randn_like(o["x"])
    runs: Runs = {name: ours(replace(case, **change), o) for name, change in OURS.items()}  # type: ignore[arg-type]
    if operator is not None:
        runs |= {f"{FOREIGN}, chunk {c}": baseline.run(operator, case, o, c) for c in baseline.chunks(case)}
    forward = sampled({k: quiet(run) for k, run in runs.items()}, repeats, problems, place[0], end)
    whole = sampled({k: both(run, leaves, dy) for k, run in runs.items()}, repeats, problems, place[0], end)
    times = {}
    for name in [name for name in runs if name in forward and name in whole]:
        f, w = timing.summary(forward[name]), timing.summary(whole[name])
        times[name] = {
            "forward_us": f, "both_us": w, "backward_us": w["median"] - f["median"],
            "samples_us": {"forward": forward[name], "both": whole[name]},
        }  # fmt: skip
    found: Row = {
        "id": case.id, "batch": case.batch, "length": case.length, "heads": case.heads,
        "groups": case.groups, "n": case.n, "width": case.width, "gated": case.gated, "dtype": case.dtype,
        "times": times, "ratios": ratios(times),
    }  # fmt: skip
    if detailed:
        parts: dict[str, Callable[[], Any]] = {
            "launches": lambda: launches(case, place, repeats),
            "host": lambda: host(case, runs["ours"], leaves, dy, place),
        }
        if (fastest := best(times)) and place[0] == "cuda":
            parts["official_kernels"] = lambda: official_kernels(both(runs[fastest], leaves, dy))
        for name, part in parts.items():
            try:
                found[name] = part()
            except Exception as error:  # the times stand without it
                problems.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return {**found, "problems": problems}


def best(times: dict[str, Any]) -> str | None:
    """The chunk at which the official operator is fastest forward and backward together."""
    foreign = [name for name in times if name.startswith(FOREIGN)]
    return min(foreign, key=lambda name: times[name]["both_us"]["median"], default=None)


def ratios(times: dict[str, Any]) -> dict[str, float]:
    """Time of the official operator at its best chunk (of each direction) over ours; empty without either."""
    if best(times) is None or "ours" not in times:
        return {}
    mine = times["ours"]

    def median(entry: dict[str, Any], what: str) -> float:
        value = entry[f"{what}_us"]
        return float(value["median"] if isinstance(value, dict) else value)

    foreign = [entry for name, entry in times.items() if name.startswith(FOREIGN)]
    return {
        what: min(median(entry, what) for entry in foreign) / median(mine, what)
        for what in ("forward", "backward", "both")
    }


def rows(operator: Any, repeats: int, seconds: float, place: Place, cases: list[Case]) -> Iterator[Row]:
    """A row for each shape until the time is spent or the device lost; one that fails is a row with its
    error."""
    end = time.monotonic() + seconds
    for case in cases:
        first = case.id in [c.id for c in speed()][:FIRST]
        for against in (None, operator) if first and operator is not None else (operator,):
            if time.monotonic() > end:
                return
            try:
                detailed = first and against is operator
                whole = {} if against is operator else {"partial": True}
                yield {**row(case, against, repeats, place, detailed, end), **whole}
            except Exception as error:  # the other shapes go on
                yield {"id": case.id, "error": f"{type(error).__name__}: {str(error)[:300]}"}
                if place[0] == "cuda" and lost():
                    return
            if place[0] == "cuda":
                torch.cuda.empty_cache()


def latest(found: list[Row]) -> list[Row]:
    """The last row of each shape, in the order in which the shapes were begun."""
    return list({row["id"]: row for row in found}.values())


def left(cases: list[Case], found: list[Row]) -> list[Case]:
    """The shapes that are not yet timed to the end."""
    done = {row["id"] for row in latest(found) if not row.get("partial")}
    return [case for case in cases if case.id not in done]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.kernels.ssd.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--official", help="mamba-ssm's source archive, an unpacked copy, or a checkout")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--first", type=int, help="time only so many shapes")
    given = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("bench: no CUDA device is visible to torch", file=sys.stderr)
        return 2
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        operator = None
        if given.official:
            try:
                operator = baseline.load(official.unpack(official.locate(given.official), Path(folder)))
            except official.OfficialMissing as missing:
                print(f"bench: {missing}; ours is timed alone", file=sys.stderr, flush=True)
        known = given.out.read_text().splitlines() if given.out.is_file() else []
        todo = left(list(speed())[: given.first], [json.loads(line) for line in known])
        with given.out.open("a", encoding="utf-8") as file:
            place = ("cuda", 10 * major + minor)
            for found in rows(operator, given.repeats, given.seconds, place, todo):
                file.write(json.dumps(found) + "\n")
                file.flush()
                print(found["id"], found.get("ratios", found), flush=True)
    return LOST if lost() else 0


if __name__ == "__main__":
    sys.exit(main())
