"""Choose an autotuner's configuration without timing anything.

A kernel must keep its contract under each of its configurations, so the judge need not look for the fastest:
timing takes most of an autotuned candidate's time, and what it picks changes from process to process.
Triton's Autotuner keeps its own logic - pruning, cache key, ``pre_hook``, ``reset_to_zero`` - and only its
benchmark is replaced: the wanted configuration wins, or the first; on a device the first that compiles and
loads, since an autotuner passes over the others. What the kernel's own pruning leaves out at the sizes of a
call never runs there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CONFIG_VARIABLE = "LETHE_AUTOTUNE_CONFIG"
"""Environment variable: index of the configuration to run, modulo the number that pruning leaves. Those that
give the kernel a constant which no earlier one gives come first, in the kernel's own order."""

_launching: list[Any] = []
"""The autotuners that are launching at the moment, innermost last."""
_choices: dict[Any, int] = {}
"""Kernel's Python function -> different constants among which its latest launch could choose."""
_ran: dict[Any, str] = {}
"""Kernel's Python function -> the configuration of its latest launch in words, if there was a choice."""
_forced: int | None = None


def offered(function: Any) -> list[dict[str, Any]]:
    """What each configuration adds to a launch of the kernel with this Python function, if an autotuner is
    launching it at the moment; a launch past its autotuner, or of a namesake, has no choice."""
    tuner = next((t for t in reversed(_launching) if t.base_fn is function), None)
    return [] if tuner is None else [config.all_kwargs() for config in _left(tuner)]


def choices() -> int:
    """The most different constants that an autotuned kernel of this process could choose from."""
    return max(_choices.values(), default=0)


def ran() -> list[str]:
    """Which configuration each autotuned kernel ran last in the latest block of `forced`: ``"add:
    configuration 0 of 2 (BLOCK=64)"``."""
    return list(_ran.values())


@contextmanager
def forced(index: int | None) -> Iterator[None]:
    """Inside the block this configuration runs, as if the environment named it; None leaves the choice. What
    `ran` tells begins anew with it."""
    global _forced
    _ran.clear()
    _forced = index
    try:
        yield
    finally:
        _forced = None


def wanted_config() -> int | None:
    """The index that is `forced`, or in ``LETHE_AUTOTUNE_CONFIG``; None when that is unset or no number."""
    if _forced is not None:
        return _forced
    text = os.environ.get(CONFIG_VARIABLE, "")
    return int(text) if text.isdecimal() else None


def _left(tuner: Any) -> list[Any]:
    """The configurations that the tuner's latest pruning left."""
    left: list[Any] = tuner.__dict__.get("_left", tuner.configs)
    return left


def _telling(configs: list[Any]) -> tuple[list[Any], int]:
    """The configurations, those with new constants first, and how many those are. Others differ in warps or
    stages alone: the same program, scheduled otherwise."""
    seen: list[dict[str, Any]] = []
    first: list[Any] = []
    others: list[Any] = []
    for config in configs:
        new = config.kwargs not in seen
        (first if new else others).append(config)
        if new:
            seen.append(config.kwargs)
    return first + others, len(first)


def install(*, device: bool) -> None:
    """Replace the autotuner's benchmark: the first configuration runs unless another is wanted; on a
    `device`, the first that can."""
    from triton.runtime.autotuner import Autotuner

    if hasattr(Autotuner._bench, "__wrapped__"):
        return
    original_bench = Autotuner._bench
    original_run = Autotuner.run
    original_prune = Autotuner.prune_configs

    @functools.wraps(original_bench)
    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        wanted = wanted_config()
        if device and wanted is None:
            return _first_that_runs(self, original_bench, args, config, meta)
        conflicts = meta.keys() & config.kwargs.keys()
        if conflicts:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}."
                " Make sure that you don't re-define auto-tuned symbols."
            )
        ordered, _ = _telling(_left(self))
        chosen = ordered[(wanted or 0) % len(ordered)]
        return 3 * [1.0 if config is chosen else 2.0]

    @functools.wraps(original_prune)
    def prune(self: Any, kwargs: Any) -> Any:
        self._left = list(original_prune(self, kwargs))
        return self._left

    @functools.wraps(original_run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._settled = False
        if self.__dict__.get("_chosen_by") != wanted_config():
            self.cache.clear()
            self._chosen_by = wanted_config()
        _launching.append(self)
        try:
            result = original_run(self, *args, **kwargs)
            _note(self)
            return result
        finally:
            _launching.pop()
            _choices[self.base_fn] = _telling(_left(self))[1]

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        bench_fn()
        return False

    Autotuner._bench = bench
    Autotuner.prune_configs = prune
    Autotuner.run = run
    Autotuner.check_disk_cache = check_disk_cache


def _note(tuner: Any) -> None:
    """Keep which configuration ran, as an index that `forced` takes."""
    ordered, different = _telling(_left(tuner))
    best = tuner.__dict__.get("best_config")
    index = next((i for i, config in enumerate(ordered) if config is best), None)
    if different < 2 or index is None:
        _ran.pop(tuner.base_fn, None)
        return
    constants = ", ".join(f"{name}={value}" for name, value in best.kwargs.items())
    _ran[tuner.base_fn] = f"{tuner.base_fn.__name__}: configuration {index} of {different} ({constants})"


def _first_that_runs(tuner: Any, bench: Any, args: Any, config: Any, meta: Any) -> Any:
    """Triton's own benchmark of one configuration, with one call in place of a timing; none once one ran."""
    if tuner._settled:
        return 3 * [2.0]

    def call_once(call: Any, quantiles: Any = None) -> list[float]:
        call()
        return 3 * [1.0]

    tuner.__dict__["do_bench"] = call_once
    times = bench(tuner, *args, config=config, **meta)
    tuner._settled = times[0] == 1.0
    return times
