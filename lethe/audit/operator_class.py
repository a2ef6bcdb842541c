"""The operator class of a reference, read off the names in its syntax tree.

The classes and their order of precedence are those of the published audit: the first that fits wins.
It matched words in the text, comments included; here only names that the code uses count, so a few
references change class. Where the published rows are at hand, loaders take a row's class from them.
"""

from __future__ import annotations

import ast
import re

CLASSES: tuple[tuple[str, str], ...] = (
    ("attention", r".*attention.*"),
    ("scan", r"(log)?cum(sum|prod|max|min|sumexp)|((selective|associative)_)?scan"),
    ("matmul", r"@|(b|add|addb|badd)?mm|baddbmm|matmul|einsum|linear"),
    ("conv", r"(lazy)?conv(_?transpose)?[123]d"),
    ("norm", r"(layer|rms|group|(sync)?batch|instance)_?norm([123]d)?"),
    ("softmax", r"(log_?)?softmax(2d)?"),
    ("reduction", r"sum|mean|max|min|prod|amax|amin|var|std|logsumexp"),
    ("elementwise", r".*(relu|gelu|silu|sigmoid|tanh).*|abs|exp|log|clamp|add|mul|sub|div"),
)
"""Class and pattern of the whole name, in lower case; ``@`` stands for the operator."""
SSM_ADJACENT = ("matmul", "attention", "softmax", "scan", "norm", "conv", "reduction")
"""What the published audit kept: the operators that state-space models are made of."""


def class_of(source: str) -> str:
    """The operator class of a reference; ``"other"`` if nothing fits or it cannot be parsed."""
    try:
        names = _names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "other"
    for name, pattern in CLASSES:
        if any(re.fullmatch(pattern, n) for n in names):
            return name
    return "other"


def _names(tree: ast.Module) -> set[str]:
    """Names and attributes that the code loads, in lower case."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr.lower())
        elif isinstance(node, ast.Name):
            found.add(node.id.lower())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("@")
    return found
