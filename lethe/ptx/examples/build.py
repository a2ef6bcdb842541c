"""Compile the examples and record one launch of each: ``python -m lethe.ptx.examples build``.

CuTe DSL compiles for one architecture per process (``CUTE_DSL_ARCH`` is read at import), so each architecture
is a child process. No GPU or driver is involved: the host launcher runs against lethe/ptx/capture.c.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lethe.ptx.examples.catalog import EXAMPLES, CuteExample
from lethe.ptx.examples.record import FOLDER, Record, save
from lethe.ptx.examples.tensors import TensorSpec
from lethe.ptx.launch import HostLauncher, Launch, Parameter

TENSOR_MAP_BYTES, MEANINGFUL_BYTES = 128, 64


def build(names: Iterable[str] = (), folder: Path = FOLDER) -> None:
    """Compile and record (all without ``names``), one child process per architecture."""
    wanted = set(names)
    unknown = wanted - {e.name for e in EXAMPLES}
    if unknown:
        raise ValueError(f"no CuTe example {', '.join(sorted(unknown))}")
    for arch in sorted({e.arch for e in EXAMPLES if not wanted or e.name in wanted}):
        with tempfile.TemporaryDirectory() as dump:
            settings = {"CUTE_DSL_ARCH": arch, "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": dump}
            command = [
                sys.executable,
                "-m",
                "lethe.ptx.examples",
                "build-arch",
                arch,
                str(folder),
                *sorted(wanted),
            ]
            subprocess.run(command, env={**os.environ, **settings}, check=True)


def build_arch(arch: str, folder: Path, names: Iterable[str] = ()) -> None:
    """Inside the child: compile and record the examples of one architecture."""
    wanted = set(names)
    for example in EXAMPLES:
        if example.arch == arch and (not wanted or example.name in wanted):
            record = compile_example(example)
            save(record, folder)
            print(f"{record.name}: {len(record.ptx.splitlines())} lines of PTX, grid {record.launch.grid}")


def compile_example(example: CuteExample) -> Record:
    """Compile one kernel, run its host launcher on drawn tensors, and record the launch."""
    import cutlass
    from cutlass import cute

    module = importlib.import_module(f"lethe.ptx.examples.{example.module}")
    dtypes = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float32": cutlass.Float32}
    kernel = getattr(module, example.kernel)(dtypes[example.dtype], **example.options)
    compiled = cute.compile(kernel, *(fake(t, dtypes[t.dtype]) for t in example.tensors))
    ptx = _text(compiled.artifacts.PTX)
    with tempfile.TemporaryDirectory() as folder:
        compiled.export_to_c(file_path=folder, file_name="kernel", function_prefix="kernel")
        launcher = HostLauncher(Path(folder) / "kernel.o", Path(folder) / "kernel.h", ptx)
    blank = Record(example.name, "", ptx, Launch("", (1, 1, 1), (1, 1, 1), 0, ()), example.tensors, "", {})
    arrays = blank.draw()
    launches = launcher.capture(*(arrays[t.name] for t in example.tensors))
    if len(launches) != 1:
        raise RuntimeError(f"{example.name} launches {len(launches)} kernels; one is recorded")
    return Record(
        example.name,
        example.about,
        ptx,
        steady(launches[0]),
        example.tensors,
        example.oracle,
        origin(module, example.arch, "nvidia-cutlass-dsl"),
        example.fault,
    )


def fake(spec: TensorSpec, dtype: Any) -> Any:
    """A tensor without memory: static shape, 16-byte aligned."""
    from cutlass.cute.runtime import make_fake_compact_tensor

    order = tuple(range(len(spec.shape)))
    return make_fake_compact_tensor(
        dtype, spec.shape, stride_order=order if spec.contiguous_first else order[::-1], assumed_align=16
    )


def steady(launch: Launch) -> Launch:
    """The launch without what differs from run to run: addresses, and bytes of a tensor map nobody writes."""
    parameters = []
    for parameter in launch.parameters:
        data, kept = bytearray(parameter.data), parameter.pointers
        if len(data) == TENSOR_MAP_BYTES:
            data[MEANINGFUL_BYTES:] = bytes(TENSOR_MAP_BYTES - MEANINGFUL_BYTES)
            kept = tuple(p for p in kept if p.offset < MEANINGFUL_BYTES)
        for pointer in kept:
            data[pointer.offset : pointer.offset + 8] = bytes(8)
        parameters.append(Parameter(bytes(data), kept))
    return Launch(launch.kernel, launch.grid, launch.block, launch.shared, tuple(parameters), launch.cluster)


def origin(module: Any, arch: str, compiler: str) -> dict[str, str]:
    """Source file, sha256 of it and parts.py, compiler and version, architecture."""
    path = Path(module.__file__)
    sources = (path, path.with_name("parts.py"))
    return {
        "source": path.name,
        "sha256": hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest(),
        "compiler": f"{compiler} {importlib.metadata.version(compiler)}",
        "arch": arch,
    }


def _text(artifact: Any) -> str:
    """An artifact is the text or the path of a kept file."""
    return artifact if "\n" in artifact else Path(artifact).read_text()
