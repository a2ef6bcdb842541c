"""Run a compiled variant in `lethe.ptx` on numpy arrays: the kernel as shipped, on a machine without a GPU.

::

    scan = emulate.load(SM90, "scan", dk=128, dv=128, ...)      # compiles into a cache where it is missing
    scan.run({"Kt": Kt, "S0": None, "S": scan.empty("S", (slots, H, 128, 128)), ...}, schedule=3)

Arrays have the declared dtype (bfloat16: its bit patterns as uint16), scalars are Python numbers. Outputs are
poisoned before the run, so that what the kernel leaves unwritten is a fault when it is read, and stays 0xFF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lethe.kernels.gdn.architecture import Architecture
from lethe.kernels.gdn.build import build
from lethe.kernels.gdn.declare import Argument, Variant, from_json
from lethe.ptx import GlobalMemory, parse, run
from lethe.ptx.launch import HostLauncher, Launch

STORAGE = {"bfloat16": "uint16"}


def load(architecture: Architecture, stage: str, folder: Path | None = None, **options: Any) -> Emulated:
    """The variant of these options, compiled if it is missing or its sources changed."""
    folder = folder or architecture.cache()
    build(architecture, stage, options, folder)
    manifest = folder / f"{Variant(stage, options).name}.json"
    return Emulated(from_json(json.loads(manifest.read_text())), folder)


@dataclass(frozen=True)
class Emulated:
    """One compiled variant."""

    variant: Variant
    folder: Path

    @property
    def ptx(self) -> str:
        """The module's text."""
        return (self.folder / f"{self.variant.name}.ptx").read_text()

    def empty(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """An array for an output, every byte 0xFF."""
        dtype = np.dtype(STORAGE.get(self._argument(name).dtype, self._argument(name).dtype))
        return np.full((*shape[:-1], shape[-1] * dtype.itemsize), 0xFF, np.uint8).view(dtype)

    def launches(self, values: Mapping[str, Any]) -> list[Launch]:
        """What the host launcher would launch."""
        axes = {a.name: _dynamic(a) for a in self.variant.arguments if a.shape is not None}
        stem = self.folder / self.variant.name
        launcher = HostLauncher(stem.with_suffix(".o"), stem.with_suffix(".h"), self.ptx, axes=axes)
        return launcher.capture(*self._values(values).values())

    def run(self, values: Mapping[str, Any], schedule: str | int = "early", **options: Any) -> Any:
        """Execute, writing the outputs in place; the machine's report. Raises `lethe.ptx.Fault`."""
        given = self._values(values)
        memory = GlobalMemory()
        for a in self.variant.arguments:
            if a.shape is not None and given[a.name].size:
                memory.add(given[a.name], a.name, writable=a.output, poison=a.output)
        (launch,) = self.launches(values)
        addresses = {
            name: array.ctypes.data for name, array in given.items() if isinstance(array, np.ndarray)
        }
        return run(
            parse(self.ptx),
            launch.kernel,
            grid=launch.grid,
            block=launch.block,
            params=launch.bind(addresses),
            memory=memory,
            dynamic_shared=launch.shared,
            schedule=schedule,
            cluster=launch.cluster,
            **options,
        )

    def _argument(self, name: str) -> Argument:
        return next(a for a in self.variant.arguments if a.name == name)

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """In the declared order, absent tensors as empty ones; ValueError for a name too many or too few."""
        declared = [a.name for a in self.variant.arguments]
        if sorted(values) != sorted(declared):
            raise ValueError(f"{self.variant.name} takes {declared}, not {sorted(values)}")
        return {
            a.name: _absent(a) if values[a.name] is None else values[a.name] for a in self.variant.arguments
        }


def _absent(a: Argument) -> np.ndarray[Any, Any]:
    assert a.optional and a.shape is not None, a.name
    shape = (0, *(1 if isinstance(size, str) else size for size in a.shape[1:]))
    return np.empty(shape, STORAGE.get(a.dtype, a.dtype))


def _dynamic(a: Argument) -> tuple[int, ...]:
    """Axes whose size is known at run time only."""
    return tuple(axis for axis, size in enumerate(a.shape or ()) if isinstance(size, str))
