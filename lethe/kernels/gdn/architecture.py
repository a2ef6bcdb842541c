"""The architectures that have native kernels, and all that differs between them outside of the kernels.

Plain data without torch and without the DSL. An architecture's stages are the modules of a package of its own
(`sm90`, `sm100`); `build`, `launch` and `emulate` take an `Architecture` and are the same for all.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STAGES = ("prep", "scan", "out", "forward")
HERE = Path(__file__).parent
SHIM = HERE / "shim.c"
_FAMILY = "lethe.kernels.gdn"


@dataclass(frozen=True)
class Architecture:
    """One target of the compiler."""

    name: str
    """As the compiler and a manifest spell it; such code runs on exactly one compute capability."""
    capability: tuple[int, int]
    package: str
    """Of the stages, in this family."""

    def module(self, stage: str) -> str:
        """Name of the module of a stage."""
        return f"{_FAMILY}.{self.package}.{stage}"

    def cache(self) -> Path:
        """Where variants are compiled on first use: ``gdn_<package>`` in ``$LETHE_GDN_CACHE`` or
        ``~/.cache/lethe``."""
        given = os.environ.get("LETHE_GDN_CACHE")
        return (Path(given) if given else Path.home() / ".cache" / "lethe") / f"gdn_{self.package}"

    def libraries(self) -> Path:
        """Where a checkout keeps libraries, and where they are built by default."""
        return HERE / self.package / "libraries"

    def folders(self) -> Iterator[Path]:
        """Where libraries are looked for, in order: the folders of ``$LETHE_GDN_LIBRARIES``, separated as
        in ``PATH``; `libraries`; `cache`."""
        given = os.environ.get("LETHE_GDN_LIBRARIES", "")
        yield from map(Path, filter(None, given.split(os.pathsep)))
        yield self.libraries()
        yield self.cache()

    def source_hash(self, stage: str) -> str:
        """What a library of this stage depends on: the stage's module, what it imports of this family, and
        the shim."""
        total = hashlib.sha256()
        for path in sorted({*_sources(HERE / self.package / f"{stage}.py"), SHIM}):
            total.update(path.relative_to(HERE).as_posix().encode() + path.read_bytes())
        return total.hexdigest()


SM90 = Architecture("sm_90a", (9, 0), "sm90")
SM100 = Architecture("sm_100a", (10, 0), "sm100")
ARCHITECTURES = {architecture.name: architecture for architecture in (SM90, SM100)}


def _sources(start: Path) -> set[Path]:
    """A module and what it imports from this family, directly or not."""
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in found and path.exists():
            found.add(path)
            waiting += _imports(path, path.stat().st_mtime_ns)
    return found


@functools.cache
def _imports(path: Path, modified_ns: int) -> tuple[Path, ...]:
    """Files that a module may import from this family, by what its import statements name."""
    found: list[Path] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_FAMILY):
            module = HERE.parents[2].joinpath(*(node.module or "").split("."))
            found += [module.with_suffix(".py"), *(module / f"{name.name}.py" for name in node.names)]
    return tuple(found)
