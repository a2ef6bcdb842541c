"""One thread block: registers, state spaces, and the binding of names to views of them.

PTX ISA 5.1 (state spaces) and 10 (special registers). Registers are arrays [slots, warps, 32], so a run
of warps is a slice and binding copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lethe.ptx import predefined
from lethe.ptx.emit import VIEWS, Array, Spec
from lethe.ptx.faults import Fault
from lethe.ptx.layout import Layout, align
from lethe.ptx.memory import (
    CONST_TAG,
    LOCAL_TAG,
    PARAM_TAG,
    SHARED_FIRST,
    SHARED_TAG,
    WINDOW_BITS,
    GlobalMemory,
    Window,
    window_base,
)
from lethe.ptx.program import Program
from lethe.ptx.schedule import Engine

Rows = tuple[int, int]
_TAGS = {"shared": SHARED_TAG, "local": LOCAL_TAG, "param": PARAM_TAG, "const": CONST_TAG}


class CTA:
    """State of one thread block.

    Args:
        program: the kernel.
        layout: addresses and parameter bytes.
        grid: launch grid (x, y, z).
        block: block shape (x, y, z).
        memory: device memory.
        engine: asynchronous operations.
        dynamic_shared: bytes of dynamic shared memory.
        checks: whether shadows and accounting are on.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        memory: GlobalMemory,
        engine: Engine,
        dynamic_shared: int,
        checks: bool,
    ) -> None:
        self.program, self.layout, self.grid, self.block = program, layout, grid, block
        self.engine, self.checks, self.dynamic_shared = engine, checks, dynamic_shared
        self.threads = block[0] * block[1] * block[2]
        self.warps = (self.threads + 31) // 32
        self.registers = {
            key: np.zeros((n, self.warps, 64 if key == "u8x2" else 32), key[:2])
            for key, n in program.slots.items()
        }
        self.defined = np.zeros((len(program.tracked), self.warps, 32), bool)
        self.globals = memory
        size = align(layout.shared_end, 16)
        written = np.zeros(size, np.uint8) if checks else None
        self.shared = Window("shared", 0, np.zeros(size, np.uint8), written, first=SHARED_FIRST)
        self.local = Window("local", 0, np.zeros(max(16, layout.local_size * self.warps * 32), np.uint8))
        self.const = Window("const", 0, np.zeros(max(16, layout.const_size), np.uint8), writable=False)
        for at, raw in layout.const_init:
            self.const.data[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        self.param = Window("param", 0, layout.params, writable=False)
        self.spaces: dict[str, Any] = {
            "shared": self.shared,
            "global": memory,
            "const": self.const,
            "param": self.param,
        }
        self.thread = np.arange(self.warps * 32).reshape(self.warps, 32)
        self._bound: dict[tuple[Spec, Rows], Any] = {}
        self._viewed: dict[tuple[str, str], Array] = {}
        self._special: dict[tuple[str, str], Array] = {}
        self.index = (0, 0, 0)
        self.units: dict[str, Any] = {}
        self.hits = [0] * len(program.hammocks)

    def start(self, index: tuple[int, int, int]) -> None:
        """Become CTA ``index`` of the grid: everything uninitialised again."""
        self.index = index
        self.defined[:] = False
        if self.shared.written is not None:
            self.shared.written[:] = 0
        for (name, view), array in self._special.items():
            array[...] = predefined.value(self, name).astype(VIEWS[view][0])
        for unit in self.units.values():
            unit.start()

    # -- binding
    def bind(self, spec: Spec, rows: Rows, objects: dict[int, Any]) -> Any:
        """The object that a name of the compiled source stands for."""
        if spec[0] == "obj":
            return objects[spec[1]]
        key = (spec, rows)
        found = self._bound.get(key)
        if found is None:
            found = self._bound[key] = self._resolve(spec, rows)
        return found

    def _resolve(self, spec: Spec, rows: Rows) -> Any:
        kind, rest = spec[0], spec[1:]
        low, high = rows
        shape = (high - low, 32)
        if kind == "reg":
            return self.view(rest[0], rest[2], rows)
        if kind == "part":
            name, reg_type, lanes = rest
            key, slot = self.program.storage[name]
            width = 16 // lanes if reg_type == "b128" else int(key[1:]) // lanes
            return self.registers[key][slot, low:high].view(f"u{width}")
        if kind == "const":
            return self._constant(rest[0], rest[1], shape)
        if kind == "special":
            if (rest[0], rest[1]) not in self._special:
                value = predefined.value(self, rest[0])
                self._special[rest[0], rest[1]] = value.astype(VIEWS[rest[1]][0])
            return self._special[rest[0], rest[1]][low:high]
        if kind == "symbol":
            name, offset, view = rest
            return np.full(shape, (self.layout.address[name] + offset), VIEWS[view][0])
        if kind == "window":
            base = window_base(_TAGS[rest[0]]) if rest[0] in _TAGS and rest[1] == "u64" else 0
            return np.full(shape, base, VIEWS[rest[1]][0])
        if kind == "param":
            name, offset, view = rest
            dtype = np.dtype(VIEWS[view][0])
            size = self.layout.param_size[name]
            if not 0 <= offset <= size - dtype.itemsize:
                raise Fault(
                    "bounds",
                    f"load of {dtype.itemsize} bytes at {name}+{offset}, a parameter of {size} bytes",
                )
            at = self.layout.param_offset[name] + offset
            return self.layout.params[at : at + dtype.itemsize].view(dtype)
        if kind == "defined":
            return self.defined[self.program.tracked[rest[0]], low:high]
        if kind == "rows":
            return rows
        if kind == "cta":
            return self._method(rest[0])
        raise AssertionError(spec)

    def _method(self, path: str) -> Callable[..., Any]:
        first, _, last = path.partition(".")
        if not last:
            return getattr(self, first)
        holder = self.units.get(first) or self.spaces.get(first) or getattr(self, first)
        return getattr(holder, last)

    def view(self, name: str, view: str, rows: Rows) -> Array:
        """A register of a run of warps in some view; narrower views see the low part."""
        key, slot = self.program.storage[name]
        whole = self._viewed.get((key, view))
        if whole is None:
            whole = self._viewed[key, view] = self._view_all(name, key, view)
        return whole[slot, rows[0] : rows[1]]

    def _view_all(self, name: str, key: str, view: str) -> Array:
        array = self.registers[key]
        dtype, lanes = VIEWS[view]
        if key == "?" or dtype == "?":
            if (key == "?") != (dtype == "?"):
                raise TypeError(f"register {name} used as .{view}")
            return array
        have = 16 if key == "u8x2" else int(key[1:])
        want = np.dtype(dtype).itemsize * lanes
        if have == want:
            return array.view(dtype)
        if have > want and lanes == 1:
            return array.view(dtype)[:, :, :: have // want]
        raise TypeError(f"register {name} is too narrow for .{view}")

    def _constant(self, bits: int, view: str, shape: tuple[int, int]) -> Array:
        dtype, lanes = VIEWS[view]
        width = np.dtype(dtype).itemsize
        if dtype == "?":
            return np.full(shape, bits != 0)
        raw = np.frombuffer(bits.to_bytes(width * lanes, "little"), dtype)
        if lanes == 1:
            return np.full(shape, raw[0])
        return np.tile(raw, (shape[0], shape[1]))

    # -- per-thread and generic accesses
    def _local(self, rows: Rows, addr: Array, mask: Array | None, nbytes: int, verb: str) -> Array:
        size = self.layout.local_size
        off = addr.astype(np.int64)
        seen = off if mask is None else off[mask]
        if seen.size and (int(seen.min()) < 0 or int(seen.max()) + nbytes > size):
            raise Fault(
                "bounds",
                f"{verb} of {nbytes} bytes at local address {int(seen.max()):#x} outside [0, {size})",
            )
        return off + self.thread[rows[0] : rows[1]] * size

    def local_load(
        self,
        rows: Rows,
        addr: Array,
        mask: Array | None,
        dtype: str,
        count: int,
        dsts: Sequence[Array | None],
    ) -> None:
        """Load from per-thread memory."""
        at = self._local(rows, addr, mask, np.dtype(dtype).itemsize * count, "load")
        self.local.load(at, mask, dtype, count, dsts)

    def local_store(
        self, rows: Rows, addr: Array, mask: Array | None, dtype: str, count: int, srcs: Sequence[Array]
    ) -> None:
        """Store to per-thread memory."""
        at = self._local(rows, addr, mask, np.dtype(dtype).itemsize * count, "store")
        self.local.store(at, mask, dtype, count, srcs)

    def _generic(self, addr: Array, mask: Array | None) -> list[tuple[int, Array, Array | None]]:
        tags = (addr >> np.uint64(WINDOW_BITS)).astype(np.int64)
        seen = np.unique(tags if mask is None else tags[mask])
        local = addr & np.uint64((1 << WINDOW_BITS) - 1)
        if len(seen) == 1:
            return [(int(seen[0]), local, mask)]
        return [(int(t), local, (tags == t) if mask is None else mask & (tags == t)) for t in seen]

    def generic_load(
        self,
        rows: Rows,
        addr: Array,
        mask: Array | None,
        dtype: str,
        count: int,
        dsts: Sequence[Array | None],
    ) -> None:
        """Load through generic addresses."""
        for tag, at, part in self._generic(addr, mask):
            if tag == LOCAL_TAG:
                self.local_load(rows, at, part, dtype, count, dsts)
            else:
                self._tagged(tag).load(at, part, dtype, count, dsts)

    def generic_store(
        self, rows: Rows, addr: Array, mask: Array | None, dtype: str, count: int, srcs: Sequence[Array]
    ) -> None:
        """Store through generic addresses."""
        for tag, at, part in self._generic(addr, mask):
            if tag == LOCAL_TAG:
                self.local_store(rows, at, part, dtype, count, srcs)
            else:
                self._tagged(tag).store(at, part, dtype, count, srcs)

    def _tagged(self, tag: int) -> Any:
        spaces: dict[int, Any] = {
            0: self.globals,
            SHARED_TAG: self.shared,
            PARAM_TAG: self.param,
            CONST_TAG: self.const,
        }
        if tag not in spaces:
            raise Fault("bounds", f"generic address in no state space (tag {tag:#x})")
        return spaces[tag]

    def generic_view(self, address: int, nbytes: int) -> Array:
        """Bytes at one generic address in global, parameter, constant or shared memory."""
        tag, at = address >> WINDOW_BITS, address & ((1 << WINDOW_BITS) - 1)
        space = self._tagged(tag)
        window = space.window(at, nbytes) if space is self.globals else space
        return window.view(at, nbytes)

    def atomic(
        self,
        rows: Rows,
        space: str,
        addr: Array,
        mask: Array | None,
        dtype: str,
        lanes: int,
        count: int,
        func: Callable[..., Any],
        args: Sequence[Sequence[Array]],
        dests: Sequence[Array | None] | None,
    ) -> None:
        """Read-modify-write, lanes with equal addresses one after the other in lane order."""
        todo = np.ones(addr.shape, bool) if mask is None else mask.copy()
        width = np.dtype(dtype).itemsize * lanes
        raw = f"u{width}"
        target = self.spaces.get(space)
        at = addr.astype(np.uint64)
        while todo.any():
            _, first = np.unique(np.where(todo, at, ~np.uint64(0)).reshape(-1), return_index=True)
            turn = np.zeros(todo.size, bool)
            turn[first] = True
            now = turn.reshape(todo.shape) & todo
            old = [np.zeros(addr.shape, raw) for _ in range(count)]
            if target is not None:
                target.load(at, now, raw, count, old)
            else:
                self.generic_load(rows, at, now, raw, count, old)
            new = []
            for k in range(count):
                operands = [a[k] for a in args]
                value = func(old[k].view(dtype), *operands)
                new.append(np.ascontiguousarray(value, dtype).view(raw))
            if target is not None:
                target.store(at, now, raw, count, new)
            else:
                self.generic_store(rows, at, now, raw, count, new)
            for k, dest in enumerate(dests or ()):
                if dest is not None:
                    wide = now if lanes == 1 else np.repeat(now, lanes, 1)
                    np.copyto(dest, old[k].view(dtype), where=wide)
            todo &= ~now
