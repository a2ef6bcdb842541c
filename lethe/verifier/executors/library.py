"""Turn the jit functions of Triton's own library into interpreted ones, and back.

``@triton.jit`` decides when it decorates: with TRITON_INTERPRET=1 it makes an InterpretedFunction, else a
JITFunction. ``tl.sum``, ``tl.max``, ``tl.cdiv``, ``tl.rand`` ... were decorated when triton was imported,
so a fork server that preloads triton has fixed their kind before the child knows its executor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_JIT_OPTIONS = (
    "version",
    "do_not_specialize",
    "do_not_specialize_on_alignment",
    "debug",
    "noinline",
    "launch_metadata",
)


def to_interpreted(function: Any) -> Any:
    """The InterpretedFunction of a JITFunction's Python function, with the same jit options."""
    from triton.runtime.interpreter import InterpretedFunction

    options = {name: getattr(function, name, None) for name in _JIT_OPTIONS}
    return InterpretedFunction(function.fn, repr=getattr(function, "_repr", None), **options)


def to_compiled(function: Any) -> Any:
    """The JITFunction of an InterpretedFunction's Python function, with the same jit options."""
    from triton.runtime.jit import JITFunction

    return JITFunction(function.fn, **function.kwargs)


def use_interpreter() -> None:
    """From now on ``@triton.jit`` interprets; Triton's own library is converted."""
    from triton.runtime.jit import JITFunction

    os.environ["TRITON_INTERPRET"] = "1"
    _convert(JITFunction, to_interpreted, as_method=_as_method)


def use_compiler() -> None:
    """From now on ``@triton.jit`` compiles; Triton's own library is converted."""
    from triton.runtime.interpreter import InterpretedFunction

    os.environ.pop("TRITON_INTERPRET", None)
    _convert(InterpretedFunction, to_compiled, as_method=lambda function: function)


def _as_method(function: Any) -> Callable[..., Any]:
    """A plain function, which binds `self` when it is a class attribute; jit objects do not."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def _library_modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and (name == "triton" or name.startswith("triton."))
    ]


def _convert(kind: type[Any], convert: Callable[[Any], Any], as_method: Callable[[Any], Any]) -> None:
    import triton.language as tl

    converted: dict[int, Any] = {}
    by_name: dict[str, Any] = {}
    for module in _library_modules():
        members: list[tuple[str, Any]] = list(vars(module).items())
        for name, value in members:
            if type(value) is not kind:
                continue
            if id(value) not in converted:
                converted[id(value)] = convert(value)
                if value.fn.__module__.startswith("triton.language."):
                    by_name[value.fn.__name__] = converted[id(value)]
            setattr(module, name, converted[id(value)])
    for name, function in by_name.items():
        if name in vars(tl.tensor):
            setattr(tl.tensor, name, as_method(function))
