"""Device time of a step, captured in a CUDA graph: samples, median, spread. No host time is in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

WARM_UPS = 3
SAMPLE_US = 4000.0
"""A sample replays its graph for about so long, so that the clock's resolution does not show."""

Step = Callable[[], Any]


def capture(step: Step) -> torch.cuda.CUDAGraph:
    """A graph of `step`, warmed up on the capture's own stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def sample(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Microseconds of one replay, over `replays` of them."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays


def measured(steps: Mapping[str, Step], repeats: int) -> dict[str, list[float]]:
    """Samples in microseconds by name; the steps alternate, so that a drift of the clock meets them all."""
    graphs = {name: capture(step) for name, step in steps.items()}
    replays = {name: max(1, int(SAMPLE_US / max(sample(g, 2), 1.0))) for name, g in graphs.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(repeats):
        for name, graph in graphs.items():
            samples[name].append(round(sample(graph, replays[name]), 3))
    return samples


def alone(step: Step, repeats: int) -> tuple[list[float], str]:
    """Samples of somebody else's step, and their clock: ``"graph"``, or ``"events"`` where none can be made.

    Event times hold what the host adds. A capture that fails may leave the process unfit for another.
    """
    try:
        graph = capture(step)
        replays = max(1, int(SAMPLE_US / max(sample(graph, 2), 1.0)))
        return [round(sample(graph, replays), 3) for _ in range(repeats)], "graph"
    except RuntimeError:
        torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        samples.append(round(float(start.elapsed_time(end)) * 1e3, 3))
    return samples, "events"


def summary(samples: list[float]) -> dict[str, float]:
    """Median and interquartile range, in the samples' unit."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"median": middle, "spread": high - low}
