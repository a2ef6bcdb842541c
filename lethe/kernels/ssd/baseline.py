"""What the engine is timed against: the official ``mamba_chunk_scan_combined`` of mamba-ssm, in Triton.

Its modules are loaded from a source archive or checkout without the package's own import, which needs
compiled extensions (see `lethe.kernels.mamba3.official`). Nothing of it is committed. It has about 150
configurations for a chunk size and a state size, which it tunes when it is first called: `load` lets it time
each for as long as a median needs, and passes over one that this Triton cannot compile.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from lethe.kernels.mamba3 import official
from lethe.kernels.ssd.cases import Case

CHUNKS = (256, 128, 64, 32)
"""Chunk sizes that the baseline is timed at; the fastest one counts. Its own default first."""

FEWER = (256, 128)
"""With 128 states: a smaller chunk writes 32 KB of state for few tokens, and compiling takes minutes."""

MODULES = ("ssd_combined", "ssd_bmm", "ssd_chunk_state", "ssd_chunk_scan", "ssd_state_passing")

WARM_UP_MS, REPEAT_MS = 5, 20
"""How long the tuner times a configuration; Triton's own 25 and 100 would take the whole run."""


def chunks(case: Case) -> tuple[int, ...]:
    """The chunk sizes to time at a shape."""
    return CHUNKS if case.n == 64 else FEWER


def load(root: Path) -> Callable[..., Any]:
    """The official operator of the sources below `root`. Raises OfficialMissing."""
    official.install(root)
    try:
        combined = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    except Exception as error:  # whatever its import meets is what the reader needs to know
        raise official.OfficialMissing(f"the official SSD does not import: {error}") from error
    for tuner in tuners():
        tuner.do_bench = _timed
        tuner._bench = _passing_over(tuner._bench)
    found: Callable[..., Any] = combined.mamba_chunk_scan_combined
    return found


def tuners() -> Iterator[Any]:
    """The autotuned kernels of the loaded modules."""
    for name in MODULES:
        for value in vars(importlib.import_module(f"mamba_ssm.ops.triton.{name}")).values():
            if hasattr(value, "configs") and hasattr(value, "fn"):
                yield value


def compile_only(share: int, shares: int) -> None:
    """Leave every kernel each `shares`-th configuration, run once and not timed: what a process does that
    fills Triton's cache beside others."""
    for tuner in tuners():
        tuner.configs = tuner.configs[share::shares] or tuner.configs[:1]
        tuner.do_bench = _once


def _timed(call: Callable[[], Any], quantiles: Any) -> Any:
    from triton.testing import do_bench

    return do_bench(call, warmup=WARM_UP_MS, rep=REPEAT_MS, quantiles=quantiles)


def _once(call: Callable[[], Any], quantiles: Any) -> list[float]:
    call()
    return [0.0, 0.0, 0.0]


def _passing_over(bench: Callable[..., Any]) -> Callable[..., Any]:
    """A configuration that raises counts as Triton counts one that does not fit: infinitely slow."""

    def measured(*arguments: Any, **options: Any) -> Any:
        try:
            return bench(*arguments, **options)
        except Exception:
            return [float("inf")] * 3

    return measured


def run(operator: Callable[..., Any], case: Case, o: dict[str, Tensor], chunk: int) -> Callable[[], Tensor]:
    """The official operator on the operands of `case`; it tunes itself when first called."""

    def step() -> Tensor:
        y: Tensor = operator(
            o["x"], o["dt"], o["A"], o["B"], o["C"], chunk, D=o.get("D"), z=o.get("z"),
            dt_bias=o.get("dt_bias"), initial_states=o.get("initial_states"), dt_softplus=case.softplus,
            dt_limit=case.limits,
        )  # fmt: skip
        return y

    return step
