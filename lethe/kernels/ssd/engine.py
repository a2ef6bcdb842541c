"""Engines: who compiles and runs a launch. Triton for a CUDA target, or Triton's interpreter on a CPU.

`prepare` does everything that takes time: compile (or find in Triton's cache) and put the arguments in the
kernel's order. What remains for a call is to fill in addresses. This module imports triton when it prepares.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.kernels.ssd.plan import Launch, Value
from lethe.kernels.ssd.tiles import ALL_REGISTERS

MODULES = {"scan": "scan", "output": "output", "gate": "gate", "gradient": "gradient", "finish": "reduce"}

POINTERS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16", "int32": "*i32"}

HINTED = re.compile("_s[blhg]$|^size$")
"""Numbers on whose divisibility the width of a load depends: strides, and the distance of two partial sums.
A hint on any other would only make more kernels to compile."""

ABSENT = 0
"""What an absent option's pointer is: compiled away as a constant, never read."""

Run = Callable[[Sequence[int], int], None]
"""Addresses in the order of `Prepared.sources`, and the stream's handle."""


@dataclass(frozen=True)
class Prepared:
    """A launch that is ready to run."""

    launch: Launch
    sources: tuple[Value, ...]
    """The tensors and regions whose addresses a run needs, in order."""
    run: Run
    artifact: Any
    """The compiled kernel; None in the interpreter."""


def function_of(kernel: str) -> Any:
    """The ``@triton.jit`` function behind a launch."""
    module = importlib.import_module(f"lethe.kernels.ssd.{MODULES[kernel]}")
    return getattr(module, kernel)


def interpreted() -> bool:
    """Whether this process interprets Triton kernels (TRITON_INTERPRET=1 before they were imported)."""
    from triton.runtime.jit import JITFunction

    return not isinstance(function_of("scan"), JITFunction)


def multiplies_bfloat16() -> bool:
    """Whether this process's interpreter multiplies bfloat16 as numbers. Triton's own takes their bits for
    integers; the verifier's repairs put that right."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter as host

    ones = host.TensorHandle(np.full((16, 16), 0x3F80, np.uint16), tl.bfloat16)
    nothing = host.TensorHandle(np.zeros((16, 16), np.float32), tl.float32)
    found = host.interpreter_builder.create_dot(ones, ones, nothing, host._ir.INPUT_PRECISION.IEEE, 0)
    return bool((found.data == 16).all())


def signature(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Types, constants and alignments of a launch's arguments, as Triton's compiler takes them."""
    types: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    aligned: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(function_of(launch.kernel).arg_names):
        if name in launch.constants:
            types[name] = "constexpr"
            continue
        value = launch.values[name]
        if value.kind == "none":
            types[name], constants[name] = "constexpr", None
        elif value.kind == "number":
            types[name] = value.dtype
            if HINTED.search(name) and value.number and value.number % 16 == 0:
                aligned[(index,)] = [["tt.divisibility", 16]]
        else:
            types[name] = POINTERS[value.dtype]
            if value.name not in ("dt", "ddt"):
                aligned[(index,)] = [["tt.divisibility", 16]]
    return types, constants, aligned


def compiled(launch: Launch, target: int) -> Any:
    """The kernel of `launch` for ``sm_<target>``, compiled or from Triton's cache. No device is touched."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(function_of(launch.kernel), *signature(launch))
    options = {"num_warps": launch.warps}
    if launch.registers < ALL_REGISTERS:
        options["maxnreg"] = launch.registers
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)


def specialisation(launch: Launch) -> tuple[Any, ...]:
    """What a launch's compiled kernel depends on, beside the target."""
    return (launch.kernel, launch.warps, launch.registers, *map(repr, signature(launch)))


_kernels: dict[Any, Any] = {}


def _kernel(launch: Launch, target: int) -> Any:
    """`compiled`, once a process for launches that differ in grid and numbers alone."""
    key = (target, *specialisation(launch))
    if key not in _kernels:
        _kernels[key] = compiled(launch, target)
    return _kernels[key]


def forget() -> None:
    """Drop the compiled kernels that are in memory; Triton's cache on disk stays."""
    _kernels.clear()


def images() -> list[str]:
    """Files that hold the device code of the kernels in memory: those of Triton's cache. Triton gives the
    driver a copy, so that no mapping of this process leads to them by itself."""
    from triton.runtime.cache import get_cache_manager

    found = (get_cache_manager(kernel.hash).get_file(f"{kernel.name}.cubin") for kernel in _kernels.values())
    return sorted({file for file in found if file is not None})


def _slots(launch: Launch) -> tuple[list[Any], list[tuple[int, Value]]]:
    """All arguments in order, with the places of addresses left to fill."""
    arguments: list[Any] = []
    places: list[tuple[int, Value]] = []
    for index, name in enumerate(function_of(launch.kernel).arg_names):
        if name in launch.constants:
            arguments.append(launch.constants[name])
            continue
        value = launch.values[name]
        if value.kind in ("tensor", "workspace"):
            places.append((index, value))
        arguments.append(value.number if value.kind == "number" else None)
    return arguments, places


def prepare_cuda(launch: Launch, target: int) -> Prepared:
    """Compile for ``sm_<target>``; the first run loads the kernel onto the current device."""
    return prepared(launch, _kernel(launch, target), target)


def _current_device() -> int:
    from triton.runtime import driver

    return int(driver.active.get_current_device())


def prepared(
    launch: Launch, kernel: Any, target: int, device: Callable[[], int] = _current_device
) -> Prepared:
    """A launch of a compiled kernel with all arguments in place but the addresses.

    A compiled kernel is loaded on one device; on a second one the same is taken from Triton's cache again.
    """
    template, places = _slots(launch)
    indices = [index for index, _ in places]
    runners: dict[int, Any] = {}

    def run(addresses: Sequence[int], stream: int) -> None:
        here = device()
        if here not in runners:
            runners[here] = (compiled(launch, target) if runners else kernel)[launch.grid]
        arguments = template.copy()
        for index, address in zip(indices, addresses, strict=True):
            arguments[index] = address
        runners[here](*arguments, stream=stream)

    return Prepared(launch, tuple(value for _, value in places), run, kernel)


def prepare_interpreter(launch: Launch, extents: Mapping[str, int]) -> Prepared:
    """Run on the CPU in Triton's interpreter; `extents` are the bytes behind each tensor and region."""
    import torch

    template, places = _slots(launch)
    function = function_of(launch.kernel)

    def run(addresses: Sequence[int], stream: int) -> None:
        arguments = template.copy()
        for (index, value), address in zip(places, addresses, strict=True):
            raw = (ctypes.c_char * extents[value.name]).from_address(address)
            arguments[index] = torch.frombuffer(raw, dtype=getattr(torch, value.dtype))
        for index, argument in enumerate(arguments):
            if argument is None:
                arguments[index] = ABSENT
        function[launch.grid](*arguments)

    return Prepared(launch, tuple(value for _, value in places), run, None)
