"""Mamba-1-shaped and Mamba-3 blocks in Triton without ``tl.dot``, forward and backward.

======  ==========================  =======================================================
kernel  name                        entry point
======  ==========================  =======================================================
C1, C2  selective scan, backward    `selective_scan` (its autograd)
C5, C6  fused block, backward       `fused_block` (its autograd), `MambaBlock`
C4, C3  rotated head scan, MIMO     `head_scan` (its autograd), `Mamba3Block`
======  ==========================  =======================================================

Each operator has a serial and a chunk-parallel mode (`plan`). Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.kernels.mamba3.block import MambaBlock
    from lethe.kernels.mamba3.block3 import Mamba3Block
    from lethe.kernels.mamba3.head import head_scan
    from lethe.kernels.mamba3.plan import Plan, choose_plan
    from lethe.kernels.mamba3.scan import fused_block, selective_scan

_WHERE = {
    "MambaBlock": "block",
    "Mamba3Block": "block3",
    "Plan": "plan",
    "choose_plan": "plan",
    "fused_block": "scan",
    "head_scan": "head",
    "selective_scan": "scan",
}

__all__ = ["Mamba3Block", "MambaBlock", "Plan", "choose_plan", "fused_block", "head_scan", "selective_scan"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
