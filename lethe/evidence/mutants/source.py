"""Edits of a source text by the places of its syntax tree: the rest stays as it was written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call)


@dataclass(frozen=True)
class Edit:
    """One mutation: which operator, in which line, and the byte ranges that it replaces."""

    operator: str
    line: int
    changes: tuple[tuple[int, int, str], ...]
    """``(start, end, new text)``, byte offsets, not overlapping."""

    def apply(self, source: str) -> str:
        """The mutated text."""
        data = source.encode()
        for start, end, text in sorted(self.changes, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()


class Text:
    """A Python source with its syntax tree, the parents of its nodes and their byte ranges."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents from the nearest outwards."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Byte range of a node; parentheses around it are outside."""
        n: ast.expr = node  # type: ignore[assignment]
        assert n.end_lineno is not None and n.end_col_offset is not None
        return (
            self._starts[n.lineno - 1] + n.col_offset,
            self._starts[n.end_lineno - 1] + n.end_col_offset,
        )

    def of(self, node: ast.AST) -> str:
        """The text of a node as written."""
        start, end = self.span(node)
        return self._data[start:end].decode()

    def operand(self, node: ast.expr) -> str:
        """The text of a node, in parentheses unless it binds as tightly as a name."""
        return self.of(node) if isinstance(node, ATOMS) else f"({self.of(node)})"

    def replace(self, operator: str, node: ast.AST, text: str) -> Edit:
        """An edit that puts `text` in the place of `node`."""
        return Edit(operator, node.lineno, ((*self.span(node), text),))  # type: ignore[attr-defined]

    def keep(self, operator: str, node: ast.expr, child: ast.expr) -> Edit:
        """An edit that leaves only `child` of the expression `node`."""
        return self.replace(operator, node, self.operand(child))

    def call(self, node: ast.Call, drop: tuple[str, ...] = (), **changed: str) -> str:
        """The text of a call without the keywords `drop` and with the values of others changed."""
        parts = [self.of(a) for a in node.args]
        parts += [
            f"{k.arg}={changed.get(k.arg or '', self.of(k.value))}"
            for k in node.keywords
            if k.arg not in drop
        ]
        return f"{self.of(node.func)}({', '.join(parts)})"


def callee(node: ast.AST) -> str:
    """``"tl.load"`` for a call of it, ``""`` for anything that is not a call of a dotted name."""
    if not isinstance(node, ast.Call):
        return ""
    return dotted(node.func)


def dotted(node: ast.AST) -> str:
    """``"self.norm.eps"`` for such an expression, else ``""``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def names(node: ast.AST) -> set[str]:
    """Every name that occurs below a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in node.keywords if k.arg == name), None)
