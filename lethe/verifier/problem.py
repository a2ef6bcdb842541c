"""What is judged: a problem (the reference) and a candidate (the suspect's source).

References come in KernelBench's format: a Python file with ``class Model(nn.Module)``,
``get_inputs()`` and optionally ``get_init_inputs()``. The reference is trusted and
runs in the judge; a candidate is only parsed here.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.verifier import formats
from lethe.verifier.sites import written_sizes

if TYPE_CHECKING:
    from torch import nn


class ProblemError(ValueError):
    """The reference cannot be used; the message is one sentence that says what to do."""


class CandidateError(ValueError):
    """The candidate's source cannot be read or holds no entry point."""


@dataclass(frozen=True)
class OpSpec:
    """A problem given as plain callables instead of a KernelBench file."""

    name: str
    reference: Callable[..., Any]
    """Torch code in working precision: ``reference(*inputs)`` -> tensor or container."""
    inputs: Callable[..., list[Any]]
    """``inputs(**sizes)`` draws the arguments from torch's global RNG (seeded by the judge)."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Free dimensions by name, at their usual value."""
    oracle: Callable[..., Any] | None = None
    """Hand-written float64 oracle; None evaluates `reference` in float64."""
    dtypes: tuple[str, ...] = ("float32",)
    """Input dtypes the operator is declared for."""
    stochastic: bool = False
    in_place: tuple[int, ...] = ()
    """Indices of inputs that the operator is declared to write."""


@dataclass(frozen=True)
class Problem:
    """A reference operator: a KernelBench-format source text, or an `OpSpec`."""

    name: str
    source: str = ""
    spec: OpSpec | None = None
    path: str = ""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


@dataclass(frozen=True)
class Candidate:
    """A kernel somebody else wrote: source text and how to enter it."""

    name: str
    source: str
    language: str
    """``"triton"``, ``"cpp"`` or ``"python"``; ``"native"`` where its author says that it launches kernels
    from a compiled library of its own, which no text shows."""
    entry: str = "ModelNew"
    """Name of an ``nn.Module`` class, or of a function when `kind` is ``"function"``."""
    kind: str = "module"
    path: str = ""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


@dataclass
class Instance:
    """A problem built at certain sizes: the reference module and a way to draw its inputs."""

    problem: Problem
    sizes: dict[str, int]
    """Substituted sizes by site name; empty means as written."""
    init: Any
    """What ``get_init_inputs`` returned: a list of arguments or a dict of keywords."""
    module: nn.Module
    """The reference, float32, in eval mode, built right after ``torch.manual_seed(seed)``."""
    seed: int
    draw: Callable[[int], list[Any]]
    """``draw(seed)`` -> the reference's own inputs (``get_inputs``), float tensors as float32."""
    notes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found out about it (the structure of its inputs), so that it is found once."""


def load_problem(origin: str | Path, name: str = "") -> Problem:
    """Read a KernelBench-format reference (a path, or source text); nothing is executed.

    Raises ProblemError.
    """
    label = _label(origin, name, "the reference")
    try:
        source, path = formats.read_source(origin)
        defined = formats.definitions(formats.parse(source))
    except formats.FormatError as e:
        raise ProblemError(f"{label} {e}") from None
    if defined.get("Model") is None:
        raise ProblemError(f"{label} defines no class Model")
    if defined.get("get_inputs") is None:
        raise ProblemError(f"{label} defines no function get_inputs")
    return Problem(name or (Path(path).stem if path else "problem"), source, path=path)


def problem_from_spec(spec: OpSpec) -> Problem:
    """A problem given as callables; its `source` is their text, for the hash only."""
    parts = []
    for f in (spec.reference, spec.inputs, spec.oracle):
        try:
            parts.append(inspect.getsource(f) if f is not None else "")
        except (OSError, TypeError):
            parts.append(repr(getattr(f, "__qualname__", type(f).__qualname__)))
    return Problem(spec.name, "\n".join(parts), spec=spec)


def load_candidate(origin: str | Path, entry: str = "ModelNew", name: str = "") -> Candidate:
    """Read a candidate (a path, or source text); nothing is executed.

    `entry` is an ``nn.Module`` class or a function defined at module level.
    Raises CandidateError.
    """
    label = _label(origin, name, "the candidate")
    try:
        source, path = formats.read_source(origin)
        tree = formats.parse(source)
    except formats.FormatError as e:
        raise CandidateError(f"{label} {e}") from None
    defined = formats.definitions(tree)
    kind = defined.get(entry)
    if kind is None:
        others = [n for n, k in defined.items() if k in ("class", "function")]
        raise CandidateError(f"{label} defines no {entry!r} (it defines {', '.join(others) or 'nothing'})")
    return Candidate(
        name or (Path(path).stem if path else "candidate"),
        source,
        formats.language(tree),
        entry,
        "function" if kind == "function" else "module",
        path,
    )


def candidate_from_callable(f: Any) -> Candidate:
    """The candidate that a module-level function or ``nn.Module`` class is.

    Its source is the file of its module, which the suspect executes anew.
    Raises CandidateError for lambdas, closures, methods and instances.
    """
    remedy = "define it at module level of a file and pass the function or class itself"
    if not (inspect.isfunction(f) or inspect.isclass(f)):
        raise CandidateError(f"a {type(f).__name__} is not a function or an nn.Module class; {remedy}")
    if inspect.isclass(f):
        from torch import nn

        if not issubclass(f, nn.Module):
            raise CandidateError(f"the class {f.__name__} is not an nn.Module; {remedy}")
    if f.__name__ == "<lambda>":
        raise CandidateError(f"a lambda has no name to enter it by; {remedy}")
    if f.__qualname__ != f.__name__:
        raise CandidateError(f"{f.__qualname__} is defined inside another function or class; {remedy}")
    path = ""
    try:
        path = inspect.getsourcefile(f) or ""
        source, _ = formats.read_source(Path(path))
        module = sys.modules.get(f.__module__)
        source = formats.absolute_imports(source, getattr(module, "__package__", None) or "")
    except (formats.FormatError, TypeError) as e:
        raise CandidateError(f"the source file of {f.__name__} ({path or 'unknown'}) {e}; {remedy}") from None
    candidate = load_candidate(source, f.__name__, f.__name__)
    return Candidate(candidate.name, source, candidate.language, f.__name__, candidate.kind, path)


def sizes_as_written(problem: Problem) -> dict[str, int]:
    """Every size site of the problem (see `sites`) with its value; for an OpSpec its `sizes`."""
    return dict(problem.spec.sizes) if problem.spec is not None else written_sizes(problem.source)


def instantiate(
    problem: Problem, sizes: Mapping[str, int] | None = None, seed: int = 0, device: str = "cpu"
) -> Instance:
    """Build the reference at `sizes` (site name -> value; others as written).

    The module is built on the CPU right after seeding with `seed`, cast to float32,
    put in eval mode and moved to `device`; ``draw(seed)`` draws on the CPU too, so
    that values do not depend on the device. On ``"meta"`` nothing is allocated.
    The global random states are left as they were. Raises ProblemError.
    """
    from lethe.verifier.reference import build

    try:
        return build(problem, dict(sizes or {}), seed, device)
    except ProblemError:
        raise
    except ValueError as e:
        raise ProblemError(f"{problem.name}: {e}") from None


def _label(origin: str | Path, name: str, default: str) -> str:
    if name:
        return name
    text = str(origin)
    return default if "\n" in text or not text else Path(text).name
