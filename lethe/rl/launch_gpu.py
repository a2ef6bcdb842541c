"""The whole table of launch parameters on a GPU, once: shape x configuration -> microseconds.

    python -m lethe.rl.launch_gpu run --out FOLDER [--seconds 200] [--workers 16] [--repeats 5]
    python -m lethe.rl.launch_gpu dry --out FOLDER
    python -m lethe.rl.launch_gpu record FOLDER

Every method of the comparison, exhaustive search included, is then replayed from the table without a GPU.
Kernels are compiled in processes of their own, C1 first, and the device measures what is ready meanwhile;
nothing else runs on it. A line of ``launches.jsonl`` is one shape of one kernel: the samples of each
configuration (device time of a CUDA graph) in a seeded order, so that a drift of the clock meets all of
them, and those of the selector's own choice. At last Triton's own benchmark times the configurations of a
few shapes, as its autotuner would. A shape that the time does not reach has a line that says so; the same
command with the same folder goes on where it stopped. `dry`
walks the same path on a CPU, with tiny shapes in Triton's interpreter and wall time for device time: its
numbers mean nothing. `record` writes ``data/measured/<gpu>/launch_table.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere
from lethe.rl.launch_space import HELD_OUT, SHAPES, SPACES, STATES, Space, candidate_of, case_of, selected

LINES = "launches.jsonl"
EXPERIMENT = "launch_table"
TUNED = ((1, 512, 256), (2, 4096, 1024), (4, 2048, 4096), (2, 2048, 2048))
"""Shapes at which Triton's own benchmark runs too."""
TUNE_MS = (5, 20)
"""Its warm-up and its measurement; `triton.autotune` takes them as `warmup` and `rep`."""
READY = {"C1": 0.4, "C2": 0.65, "C6": 0.85}
"""Share of the time after which a kernel is measured with what was compiled by then."""
AGREES = 2.0**-7
"""A configuration whose result differs from the selector's by more, as a share of the tensor's largest
magnitude, is wrong and not timed: two bfloat16 roundings come to 2^-8 of it, and sums in another order stay
far below."""
SAMPLE_US = 1500.0
FAR = 4.0
"""A configuration that takes so many times the fastest so far is sampled once: it is no contender."""
TINY, TINY_STATES = ((1, 48, 16),), 2
"""Shapes and states of the dry run."""

Shape = tuple[int, int, int]
Row = dict[str, Any]


# --- compiling ---------------------------------------------------------------------------------


def compiled(op: str, indices: list[int], shapes: list[Shape]) -> dict[int, str | None]:
    """Compile configurations into Triton's cache; the error of each, if any. In a process of its own."""
    from lethe.kernels.mamba3 import tune

    space = SPACES[op]
    configs = list(space.configs())
    cases = [case_of(space, shape) for shape in shapes]
    return {i: tune.compiled(candidate_of(space, configs[i]), cases) for i in indices}


def by_tile(space: Space) -> list[list[int]]:
    """Indices of configurations, those together that compile the same kernels."""
    groups: dict[Any, list[int]] = {}
    for i, config in enumerate(space.configs()):
        same = tuple(v for k, v in config.items() if k != "chunk")
        groups.setdefault(same, []).append(i)
    # programs of many rows take longest; they go first, so that none is left alone at the end
    return sorted(groups.values(), key=lambda g: -candidate_of(space, list(space.configs())[g[0]]).tile.rows)


class Compilers:
    """Processes that compile, kernel after kernel, while the caller measures."""

    def __init__(self, workers: int, shapes: list[Shape]) -> None:
        self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        self._jobs: dict[str, list[Future[dict[int, str | None]]]] = {
            op: [self._pool.submit(compiled, op, group, shapes) for group in by_tile(space)]
            for op, space in SPACES.items()
        }

    def errors(self, op: str, seconds: float) -> dict[int, str | None]:
        """What became of the configurations of `op`, as far as they were done in time."""
        end = time.monotonic() + seconds
        found: dict[int, str | None] = {}
        for job in self._jobs[op]:
            try:
                found |= job.result(max(0.0, end - time.monotonic()))
            except TimeoutError:
                continue
        return found

    def close(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=False, cancel_futures=True)


# --- measuring ---------------------------------------------------------------------------------

Clock = Callable[[Callable[[], Any], float, int], list[float]]
"""Samples in microseconds of a step, given the fastest time so far and a number of repeats."""


def graph_clock(step: Callable[[], Any], fastest: float, repeats: int) -> list[float]:
    """Device time of a CUDA graph of `step`."""
    from lethe.kernels import timing

    graph = timing.capture(step)
    first = timing.sample(graph, 2)
    if first > FAR * fastest:
        return [round(first, 2)]
    replays = max(1, int(SAMPLE_US / max(first, 1.0)))
    return [round(timing.sample(graph, replays), 2) for _ in range(repeats)]


def wall_clock(step: Callable[[], Any], fastest: float, repeats: int) -> list[float]:
    """For the dry run: wall time, once."""
    begun = time.perf_counter()
    step()
    return [round((time.perf_counter() - begun) * 1e6, 2)]


def difference(found: Any, expected: Any) -> float:
    """Largest difference of two results of a pass, each tensor's over its own largest magnitude."""
    pairs = (
        [(found[name], expected[name]) for name in expected]
        if isinstance(expected, dict)
        else list(zip(found, expected, strict=True))
    )
    worst = [(a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30) for a, b in pairs]
    return float(max(float(w) if w == w else float("inf") for w in worst))


def measured(
    space: Space, shape: Shape, errors: dict[int, str | None], clock: Clock, repeats: int, where: str,
    multiprocessors: int, only: int | None = None, states: int = STATES,
) -> Row:  # fmt: skip
    """The line of one shape of one kernel; a configuration is timed only where its result is right."""
    case, configs = case_of(space, shape, states), list(space.configs())
    own = selected(space, shape, multiprocessors)
    expected = own.step(case, where)() if where != "meta" else None
    samples: list[list[float] | None] = [None] * len(configs)
    failed: dict[str, str] = {}
    fastest = float("inf")
    order = random.Random(0).sample(range(len(configs)), len(configs))[:only]
    for i in order:
        if i not in errors or errors[i] is not None:
            failed[str(i)] = errors.get(i) or "it was not compiled in time"
            continue
        try:
            step = candidate_of(space, configs[i]).step(case, where)
            error = difference(step(), expected) if expected is not None else 0.0
            if not error <= AGREES:
                failed[str(i)] = f"wrong: it differs from the selector's result by {error:.3g} of the largest"
                continue
            found = clock(step, fastest, repeats)
            samples[i], fastest = found, min(fastest, *found)
        except Exception as error:  # a launch may fail in any way; the line says how
            failed[str(i)] = f"{type(error).__name__}: {str(error)[:200]}"
            if "CUDA error" in str(error):
                raise DeviceLost(f"configuration {configs[i]} at {shape}: {failed[str(i)]}") from error
    return {
        "op": space.op, "shape": list(shape), "us": samples, "errors": failed,
        "selector": {**own.facts(), "us": clock(own.step(case, where), float("inf"), repeats)},
    }  # fmt: skip


def autotuned(space: Space, shape: Shape, errors: dict[int, str | None]) -> Row:
    """Milliseconds of each configuration by the benchmark that `triton.autotune` uses."""
    from triton.testing import do_bench

    case = case_of(space, shape)
    found: list[float | None] = []
    for i, config in enumerate(space.configs()):
        if i not in errors or errors[i] is not None:
            found.append(None)
            continue
        try:
            step = candidate_of(space, config).step(case, "cuda")
            warm, rep = TUNE_MS
            found.append(round(float(do_bench(step, warmup=warm, rep=rep, return_mode="median")) * 1e3, 2))
        except Exception:  # as the autotuner, which takes a configuration that fails out
            found.append(None)
    return {"op": space.op, "shape": list(shape), "autotune_us": found}


class DeviceLost(RuntimeError):
    """A launch broke the CUDA context: nothing more can be measured in this process."""


def rows(
    seconds: float, workers: int, repeats: int, done: frozenset[tuple[str, Shape]] = frozenset()
) -> Iterator[Row]:
    """Every line but those that are `done`, until the time is spent. Raises DeviceLost."""
    import torch

    end = time.monotonic() + seconds
    shapes = [*SHAPES, *HELD_OUT]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    compilers = Compilers(workers, shapes)
    try:
        known: dict[str, dict[int, str | None]] = {}
        for op, space in SPACES.items():
            begun = time.monotonic()
            known[op] = compilers.errors(op, end - (1 - READY[op]) * seconds - begun)
            waited = time.monotonic() - begun
            yield {"op": op, "compiled": len(known[op]), "of": len(space), "waited": round(waited, 1)}
            for shape in shapes:
                if (op, shape) in done:
                    continue
                if end - time.monotonic() < 3:
                    yield {"op": op, "shape": list(shape), "skipped": "the time was spent"}
                    continue
                yield _kept(measured, space, shape, known[op], graph_clock, repeats, "cuda", multiprocessors)
                torch.cuda.empty_cache()
        for shape in TUNED:
            for op, space in SPACES.items():
                if end - time.monotonic() > 6:
                    yield _kept(autotuned, space, shape, known[op])
    finally:
        compilers.close()


def _kept(work: Callable[..., Row], space: Space, shape: Shape, *arguments: Any) -> Row:
    begun = time.monotonic()
    try:
        row = work(space, shape, *arguments)
    except DeviceLost:
        raise
    except Exception as error:  # the other shapes go on; the line says what happened
        row = {
            "op": space.op,
            "shape": list(shape),
            "error": f"{type(error).__name__}: {str(error)[:300]}",
        }
    return {**row, "seconds": round(time.monotonic() - begun, 2)}


def dry_rows() -> Iterator[Row]:
    """The same lines on a CPU: tiny shapes, a few configurations of each kernel, Triton's interpreter."""
    for space in SPACES.values():
        for shape in TINY:
            everything: dict[int, str | None] = dict.fromkeys(range(len(space)))
            yield _kept(measured, space, shape, everything, wall_clock, 1, "cpu", 132, 2, TINY_STATES)


def measured_before(out: Path) -> frozenset[tuple[str, Shape]]:
    """What the lines in `out` hold already: a run that was cut short goes on."""
    if not (out / LINES).is_file():
        return frozenset()
    told = [json.loads(line) for line in (out / LINES).read_text().splitlines()]
    return frozenset((row["op"], tuple(row["shape"])) for row in told if "us" in row)


def write(out: Path, found: Iterator[Row]) -> None:
    """Each line as soon as it exists, after those that are there."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LINES).open("a", encoding="utf-8") as file:
        for row in found:
            file.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")
            file.flush()
            print(_brief(row), flush=True)


def _brief(row: Row) -> str:
    shown = {k: v for k, v in row.items() if k not in ("us", "selector", "errors", "autotune_us")}
    if "us" in row:
        shown |= {"measured": sum(s is not None for s in row["us"]), "failed": len(row["errors"])}
    return json.dumps(shown)


# --- the record --------------------------------------------------------------------------------


def record(folder: Path, target: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write what `run` left in `folder`. Raises OSError where it left nothing."""
    samples = [json.loads(line) for line in (folder / LINES).read_text().splitlines()]
    return elsewhere.record(
        target / elsewhere.device(folder).slug / f"{EXPERIMENT}.json",
        folder,
        experiment=EXPERIMENT,
        samples=samples,
        parameters={
            "spaces": [space.facts() for space in SPACES.values()],
            "shapes": [list(s) for s in SHAPES],
            "held_out": [list(s) for s in HELD_OUT],
            "autotune_ms": list(TUNE_MS),
        },
        script="lethe/rl/launch_gpu.py",
        sources=["lethe/kernels/mamba3"],
        command="python -m lethe.rl.launch_gpu run",
        units={"us": "us", "autotune_us": "us"},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.rl.launch_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--seconds", type=float, default=200.0)
    go.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1))
    go.add_argument("--repeats", type=int, default=5)
    for command in (go, commands.add_parser("dry")):
        command.add_argument("--out", type=Path, required=True)
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "record":
        try:
            print(record(given.folder))
        except OSError as error:
            print(f"launch_gpu: {given.folder} holds no run: {error.strerror}", file=sys.stderr)
            return 2
        return 0
    if given.command == "dry":
        os.environ.setdefault("TRITON_INTERPRET", "1")
        elsewhere.note(given.out, "cpu")
        write(given.out, dry_rows())
        return 0
    import torch

    if not torch.cuda.is_available():
        print("launch_gpu: no CUDA device is visible to torch", file=sys.stderr)
        return 2
    elsewhere.note(given.out)
    try:
        before = measured_before(given.out)
        write(given.out, rows(given.seconds, given.workers, given.repeats, before))
    except DeviceLost as error:
        print(f"launch_gpu: {error}; run the same command again to go on", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
