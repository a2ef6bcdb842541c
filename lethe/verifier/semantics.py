"""What a source says that behaviour alone cannot: C's maxima, weights read early, a compiler called, a pass
backward defined."""

from __future__ import annotations

import ast
from functools import lru_cache

from lethe.verifier.formats import FormatError, parse

_C = ("fmaxf", "fminf", "std::max", "std::min", "fmax(", "fmin(")


@lru_cache(maxsize=256)
def drops_nan_in_c(source: str) -> bool:
    """True if C++ in the source's strings holds maxima or minima that drop NaN: ``fmaxf`` by definition,
    ``std::max`` by its comparison. Whether a NaN was lost there the text does not tell.
    """
    try:
        tree = parse(source)
    except FormatError:
        return False
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(word in text for text in texts for word in _C)


@lru_cache(maxsize=256)
def compiles_at_run_time(source: str) -> bool:
    """True if the source calls ``torch.compile``, or decorates with it: its first call at new sizes, and in a
    new mode, runs a compiler."""
    try:
        tree = parse(source)
    except FormatError:
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
        tree = parse(source)
    except FormatError:
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


_BACKWARD = frozenset({"register_autograd", "register_hook", "register_full_backward_hook"})
_SWITCHES = frozenset(
    {"no_grad", "inference_mode", "set_grad_enabled", "detach", "detach_", "requires_grad_"}
)


@lru_cache(maxsize=256)
def leaves_gradients_alone(source: str) -> bool:
    """True if the source neither defines a backward pass (``torch.autograd.Function``, a custom operator with
    an autograd formula, C++'s autograd) nor switches gradients off: what it launches is then detached because
    nothing was said about gradients.
    """
    try:
        tree = parse(source)
    except FormatError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_function(base) for base in node.bases):
            return False
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in _BACKWARD | _SWITCHES:
            return False
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if "torch::autograd" in text or text.startswith("Autograd"):
            return False
    return True


def _is_function(base: ast.expr) -> bool:
    """Whether a base class is ``torch.autograd.Function``, under whatever name it was imported."""
    text = ast.unparse(base)
    return text == "Function" or text.endswith(("autograd.Function", "autograd.function.Function"))
