"""Mutations of what a Triton kernel repeats: loop bounds, accumulators, their first values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lethe.evidence.mutants.catalog import operator
from lethe.evidence.mutants.kernel import Kernel
from lethe.evidence.mutants.memory import is_minus_infinity
from lethe.evidence.mutants.source import Edit, callee


def _ranges(k: Kernel) -> Iterator[tuple[ast.Call, list[str]]]:
    """``range(start, stop, step)`` calls of loops, with their arguments as text."""
    for loop in k.walk(ast.For):
        assert isinstance(loop, ast.For)
        if callee(loop.iter) == "range" and isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 3:
            yield loop.iter, [k.text.operand(a) for a in loop.iter.args]


@operator("forgotten_tail", "loop", "what is left after the last whole tile is not processed")
def forgotten_tail(k: Kernel) -> Iterator[Edit]:
    for call, (start, stop, step) in _ranges(k):
        yield k.text.replace("forgotten_tail", call, f"range({start}, {stop} // {step} * {step}, {step})")


@operator("range_short", "loop", "a loop ends one element early")
def range_short(k: Kernel) -> Iterator[Edit]:
    for call, (start, stop, step) in _ranges(k):
        yield k.text.replace("range_short", call, f"range({start}, {stop} - 1, {step})")


@operator("first_tile_only", "loop", "a loop is left after its first tile")
def first_tile_only(k: Kernel) -> Iterator[Edit]:
    for call, (start, stop, step) in _ranges(k):
        yield k.text.replace("first_tile_only", call, f"range({start}, min({stop}, {step}), {step})")


@operator("range_start", "loop", "a loop begins at the second tile")
def range_start(k: Kernel) -> Iterator[Edit]:
    for call, (start, stop, step) in _ranges(k):
        yield k.text.replace("range_start", call, f"range({start} + {step}, {stop}, {step})")


@operator("assign_for_add", "loop", "an accumulator holds the last tile instead of the sum")
def assign_for_add(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        if k.is_value(node.target):
            text = f"{k.text.of(node.target)} = {k.text.of(node.value)}"
            yield k.text.replace("assign_for_add", node, text)


@operator("drop_update", "loop", "a step of an accumulation is missing")
def drop_update(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        if k.is_value(node.target):
            yield k.text.replace("drop_update", node, "pass")


@operator("init_for_max", "loop", "a running maximum starts at 0 instead of -inf")
def init_for_max(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.full"):
        if len(call.args) > 1 and is_minus_infinity(call.args[1]):
            yield k.text.replace("init_for_max", call.args[1], "0.0")


@operator("finite_minus_infinity", "loop", "-inf is written as a number that data may fall below")
def finite_minus_infinity(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.Call, ast.UnaryOp):
        inside = any(is_minus_infinity(a) for a in k.text.ancestors(node) if isinstance(a, ast.expr))
        if is_minus_infinity(node) and not inside:
            yield k.text.replace("finite_minus_infinity", node, "-1e4")


@operator("init_one", "loop", "an accumulator does not start at the neutral element")
def init_one(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.zeros"):
        rest = [k.text.of(a) for a in call.args[1:]] + [
            f"{w.arg}={k.text.of(w.value)}" for w in call.keywords
        ]
        text = ", ".join([k.text.of(call.args[0]), "1.0", *rest])
        yield k.text.replace("init_one", call, f"tl.full({text})")
