"""Count the Triton kernels a candidate really launches, in the interpreter and on the device.

A launch is one call of ``kernel[grid](...)`` or ``kernel.run(..., warmup=False)`` that reached a
``@triton.jit`` function (directly, or through autotune and heuristics), ran at least one program and
returned. Warm-ups and empty grids are not launches. What is counted here is evidence of second rank:
the candidate lives in the same process.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

Observer = Callable[[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]], None]
"""Called as ``observer(jit_function, args, kwargs, grid)`` right before a counted launch."""


def _make_counter() -> tuple[
    Callable[[str], None], Callable[[], int], Callable[[], list[str]], Callable[[], None]
]:
    """Functions add, count, names and reset over a state that no attribute of this module holds."""
    launched: dict[str, int] = {}

    def add(name: str) -> None:
        launched[name] = launched.get(name, 0) + 1

    def count() -> int:
        return sum(launched.values())

    def names() -> list[str]:
        return list(launched)

    return add, count, names, launched.clear


_add, launch_count, launched_names, reset_launches = _make_counter()
_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call `observer` before every interpreted launch from now on (each observer once)."""
    if observer not in _observers:
        _observers.append(observer)


def canonical_grid(grid: Any) -> tuple[int, ...]:
    """The grid as a tuple of ints, as the CUDA launcher reads it: any indexable of integers."""
    return tuple(operator.index(grid[axis]) for axis in range(len(grid)))


def has_programs(grid: tuple[int, ...]) -> bool:
    """Whether a launch over `grid` runs any program; CUDA silently skips the others."""
    return all(size > 0 for size in grid)


@functools.lru_cache(maxsize=512)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


@functools.lru_cache(maxsize=512)
def constexpr_names(fn: Callable[..., Any]) -> frozenset[str]:
    """Parameters of a kernel that are annotated ``tl.constexpr``."""
    parameters = _signature(fn).parameters.values()
    return frozenset(p.name for p in parameters if "constexpr" in str(p.annotation))


def bound_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of `fn` by name with defaults, as Triton hands them to a callable grid.

    Keywords that are no parameter (launch options such as num_warps) are left out.
    """
    signature = _signature(fn)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind_partial(*args, **known)
    bound.apply_defaults()
    return dict(bound.arguments)


def _notify(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: tuple[int, ...]) -> None:
    for observer in _observers:
        observer(function, args, kwargs, grid)


def count_interpreted() -> None:
    """Make ``InterpretedFunction.run`` count, and accept every grid the CUDA launcher accepts."""
    from triton.runtime.interpreter import InterpretedFunction

    original = InterpretedFunction.run
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=True, **kwargs)
        if callable(grid):
            grid = grid(bound_arguments(self.fn, args, kwargs))
        size = canonical_grid(grid)
        if not has_programs(size):
            return None
        _notify(self, args, kwargs, size)
        result = original(self, *args, grid=size, warmup=False, **kwargs)
        _add(self.fn.__name__)
        return result

    InterpretedFunction.run = run


def count_compiled(on_device: Callable[[Any], None]) -> None:
    """Make ``JITFunction.run`` and ``CompiledKernel[grid]`` count.

    `on_device` is called with every JITFunction that launched.
    """
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction

    original = JITFunction.run
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=True, **kwargs)
        seen: list[Any] = []

        def evaluated(bound: Any) -> Any:
            seen.append(grid(bound))
            return seen[-1]

        result = original(self, *args, grid=evaluated if callable(grid) else grid, warmup=False, **kwargs)
        size = canonical_grid(seen[-1] if callable(grid) else grid)
        if has_programs(size):
            _add(self.fn.__name__)
            on_device(self)
        return result

    JITFunction.run = run

    original_getitem = CompiledKernel.__getitem__

    @functools.wraps(original_getitem)
    def getitem(self: Any, grid: Any) -> Callable[..., Any]:
        launch = original_getitem(self, grid)

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = launch(*args, **kwargs)
            if has_programs(canonical_grid(grid)):
                _add(self.name)
            return result

        return counted

    CompiledKernel.__getitem__ = getitem
