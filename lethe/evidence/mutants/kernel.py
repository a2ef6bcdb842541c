"""What the expressions of a Triton kernel mean: values that were loaded, indices, masks and pointers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from lethe.evidence.mutants.source import Text, callee, dotted, keyword, names

ACCESSES = ("tl.load", "tl.store", "tl.atomic_add", "tl.atomic_max", "tl.atomic_min")
REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.argmax", "tl.argmin", "tl.dot", "tl.reduce")
SCANS = ("tl.cumsum", "tl.cumprod", "tl.associative_scan")
PLACES = ("tl.program_id", "tl.arange")


class Kernel:
    """One ``@triton.jit`` function of a text."""

    def __init__(self, text: Text, function: ast.FunctionDef) -> None:
        self.text = text
        self.function = function

    def walk(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Nodes of the body of the given kinds, in source order."""
        found = [n for s in self.function.body for n in ast.walk(s) if isinstance(n, kinds)]
        yield from sorted(found, key=lambda n: self.text.span(n))

    def calls(self, *wanted: str) -> Iterator[ast.Call]:
        for node in self.walk(ast.Call):
            assert isinstance(node, ast.Call)
            if callee(node) in wanted:
                yield node

    @cached_property
    def fillers_count(self) -> bool:
        """True if masked lanes, at the end of a row, reach others: not so in a scan from the front."""
        scans = self.calls(*SCANS)
        return any(True for _ in self.calls(*REDUCTIONS)) or any(keyword(c, "reverse") for c in scans)

    def is_reduced(self, node: ast.AST) -> bool:
        """Whether the value of a node reaches a reduction or scan, if need be through names."""
        reached: set[str] = set()
        for parent in [node, *self.text.ancestors(node)]:
            if callee(parent) in (*REDUCTIONS, *SCANS):
                return True
            if isinstance(parent, ast.Assign | ast.AugAssign):
                assigned = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                reached |= {n for t in assigned for n in names(t)}
        for _ in range(4):
            for targets, value in self._assignments():
                if names(value) & reached:
                    reached |= targets
        return any(names(a) & reached for c in self.calls(*REDUCTIONS, *SCANS) for a in c.args)

    @cached_property
    def parameters(self) -> list[str]:
        return [a.arg for a in self.function.args.args]

    @cached_property
    def constants(self) -> list[str]:
        """Parameters that are ``tl.constexpr``."""
        args = self.function.args.args
        return [a.arg for a in args if a.annotation is not None and dotted(a.annotation) == "tl.constexpr"]

    @cached_property
    def pointers(self) -> set[str]:
        """Parameters that stand first in the address of an access, or are advanced as one."""
        return {p for p in self.parameters if p.endswith(("_ptr", "_ptrs"))}

    @cached_property
    def sizes(self) -> list[str]:
        """Parameters that occur in the right side of a mask or as a factor of an index."""
        used: set[str] = set()
        for node in self.walk(ast.Compare, ast.BinOp, ast.Call):
            if isinstance(node, ast.Compare) and not self.is_value(node):
                used |= {n for c in node.comparators for n in names(c)}
            elif (
                isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and self.is_index(node)
            ) or callee(node) == "range":
                used |= names(node)
        return [p for p in self.parameters if p in used and p not in self.pointers]

    def _assignments(self) -> Iterator[tuple[set[str], ast.expr]]:
        for node in self.walk(ast.Assign, ast.AugAssign, ast.For):
            if isinstance(node, ast.Assign):
                yield {n for t in node.targets for n in names(t)}, node.value
            elif isinstance(node, ast.AugAssign):
                yield names(node.target), node.value
            elif isinstance(node, ast.For) and callee(node.iter) in ("range", "tl.range", "tl.static_range"):
                yield names(node.target), node.iter

    @cached_property
    def values(self) -> set[str]:
        """Names that hold loaded data, or an accumulator of it."""
        found: set[str] = set()
        for _ in range(4):
            for targets, value in self._assignments():
                starts = any(callee(n) in ("tl.load", "tl.zeros", "tl.full") for n in ast.walk(value))
                if starts or names(value) & found:
                    found |= targets
        return found

    @cached_property
    def indices(self) -> set[str]:
        """Names that are made of program ids, ranges and loop counters alone."""
        found: set[str] = set()
        for _ in range(4):
            for targets, value in self._assignments():
                placed = any(callee(n) in (*PLACES, "range") for n in ast.walk(value))
                if (placed or names(value) & found) and not self.is_value(value):
                    found |= targets
        return found

    def is_value(self, node: ast.AST) -> bool:
        """Whether loaded data flows into an expression (not into the address of a load alone)."""
        return bool(names(node) & self.values) or any(callee(n) == "tl.load" for n in ast.walk(node))

    def is_index(self, node: ast.AST) -> bool:
        if self.is_value(node):
            return False
        return bool(names(node) & self.indices) or any(callee(n) in PLACES for n in ast.walk(node))

    def in_tensor(self, node: ast.AST) -> bool:
        """Whether an index expression is a tensor when it runs, not a Python number."""
        counters = {n for f in self.walk(ast.For) if isinstance(f, ast.For) for n in names(f.target)}
        tensors = self.indices - counters
        return bool(names(node) & tensors) or any(callee(n) in PLACES for n in ast.walk(node))

    def in_address(self, node: ast.AST) -> bool:
        """Whether a node is part of the address of a load, store or atomic."""
        child = node
        for parent in self.text.ancestors(node):
            if callee(parent) in ACCESSES and isinstance(parent, ast.Call) and parent.args[:1] == [child]:
                return True
            child = parent
        return False


def kernels(text: Text) -> list[Kernel]:
    """Every ``@triton.jit`` function at module level, in source order."""
    return [
        Kernel(text, node)
        for node in text.tree.body
        if isinstance(node, ast.FunctionDef) and any(_is_jit(d) for d in node.decorator_list)
    ]


def _is_jit(decorator: ast.expr) -> bool:
    return dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) == "triton.jit"
