"""What interpreted kernels read and write: see it, and mark what they write.

Two questions that values alone cannot answer are asked here. Does a kernel read outside its buffers,
though it drops what it finds? Every load shows its addresses to a watcher. Does a result depend on the
kernel at all? While `tainting` is on, kernels store marks instead of what they computed (all bits set,
which is NaN, for floats; the lowest bit flipped for integers), so that what comes out unchanged was never
theirs. Compare-and-swap and exchange keep their integers: locks are made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Watcher = Callable[["np.ndarray[Any, Any]", int], None]
"""Called as ``watcher(addresses, size)`` with the addresses of the active lanes and the element's bytes."""

_watchers: list[Watcher] = []
_taint = [False]


def watch(watcher: Watcher) -> None:
    """Show `watcher` every load of an interpreted kernel from now on."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def tainting(on: bool) -> None:
    """Whether stores of interpreted kernels are replaced by marks."""
    _taint[0] = on


def install() -> None:
    """Patch the loads, stores and atomics of ``InterpreterBuilder`` (after `builder.install`)."""
    from triton.runtime import interpreter as host

    builder = host.InterpreterBuilder
    load, store, rmw = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    exchange = host._ir.ATOMIC_OP.XCHG

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        result = load(self, ptrs, mask, *rest, **options)
        if _watchers:
            active = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)]
            if active.size:
                for watcher in _watchers:
                    watcher(active, result.data.itemsize)
        return result

    def create_masked_store(self: Any, ptrs: Any, value: Any, *rest: Any, **options: Any) -> Any:
        return store(self, ptrs, _marked(host, value) if _taint[0] else value, *rest, **options)

    def create_atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, *rest: Any) -> Any:
        if _taint[0] and not (operation == exchange and value.dtype.scalar.is_int()):
            value = _marked(host, value)
        return rmw(self, operation, ptr, value, *rest)

    builder.create_masked_load = create_masked_load
    builder.create_masked_store = create_masked_store
    builder.create_atomic_rmw = create_atomic_rmw


def _marked(host: Any, value: Any) -> Any:
    """A handle of the same type and shape whose every element is marked; pointers are left alone."""
    kind = value.dtype.scalar
    if kind.is_ptr():
        return value
    data = np.array(value.data, copy=True)
    if kind.is_floating():
        data = np.frombuffer(b"\xff" * data.nbytes, dtype=data.dtype).reshape(data.shape).copy()
    elif data.dtype == np.bool_:
        data = ~data
    else:
        data ^= data.dtype.type(1)
    return host.TensorHandle(data, value.dtype)
