"""Mutations of what a candidate does around its kernels: buffers, grids, launch arguments, state."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from lethe.evidence.mutants.catalog import operator
from lethe.evidence.mutants.source import Edit, Text, callee, dotted, names


class Wrapper:
    """The ``forward`` of the entry class (and of what it calls, where that is a plain function).

    Args:
        text: the candidate.
        shapes: shape of each argument of ``forward`` as the problem is written, None for other arguments.
    """

    def __init__(self, text: Text, shapes: list[list[int] | None]) -> None:
        self.text = text
        self.forward = next(
            n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"
        )
        self.sizes = _sizes(self.forward, shapes)
        self.any_grid = "tl.num_programs" in text.source
        """Whether programs stride over the grid, so that any number of them does all the work."""

    def walk(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        found = [n for s in self.forward.body for n in ast.walk(s) if isinstance(n, kinds)]
        yield from sorted(found, key=lambda n: self.text.span(n))

    def calls(self) -> Iterator[ast.Call]:
        for node in self.walk(ast.Call):
            assert isinstance(node, ast.Call)
            yield node

    def launches(self) -> Iterator[ast.Call]:
        """``kernel[grid](...)`` and ``_lib.kernel(...)``."""
        for call in self.calls():
            if isinstance(call.func, ast.Subscript) or dotted(call.func).startswith("_lib."):
                yield call

    def method(self, call: ast.Call) -> tuple[ast.expr, str]:
        """``x.contiguous()`` -> (x, "contiguous")."""
        if isinstance(call.func, ast.Attribute):
            return call.func.value, call.func.attr
        return call, ""


def _sizes(forward: ast.FunctionDef, shapes: list[list[int] | None]) -> dict[str, int]:
    """Names that are sizes in ``forward`` with their value at the problem's written shapes."""
    given: dict[str, list[int]] = {
        a.arg: s for a, s in zip(forward.args.args[1:], shapes, strict=False) if s is not None
    }
    found: dict[str, int] = {}
    for node in forward.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr == "shape":
            shape = given.get(dotted(value.value), [])
            if len(shape) == len(target.elts):
                found |= {n.id: v for n, v in zip(target.elts, shape, strict=True) if isinstance(n, ast.Name)}
        elif isinstance(target, ast.Name):
            size = _size(value, given, found)
            if size is not None:
                found[target.id] = size
    return found


def _size(node: ast.expr, given: Mapping[str, list[int]], found: Mapping[str, int]) -> int | None:
    """Value of ``n``, ``x.shape[-1]``, ``x.numel()``, ``a * b``, ``a // b``; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return found.get(node.id)
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        shape = given.get(dotted(node.value.value))
        try:
            return None if shape is None else shape[ast.literal_eval(node.slice)]
        except (ValueError, IndexError, TypeError):
            return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "numel":
        shape = given.get(dotted(node.func.value))
        product = 1
        for n in shape or ():
            product *= n
        return product if shape is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.FloorDiv):
        a, b = _size(node.left, given, found), _size(node.right, given, found)
        if a is None or not b:
            return None
        return a * b if isinstance(node.op, ast.Mult) else a // b
    return None


@operator("drop_contiguous", "wrapper", "an input is taken to be contiguous")
def drop_contiguous(w: Wrapper) -> Iterator[Edit]:
    for call in w.calls():
        value, name = w.method(call)
        if name == "contiguous" and isinstance(value, ast.Name):
            yield w.text.keep("drop_contiguous", call, value)


@operator("alias_output", "wrapper", "the output is written over an input")
def alias_output(w: Wrapper) -> Iterator[Edit]:
    for call in w.calls():
        if callee(call) == "torch.empty_like" and len(call.args) == 1:
            yield w.text.keep("alias_output", call, call.args[0])


@operator("reused_output", "wrapper", "every call returns the same buffer")
def reused_output(w: Wrapper) -> Iterator[Edit]:
    returned = {n for r in w.walk(ast.Return) for n in names(r)}
    for call in w.calls():
        assigned = w.text.parents[call]
        if not isinstance(assigned, ast.Assign) or not names(assigned.targets[0]) & returned:
            continue
        if callee(call) in ("torch.empty_like", "torch.empty", "torch.full", "torch.zeros"):
            shape = w.text.of(call.args[0])
            if callee(call) == "torch.empty_like":
                shape = f"tuple({shape}.shape)"
            text = f'self.__dict__.setdefault(f"_buffer{{{shape}}}", {w.text.of(call)})'
            yield w.text.replace("reused_output", call, text)


@operator("memoized_output", "wrapper", "the first result is returned to every call of that shape")
def memoized_output(w: Wrapper) -> Iterator[Edit]:
    first = w.forward.args.args[1].arg
    for node in w.walk(ast.Return):
        assert isinstance(node, ast.Return)
        if isinstance(node.value, ast.Name):
            text = f'self.__dict__.setdefault(f"_first{{tuple({first}.shape)}}", {node.value.id})'
            yield w.text.replace("memoized_output", node.value, text)


@operator("cached_weights", "wrapper", "weights are copied at the first call and go stale")
def cached_weights(w: Wrapper) -> Iterator[Edit]:
    for launch in w.launches():
        for a in launch.args:
            whole = w.method(a)[0] if isinstance(a, ast.Call) and w.method(a)[1] == "data_ptr" else a
            name = dotted(whole)
            if name.startswith("self.") and name.split(".")[-1] in _WEIGHTS:
                text = f'self.__dict__.setdefault("_kept_{name[5:]}", {name}.detach().clone())'
                yield w.text.replace("cached_weights", whole, text)


_WEIGHTS = ("weight", "bias", "gain", "running_mean", "running_var")


@operator("wrong_output_dtype", "wrapper", "the output has another dtype than the reference's")
def wrong_output_dtype(w: Wrapper) -> Iterator[Edit]:
    for call in w.calls():
        if callee(call) == "torch.empty_like":
            yield w.text.replace("wrong_output_dtype", call, f"{w.text.of(call)[:-1]}, dtype=torch.float16)")
        elif callee(call) in ("torch.empty", "torch.zeros", "torch.full"):
            for k in call.keywords:
                if k.arg == "dtype":
                    other = "torch.int32" if "int64" in w.text.of(k.value) else "torch.bfloat16"
                    yield w.text.replace("wrong_output_dtype", k.value, other)


@operator("empty_for_zeros", "wrapper", "a buffer that is added to is not initialised")
def empty_for_zeros(w: Wrapper) -> Iterator[Edit]:
    for call in w.calls():
        if callee(call) == "torch.zeros":
            yield w.text.replace("empty_for_zeros", call.func, "torch.empty")
        elif callee(call) == "torch.full":
            rest = [w.text.of(call.args[0]), *(f"{k.arg}={w.text.of(k.value)}" for k in call.keywords)]
            yield w.text.replace("empty_for_zeros", call, f"torch.empty({', '.join(rest)})")


@operator("hard_coded_size", "wrapper", "a size is the one that the problem happens to have")
def hard_coded_size(w: Wrapper) -> Iterator[Edit]:
    for launch in w.launches():
        for a in [*launch.args, *(k.value for k in launch.keywords)]:
            size = _size(a, {}, w.sizes) if isinstance(a, ast.Name) else None
            if size is not None and isinstance(a, ast.Name) and not a.id.startswith("BLOCK"):
                yield w.text.replace("hard_coded_size", a, str(size))


def _covering(w: Wrapper) -> Iterator[ast.Call]:
    """Blocks that must cover a whole row: the next power of two, unless a bound makes it a tile of a loop."""
    for call in w.calls():
        if callee(call) == "triton.next_power_of_2" and callee(w.text.parents[call]) != "min":
            yield call


@operator("hard_coded_block", "wrapper", "a block that covers the problem's size, and no larger one")
def hard_coded_block(w: Wrapper) -> Iterator[Edit]:
    for call in _covering(w):
        size = _size(call.args[0], {}, w.sizes)
        if size is not None:
            yield w.text.replace("hard_coded_block", call, str(1 << (size - 1).bit_length()))


@operator("short_block", "wrapper", "a block that covers half of the row")
def short_block(w: Wrapper) -> Iterator[Edit]:
    for call in _covering(w):
        yield w.text.replace("short_block", call, f"max(1, {w.text.of(call)} // 2)")


@operator("grid_floor", "wrapper", "the grid counts whole tiles only")
def grid_floor(w: Wrapper) -> Iterator[Edit]:
    for call in w.calls():
        if callee(call) == "triton.cdiv" and not w.any_grid:
            a, b = (w.text.operand(x) for x in call.args)
            yield w.text.replace("grid_floor", call, f"max(1, {a} // {b})")


@operator("grid_short", "wrapper", "the last program is not launched")
def grid_short(w: Wrapper) -> Iterator[Edit]:
    for launch in w.launches():
        grid = launch.func.slice if isinstance(launch.func, ast.Subscript) else None
        if isinstance(grid, ast.Tuple) and not w.any_grid:
            for extent in grid.elts:
                if not isinstance(extent, ast.Constant):
                    text = f"max(1, {w.text.operand(extent)} - 1)"
                    yield w.text.replace("grid_short", extent, text)


@operator("swapped_grid", "wrapper", "the axes of the grid are exchanged")
def swapped_grid(w: Wrapper) -> Iterator[Edit]:
    for node in w.walk(ast.Tuple):
        assert isinstance(node, ast.Tuple)
        parent = w.text.parents[node]
        in_launch = isinstance(parent, ast.Subscript) and isinstance(w.text.parents[parent], ast.Call)
        if len(node.elts) == 2 and in_launch:
            a, b = (w.text.of(e) for e in node.elts)
            yield w.text.replace("swapped_grid", node, f"({b}, {a})")


@operator("swapped_arguments", "wrapper", "two neighbours in the call of a kernel are exchanged")
def swapped_arguments(w: Wrapper) -> Iterator[Edit]:
    for launch in w.launches():
        for a, b in zip(launch.args, launch.args[1:], strict=False):
            if isinstance(a, ast.Starred) or isinstance(b, ast.Starred):
                continue
            changes = ((*w.text.span(a), w.text.of(b)), (*w.text.span(b), w.text.of(a)))
            yield Edit("swapped_arguments", a.lineno, changes)


@operator("wrong_epsilon", "wrapper", "another epsilon than the reference's")
def wrong_epsilon(w: Wrapper) -> Iterator[Edit]:
    for node in w.walk(ast.Attribute):
        name = dotted(node)
        if name.startswith("self.") and name.endswith("eps"):
            yield w.text.replace("wrong_epsilon", node, f"({name} * 10)")
            yield w.text.replace("wrong_epsilon", node, "0.0")


@operator("wrong_scale", "wrapper", "a factor that the host computes is wrong")
def wrong_scale(w: Wrapper) -> Iterator[Edit]:
    for launch in w.launches():
        for node in [n for a in launch.args for n in ast.walk(a)]:
            if not isinstance(node, ast.BinOp):
                continue
            if isinstance(node.op, ast.Div):
                yield w.text.keep("wrong_scale", node, node.left)
                if names(node.right):
                    yield w.text.replace("wrong_scale", node.right, f"({w.text.of(node.right)} + 1)")
            elif isinstance(node.op, ast.Pow):
                yield w.text.keep("wrong_scale", node, node.left)
