"""Record tensor maps of the CuTe launcher: ``python -m tests.ptx.record_tensor_maps FILE [NAME...]``.

Compiles one empty kernel a map (nvidia-cutlass-dsl and a C compiler needed, no GPU) and captures its
parameter at the launch call.  ``data/tensor_maps.json`` is the output; of each map the first 64 bytes, as
the launcher leaves the others unwritten.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ADDRESS = 0x7F1234567000
PLANE = (640, 321)

# name -> (CuTe type, type in the map, extents, strides in elements, box, swizzle)
MAPS: dict[str, tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], str]] = {
    "f16 rank 2, 128B swizzle": ("Float16", "f16", PLANE, (1, 648), (64, 48), "128B"),
    "64B swizzle": ("Float16", "f16", PLANE, (1, 648), (32, 48), "64B"),
    "32B swizzle": ("Float16", "f16", PLANE, (1, 648), (16, 48), "32B"),
    "no swizzle": ("Float16", "f16", PLANE, (1, 648), (64, 48), "none"),
    "bf16": ("BFloat16", "bf16", PLANE, (1, 648), (64, 48), "128B"),
    "f32": ("Float32", "f32", PLANE, (1, 648), (32, 48), "128B"),
    "tf32": ("Float32", "tf32", PLANE, (1, 648), (32, 48), "128B"),
    "u8": ("Uint8", "u8", PLANE, (1, 656), (128, 48), "128B"),
    "i32 (written as u32)": ("Int32", "u32", PLANE, (1, 648), (32, 48), "128B"),
    "u32": ("Uint32", "u32", PLANE, (1, 648), (32, 48), "none"),
    "u16": ("Uint16", "u16", PLANE, (1, 648), (32, 48), "none"),
    "i64 (written as u64)": ("Int64", "u64", PLANE, (1, 648), (16, 48), "none"),
    "u64": ("Uint64", "u64", PLANE, (1, 648), (16, 48), "none"),
    "f64": ("Float64", "f64", PLANE, (1, 648), (16, 48), "none"),
    "rank 1": ("Float16", "f16", (640,), (1,), (64,), "none"),
    "rank 3": ("Float16", "f16", (*PLANE, 7), (1, 648, 259200), (64, 48, 3), "128B"),
    "rank 4": ("Float16", "f16", (*PLANE, 7, 5), (1, 648, 259200, 2592000), (64, 8, 3, 2), "128B"),
    "rank 5": (
        "Float16", "f16", (*PLANE, 7, 5, 9), (1, 648, 259200, 2592000, 25920000), (64, 4, 3, 2, 5), "128B",
    ),
    "strides above 2^36 bytes": (
        "Float16", "f16", (640, 2**31 - 1, 7, 5, 9), (1, 648, 2**37 + 8, 3 * 2**36 + 16, 2**38 - 8),
        (64, 4, 3, 2, 5), "128B",
    ),
    "128B swizzle with 32B atom": ("Float32", "f32", PLANE, (1, 648), (32, 48), "128B_ATOM_32B"),
}  # fmt: skip
SWIZZLES = {"128B": (3, 4, 3), "64B": (2, 4, 3), "32B": (1, 4, 3), "128B_ATOM_32B": (2, 5, 2)}


class Anywhere:
    """A tensor that only has an address."""

    shape = (1,)

    def data_ptr(self) -> int:
        return ADDRESS

    def stride(self) -> tuple[int]:
        return (1,)

    def element_size(self) -> int:
        return 1


def launched_map(name: str) -> bytes:
    """The first 64 bytes of the map that the launcher passes to a kernel."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.nvgpu import cpasync
    from cutlass.cute.runtime import make_fake_tensor

    from lethe.ptx.launch import HostLauncher

    cute_type, map_type, shape, stride, box, swizzle = MAPS[name]
    options = {"internal_type": cutlass.TFloat32} if map_type == "tf32" else {}

    @cute.kernel
    def kernel(atom: cute.CopyAtom, tensor: cute.Tensor) -> None:
        cpasync.prefetch_descriptor(atom)

    @cute.jit
    def host(source: cute.Tensor) -> None:
        dense = [1]
        for extent in box[:-1]:
            dense.append(dense[-1] * extent)
        layout = cute.make_layout(box, stride=tuple(dense))
        if cutlass.const_expr(swizzle != "none"):
            layout = cute.make_composed_layout(cute.make_swizzle(*SWIZZLES[swizzle]), 0, layout)
        operation = cpasync.CopyBulkTensorTileG2SOp()
        atom, tensor = cpasync.make_tiled_tma_atom(operation, source, layout, box, **options)
        kernel(atom, tensor).launch(grid=(1, 1, 1), block=(32, 1, 1))

    tensor = make_fake_tensor(getattr(cutlass, cute_type), shape, stride, assumed_align=16)
    compiled = cute.compile(host, tensor)
    ptx = compiled.artifacts.PTX
    ptx = ptx if "\n" in ptx else Path(ptx).read_text()
    with tempfile.TemporaryDirectory() as folder:
        compiled.export_to_c(file_path=folder, file_name="k", function_prefix="k")
        launches = HostLauncher(Path(folder) / "k.o", Path(folder) / "k.h", ptx).capture(Anywhere())
    return launches[0].parameters[0].data[:64]


def record(file: str, *names: str) -> None:
    """Write the maps (all without `names`) as JSON."""
    version = importlib.metadata.version("nvidia-cutlass-dsl")
    maps: list[dict[str, Any]] = []
    for name in names or MAPS:
        _, dtype, shape, stride, box, swizzle = MAPS[name]
        size = {"8": 1, "16": 2, "32": 4, "64": 8}[re.sub(r"\D", "", dtype)]
        maps.append(
            {
                "name": name,
                "dtype": dtype,
                "address": ADDRESS,
                "dims": shape,
                "strides": [size * s for s in stride[1:]],
                "box": box,
                "swizzle": swizzle,
                "bytes": launched_map(name).hex(),
            }
        )
    source = f"make_tiled_tma_atom of nvidia-cutlass-dsl {version}, host launcher for sm_100a"
    text = json.dumps({"source": source, "maps": maps}, indent=1)
    compact = re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    Path(file).write_text(compact + "\n")


def main(*arguments: str) -> None:
    """Record in a child process: CuTe DSL reads its settings when it is imported."""
    with tempfile.TemporaryDirectory() as dump:
        settings = {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": dump}
        command = [sys.executable, "-m", "tests.ptx.record_tensor_maps", "child", *arguments]
        subprocess.run(command, env={**os.environ, **settings}, check=True)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        record(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
