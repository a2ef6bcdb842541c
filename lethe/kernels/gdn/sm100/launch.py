"""Load a compiled variant for sm_100a and launch it on torch tensors: as `sm90.launch`, on capability 10.0.

Libraries come from ``$LETHE_GDN_LIBRARIES`` (a folder ``sm100`` in it), from ``libraries/`` beside this file,
or are compiled into the cache of `build` where nvidia-cutlass-dsl is installed. No GPU of capability 10.0 was
at hand: what is inherited has launched kernels on an H200, what is written here has been tested as far as a
machine without one allows.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn.sm90 import launch as hopper
from lethe.kernels.gdn.sm90.build import BuildError
from lethe.kernels.gdn.sm90.declare import Variant
from lethe.kernels.gdn.sm90.launch import ALIGNMENT, LibraryError
from lethe.kernels.gdn.sm100.build import HERE, available, build, cache, source_hash

CAPABILITY = (10, 0)

__all__ = ["ALIGNMENT", "Kernel", "LibraryError", "find", "kernel", "unavailable"]


@functools.cache
def kernel(stage: str, **options: Any) -> Kernel:
    """The variant of these options, loaded. LibraryError says how to get it if there is none."""
    return Kernel(find(Variant(stage, options)))


def find(variant: Variant) -> Path:
    """The manifest of a variant, compiled first if need be."""
    manifest, missing = _lookup(variant)
    if manifest is not None:
        return manifest
    if not available():
        raise LibraryError(missing)
    try:
        build(variant.stage, variant.options, cache())
    except BuildError as e:
        raise LibraryError(f"{variant.name} is not built, and could not be: {e}") from e
    return cache() / f"{variant.name}.json"


def unavailable(variant: Variant) -> str:
    """Why a variant cannot be had here, or an empty string. Compiles nothing."""
    manifest, missing = _lookup(variant)
    return "" if manifest is not None or available() else missing


def _lookup(variant: Variant) -> tuple[Path | None, str]:
    """The manifest of a library that is current, or a sentence about its absence."""
    current, stale = source_hash(variant.stage), False
    for folder in _folders():
        manifest = folder / f"{variant.name}.json"
        if manifest.exists() and manifest.with_suffix(".so").exists():
            if json.loads(manifest.read_text())["source"] == current:
                return manifest, ""
            stale = True
    found = "was built from other sources" if stale else "is not built"
    return None, (
        f"{variant.name} {found} for sm_100a: run 'python -m lethe.kernels.gdn.sm100.build {variant.stage}' "
        "where nvidia-cutlass-dsl is installed"
    )


def _folders() -> Iterator[Path]:
    if given := os.environ.get("LETHE_GDN_LIBRARIES"):
        yield Path(given) / "sm100"
    yield HERE / "libraries"
    yield cache()


class Kernel(hopper.Kernel):
    """As `sm90.launch.Kernel`."""

    def _check(self, values: dict[str, Any]) -> torch.device:
        """The device of the tensors, which is one that the kernel runs on."""
        devices = {value.device for value in values.values() if isinstance(value, Tensor)}
        if len(devices) != 1:
            raise ValueError(f"{self.variant.name} takes tensors of one device, not {len(devices)}")
        (device,) = devices
        if device.type != "cuda":
            raise ValueError(f"{self.variant.name} takes CUDA tensors, not {device.type} tensors")
        if device.index not in self._devices:
            found = torch.cuda.get_device_capability(device)
            if found != CAPABILITY:
                raise LibraryError(
                    "the kernels need compute capability 10.0, this GPU has {}.{}".format(*found)
                )
        return device
