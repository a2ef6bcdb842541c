"""Compile variants for sm_100a: ``python -m lethe.kernels.gdn.sm100.build [--folder F] [NAME ...]``.

As `sm90.build`, whose files, manifest and shim it shares; the architecture and the stages' modules are other
ones, and a library depends on both packages' sources.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lethe.kernels.gdn.sm90.build import COMPILER, SHIM, BuildError, Wanted, available, fakes, link
from lethe.kernels.gdn.sm90.declare import Variant, as_json

ARCH = "sm_100a"
STAGES = ("prep", "scan", "out", "forward")
HERE = Path(__file__).parent
_FAMILY = "lethe.kernels.gdn"


def cache() -> Path:
    """Where variants are compiled on first use: beside those of `sm90.build`, in ``gdn_sm100``."""
    given = os.environ.get("LETHE_GDN_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "lethe") / "gdn_sm100"


def source_hash(stage: str) -> str:
    """What a library of this stage depends on: its module, what that imports of this family, the shim."""
    found: set[Path] = set()
    waiting = [HERE / f"{stage}.py"]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_FAMILY):
                module = HERE.parents[2].joinpath(*(node.module or "").split(".")[1:])
                waiting += [module.with_suffix(".py"), *(module / f"{name.name}.py" for name in node.names)]
    named = ((f"{path.parent.name}/{path.name}".encode(), path) for path in sorted({*found, SHIM}))
    return hashlib.sha256(b"".join(name + path.read_bytes() for name, path in named)).hexdigest()


def variants(stage: str) -> tuple[Variant, ...]:
    """What the stage's module declares. Needs the DSL."""
    declared: tuple[Variant, ...] = importlib.import_module(f"{__package__}.{stage}").VARIANTS
    return declared


def build(stage: str, wanted: Wanted, folder: Path) -> None:
    """Compile the variant with these options or this name (all of the stage for None), unless it is current.

    In a child process, because the DSL reads its architecture when it is imported. BuildError with the
    compiler's last line if that fails.
    """
    if not available():
        raise BuildError(f"compiling a kernel needs {COMPILER}, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dump:
        settings = {"CUTE_DSL_ARCH": ARCH, "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": dump}
        passed = json.dumps(wanted if wanted is None or isinstance(wanted, str) else dict(wanted))
        paths = os.pathsep.join(filter(None, (str(HERE.parents[3]), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else f"{__package__}.build",
             "--child", stage, passed, "--folder", str(folder)],
            env={**os.environ, **settings, "PYTHONPATH": paths},
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"compiling {stage} failed: {lines[-1]}\n{done.stderr}")


def compile_variants(stage: str, wanted: Wanted, folder: Path) -> None:
    """Inside the child process."""
    found = [v for v in variants(stage) if wanted is None or wanted in (v.name, v.options)]
    if not found:
        raise BuildError(f"{stage} has no variant with {wanted}")
    current = source_hash(stage)
    for variant in found:
        manifest = folder / f"{variant.name}.json"
        if not manifest.exists() or json.loads(manifest.read_text())["source"] != current:
            compile_variant(variant, folder, current)
            print(f"{variant.name}: {folder / variant.name}.so", flush=True)


def compile_variant(variant: Variant, folder: Path, source: str) -> None:
    """Write a variant's files; the manifest last, so that a folder never names what is not there."""
    from cutlass import cute

    from lethe.ptx.launch import parse_header

    module = importlib.import_module(f"{__package__}.{variant.stage}")
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
        "arch": ARCH,
        "symbol": symbol,
        "source": source,
        "compiler": f"{COMPILER} {importlib.metadata.version(COMPILER)}",
    }
    (folder / f"{variant.name}.json").write_text(json.dumps(described, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build what is named (stages or variants; all by default), or be the child that compiles."""
    parser = argparse.ArgumentParser(description="Compile the kernels for sm_100a.")
    parser.add_argument("--folder", type=Path, default=HERE / "libraries", help="where the libraries go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="stages or variants; all by default")
    given = parser.parse_args(arguments)
    if given.child:
        stage, wanted = given.names
        compile_variants(stage, json.loads(wanted), given.folder)
        return
    for name in given.names or STAGES:
        stage = name.split("_")[0]
        build(stage, None if name == stage else name, given.folder)


if __name__ == "__main__":
    main()
