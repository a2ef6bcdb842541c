"""A Mamba-2 state-space engine: describe, analyze, plan once, execute on memory that the caller owns.

``h_t = e^(dt_t A) h_{t-1} + dt_t x_t B_t^T``, ``y_t = h_t C_t + D x_t``, ``y *= silu(z)``; forward and every
first-order gradient, in Triton (``tl.dot``). Two ways in:

* the graph layer, which imports no GPU module: `Graph`, `analyze`, `build`, then ``plan.execute(pointers,
  workspace, stream)``;
* PyTorch: `ssd` (custom operators behind it) and the layer `Mamba2Mixer`.

DESIGN.md beside this file predicts bytes, operations and time of each kernel. Everything is imported on
first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.kernels.ssd.analyzer import RULES, Declined, Finding, analyze
    from lethe.kernels.ssd.builder import Plan, build
    from lethe.kernels.ssd.graph import Attributes, Graph, TensorSpec
    from lethe.kernels.ssd.mixer import Mamba2Mixer
    from lethe.kernels.ssd.operator import ssd

_WHERE = {
    "Attributes": "graph", "Declined": "analyzer", "Finding": "analyzer", "Graph": "graph",
    "Mamba2Mixer": "mixer", "Plan": "builder", "RULES": "analyzer", "TensorSpec": "graph",
    "analyze": "analyzer", "build": "builder", "ssd": "operator",
}  # fmt: skip

__all__ = [
    "RULES", "Attributes", "Declined", "Finding", "Graph", "Mamba2Mixer", "Plan", "TensorSpec", "analyze",
    "build", "ssd",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
