"""The official mamba-ssm, for reading and compiling: located, unpacked, imported without its CUDA extension.

Nothing of it is committed. `locate` finds a source archive, an unpacked one or a checkout; `fetch` downloads
the archive with pip. `install` puts bare package objects in front of the official modules, so that importing
one of them does not run ``mamba_ssm/__init__.py``, which needs compiled extensions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

VERSION = "2.3.2.post1"
ARCHIVE = f"mamba_ssm-{VERSION}.tar.gz"
SHA256 = "104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"
"""Of the source archive on PyPI."""

VARIABLE = "LETHE_MAMBA_SSM"
"""Environment variable that says where the archive, an unpacked copy or a checkout is."""

PACKAGES = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.mamba3")
EXTENSIONS = ("selective_scan_cuda", "causal_conv1d", "causal_conv1d_cuda")


class OfficialMissing(RuntimeError):
    """The official sources are not at hand; the message says how to get them."""


def locate(path: str | Path | None = None) -> Path:
    """The archive or folder at `path`, else at ``$LETHE_MAMBA_SSM``. Raises OfficialMissing."""
    given = path or os.environ.get(VARIABLE)
    if not given:
        raise OfficialMissing(f"set {VARIABLE} to the {ARCHIVE} of PyPI, an unpacked copy, or a checkout")
    found = Path(given)
    if found.is_dir() and not (found / "mamba_ssm").is_dir():
        inside = [found / ARCHIVE, found / ARCHIVE.removesuffix(".tar.gz")]
        found = next((p for p in inside if p.exists()), found)
    if not (found.is_file() or (found / "mamba_ssm").is_dir()):
        raise OfficialMissing(f"{found} is neither a source archive nor a folder with mamba_ssm in it")
    return found


def fetch(folder: Path) -> Path:
    """Download the source archive from the package index with pip, and check it. Raises OfficialMissing."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
        "--no-binary", ":all:", "--dest", str(folder), f"mamba-ssm=={VERSION}",
    ]  # fmt: skip
    environment = {**os.environ, "MAMBA_SKIP_CUDA_BUILD": "TRUE"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    archive = folder / ARCHIVE
    if done.returncode or not archive.is_file():
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise OfficialMissing(f"mamba-ssm {VERSION} could not be downloaded: {lines[-1]}")
    return archive


def unpack(found: Path, folder: Path) -> Path:
    """The folder that holds ``mamba_ssm``: `found` itself, or the archive's content below `folder`.

    Raises OfficialMissing for an archive that is not the one of `VERSION`.
    """
    if found.is_dir():
        return found
    if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
        raise OfficialMissing(
            f"{found} is not the source archive of mamba-ssm {VERSION} (its sha256 differs)"
        )
    with tarfile.open(found) as archive:
        archive.extractall(folder, filter="data")
    return folder / ARCHIVE.removesuffix(".tar.gz")


def install(root: Path) -> None:
    """Make ``mamba_ssm.*`` of `root` importable in this process, packages and extensions as bare modules."""
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
        sys.modules["einops"] = _without_einops()


def _without_einops() -> types.ModuleType:
    """The kernels' modules import einops for their callers; compiling a kernel calls none of it."""

    def absent(*_: Any, **__: Any) -> Any:
        raise OfficialMissing("this official function needs einops: pip install einops")

    module = types.ModuleType("einops")
    for name in ("rearrange", "repeat", "reduce"):
        setattr(module, name, absent)
    return module
