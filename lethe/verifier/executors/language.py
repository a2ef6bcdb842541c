"""How the interpreter reads a kernel's Python: patched once, with the compiler's meaning of operators.

Triton re-patches ``triton.language`` at every launch and every device-function call, which is most of the
interpreter's time; here it is patched for the life of the process. ``and``, ``or`` and ``not`` on tensors
mean their element-wise forms, as in compiled kernels (plain Python would keep one operand only).
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from lethe.verifier.executors import reductions
from lethe.verifier.executors.pretend_cuda import is_unreachable

_BOOL_OP, _NOT = "_lethe_bool_op", "_lethe_not"


class _PatchedForGood:
    """What ``_patch_lang`` returns when there is nothing left to restore."""

    def restore(self) -> None:
        """The language stays patched."""


def install() -> None:
    """Patch the interpreter's language layer once for this process."""
    import triton.language as tl
    from triton.runtime import interpreter as host

    probe = FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    _scopes.append(host._patch_lang(probe))
    tl.tensor.__bool__ = _truth
    tl.tensor.__index__ = lambda self: int(self.handle.data.item())
    patched = _PatchedForGood()
    host._patch_lang = lambda fn: patched

    setattr(host, _BOOL_OP, _bool_op)
    setattr(host, _NOT, _not)
    host.FunctionRewriter.ast_transformer = _transformer(host.ASTTransformer)()
    host.FunctionRewriter._compile_and_exec = _with_closure(host.FunctionRewriter._compile_and_exec)
    host._implicit_cvt = _scalar_arguments(host._implicit_cvt)

    executor = host.GridExecutor
    executor._init_args_hst = _arguments_in_place
    executor._restore_args_dev = lambda self, *args: None
    executor.__call__ = _without_warnings(executor.__call__)


def uninstall() -> None:
    """Give ``triton.language`` back its compiler form (in a process that stops interpreting)."""
    while _scopes:
        _scopes.pop().restore()


_scopes: list[Any] = []


def _truth(tensor: Any) -> bool:
    reductions.forbid_truth(tensor)
    data = tensor.handle.data
    return bool(data.item()) if data.size == 1 else True


def _bool_op(is_and: bool, *operands: Callable[[], Any]) -> Any:
    """``and`` / ``or`` of lazily evaluated operands: element-wise as soon as tensors take part."""
    import triton.language as tl

    tensors: list[Any] = []
    value: Any = None
    for operand in operands:
        value = operand()
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is not is_and:
            return value
    if not tensors:
        return value
    result = tensors[-1]
    for tensor in reversed(tensors[:-1]):
        result = tensor.logical_and(result) if is_and else tensor.logical_or(result)
    return result


def _not(value: Any) -> Any:
    """``not`` of a tensor is element-wise."""
    import triton.language as tl

    return value.__not__() if isinstance(value, tl.tensor) else not value


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _lazily(node: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=node)


def _transformer(base: type[Any]) -> type[Any]:
    class Transformer(base):
        """Triton's rewriting of a kernel, plus Boolean operators and chained assignment."""

        def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
            self.generic_visit(node)
            is_and = ast.Constant(value=isinstance(node.op, ast.And))
            return ast.copy_location(_call(_BOOL_OP, is_and, *map(_lazily, node.values)), node)

        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
            self.generic_visit(node)
            if not isinstance(node.op, ast.Not):
                return node
            return ast.copy_location(_call(_NOT, node.operand), node)

        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            self.generic_visit(node)
            semantic = ast.Name(id="interpreter_semantic", ctx=ast.Load())
            node.value = ast.Call(
                func=ast.Attribute(value=semantic, attr="to_tensor", ctx=ast.Load()),
                args=[node.value, ast.Constant(value=False)],
                keywords=[],
            )
            return node

    return Transformer


def _with_closure(compile_and_exec: Callable[..., Any]) -> Callable[..., Any]:
    """Rewritten kernels keep the variables of an enclosing function, which Triton's rewriter loses."""

    @functools.wraps(compile_and_exec)
    def with_closure(self: Any, tree: ast.Module) -> Any:
        if not self.fn.__closure__:
            return compile_and_exec(self, tree)
        captured = inspect.getclosurevars(self.fn).nonlocals
        name = self.fn.__name__
        wrapped = ast.parse(f"def {name}({', '.join(captured)}):\n    return {name}")
        wrapped.body[0].body[:0] = tree.body  # type: ignore[attr-defined]
        return compile_and_exec(self, wrapped)(**captured)

    return with_closure


def _scalar_arguments(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A float argument of a launch is a float32 scalar and a bool an int1, as in a compiled kernel."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    @functools.wraps(convert)
    def implicit_cvt(argument: Any) -> Any:
        if isinstance(argument, bool):
            return tl.tensor(TensorHandle(np.array([argument]), tl.int1), tl.int1)
        if isinstance(argument, float):
            return tl.tensor(TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)
        return convert(argument)

    return implicit_cvt


def _arguments_in_place(self: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Kernels work on the CPU tensors themselves; a host tensor is refused, as on the device."""
    for name, value in (*zip(self.arg_names, args, strict=False), *kwargs.items()):
        if hasattr(value, "data_ptr") and is_unreachable(value):
            raise ValueError(f"Pointer argument {name!r} cannot be accessed from Triton (cpu tensor?)")
    return args, kwargs


def _without_warnings(call: Callable[..., Any]) -> Callable[..., Any]:
    """Overflow and invalid operations are values on a GPU, not warnings."""

    @functools.wraps(call)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(*args, **kwargs)

    return quiet
