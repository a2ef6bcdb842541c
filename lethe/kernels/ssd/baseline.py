"""What the engine is timed against: the official ``mamba_chunk_scan_combined`` of mamba-ssm, in Triton.

Its modules are loaded from a source archive or checkout without the package's own import, which needs
compiled extensions (see `lethe.kernels.mamba3.official`). Nothing of it is committed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from lethe.kernels.mamba3 import official
from lethe.kernels.ssd.cases import Case

CHUNKS = (64, 32, 128, 256)
"""Chunk sizes that the baseline is timed at; the fastest one counts."""


def load(root: Path) -> Callable[..., Any]:
    """The official operator of the sources below `root`. Raises OfficialMissing."""
    official.install(root)
    try:
        combined = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    except Exception as error:  # whatever its import meets is what the reader needs to know
        raise official.OfficialMissing(f"the official SSD does not import: {error}") from error
    found: Callable[..., Any] = combined.mamba_chunk_scan_combined
    return found


def run(operator: Callable[..., Any], case: Case, o: dict[str, Tensor], chunk: int) -> Callable[[], Tensor]:
    """The official operator on the operands of `case`; it may autotune when first called."""

    def step() -> Tensor:
        y: Tensor = operator(
            o["x"], o["dt"], o["A"], o["B"], o["C"], chunk, D=o.get("D"), z=o.get("z"),
            dt_bias=o.get("dt_bias"), initial_states=o.get("initial_states"), dt_softplus=case.softplus,
            dt_limit=case.limits,
        )  # fmt: skip
        return y

    return step
