"""What a host launcher would launch: grid, block, shared bytes and parameter bytes, without a GPU.

An exported CuTe kernel is two files: PTX (or cubin) and an object with the host launcher, which computes the
grid and encodes the tensor maps. `HostLauncher` links that object with capture.c, a CUDA runtime that
launches nothing, calls the launcher on numpy arrays or CPU tensors, and returns `Launch` records whose
parameters are the bytes that the kernel would read from its parameter space (PTX ISA section 5.1.6).

Addresses in those bytes are the arrays' own. `pointers` finds them, so that a record can be moved to other
arrays or to a device: `Launch.bind`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

CAPTURE_SOURCE = Path(__file__).with_name("capture.c")
SHARED_BYTES_PER_BLOCK = 232448  # 227 KiB, CUDA C++ Programming Guide, compute capability 9.0 and 10.0
DEVICE_ATTRIBUTES = {97: SHARED_BYTES_PER_BLOCK, 16: 148, 75: 10, 76: 0}  # CUdeviceattribute -> value


class LaunchError(RuntimeError):
    """A launcher could not be built, called, or asked for something that is not captured."""


class Pointer(NamedTuple):
    """``offset`` of an 8-byte address in a parameter, which points ``byte`` bytes into ``tensor``."""

    offset: int
    tensor: str
    byte: int


@dataclass(frozen=True)
class Parameter:
    """The bytes of one kernel parameter, and where addresses of tensors stand in them."""

    data: bytes
    pointers: tuple[Pointer, ...] = ()

    def bind(self, addresses: Mapping[str, int]) -> bytes:
        """The bytes with every pointer replaced; KeyError names a tensor without an address."""
        bound = bytearray(self.data)
        for offset, tensor, byte in self.pointers:
            bound[offset : offset + 8] = (addresses[tensor] + byte).to_bytes(8, "little")
        return bytes(bound)


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``shared``: dynamic shared memory in bytes; ``grid``, ``block``, ``cluster``: x, y,
    z."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: tuple[Parameter, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)

    def bind(self, addresses: Mapping[str, int]) -> list[bytes]:
        """Parameter bytes with tensors at these addresses."""
        return [parameter.bind(addresses) for parameter in self.parameters]


def parameter_sizes(ptx: str) -> dict[str, list[int]]:
    """Bytes of every parameter of every entry of a PTX module."""
    width = re.compile(
        r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s+(?:\.ptr[^,)\[]*\s)?\s*[\w$]+(?:\[(\d+)\])?"
    )
    entries = re.finditer(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?\s*(?=[.{])", ptx, re.DOTALL)
    return {
        entry[1]: [int(bits) // 8 * int(count or 1) for bits, count in width.findall(entry[2] or "")]
        for entry in entries
    }


def address_of(array: Any) -> int:
    """Address of a numpy array's or CPU tensor's first element; 0 if it has none."""
    if 0 in array.shape:
        return 0
    return int(array.data_ptr()) if hasattr(array, "data_ptr") else int(array.ctypes.data)


def byte_count(array: Any) -> int:
    """Bytes from an array's first element to the end of its last, whatever its strides."""
    if 0 in array.shape:
        return 0
    size = array.element_size() if hasattr(array, "element_size") else array.itemsize
    return int(size * (1 + sum((n - 1) * s for n, s in zip(array.shape, _strides(array), strict=True))))


def pointers(data: bytes, tensors: Mapping[str, Any]) -> tuple[Pointer, ...]:
    """Every 8-byte-aligned word of a parameter that is an address inside one of the tensors."""
    found = []
    for offset in range(0, len(data) - 7, 8):
        word = int.from_bytes(data[offset : offset + 8], "little")
        for name, array in tensors.items():
            if 0 <= word - address_of(array) < byte_count(array):
                found.append(Pointer(offset, name, word - address_of(array)))
    return tuple(found)


def _strides(array: Any) -> list[int]:
    """Strides in elements."""
    if hasattr(array, "data_ptr"):
        return list(array.stride())
    return [s // array.itemsize for s in array.strides]


SCALARS = {"float": ctypes.c_float, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}


class Argument(NamedTuple):
    """One argument of the host launcher: a tensor struct, a scalar (``scalar``: its C type) or a stream."""

    name: str
    shapes: int
    strides: int
    stride_bits: int
    scalar: str = ""


def parse_header(text: str) -> tuple[str, list[Argument]]:
    """The C header of export_to_c: the launcher's symbol and its arguments in order."""
    call = re.search(
        r"wrapper\(\w+ \*module,?\s*(.*?)\) \{.*?\n\s+(_mlir_\w+_ciface_\w+)\(args", text, re.DOTALL
    )
    if call is None:
        raise LaunchError("the header has no cute_dsl wrapper: is it from export_to_c?")
    structs = {name: body for body, name in re.findall(r"typedef struct \{([^}]*)\} (\w+_t);", text)}
    arguments = []
    for declaration in filter(None, (part.strip() for part in call[1].split(","))):
        kind, name = re.split(r"\s+\*?", declaration, maxsplit=1)
        if kind in SCALARS:
            arguments.append(Argument(name, 0, 0, 64, kind))
            continue
        if kind not in structs and "cudaStream_t" not in kind and "CUstream" not in kind:
            raise LaunchError(f"argument '{declaration}' is no tensor, stream, float or integer")
        body = structs.get(kind, "")
        shapes = re.search(r"int32_t dynamic_shapes\[(\d+)\]", body)
        strides = re.search(r"int(\d+)_t dynamic_strides\[(\d+)\]", body)
        arguments.append(
            Argument(
                name if kind in structs else "",
                int(shapes[1]) if shapes else 0,
                int(strides[2]) if strides else 0,
                int(strides[1]) if strides else 64,
            )
        )
    return call[2], arguments


def tensor_struct(argument: Argument, array: Any, axes: Sequence[int] | None = None) -> ctypes.Structure:
    """The struct by which a launcher receives a tensor: address, then dynamic shapes and strides.

    ``axes``: those with a dynamic size, of a dense row-major tensor; a stride is then dynamic where a later
    axis is. By default all sizes are static or all are dynamic.
    """
    shape, strides = list(array.shape), _strides(array)
    dynamic = strides if argument.strides == len(strides) else [s for s in strides if s != 1]
    if axes is not None:
        dynamic = [stride for axis, stride in enumerate(strides) if any(later > axis for later in axes)]
        shape = [shape[axis] for axis in axes]
    if argument.shapes not in (0, len(shape)) or argument.strides not in (0, len(dynamic)):
        raise LaunchError(
            f"'{argument.name}' wants {argument.shapes} shapes and {argument.strides} strides, "
            f"the tensor has shape {shape} and strides {strides}"
        )
    integer = ctypes.c_int64 if argument.stride_bits == 64 else ctypes.c_int32

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("shapes", ctypes.c_int32 * argument.shapes),
            ("strides", integer * argument.strides),
        )

    return Tensor(
        address_of(array),
        (ctypes.c_int32 * argument.shapes)(*shape[: argument.shapes]),
        (integer * argument.strides)(*dynamic[: argument.strides]),
    )


def build_library(object_file: Path, folder: Path | None = None) -> Path:
    """Link an exported object with capture.c; cached by the content of both, gcc (or ``$CC``) needed."""
    folder = folder or Path(tempfile.gettempdir()) / f"lethe-ptx-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(object_file.read_bytes() + CAPTURE_SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / f"launcher-{key}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}.tmp")
        command = [
            os.environ.get("CC", "gcc"),
            "-shared",
            "-fPIC",
            "-O1",
            "-Wl,-Bsymbolic",
            str(CAPTURE_SOURCE),
        ]
        try:
            subprocess.run([*command, str(object_file), "-o", str(partial)], check=True, capture_output=True)
        except FileNotFoundError:
            raise LaunchError(
                f"linking a host launcher needs a C compiler; '{command[0]}' was not found"
            ) from None
        except subprocess.CalledProcessError as e:
            raise LaunchError(f"could not link {object_file}: {e.stderr.decode().strip()}") from None
        partial.replace(library)
    return library


@dataclass
class HostLauncher:
    """The launcher of an exported CuTe kernel.

    ``object_file`` and ``header``: from export_to_c. ``ptx``: the module's text, which says how many bytes
    each parameter has. ``attributes``: device attributes that the launcher may ask for, over the defaults.
    ``axes``: the axes with a dynamic size, for tensors that have static ones too (`tensor_struct`).
    """

    object_file: Path
    header: Path
    ptx: str
    attributes: Mapping[int, int] = field(default_factory=dict)
    axes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._symbol, self.arguments = parse_header(self.header.read_text())
        self._sizes = parameter_sizes(self.ptx)
        self._library = ctypes.CDLL(str(build_library(self.object_file)))

    def capture(self, *values: Any) -> list[Launch]:
        """The launches of one call. ``values``: tensors and scalars in the launcher's order, no streams.

        Raises LaunchError if the launcher fails or asks for an unknown device attribute.
        """
        given = {a.name: v for a, v in zip((a for a in self.arguments if a.name), values, strict=True)}
        named = {a.name: given[a.name] for a in self.arguments if a.name and not a.scalar}
        launches: list[Launch] = []
        faults: list[str] = []

        def launched(kernel, grid, block, cluster, shared, parameters):
            name = kernel.decode()
            if name not in self._sizes:
                faults.append(f"the launcher starts '{name}', which the PTX does not define")
                return 1
            data = [ctypes.string_at(parameters[i], size) for i, size in enumerate(self._sizes[name])]
            record = tuple(Parameter(d, pointers(d, named)) for d in data)
            launches.append(
                Launch(name, _triple(grid), _triple(block), shared, record, cluster=_triple(cluster))
            )
            return 0

        def attribute(number: int) -> int:
            known = {**DEVICE_ATTRIBUTES, **self.attributes}
            if number not in known:
                faults.append(f"the launcher asks for device attribute {number}; pass it in attributes")
            return known.get(number, 0)

        self._call(
            [self._passed(a, given[a.name]) if a.name else None for a in self.arguments], launched, attribute
        )
        if faults:
            raise LaunchError(faults[0])
        return launches

    def _passed(self, argument: Argument, value: Any) -> Any:
        """What the launcher gets the address of."""
        if argument.scalar:
            return SCALARS[argument.scalar](value)
        return tensor_struct(argument, value, self.axes.get(argument.name))

    def _call(self, structs: Sequence[Any], launched: Any, attribute: Any) -> None:
        triple = ctypes.POINTER(ctypes.c_uint)
        on_launch = ctypes.CFUNCTYPE(
            ctypes.c_int,
            ctypes.c_char_p,
            triple,
            triple,
            triple,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
        )(launched)
        on_attribute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(attribute)
        self._library.lethe_capture_set(on_launch, on_attribute)
        _load(self._library, self._prefix)
        status = ctypes.c_int32(0)
        stream = ctypes.c_void_p(0)
        addresses = [ctypes.addressof(s if s is not None else stream) for s in structs] + [
            ctypes.addressof(status)
        ]
        getattr(self._library, self._symbol)((ctypes.c_void_p * len(addresses))(*addresses), len(addresses))
        if status.value:
            raise LaunchError(f"the host launcher failed with CUDA error {status.value}")

    @property
    def _prefix(self) -> str:
        return self._symbol.split("__mlir_ciface_")[0]


def _triple(values: Any) -> tuple[int, int, int]:
    return int(values[0]), int(values[1]), int(values[2])


def _load(library: ctypes.CDLL, prefix: str) -> None:
    """What the header's Kernel_Module_Load does: register the module, look its kernels up."""
    module, status, device = ctypes.c_void_p(0), ctypes.c_int(0), ctypes.c_int32(0)
    handle = ctypes.pointer(ctypes.pointer(module))
    result = ctypes.pointer(status)
    for function, arguments in (
        ("cuda_init", (handle, result)),
        ("cuda_load_to_device", (handle, ctypes.pointer(device), result)),
    ):
        packed = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(a, ctypes.c_void_p) for a in arguments))
        getattr(library, f"{prefix}_{function}")(packed)
        if status.value:
            raise LaunchError(f"{function} failed with CUDA error {status.value}")
