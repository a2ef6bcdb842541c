"""What the engine says before anything runs: its rules, what each launch must move and compute."""

from __future__ import annotations

from typing import Any

from lethe.kernels.ssd.analyzer import RULES
from lethe.kernels.ssd.cases import graphs, speed
from lethe.kernels.ssd.plan import layout
from lethe.kernels.ssd.traffic import STREAM_TB_S, TENSOR_TFLOP_S, floor_us, operations, traffic

Row = dict[str, Any]
TARGET = 90


def rules() -> list[tuple[str, str]]:
    """Names and texts of the analyzer's rules."""
    return [(rule.id, rule.text) for rule in RULES]


def launches(shapes: int = 2) -> list[Row]:
    """A row for every launch of the first speed shapes: bytes, operations, the longer of the two times."""
    found = []
    for case in list(speed())[:shapes]:
        for graph in graphs(case):
            node = graph.nodes[0]
            plan = layout(node, "", TARGET)
            moved, computed, floor = traffic(node, plan), operations(node, plan), floor_us(node, plan)
            for kernel in moved:
                found.append({
                    "id": case.id, "op": node.op, "kernel": kernel, "bytes": moved[kernel],
                    "operations": computed[kernel], "floor_us": floor[kernel],
                })  # fmt: skip
    return found


def assumed() -> dict[str, str]:
    """What the times of `launches` assume of the device."""
    return {"stream": f"{STREAM_TB_S:g} TB/s", "tensor": f"{TENSOR_TFLOP_S:g} TFLOP/s"}
