"""What bounds each kernel of the gated linear recurrence, computed from its time and those of its probes.

With ``near`` the time of the same work from the L2 cache, ``moved`` the time of the same bytes without the
work (without such a probe: the floor of the bytes), and ``hidden`` the share of the shorter of the two that
runs behind the longer one, ``(near + moved - measured) / min(near, moved)`` within 0 and 1:

* ``hidden`` below `APART`: neither hides the other, and their sum is the bound;
* else the longer of the two is: memory, or the processors. Of these the tensor cores are what is full if
  their clocks, as the design counts them, fill `FULL` of ``near``, otherwise latency and issue are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.evidence.gdn_gpu_speed import Shape
from lethe.paper import gdn_speed_tables as speeds
from lethe.paper.gdn_speed_tables import DESIGN, STAGES, TARGET_US
from lethe.paper.gdn_tables import filled, samples
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Measurement

Row = Mapping[str, Any]
APART, FULL = 0.5, 0.7
GENERAL = "gdn2"
"""The member whose products the design counts."""

COLUMNS = (
    "kernel",
    "member",
    "measured (µs)",
    "near (µs)",
    "bytes only (µs)",
    "hidden",
    "tensor cores",
    "bound by",
)


def timed(record: Measurement | None) -> list[Row]:
    """Lines that have times."""
    return [r for r in samples(record, "bounds") if "median_us" in r]


def tensor_us(processors: int, chunks: int, design: Path = DESIGN) -> dict[str, float]:
    """Microseconds for which the products of each kernel keep the tensor cores busy, as the design counts
    them: clocks a chunk, shared among the processors, or the time of the chain of products."""
    text = design.read_text(encoding="utf-8")
    clock = re.search(r"([\d.]+) GHz", text)
    assert clock is not None
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 7 or cells[0] not in STAGES:
            continue
        if chain := re.fullmatch(r"chain (\d+) us", cells[4]):
            found[cells[0]] = float(chain[1])
        else:
            found[cells[0]] = int(cells[4].replace(",", "")) * chunks / processors / float(clock[1]) / 1e3
    return found


def hidden(measured: float, near: float, moved: float) -> float:
    """The share of the shorter time that runs behind the longer one."""
    return min(1.0, max(0.0, (near + moved - measured) / min(near, moved)))


def verdict(measured: float, near: float, moved: float, tensor: float | None) -> str:
    """What bounds a kernel; ``tensor``: share of `near` for which the tensor cores are busy, if known."""
    if hidden(measured, near, moved) < APART:
        return "both in turn"
    if moved > near:
        return "memory"
    return "processors" if tensor is None else "tensor cores" if tensor >= FULL else "latency and issue"


def bounds(record: Measurement | None) -> pd.DataFrame:
    """A line for each kernel and member."""
    shown = []
    for row in timed(record):
        assert record is not None
        general = row["member"] == GENERAL
        busy = tensor_us(record.device.sm_count or 1, row["chunks"]) if general else {}
        for stage in STAGES:
            shown.append([stage, row["member"], *_line(row, stage, busy.get(stage))])
    return filled(COLUMNS, shown)


def parts(record: Measurement | None, stage: str, member: str = GENERAL) -> tuple[float, float, float] | None:
    """(measured, near, moved) of a kernel; None without them."""
    row = next((r for r in timed(record) if r["member"] == member), None)
    us = {} if row is None else row["median_us"]
    if row is None or f"{stage}.near" not in us:
        return None
    return us[f"{stage}.measured"], us[f"{stage}.near"], us.get(f"{stage}.bytes", row["floor_us"][stage])


def _line(row: Row, stage: str, busy: float | None) -> list[str]:
    us = row["median_us"]
    measured, near = us[f"{stage}.measured"], us[f"{stage}.near"]
    probed = us.get(f"{stage}.bytes")
    moved = row["floor_us"][stage] if probed is None else probed
    tensor = None if busy is None else busy / near
    return [
        *(f"{x:.1f}" for x in (measured, near)),
        f"{moved:.1f} (floor)" if probed is None else f"{moved:.1f}",
        f"{100 * hidden(measured, near, moved):.0f} %",
        "–" if tensor is None else f"{100 * tensor:.0f} %",
        verdict(measured, near, moved, tensor),
    ]


# --- the target -------------------------------------------------------------------------------


def missed(record: Measurement | None, design: Path = DESIGN) -> str:
    """Whether the backward pass keeps its target at the main shape, and which kernels are late if not.

    ``record``: of the speeds. Of the latest kernel also what a processor takes for one of its chunks, of many
    and of one, and what the bytes of one take.
    """
    rows = speeds.timed(record)
    row, processors = speeds.at(rows), record.device.sm_count if record else None
    if row is None or not processors:
        return MISSING
    us, predicted = row["median_us"], speeds.predictions(design)
    over = us["backward"] - TARGET_US
    if over <= 0:
        return f"The target of {TARGET_US:.0f} µs is met."
    late = {stage: us[f"backward.{stage}"] - predicted[stage] for stage in predicted}
    *_, second, first = sorted(late, key=lambda stage: late[stage])
    found = (
        f"The target of {TARGET_US:.0f} µs is missed by {over:.0f}: `{first}` takes {late[first]:.0f} more "
        f"than was predicted, `{second}` {late[second]:.0f}."
    )
    general = {**speeds.PLAIN, "member": GENERAL, "dv": 128}.items()
    few = min((r for r in rows if general <= {**speeds.PLAIN, **r}.items()), key=_chunks)
    many = max(speeds.over_length(rows), key=_chunks)
    if _chunks(few) > processors:
        return found
    turns = -(-_chunks(many) // processors)
    time = f"backward.{first}"
    each, floor, one = (
        many["median_us"][time] / turns,
        many["floor_us"][first] / turns,
        few["median_us"][time],
    )
    return (
        f"{found} Of many chunks one takes a processor {each:.1f} µs in `{first}`, and its bytes "
        f"{floor:.1f}; where each has but one, and all lie in the L2 cache, {one:.1f} with the launch."
    )


def _chunks(row: Row) -> int:
    return Shape(batch=row["batch"], heads=row["heads"], length=row["length"]).chunks
