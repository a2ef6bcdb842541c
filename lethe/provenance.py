"""Where a number came from: the sources it depends on, the machine, and the raw samples.

A *measured* file is one JSON document under ``data/measured/<device>/`` that an explicit
record rule writes. It carries the sha256 of every source file that the measurement depends
on, the measuring script among them, so that the book can mark it *stale* once one changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = "lethe.measured/1"
ROOT = Path(__file__).resolve().parent.parent
"""The top of the checkout; source paths in a measured file are relative to it."""

UNITS = ("lethe/verifier",)
"""Folders that count as one source: their processes start each other by name, not by an import
statement that could be read off the file."""

VERSIONED = ("torch", "triton", "nvidia-cutlass-dsl", "numpy")
"""Distributions whose versions a measured file names."""


class ProvenanceError(ValueError):
    """A measured file that cannot be read, or that another version of lethe wrote."""


# --- what a file depends on -----------------------------------------------------------------


def imported_modules(path: Path, *, package: str = "lethe", root: Path = ROOT) -> set[str]:
    """Names of the modules of `package` that a Python file imports, at any depth of nesting.

    Imports inside functions count, imports under ``if TYPE_CHECKING:`` do not (they never run).
    ``from lethe.a import b`` yields ``lethe.a.b`` if that is a module, else ``lethe.a``.
    Raises SyntaxError if the file is not Python.
    """
    here = _module_name(path, root)
    found: set[str] = set()

    def add(name: str, attributes: Sequence[str] = ()) -> None:
        if name != package and not name.startswith(package + "."):
            return
        submodules = [f"{name}.{a}" for a in attributes if _module_file(f"{name}.{a}", root)]
        found.update(submodules)
        if len(submodules) < max(len(attributes), 1):
            found.add(name)

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for unchecked in node.orelse:
                walk(unchecked)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = here.split(".")
                cut = node.level - (1 if path.name == "__init__.py" else 0)
                base = ".".join([*parents[: len(parents) - cut], *([base] if base else [])])
            add(base, [alias.name for alias in node.names])
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    return found


def closure(paths: Iterable[str | Path], *, root: Path = ROOT) -> list[Path]:
    """Every source file that the given files depend on, themselves included, sorted.

    Python files are followed through their imports of ``lethe``; a folder stands for all the
    files in it but caches and hidden ones; anything else stands for itself.
    Raises FileNotFoundError for a missing path.
    """
    todo = [Path(p) if Path(p).is_absolute() else root / p for p in paths]
    seen: set[Path] = set()
    folders: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen or path in folders:
            continue
        if not path.exists():
            raise FileNotFoundError(f"no source file {path}")
        if path.is_dir():
            folders.add(path)
            todo += [p for p in path.rglob("*") if p.is_file() and not _is_ignored(p.relative_to(path))]
            continue
        seen.add(path)
        if path.suffix != ".py" or _is_data(path, root):
            continue
        for name in _imports(path, path.stat().st_mtime_ns, root):
            file = _module_file(name, root)
            if file is not None:
                todo.append(file)
                todo += [p for p in _package_inits(file, root) if p.exists()]
                todo += [root / u for u in UNITS if file.is_relative_to(root / u)]
    return sorted(seen)


@cache
def _imports(path: Path, modified_ns: int, root: Path) -> frozenset[str]:
    """`imported_modules`, parsed once per version of a file: a workflow asks for many closures in a row."""
    return frozenset(imported_modules(path, root=root))


def digest(paths: Iterable[str | Path], *, root: Path = ROOT) -> str:
    """One sha256 over the names and contents of `closure(paths)`."""
    total = hashlib.sha256()
    for path in closure(paths, root=root):
        total.update(f"{_relative(path, root)}\0{sha256(path)}\n".encode())
    return total.hexdigest()


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, as hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _module_name(path: Path, root: Path) -> str:
    try:
        parts = path.resolve().relative_to(root).with_suffix("").parts
    except ValueError:
        return path.stem
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module_file(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _package_inits(file: Path, root: Path) -> list[Path]:
    """``__init__.py`` of the packages around a module, except the root package's.

    ``lethe/__init__.py`` only forwards names lazily; counting it would tie every module to the
    verifier that it forwards to.
    """
    inits = []
    folder = file.parent
    while folder != root and folder.parent != root and folder.is_relative_to(root):
        inits.append(folder / "__init__.py")
        folder = folder.parent
    return inits


def _is_ignored(relative: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in relative.parts)


def _is_data(path: Path, root: Path) -> bool:
    """Candidates and references in a corpus are data: they are hashed, never followed."""
    return path.is_relative_to(root / "data")


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


# --- the machine ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """The device on which something was measured."""

    name: str
    kind: str
    """``"cuda"`` or ``"cpu"``."""
    sm_count: int = 0
    capability: str = ""
    """Compute capability, e.g. ``"9.0"``; empty on a CPU."""
    driver: str = ""

    @property
    def slug(self) -> str:
        """The folder under ``data/measured`` that this device's files live in: ``"h200"``, or ``"cpu"``."""
        if self.kind == "cpu":
            return "cpu"
        drop = {"nvidia", "tesla", "geforce", "(r)", "(tm)", "cpu", "@"}
        words = [w for w in self.name.lower().replace("/", " ").split() if w not in drop]
        return "-".join("".join(c for c in w if c.isalnum() or c == ".") for w in words) or self.kind


def device(kind: str = "auto") -> Device:
    """Describe the CUDA device if there is one (or is asked for), else this CPU.

    Raises RuntimeError if `kind` is ``"cuda"`` and torch sees no device.
    """
    import torch

    if kind != "cpu" and torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        capability = f"{p.major}.{p.minor}"
        return Device(p.name, "cuda", p.multi_processor_count, capability, _driver())
    if kind == "cuda":
        raise RuntimeError("device=cuda was asked for, but torch sees no CUDA device on this machine.")
    return Device(_cpu_name(), "cpu")


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return out.split("\n", 1)[0].strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"


def versions() -> dict[str, str]:
    """Versions of Python and of the distributions in `VERSIONED` that are installed."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# --- measured files -------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One measured file."""

    experiment: str
    date: str
    """UTC, ISO 8601, to the second."""
    device: Device
    versions: dict[str, str]
    command: str
    parameters: dict[str, Any]
    samples: Any
    """The raw samples; JSON values."""
    script: str
    """The measuring script, relative to the checkout."""
    sources: dict[str, str] = field(default_factory=dict)
    """Relative path -> sha256, the measuring script among them."""
    units: dict[str, str] = field(default_factory=dict)
    """Name of a sampled quantity -> its unit."""
    schema: str = SCHEMA


def record(
    path: Path,
    *,
    experiment: str,
    samples: Any,
    parameters: Mapping[str, Any],
    script: str | Path,
    sources: Iterable[str | Path] = (),
    units: Mapping[str, str] | None = None,
    on: Device | None = None,
    command: str | None = None,
    root: Path = ROOT,
) -> Measurement:
    """Write a measured file atomically and return what was written.

    `sources` adds to what `script` imports: folders of data, kernels compiled by name.
    Raises TypeError if `samples` or `parameters` are not JSON values.
    """
    files = closure([script, *sources], root=root)
    measurement = Measurement(
        experiment=experiment,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=on if on is not None else device(),
        versions=versions(),
        command=command if command is not None else " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        parameters=dict(parameters),
        samples=samples,
        script=_relative(Path(script) if Path(script).is_absolute() else root / script, root),
        sources={_relative(f, root): sha256(f) for f in files},
        units=dict(units or {}),
    )
    write_atomically(path, _text(measurement))
    return measurement


def _text(measurement: Measurement) -> str:
    """The file's JSON: indented, but a line for each sample where they are a list."""
    d = asdict(measurement)
    samples = d["samples"]
    if not isinstance(samples, list) or not samples:
        return json.dumps(d, indent=1, sort_keys=True, allow_nan=False) + "\n"
    mark = "samples go here"
    text = json.dumps({**d, "samples": mark}, indent=1, sort_keys=True, allow_nan=False)
    rows = ",\n  ".join(json.dumps(s, sort_keys=True, allow_nan=False) for s in samples)
    head, tail = text.split(json.dumps(mark))
    return f"{head}[\n  {rows}\n ]{tail}\n"


def load(path: Path) -> Measurement:
    """Read a measured file. Raises ProvenanceError with one sentence if it is not one."""
    try:
        d = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ProvenanceError(f"{path} cannot be read: {e.strerror}.") from e
    except ValueError as e:
        raise ProvenanceError(f"{path} is not JSON: {e}.") from e
    if not isinstance(d, dict) or d.get("schema") != SCHEMA:
        found = d.get("schema") if isinstance(d, dict) else None
        raise ProvenanceError(f"{path} holds schema {found!r}, this version of lethe reads {SCHEMA!r}.")
    try:
        return Measurement(**{**d, "device": Device(**d["device"])})
    except (KeyError, TypeError) as e:
        raise ProvenanceError(f"{path} is not a complete measured file: {e}.") from e


def stale(measurement: Measurement | Path, *, root: Path = ROOT) -> list[str]:
    """Sources that changed or vanished since the measurement, sorted; empty if it is current."""
    m = load(measurement) if isinstance(measurement, Path) else measurement
    changed = []
    for name, expected in m.sources.items():
        file = root / name
        if not file.is_file() or sha256(file) != expected:
            changed.append(name)
    return sorted(changed)


def measured_files(folder: Path = ROOT / "data" / "measured") -> list[Path]:
    """All measured files, sorted by device and experiment."""
    return sorted(folder.glob("*/*.json"))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old content or the new, never a part.

    Not the verifier's own: whatever imports from the verifier is stale when any file of it changes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
