"""What a source says that behaviour alone cannot: maxNum semantics, weights read early, a compiler called."""

from __future__ import annotations

import ast
from functools import lru_cache

_TRITON = {"max", "min", "maximum", "minimum", "clamp"}
_C = ("fmaxf", "fminf", "std::max", "std::min", "fmax(", "fmin(")


@lru_cache(maxsize=256)
def drops_nan(source: str) -> bool:
    """True if the source takes maxima or minima that drop NaN by their default.

    ``tl.max``, ``tl.min``, ``tl.maximum``, ``tl.minimum`` and ``tl.clamp`` without
    ``propagate_nan=tl.PropagateNan.ALL`` return the other operand; so do C's ``fmaxf`` and
    comparisons by ``std::max``. A finding on such a source carries the *maxNum* sub-label.
    """
    if any(word in source for word in _C):
        return True
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in _TRITON or not isinstance(node.func.value, ast.Name):
            continue
        if node.func.value.id not in ("tl", "language"):
            continue
        if not any(k.arg == "propagate_nan" and "ALL" in ast.unparse(k.value) for k in node.keywords):
            return True
    return False


@lru_cache(maxsize=256)
def compiles_at_run_time(source: str) -> bool:
    """True if the source calls ``torch.compile``, or decorates with it: its first call at new sizes, and in a
    new mode, runs a compiler."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    return any(
        isinstance(n, ast.Attribute)
        and n.attr == "compile"
        and isinstance(n.value, ast.Name)
        and n.value.id == "torch"
        for n in ast.walk(tree)
    )


def reads_in_constructor(source: str, entry: str, names: set[str]) -> bool:
    """True if the constructor of class `entry` reads an attribute so named (``self.bn.weight``)."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == entry:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    return any(
                        isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and n.attr in names
                        for n in ast.walk(part)
                    )
    return False
