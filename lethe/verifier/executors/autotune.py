"""Choose an autotuner's configuration without timing anything.

A kernel must keep its contract under each of its configurations, so the judge need not look for the fastest:
timing takes most of an autotuned candidate's time, and what it picks changes from process to process.
Triton's Autotuner keeps its own logic - pruning, cache key, ``pre_hook``, ``reset_to_zero`` - and only its
benchmark is replaced: the wanted configuration wins, or the first; on a device the first that compiles and
loads, since an autotuner passes over the others.
"""

from __future__ import annotations

import functools
import os
from typing import Any

CONFIG_VARIABLE = "LETHE_AUTOTUNE_CONFIG"
"""Environment variable: index of the configuration to run, modulo the kernel's number of them."""

_known: dict[str, list[dict[str, Any]]] = {}


def config_counts() -> dict[str, int]:
    """Number of configurations of every autotuned kernel that ran so far, by kernel name."""
    return {name: len(configs) for name, configs in _known.items()}


def configurations(name: str) -> list[dict[str, Any]]:
    """What every configuration of an autotuned kernel that ran adds to a launch, by the kernel's name."""
    return list(_known.get(name, ()))


def wanted_config() -> int | None:
    """The index in ``LETHE_AUTOTUNE_CONFIG``, or None when it is unset or no number."""
    text = os.environ.get(CONFIG_VARIABLE, "")
    return int(text) if text.isdecimal() else None


def install(*, device: bool) -> None:
    """Replace the autotuner's benchmark: the first configuration runs unless the environment names another;
    on a `device`, the first that can."""
    from triton.runtime.autotuner import Autotuner

    if hasattr(Autotuner._bench, "__wrapped__"):
        return
    original_bench = Autotuner._bench
    original_run = Autotuner.run

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
        chosen = self.configs[(wanted or 0) % len(self.configs)]
        return 3 * [1.0 if config is chosen else 2.0]

    @functools.wraps(original_run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _known[self.base_fn.__name__] = [config.all_kwargs() for config in self.configs]
        self._settled = False
        if self.__dict__.get("_chosen_by") != wanted_config():
            self.cache.clear()
            self._chosen_by = wanted_config()
        return original_run(self, *args, **kwargs)

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        bench_fn()
        return False

    Autotuner._bench = bench
    Autotuner.run = run
    Autotuner.check_disk_cache = check_disk_cache


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
