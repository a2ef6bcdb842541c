"""What bounds each kernel of the backward pass: device times of the kernels and of their probes.

`tasks` gives, for `gdn_gpu`, a line for each member of `MEMBERS` at the main shape of `gdn_gpu_speed`, which
holds microseconds by kernel and way: ``measured`` is the kernel as shipped, the others are its probes
(`gdn_probes`). Every way has workspaces of its own, since a probe leaves nothing that another kernel could
use, and all alternate, so that a drift of the clock meets them all.

``near``: the same work, from the L2 cache. What is left is the processors' own time.
``bytes``: the same loads and stores, nothing between them. What is left is the memory's time. Where there is
no such probe, the floor of the bytes takes its place (``floor_us``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lethe.evidence.gdn_gpu_speed import REPEATS, Row, Shape, backward_plan, bandwidth, floors
from lethe.evidence.gdn_probes import PROBES, STAGES
from lethe.kernels import timing
from lethe.kernels.gdn import launch
from lethe.kernels.gdn.declare import Variant
from lethe.kernels.gdn.native import Kind, Step

MEMBERS = ("gdn2", "gdn")
"""Gates that are one a channel, gates that are one a head."""

MEASURED = "measured"


def ways(stage: str) -> dict[str, str]:
    """The probes of a kernel by their way."""
    return {probe.split("_")[1]: probe for probe in STAGES if probe.split("_")[0] == stage}


def libraries() -> list[Variant]:
    """The probes that the tasks need; of `scan` with one warp group and with two, by the device's size."""
    found: dict[str, Variant] = {}
    for member in MEMBERS:
        kind = _kind(member)
        options = {
            "prep": [kind.prep(adjoint=True)],
            "scan": [kind.scan(1), kind.scan(2)],
            "out": [kind.out()],
        }
        for probe in STAGES:
            for chosen in options[probe.split("_")[0]]:
                variant = Variant(probe, chosen)
                found.setdefault(variant.name, variant)
    return list(found.values())


def _kind(member: str) -> Kind:
    """The kind of calls of the main shape."""
    gate, erase, write = (
        "channel" if width > 1 else "head" if width else "none" for width in Shape(member).widths
    )
    return Kind("bfloat16", 128, 128, gate, erase, write, packed=False)


def steps(shape: Shape) -> dict[str, Callable[[], Any]]:
    """Launches by kernel and way, each after one launch of its whole plan: ``out.near``."""
    c, found = shape.call(), {}
    for way in (MEASURED, "near", "bytes"):
        plan = backward_plan(c)
        for step in plan:
            step.launch()
        for step in plan:
            if way == MEASURED:
                found[f"{step.stage}.{way}"] = step.launch
            elif way in ways(step.stage):
                found[f"{step.stage}.{way}"] = _probe(ways(step.stage)[way], step)
    return found


def _probe(name: str, step: Step) -> Callable[[], None]:
    """The launch of a probe in place of a kernel."""
    kernel = launch.kernel(PROBES, name, **step.options)
    return functools.partial(kernel, **step.arguments)


def bounds(shape: Shape) -> Row:
    """Times by kernel and way, and the floors."""
    us = timing.measured(steps(shape), REPEATS)
    median = {name: timing.summary(samples)["median"] for name, samples in us.items()}
    least = floors(shape, shape.call().a.state_shape, bandwidth())
    return {"us": us, "median_us": median, **least, "bandwidth": bandwidth(), "chunks": shape.chunks}


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found)."""
    for member in MEMBERS:
        shape = Shape(member)
        yield {"kind": "bounds", **asdict(shape)}, functools.partial(bounds, shape)
