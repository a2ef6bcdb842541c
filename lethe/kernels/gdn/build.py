"""Compile variants ahead of time: ``python -m lethe.kernels.gdn.build [--arch A] [--folder F] [NAME ...]``.

A is sm_90a (the default) or sm_100a, NAME a stage or a variant; all stages by default.

No GPU and no driver are needed, only nvidia-cutlass-dsl (which brings ptxas) and gcc or ``$CC``. What runs of
a variant are two files: ``<name>.so`` (cubin, host launcher, shim) and ``<name>.json`` (the declaration, the
launcher's symbol, where it came from). Beside them lies what only `emulate` reads: ``<name>.ptx``, and the
host launcher as ``<name>.o`` and ``<name>.h``.

The DSL reads its target architecture when it is imported, so compiling happens in a child process and this
module imports nothing of the DSL. A library is rebuilt when its sources change: the stage's module, what it
imports of this family, and the shim (`architecture`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lethe.kernels.gdn.architecture import ARCHITECTURES, HERE, SHIM, SM90, STAGES, Architecture
from lethe.kernels.gdn.declare import Argument, Variant, as_json

COMPILER = "nvidia-cutlass-dsl"

Wanted = str | Mapping[str, Any] | None
"""A variant by its name or its options; None: all of the stage."""


class BuildError(RuntimeError):
    """A variant could not be compiled or linked."""


def available() -> bool:
    """Is the DSL installed?"""
    return find_spec("cutlass") is not None and find_spec("nvidia_cutlass_dsl") is not None


def build(architecture: Architecture, stage: str, wanted: Wanted, folder: Path) -> None:
    """Compile the variant with these options or this name (all of the stage for None), unless it is current.

    BuildError with the compiler's last line if that fails.
    """
    if not available():
        raise BuildError(f"compiling a kernel needs {COMPILER}, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dump:
        settings = {
            "CUTE_DSL_ARCH": architecture.name,
            "CUTE_DSL_KEEP": "ptx,cubin",
            "CUTE_DSL_DUMP_DIR": dump,
        }
        passed = json.dumps(wanted if wanted is None or isinstance(wanted, str) else dict(wanted))
        module = [sys.executable, "-m", f"{__package__}.build", "--arch", architecture.name]
        command = [*module, "--child", stage, passed, "--folder", str(folder)]
        paths = os.pathsep.join(filter(None, (str(HERE.parents[2]), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            command,
            env={**os.environ, **settings, "PYTHONPATH": paths},
            stderr=subprocess.PIPE,
            text=True,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"compiling {stage} failed: {lines[-1]}\n{done.stderr}")


def variants(architecture: Architecture, stage: str) -> tuple[Variant, ...]:
    """What the stage's module declares. Needs the DSL."""
    declared: tuple[Variant, ...] = importlib.import_module(architecture.module(stage)).VARIANTS
    return declared


def compile_variants(architecture: Architecture, stage: str, wanted: Wanted, folder: Path) -> None:
    """Inside the child process."""
    declared = variants(architecture, stage)
    found = [v for v in declared if wanted is None or wanted in (v.name, v.options)]
    if not found:
        names = ", ".join(v.name for v in declared)
        raise BuildError(f"{stage} has no variant with {wanted}; there are {names}")
    for variant in found:
        if not is_current(architecture, variant, folder):
            compile_variant(architecture, variant, folder)
            print(f"{variant.name}: {folder / variant.name}.so", flush=True)


def is_current(architecture: Architecture, variant: Variant, folder: Path) -> bool:
    """Is there a library of the variant in the folder, for this architecture and from these sources?"""
    manifest = folder / f"{variant.name}.json"
    if not manifest.exists() or not manifest.with_suffix(".so").exists():
        return False
    described = json.loads(manifest.read_text())
    origin = (architecture.name, architecture.source_hash(variant.stage))
    return (described["arch"], described["source"]) == origin


def compile_variant(architecture: Architecture, variant: Variant, folder: Path) -> None:
    """Write a variant's files; the manifest last, so that a folder never names what is not there."""
    from cutlass import cute

    from lethe.ptx.launch import parse_header

    module = importlib.import_module(architecture.module(variant.stage))
    compiled = cute.compile(module.kernel(**variant.options), *fakes(variant.arguments))
    artifact = compiled.artifacts.PTX
    ptx = artifact if "\n" in artifact else Path(artifact).read_text()
    with tempfile.TemporaryDirectory() as scratch:
        compiled.export_to_c(file_path=scratch, file_name="k", function_prefix=variant.name)
        for suffix in (".o", ".h"):
            shutil.copy(Path(scratch) / f"k{suffix}", folder / f"{variant.name}{suffix}")
    link(folder / f"{variant.name}.o", folder / f"{variant.name}.so")
    symbol, _ = parse_header((folder / f"{variant.name}.h").read_text())
    (folder / f"{variant.name}.ptx").write_text(ptx)
    described = {
        **as_json(variant),
        "name": variant.name,
        "arch": architecture.name,
        "symbol": symbol,
        "source": architecture.source_hash(variant.stage),
        "compiler": f"{COMPILER} {importlib.metadata.version(COMPILER)}",
    }
    (folder / f"{variant.name}.json").write_text(json.dumps(described, indent=1) + "\n")


def fakes(arguments: Sequence[Argument]) -> list[Any]:
    """Arguments without memory, in the order of the declaration, then the stream."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    dtypes = {
        "float16": cutlass.Float16,
        "bfloat16": cutlass.BFloat16,
        "float32": cutlass.Float32,
        "int32": cutlass.Int32,
    }
    sizes: dict[str, Any] = {}
    made: list[Any] = []
    for argument in arguments:
        if argument.shape is None:
            made.append(dtypes[argument.dtype](1))
            continue
        for size in argument.shape:
            if isinstance(size, str) and size not in sizes:
                sizes[size] = cute.sym_int(symbol=size)
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in argument.shape)
        order = tuple(reversed(range(len(shape))))
        made.append(
            make_fake_compact_tensor(dtypes[argument.dtype], shape, stride_order=order, assumed_align=16)
        )
    return [*made, make_fake_stream()]


def link(exported: Path, library: Path) -> None:
    """The exported object and the shim as one shared library."""
    compiler = os.environ.get("CC", "gcc")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wl,-Bsymbolic"]
    partial = library.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, *flags, str(exported), str(SHIM), "-ldl", "-o", str(partial)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        raise BuildError(f"linking a kernel needs a C compiler; '{compiler}' was not found") from None
    except subprocess.CalledProcessError as e:
        raise BuildError(f"could not link {library.name}: {e.stderr.decode().strip()}") from None
    partial.replace(library)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is named (stages or variants; all by default), or be the child that compiles."""
    parser = argparse.ArgumentParser(
        prog="python -m lethe.kernels.gdn.build", description="Compile the kernels ahead of time."
    )
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default=SM90.name)
    parser.add_argument("--folder", type=Path, help="where the libraries go; by default beside the stages")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="stages or variants; all by default")
    given = parser.parse_args(arguments)
    architecture = ARCHITECTURES[given.arch]
    folder = given.folder or architecture.libraries()
    if given.child:
        stage, wanted = given.names
        compile_variants(architecture, stage, json.loads(wanted), folder)
        return 0
    for name in given.names or STAGES:
        stage = name.split("_")[0]
        if stage not in STAGES:
            print(f"{name} is neither a stage nor a variant; stages are {', '.join(STAGES)}", file=sys.stderr)
            return 2
        try:
            build(architecture, stage, None if name == stage else name, folder)
        except BuildError as error:
            print(str(error).splitlines()[0], file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
