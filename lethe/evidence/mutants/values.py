"""Mutations of what a Triton kernel computes: operands, signs, factors, constants, functions, reductions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lethe.evidence.mutants.catalog import operator
from lethe.evidence.mutants.kernel import Kernel
from lethe.evidence.mutants.source import Edit, callee, dotted, keyword, names

SMALL = 1e-3
"""A literal below this that is added, or compared by maximum, is an epsilon."""


def _arithmetic(k: Kernel, *kinds: type[ast.operator]) -> Iterator[ast.BinOp]:
    for node in k.walk(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.op, kinds) and k.is_value(node) and not k.in_address(node):
            yield node


def is_epsilon(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value < SMALL
    return "eps" in dotted(node).lower()


@operator("wrong_axis", "value", "a reduction runs along the other axis")
def wrong_axis(k: Kernel) -> Iterator[Edit]:
    two_dimensional = any("None" in k.text.of(n) for n in k.walk(ast.Subscript))
    for call in k.calls("tl.sum", "tl.max", "tl.min", "tl.cumsum", "tl.cumprod", "tl.argmax"):
        axis = keyword(call, "axis")
        if two_dimensional and isinstance(axis, ast.Constant) and axis.value in (0, 1):
            yield k.text.replace("wrong_axis", axis, "1" if axis.value == 0 else "0")


_OTHER = {
    "tl.sum": "tl.max", "tl.max": "tl.min", "tl.min": "tl.max", "tl.cumsum": "tl.cumprod",
    "tl.cumprod": "tl.cumsum", "tl.argmax": "tl.argmin", "tl.atomic_max": "tl.atomic_min",
    "tl.maximum": "tl.minimum",
}  # fmt: skip


@operator("wrong_reduction", "value", "another reduction or comparison than the operator's")
def wrong_reduction(k: Kernel) -> Iterator[Edit]:
    for call in k.calls(*_OTHER):
        yield k.text.replace("wrong_reduction", call.func, _OTHER[callee(call)])


@operator("drop_reverse", "value", "a scan runs from the wrong end")
def drop_reverse(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.cumsum", "tl.cumprod", "tl.associative_scan"):
        text = k.text.call(call, reverse="False")
        if keyword(call, "reverse") is None:
            text = f"{k.text.of(call)[:-1]}, reverse=True)"
        yield k.text.replace("drop_reverse", call, text)


@operator("drop_nan_propagation", "value", "a maximum drops NaN")
def drop_nan_propagation(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.maximum", "tl.minimum", "tl.max", "tl.min"):
        if keyword(call, "propagate_nan") is not None:
            yield k.text.replace("drop_nan_propagation", call, k.text.call(call, drop=("propagate_nan",)))


@operator("max_not_subtracted", "value", "the exponential of unshifted numbers")
def max_not_subtracted(k: Kernel) -> Iterator[Edit]:
    maxima = {
        n
        for s in k.walk(ast.Assign)
        if isinstance(s, ast.Assign) and callee(s.value) in ("tl.max", "tl.maximum")
        for t in s.targets
        for n in names(t)
    }
    for node in _arithmetic(k, ast.Sub):
        if names(node.right) & maxima or any(callee(c) == "tl.max" for c in ast.walk(node.right)):
            yield k.text.keep("max_not_subtracted", node, node.left)


@operator("swapped_operands", "value", "a - b for b - a, a / b for b / a, the branches of a where")
def swapped_operands(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Sub, ast.Div):
        sign = "-" if isinstance(node.op, ast.Sub) else "/"
        yield k.text.replace(
            "swapped_operands", node, f"{k.text.operand(node.right)} {sign} {k.text.operand(node.left)}"
        )
    for call in k.calls("tl.where", "tl.dot"):
        a, b = call.args[-2:]
        (first, middle), (_, last) = k.text.span(a), k.text.span(b)
        second = k.text.span(b)[0]
        changes = ((first, middle, k.text.of(b)), (second, last, k.text.of(a)))
        yield Edit("swapped_operands", call.lineno, changes)


@operator("drop_epsilon", "value", "the epsilon that keeps a division finite is missing")
def drop_epsilon(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Add):
        if is_epsilon(node.right):
            yield k.text.keep("drop_epsilon", node, node.left)
    for call in k.calls("tl.maximum"):
        if len(call.args) == 2 and is_epsilon(call.args[1]):
            yield k.text.keep("drop_epsilon", call, call.args[0])


@operator("epsilon_outside_root", "value", "the epsilon is added to the root, not under it")
def epsilon_outside_root(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.sqrt", "tl.rsqrt", "tl.sqrt_rn"):
        inner = call.args[0]
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and is_epsilon(inner.right):
            root = f"(tl.sqrt({k.text.of(inner.left)}) + {k.text.of(inner.right)})"
            text = f"(1.0 / {root})" if callee(call) == "tl.rsqrt" else root
            yield k.text.replace("epsilon_outside_root", call, text)


@operator("sign_flip", "value", "a sign is wrong")
def sign_flip(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Add, ast.Sub):
        if is_epsilon(node.right):
            continue
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield k.text.replace("sign_flip", node, f"{k.text.of(node.left)} {sign} {k.text.operand(node.right)}")
    for minus in k.walk(ast.UnaryOp):
        assert isinstance(minus, ast.UnaryOp)
        if isinstance(minus.op, ast.USub) and k.is_value(minus):
            yield k.text.keep("sign_flip", minus, minus.operand)


@operator("drop_factor", "value", "a scale, a weight or a divisor is forgotten")
def drop_factor(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Mult, ast.Div):
        yield k.text.keep("drop_factor", node, node.left)


@operator("drop_term", "value", "a bias or another summand is forgotten")
def drop_term(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Add, ast.Sub):
        if not is_epsilon(node.right):
            yield k.text.keep("drop_term", node, node.left)


@operator("wrong_divisor", "value", "a mean divides by one less or more, or by the block instead of the size")
def wrong_divisor(k: Kernel) -> Iterator[Edit]:
    for node in _arithmetic(k, ast.Div):
        if isinstance(node.right, ast.Name) and node.right.id in k.parameters:
            yield k.text.replace("wrong_divisor", node.right, f"({node.right.id} - 1)")
            for block in k.constants[:1]:
                yield k.text.replace("wrong_divisor", node.right, block)
        elif isinstance(node.right, ast.BinOp) and not k.is_value(node.right):
            yield k.text.keep("wrong_divisor", node.right, node.right.left)


@operator("wrong_constant", "value", "a constant is wrong in its third or fourth digit")
def wrong_constant(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.Constant):
        assert isinstance(node, ast.Constant)
        if not isinstance(node.value, float) or node.value in (0.0, 1.0) or not SMALL < abs(node.value) < 1e4:
            continue
        parent = k.text.parents[node]
        if isinstance(parent, ast.keyword):
            continue
        short = float(f"{node.value:.3g}")
        yield k.text.replace(
            "wrong_constant", node, repr(short if short != node.value else node.value * 1.01)
        )


_FUNCTION = {
    "tl.exp": "tl.exp2", "tl.exp2": "tl.exp", "tl.log": "tl.log2", "tl.log2": "tl.log", "tl.sqrt": "tl.rsqrt",
    "tl.rsqrt": "tl.sqrt", "tl.sigmoid": "tl.exp", "tl.abs": "", "tl.erf": "",
}  # fmt: skip


@operator(
    "wrong_function", "value", "exp for exp2, log for log2, a root for its inverse, a function left out"
)
def wrong_function(k: Kernel) -> Iterator[Edit]:
    for call in k.calls(*_FUNCTION):
        other = _FUNCTION[callee(call)]
        yield k.text.replace("wrong_function", call.func, other)


@operator("drop_clamp", "value", "a bound, or the choice of a where, is forgotten")
def drop_clamp(k: Kernel) -> Iterator[Edit]:
    for call in k.calls("tl.maximum", "tl.minimum", "tl.where"):
        if callee(call) == "tl.where":
            yield k.text.keep("drop_clamp", call, call.args[1])
        elif not is_epsilon(call.args[1]):
            yield k.text.keep("drop_clamp", call, call.args[0])


@operator("wrong_condition", "value", "a condition on values is reversed")
def wrong_condition(k: Kernel) -> Iterator[Edit]:
    flipped = {ast.Gt: "<", ast.Lt: ">", ast.GtE: "<=", ast.LtE: ">="}
    for node in k.walk(ast.Compare):
        assert isinstance(node, ast.Compare)
        if len(node.ops) == 1 and type(node.ops[0]) in flipped and k.is_value(node):
            left, right = k.text.of(node.left), k.text.of(node.comparators[0])
            yield k.text.replace("wrong_condition", node, f"{left} {flipped[type(node.ops[0])]} {right}")


@operator("narrow_accumulator", "precision", "a sum is carried in half precision")
def narrow_accumulator(k: Kernel) -> Iterator[Edit]:
    for node in k.walk(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        if isinstance(node.op, ast.Add) and k.is_value(node.target):
            target, value = k.text.of(node.target), k.text.of(node.value)
            for kind in ("tl.float16", "tl.bfloat16"):
                text = f"{target} = ({target} + ({value})).to({kind}).to(tl.float32)"
                yield k.text.replace("narrow_accumulator", node, text)
    for call in k.calls("tl.sum", "tl.cumsum"):
        argument = call.args[0]
        text = f"({k.text.of(argument)}).to(tl.float16)"
        yield k.text.replace("narrow_accumulator", argument, text)


@operator("narrow_operand", "precision", "loaded values pass through bfloat16 or half precision")
def narrow_operand(k: Kernel) -> Iterator[Edit]:
    for i, load in enumerate(k.calls("tl.load")):
        if names(load.args[0]) & {"target_ptr", "index_ptr", "idx_ptr", "labels_ptr"}:
            continue
        kind = ("tl.bfloat16", "tl.float16")[i % 2]
        yield k.text.replace("narrow_operand", load, f"{k.text.of(load)}.to({kind}).to(tl.float32)")


@operator("narrow_result", "precision", "a result is rounded to half precision before it is stored")
def narrow_result(k: Kernel) -> Iterator[Edit]:
    for store in k.calls("tl.store"):
        value = store.args[1]
        if k.is_value(value) and ".to(" not in k.text.of(value):
            text = f"({k.text.of(value)}).to(tl.float16).to(tl.float32)"
            yield k.text.replace("narrow_result", value, text)
