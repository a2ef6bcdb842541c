"""Mutations of how a Triton kernel addresses memory: masks, fillers, offsets, strides, program ids.

A filler of masked lanes is left alone where these lanes reach no other: outside of reductions, and in a scan
from the front.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lethe.evidence.mutants.catalog import operator
from lethe.evidence.mutants.kernel import Kernel
from lethe.evidence.mutants.source import Edit, callee, keyword, names


def is_minus_infinity(node: ast.AST) -> bool:
    """``float("-inf")``, ``-float("inf")``, or a literal below -1e20 in their stead."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = node.operand
        if isinstance(inner, ast.Constant):
            return isinstance(inner.value, float) and inner.value > 1e20
        return callee(inner) == "float" and "inf" in ast.dump(inner)
    return callee(node) == "float" and "-inf" in ast.dump(node)


@operator("drop_load_mask", "memory", "a load reads past the row or the buffer")
def drop_load_mask(k: Kernel) -> Iterator[Edit]:
    for load in k.calls("tl.load"):
        if keyword(load, "mask") is not None:
            yield k.text.replace("drop_load_mask", load, k.text.call(load, drop=("mask", "other")))


@operator("drop_store_mask", "memory", "a store without its mask writes past the row or the buffer")
def drop_store_mask(k: Kernel) -> Iterator[Edit]:
    for store in k.calls("tl.store", "tl.atomic_add", "tl.atomic_max"):
        if keyword(store, "mask") is not None:
            yield k.text.replace("drop_store_mask", store, k.text.call(store, drop=("mask",)))


@operator("drop_mask_term", "memory", "one dimension of a tile is not checked against its bound")
def drop_mask_term(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.BitAnd):
            yield k.text.keep("drop_mask_term", node, node.left)
            yield k.text.keep("drop_mask_term", node, node.right)


_NEXT = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@operator("lt_le", "memory", "a comparison with a bound includes or excludes the bound itself")
def lt_le(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.Compare):
        assert isinstance(node, ast.Compare)
        if len(node.ops) == 1 and type(node.ops[0]) in _NEXT and k.is_index(node):
            left, right = k.text.of(node.left), k.text.of(node.comparators[0])
            yield k.text.replace("lt_le", node, f"{left} {_NEXT[type(node.ops[0])]} {right}")


@operator("other_zero_for_inf", "memory", "masked lanes enter a maximum as 0 instead of -inf")
def other_zero_for_inf(k: Kernel) -> Iterator[Edit]:
    for load in k.calls("tl.load"):
        other = keyword(load, "other")
        if other is not None and is_minus_infinity(other):
            yield k.text.replace("other_zero_for_inf", other, "0.0")


@operator("other_garbage", "memory", "masked lanes contribute something to a sum or a product")
def other_garbage(k: Kernel) -> Iterator[Edit]:
    for load in k.calls("tl.load"):
        other = keyword(load, "other")
        if not k.fillers_count or not k.is_reduced(load):
            continue
        if isinstance(other, ast.Constant) and other.value in (0, 1):
            yield k.text.replace("other_garbage", other, "0.0" if other.value else "1.0")


@operator("offset_by_one", "memory", "an address is one element too far")
def offset_by_one(k: Kernel) -> Iterator[Edit]:
    for access in k.calls("tl.load", "tl.store", "tl.atomic_add"):
        address = access.args[0]
        if isinstance(address, ast.BinOp):
            yield k.text.replace("offset_by_one", address, f"{k.text.of(address)} + 1")


@operator("wrong_stride", "memory", "an index is multiplied by another size than its stride")
def wrong_stride(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if not isinstance(node.op, ast.Mult) or not k.is_index(node) or not isinstance(node.right, ast.Name):
            continue
        stride = node.right.id
        if stride not in k.sizes or (stride in k.constants and stride.startswith("BLOCK")):
            continue
        others = [s for s in [*k.sizes, *k.constants] if s != stride]
        for other in others[:2]:
            yield k.text.replace("wrong_stride", node.right, other)
        if k.in_tensor(node):
            yield k.text.replace("wrong_stride", node.right, f"({stride} + 1)")


@operator("drop_index_term", "memory", "one term of an address is forgotten")
def drop_index_term(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if not isinstance(node.op, ast.Add) or k.is_value(node):
            continue
        if not (k.is_index(node) or k.in_address(node)):
            continue
        if k.is_index(node.right) or names(node.right) & k.indices:
            yield k.text.keep("drop_index_term", node, node.left)
        if not names(node.left) & k.pointers and k.is_index(node.left):
            yield k.text.keep("drop_index_term", node, node.right)


@operator("narrow_index", "memory", "an offset overflows its integer type (16 bits here, 32 in the field)")
def narrow_index(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.Mult) and k.is_index(node) and k.in_tensor(node):
            yield k.text.replace("narrow_index", node, f"({k.text.of(node)}).to(tl.int16)")


@operator("wrong_program_id", "memory", "a program reads its index from another axis of the grid")
def wrong_program_id(k: Kernel) -> Iterator[Edit]:
    found = list(k.calls("tl.program_id"))
    axes = sorted({str(c.args[0].value) for c in found if c.args and isinstance(c.args[0], ast.Constant)})
    for call in found:
        if len(axes) > 1 and call.args and isinstance(call.args[0], ast.Constant):
            other = next(a for a in axes if a != str(call.args[0].value))
            yield k.text.replace("wrong_program_id", call.args[0], other)


@operator("atomic_to_store", "memory", "programs overwrite each other's contribution: the atomic is missing")
def atomic_to_store(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.atomic_add", "tl.atomic_max"):
        text = k.text.call(call, drop=("sem", "scope")).removeprefix(callee(call))
        yield k.text.replace("atomic_to_store", call, f"tl.store{text}")
