"""The NaN-keeping twin of a Triton candidate: the same source, in which no maximum or minimum drops a NaN.

``tl.max``, ``tl.min``, ``tl.maximum``, ``tl.minimum`` and ``tl.clamp`` return the other operand of a NaN
unless asked otherwise (IEEE 754's maxNum). In the twin they propagate it; so do reductions with such a
combine function and libdevice's ``fmax`` and ``fmin``. Comparisons (``tl.where(x > 0, x, 0)``), Python's own
``max`` inside a kernel, and C++ are left as they are.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from lethe.verifier.formats import FormatError, parse

HOMES = ("triton.language", "triton.language.core", "triton.language.standard")
POINTWISE = {"maximum": 2, "minimum": 2, "clamp": 3}
"""Functions that take ``propagate_nan``, and how many arguments come before it."""
LIBDEVICE = {"fmax": "maximum", "fmin": "minimum"}
REDUCTIONS = {"max": "_lethe_max", "min": "_lethe_min"}
COMBINERS = {"_elementwise_max": "_lethe_larger", "_elementwise_min": "_lethe_smaller"}

_REDUCTION = """
@_lethe_triton.jit
def _lethe_{name}(
    input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False
):
    left = return_indices_tie_break_left
    if input.dtype.is_floating():
        absent = (input != input).to(_lethe_tl.int32)
        if return_indices:
            value, index = _lethe_tl.{name}(input, axis, True, left, keep_dims=keep_dims)
            found, at = _lethe_tl.max(absent, axis, True, True, keep_dims=keep_dims)
            return _lethe_tl.where(found > 0, float("nan"), value), _lethe_tl.where(found > 0, at, index)
        else:
            value = _lethe_tl.{name}(input, axis, keep_dims=keep_dims)
            found = _lethe_tl.max(absent, axis, keep_dims=keep_dims)
            return _lethe_tl.where(found > 0, float("nan"), value)
    else:
        return _lethe_tl.{name}(input, axis, return_indices, left, keep_dims=keep_dims)
"""
_COMBINER = """
@_lethe_triton.jit
def {name}(a, b):
    return _lethe_tl.{function}(a, b, propagate_nan=_lethe_tl.PropagateNan.ALL)
"""
_HELPERS = (
    "import triton as _lethe_triton\nimport triton.language as _lethe_tl\n"
    + "".join(_REDUCTION.format(name=name) for name in REDUCTIONS)
    + _COMBINER.format(name="_lethe_larger", function="maximum")
    + _COMBINER.format(name="_lethe_smaller", function="minimum")
)


@lru_cache(maxsize=256)
def twin(source: str) -> str | None:
    """The NaN-keeping twin of `source`; None where there is nothing to rewrite, or no Python to read."""
    try:
        tree = parse(source)
        rewriter = _Rewriter(_origins(tree))
        rewriter.visit(tree)
        if not rewriter.rewritten:
            return None
        at = _after_the_head(tree)
        tree.body[at:at] = parse(_HELPERS).body
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    except (FormatError, RecursionError):
        return None


def _after_the_head(tree: ast.Module) -> int:
    """Where imports may stand: behind the docstring and ``from __future__``."""
    at = 0
    for k, node in enumerate(tree.body):
        docstring = k == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            at = k + 1
    return at


def _origins(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for, if it is of triton: ``tl`` -> ``triton.language``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.split(".")[0] == "triton":
                    found[a.asname or "triton"] = a.name if a.asname else "triton"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "triton":
            found.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return found


class _Rewriter(ast.NodeTransformer):
    def __init__(self, origins: dict[str, str]) -> None:
        self.origins = origins
        self.in_kernel = 0
        self.rewritten = False

    def _path(self, node: ast.expr) -> str:
        """``"triton.language.max"`` for ``tl.max``; empty for what is not of triton."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self._path(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def _named(self, name: str) -> ast.Name:
        self.rewritten = True
        return ast.Name(name, ast.Load())

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
        self.in_kernel += kernel
        self.generic_visit(node)
        self.in_kernel -= kernel
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr in COMBINERS and self._path(node).rpartition(".")[0] in HOMES:
            return self._named(COMBINERS[node.attr])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        home, _, name = self._path(node.func).rpartition(".")
        method = (
            node.func.attr if self.in_kernel and not home and isinstance(node.func, ast.Attribute) else ""
        )
        if home and name in LIBDEVICE:
            return self._keeping(node, LIBDEVICE[name])
        if home in HOMES and name in POINTWISE and not _keeps(node):
            return self._keeping(node, name)
        if home in HOMES and name in REDUCTIONS:
            node.func = self._named(REDUCTIONS[name])
        elif method in REDUCTIONS and isinstance(node.func, ast.Attribute):  # of a tensor: x.max(0)
            node.args.insert(0, node.func.value)
            node.func = self._named(REDUCTIONS[method])
        return node

    def _keeping(self, node: ast.Call, name: str) -> ast.Call:
        """The call of a pointwise function with ``propagate_nan=tl.PropagateNan.ALL``."""
        language = self._named("_lethe_tl")
        node.func = ast.Attribute(language, name, ast.Load())
        node.args = node.args[: POINTWISE[name]]
        node.keywords = [k for k in node.keywords if k.arg != "propagate_nan"]
        everything = ast.Attribute(ast.Attribute(language, "PropagateNan", ast.Load()), "ALL", ast.Load())
        node.keywords.append(ast.keyword("propagate_nan", everything))
        return node


def _keeps(node: ast.Call) -> bool:
    """Whether a call asks for NaN to be propagated."""
    return any(k.arg == "propagate_nan" and "ALL" in ast.unparse(k.value) for k in node.keywords)
