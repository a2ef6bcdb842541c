"""Load a compiled variant and launch it on torch tensors.

A variant's library holds its cubin and its host launcher, which encodes the tensor maps from the tensors'
addresses and sizes, sets the attributes of the kernel and launches it on the given stream. It is found under

1. ``$LETHE_GDN_LIBRARIES`` (folders, separated as in ``PATH``), 2. ``libraries/`` of the architecture's
   package, 3. the cache of the architecture, into which it is compiled where nvidia-cutlass-dsl is installed.

A library for another architecture, or from other sources than these, counts as missing. Nothing is
allocated on the device and nothing waits, so a launch can be captured in a CUDA graph (after the first, which
loads the module).
"""

from __future__ import annotations

import ctypes
import functools
import json
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn.architecture import ARCHITECTURES, Architecture
from lethe.kernels.gdn.build import BuildError, available, build, is_current
from lethe.kernels.gdn.declare import SCALARS, Argument, Variant, from_json

ALIGNMENT = 16
_TORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int32": torch.int32,
}


class LibraryError(RuntimeError):
    """A variant has no usable library, or its launcher failed."""


@functools.cache
def kernel(architecture: Architecture, stage: str, **options: Any) -> Kernel:
    """The variant of these options, loaded. LibraryError says how to get it if there is none."""
    return Kernel(find(architecture, Variant(stage, options)))


def find(architecture: Architecture, variant: Variant) -> Path:
    """The manifest of a variant, compiled first if need be."""
    manifest, missing = _lookup(architecture, variant)
    if manifest is not None:
        return manifest
    if not available():
        raise LibraryError(missing)
    cache = architecture.cache()
    try:
        build(architecture, variant.stage, variant.options, cache)
    except BuildError as e:
        raise LibraryError(f"{variant.name} is not built, and could not be: {e}") from e
    return cache / f"{variant.name}.json"


def unavailable(architecture: Architecture, variant: Variant) -> str:
    """Why a variant cannot be had here, or an empty string. Compiles nothing."""
    manifest, missing = _lookup(architecture, variant)
    return "" if manifest is not None or available() else missing


def _lookup(architecture: Architecture, variant: Variant) -> tuple[Path | None, str]:
    """The manifest of a library that is current, or a sentence about its absence."""
    manifests = [folder / f"{variant.name}.json" for folder in architecture.folders()]
    for manifest in manifests:
        if is_current(architecture, variant, manifest.parent):
            return manifest, ""
    there = any(manifest.exists() for manifest in manifests)
    found = "was built from other sources" if there else "is not built"
    return None, (
        f"{variant.name} {found} for {architecture.name}: run 'python -m lethe.kernels.gdn.build --arch "
        f"{architecture.name} {variant.stage}' where nvidia-cutlass-dsl is installed and put the folder in "
        "LETHE_GDN_LIBRARIES"
    )


class Kernel:
    """Call with the arguments of the declaration by name, None for an optional tensor that is absent.

    Tensors are dense CUDA tensors on one device; ``stream``: torch's current one by default. ValueError if a
    tensor does not fit the declaration, LibraryError if the launch fails.
    """

    def __init__(self, manifest: Path):
        described = json.loads(manifest.read_text())
        self.variant = from_json(described)
        self.architecture = ARCHITECTURES[described["arch"]]
        self._library = ctypes.CDLL(str(manifest.with_suffix(".so")))
        self._library.lethe_shim_error.restype = ctypes.c_char_p
        self._prefix = described["symbol"].split("__mlir_ciface_")[0]
        self._launch = getattr(self._library, described["symbol"])
        self._module = ctypes.c_void_p(0)
        self._devices: set[int] = set()
        self._arguments = [Passed(a) for a in self.variant.arguments]
        formats = [a.format for a in self._arguments] + ["P0q", "i0q"]
        starts = [struct.calcsize("@" + "".join(formats[:i])) for i in range(len(formats))]
        self._packed = struct.Struct("@" + "".join(formats))
        self._starts = starts
        self._addresses = ctypes.c_void_p * len(formats)

    def __call__(self, *, stream: torch.cuda.Stream | None = None, **values: Any) -> None:
        if values.keys() != {a.argument.name for a in self._arguments}:
            declared = [a.argument.name for a in self._arguments]
            raise ValueError(f"{self.variant.name} takes {declared}, not {sorted(values)}")
        device = self._check(values)
        sizes: dict[str, int] = {}
        fields: list[Any] = []
        for passed in self._arguments:
            fields += passed.fields(values[passed.argument.name], sizes)
        with torch.cuda.device(device):
            if device.index not in self._devices:
                self._load(device.index)
            queue = (stream or torch.cuda.current_stream(device)).cuda_stream
            buffer = ctypes.create_string_buffer(self._packed.size)
            self._packed.pack_into(buffer, 0, *fields, queue, 0)
            base = ctypes.addressof(buffer)
            self._launch(self._addresses(*(base + s for s in self._starts)), len(self._starts))
        status = struct.unpack_from("@i", buffer, self._starts[-1])[0]
        if status:
            raise LibraryError(f"launching {self.variant.name} failed: {self._reason(status)}")

    def _check(self, values: dict[str, Any]) -> torch.device:
        """The device of the tensors, which is one that the kernel runs on."""
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        devices = {t.device for t in tensors.values()}
        if len(devices) != 1:
            raise ValueError(f"{self.variant.name} takes tensors of one device, not {len(devices)}")
        (device,) = devices
        if device.type != "cuda":
            raise ValueError(f"{self.variant.name} takes CUDA tensors, not {device.type} tensors")
        if device.index not in self._devices:
            found, needed = torch.cuda.get_device_capability(device), self.architecture.capability
            if found != needed:
                raise LibraryError(
                    "{} needs compute capability {}.{}, this GPU has {}.{}".format(
                        self.variant.name, *needed, *found
                    )
                )
        return device

    def _load(self, index: int) -> None:
        """Register the module once, and set it up for a device."""
        status, device = ctypes.c_int(0), ctypes.c_int32(index)
        handle, result = ctypes.pointer(ctypes.pointer(self._module)), ctypes.pointer(status)
        steps: list[tuple[str, tuple[Any, ...]]] = (
            [("cuda_init", (handle, result))] if not self._devices else []
        )
        steps.append(("cuda_load_to_device", (handle, ctypes.pointer(device), result)))
        for step, arguments in steps:
            passed = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(a, ctypes.c_void_p) for a in arguments))
            getattr(self._library, f"{self._prefix}_{step}")(passed)
            if status.value:
                raise LibraryError(f"loading {self.variant.name} failed: {self._reason(status.value)}")
        self._devices.add(index)

    def _reason(self, status: int) -> str:
        why = self._library.lethe_shim_error().decode()
        return f"CUDA error {status}" + (f" ({why})" if why else "")


class Passed:
    """How one argument is checked and handed to the launcher."""

    def __init__(self, argument: Argument):
        self.argument = argument
        self.dynamic: list[int] = []
        if argument.shape is None:
            self.format = SCALARS[argument.dtype] + "0q"
            return
        self.dynamic = [axis for axis, size in enumerate(argument.shape) if isinstance(size, str)]
        self.strides = sum(any(later > axis for later in self.dynamic) for axis in range(len(argument.shape)))
        self.format = f"P{len(self.dynamic)}i{self.strides}q0q"

    def fields(self, value: Any, sizes: dict[str, int]) -> list[Any]:
        """What is packed; `sizes` collects the named sizes of a call."""
        a = self.argument
        if a.shape is None:
            return [value]
        if value is None:
            if not a.optional:
                raise ValueError(f"{a.name} is missing")
            return [0] * (1 + len(self.dynamic) + self.strides)
        self._check(value, sizes)
        shape, strides = value.shape, value.stride()
        return [value.data_ptr(), *(shape[axis] for axis in self.dynamic), *strides[: self.strides]]

    def _check(self, value: Tensor, sizes: dict[str, int]) -> None:
        a = self.argument
        assert a.shape is not None
        if value.dtype != _TORCH[a.dtype]:
            raise ValueError(f"{a.name} is {value.dtype}, the kernel takes {_TORCH[a.dtype]}")
        fits = len(value.shape) == len(a.shape) and all(
            found == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, found))
            for found, wanted in zip(value.shape, a.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join(str(sizes.get(s, s) if isinstance(s, str) else s) for s in a.shape)
            raise ValueError(f"{a.name} is {list(value.shape)}, the kernel takes [{wanted}]")
        if not value.is_contiguous() or value.data_ptr() % ALIGNMENT:
            raise ValueError(f"{a.name} must be contiguous, at an address that {ALIGNMENT} divides")
