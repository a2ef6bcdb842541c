"""The source text that a counterexample holds for its reference: of a file, or cut out for a callable.

A callable of an `OpSpec` is taken together with the statements of its module that it needs, and with
nothing else: the module itself may import anything, this package included.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from lethe.verifier import sites
from lethe.verifier.formats import FormatError, parse
from lethe.verifier.problem import OpSpec, Problem

MODEL = """

class Model(torch.nn.Module):
    def forward(self, *inputs):
        return reference(*inputs)
"""


class NoSource(ValueError):
    """A callable's source cannot be taken out of its file; the message says why."""


def reference_source(problem: Problem, sizes: dict[str, int]) -> str:
    """A text that defines ``Model`` (and ``get_inputs``, or ``oracle`` where the problem brings one).

    Raises NoSource.
    """
    if problem.spec is None:
        return sites.substitute(problem.source, sizes) if sizes else problem.source
    return spec_source(problem.spec)


def spec_source(spec: OpSpec) -> str:
    """The reference of an `OpSpec`, and its oracle, as a text of its own. Raises NoSource."""
    wanted: dict[str, Callable[..., Any]] = {"reference": spec.reference}
    if spec.oracle is not None:
        wanted["oracle"] = spec.oracle
    parts = ["import torch"]
    for name, f in wanted.items():
        text, own = _cut_out(f)
        parts.append(text if own == name else f"{text}\n\n{name} = {own}")
    return "\n\n".join(parts) + MODEL


def _cut_out(f: Callable[..., Any]) -> tuple[str, str]:
    """Source text that defines a callable, and the expression that names it there."""
    public = _torch_name(f)
    if public:
        return "import torch", public
    if not (inspect.isfunction(f) or inspect.isclass(f)):
        raise NoSource(f"the reference is a {type(f).__name__}, not a function with a source of its own")
    if f.__name__ == "<lambda>" or f.__qualname__ != f.__name__:
        raise NoSource(f"the reference {f.__qualname__} is not defined at module level, so it has no source")
    try:
        module = sys.modules[f.__module__]
        tree = parse(inspect.getsource(module))
    except (KeyError, OSError, TypeError, FormatError) as e:
        raise NoSource(f"the source file of {f.__name__} cannot be read ({e})") from None
    return _slice(tree, f.__name__, module), f.__name__


def _torch_name(f: Any) -> str:
    """``torch.relu``, ``torch.nn.functional.gelu``... where the callable is torch's own."""
    import torch

    name = getattr(f, "__name__", "")
    for path, holder in (("torch", torch), ("torch.nn.functional", torch.nn.functional)):
        if name and getattr(holder, name, None) is f:
            return f"{path}.{name}"
    return ""


def _slice(tree: ast.Module, name: str, module: ModuleType) -> str:
    """The statements of a module that `name` needs, directly or not, in their order."""
    bound: dict[str, list[ast.stmt]] = {}
    for s in tree.body:
        for n in _binds(s):
            bound.setdefault(n, []).append(s)
    needed: set[ast.stmt] = set()
    pending, seen = [name], set()
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        if n not in bound:
            if n in vars(module) and not hasattr(builtins, n):
                raise NoSource(f"{name} uses {n}, which no statement of its module defines plainly")
            continue
        for s in bound[n]:
            needed.add(s)
            pending += [x.id for x in ast.walk(s) if isinstance(x, ast.Name)]
    chosen = [s for s in tree.body if s in needed]
    for s in chosen:
        _refuse_import(s, name)
    return "\n".join(ast.unparse(s) for s in chosen)


def _binds(s: ast.stmt) -> Iterator[str]:
    if isinstance(s, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        yield s.name
    elif isinstance(s, (ast.Import, ast.ImportFrom)):
        for alias in s.names:
            yield alias.asname or alias.name.split(".")[0]
    else:
        for node in ast.walk(s):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _refuse_import(s: ast.stmt, name: str) -> None:
    """A script that stands alone may import what is installed, not what lies beside the reference."""
    if isinstance(s, ast.ImportFrom) and s.level:
        raise NoSource(f"{name} needs a relative import, which means nothing outside its package")
    names = [a.name for a in s.names] if isinstance(s, ast.Import) else []
    names += [s.module or ""] if isinstance(s, ast.ImportFrom) else []
    for n in names:
        root = n.split(".")[0]
        if root not in sys.stdlib_module_names and root not in ("torch", "triton", "numpy", "__future__"):
            raise NoSource(f"{name} imports {root}, which a script of its own cannot count on")
