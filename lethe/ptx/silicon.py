"""The same sm_90a PTX on a Hopper GPU and in the emulator, byte for byte.

``python -m lethe.ptx.silicon --out FILE`` runs every recorded sm_90a kernel on the first CUDA device through
the driver (the driver compiles the recorded PTX; neither CuTe DSL, Triton nor nvcc is needed) and in
`lethe.ptx`, on the same inputs, and compares the outputs. torch holds the device memory.

Two kinds of inputs. With small integers every product and sum is exact, so any difference is a difference
of semantics: layouts, descriptors, swizzles, masks, synchronisation. With normal values the tensor core's
order and truncation of float32 sums, and approximate functions (``ex2.approx``, ``rsqrt.approx``,
``div.full``; PTX ISA 9.7.3), are visible too; then both must lie within the oracle's bound and the distance
in units of the last place is reported.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lethe.ptx.examples.execute import run
from lethe.ptx.examples.record import Record, load, names
from lethe.ptx.examples.tensors import Array, TensorSpec, Values

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
ERROR_LOG_BUFFER, ERROR_LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
LOG_BYTES = 8192
APPROXIMATE = ("ex2.approx", "rsqrt.approx", "div.full", "rcp.approx", "lg2.approx", "tanh.approx")


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


@dataclass(frozen=True)
class Comparison:
    """One kernel on one kind of inputs. Elements of all outputs together.

    ``ulps``: largest distance between device and emulator in units of the last place of the output's dtype.
    ``device_error``, ``emulator_error``: largest error over the oracle's bound. ``why``: what may differ.
    """

    kernel: str
    values: str
    elements: int
    equal: int
    ulps: int
    device_error: float
    emulator_error: float
    why: str
    ptx_sha256: str

    @property
    def agrees(self) -> bool:
        """Bit-equal, or different for a documented reason and both within the bound."""
        return self.equal == self.elements or bool(
            self.why and self.device_error <= 1 and self.emulator_error <= 1
        )


class Driver:
    """The few calls of libcuda that launch a PTX kernel in torch's context."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DriverError("torch sees no CUDA device")
        torch.zeros(1, device="cuda")  # makes the primary context current
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.capability: tuple[int, int] = torch.cuda.get_device_capability()

    def call(self, function: str, *arguments: Any) -> None:
        """Call a driver function; DriverError names the CUDA error."""
        code = getattr(self._cuda, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{function}: {(text.value or b'?').decode()}")

    def function(self, ptx: str, kernel: str, shared: int) -> ctypes.c_void_p:
        """Compile PTX and look a kernel up; DriverError carries the compiler's log."""
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(LOG_BYTES)
        keys = (ctypes.c_int * 2)(ERROR_LOG_BUFFER, ERROR_LOG_SIZE)
        options = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode() + b"\0", 2, keys, options)
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode().strip()}") from None
        self.call("cuModuleGetFunction", ctypes.byref(found), module, kernel.encode())
        self.call("cuFuncSetAttribute", found, MAX_DYNAMIC_SHARED, shared)
        return found

    def launch(self, record: Record, parameters: Sequence[bytes]) -> None:
        """Launch a record with these parameter bytes and wait."""
        import torch

        launch = record.launch
        function = self.function(record.ptx, launch.kernel, launch.shared)
        buffers = [_aligned(data) for data in parameters]
        pointers = (ctypes.c_void_p * len(buffers))(*(address for _, address in buffers))
        self.call(
            "cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared, None, pointers, None
        )
        torch.cuda.synchronize()


def _aligned(data: bytes) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Bytes at an address that is a multiple of 64, as a tensor map wants."""
    buffer = ctypes.create_string_buffer(len(data) + 64)
    address = (ctypes.addressof(buffer) + 63) // 64 * 64
    ctypes.memmove(address, data, len(data))
    return buffer, address


def on_device(driver: Driver, record: Record, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run on the GPU; copies of all arrays as they are afterwards, in the same memory order."""
    import torch

    buffers = {
        name: torch.from_numpy(array.ravel(order="K").view(np.uint8).copy()).cuda()
        for name, array in arrays.items()
    }
    driver.launch(record, record.launch.bind({name: b.data_ptr() for name, b in buffers.items()}))
    return {name: _like(arrays[name], buffer.cpu().numpy()) for name, buffer in buffers.items()}


def _like(array: Array, data: Array) -> Array:
    """Raw bytes as an array of the same dtype, shape and memory order."""
    values: Array = data.view(array.dtype)
    if array.flags.c_contiguous:
        return values.reshape(array.shape)
    return values.reshape(array.shape[::-1]).T


def distance(first: Array, second: Array, dtype: str) -> Array:
    """Units of the last place between two arrays of a dtype, elementwise (int64); 0 for equal bits."""
    bits = np.dtype(f"i{first.dtype.itemsize}")
    ordered = []
    for array in (first, second):
        raw = np.ascontiguousarray(array).view(bits).astype(np.int64)
        lowest = int(np.iinfo(bits).min)
        ordered.append(raw if dtype == "int32" else np.where(raw < 0, lowest - raw, raw))
    return np.abs(ordered[0] - ordered[1])


def reason(record: Record, values: Values) -> str:
    """Why bits may legally differ; empty when they may not."""
    approximate = [name for name in APPROXIMATE if name in record.ptx]
    if approximate:
        return f"approximate functions: {', '.join(approximate)}"
    if values == "normal" and any(name in record.ptx for name in ("wgmma.mma_async", "mma.sync")):
        return "order and truncation of float32 accumulation in the tensor core"
    return ""


def compare(driver: Driver, record: Record, values: Values, seed: int = 0) -> Comparison:
    """One kernel on one kind of inputs, on the GPU and in the emulator."""
    arrays = record.draw(seed, values)
    expected = record.expected(arrays)
    device = on_device(driver, record, arrays)
    run(record, arrays)
    outputs: list[TensorSpec] = [t for t in record.tensors if t.role != "input"]
    apart = np.concatenate([distance(device[t.name], arrays[t.name], t.dtype).ravel() for t in outputs])
    return Comparison(
        record.name,
        values,
        int(apart.size),
        int((apart == 0).sum()),
        int(apart.max()),
        record.worst(device, expected),
        record.worst(arrays, expected),
        reason(record, values),
        hashlib.sha256(record.ptx.encode()).hexdigest(),
    )


def compare_all(chosen: Sequence[str] = ()) -> list[Comparison]:
    """Every recorded sm_90a kernel (or those chosen), on integers and on normal values."""
    driver = Driver()
    if driver.capability != (9, 0):
        raise DriverError(f"sm_90a code needs compute capability 9.0, the device has {driver.capability}")
    found = []
    for name in chosen or names():
        record = load(name)
        if record.origin["arch"] == "sm_90a":
            kinds: tuple[Values, ...] = ("integers", "normal")
            found += [compare(driver, record, values) for values in kinds]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code 1 when a kernel disagrees, 2 when there is no suitable device."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options.add_argument("--kernel", action="append", default=[], help="only this recorded example")
    chosen = options.parse_args(arguments)
    try:
        found = compare_all(chosen.kernel)
    except DriverError as error:
        print(f"lethe.ptx.silicon: {error}", file=sys.stderr)
        return 2
    for c in found:
        print(
            f"{c.kernel:26} {c.values:9} {c.equal}/{c.elements} equal, {c.ulps} ulp, "
            f"{c.device_error:.2g}/{c.emulator_error:.2g} of the bound{'' if c.agrees else '  DISAGREES'}"
        )
    rows = [{**asdict(c), "agrees": c.agrees} for c in found]
    chosen.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(c.agrees for c in found) else 1


if __name__ == "__main__":
    sys.exit(main())
