"""State spaces as byte arrays with a shadow: global windows, shared, local, parameter and constant memory.

PTX ISA section 5.1 (state spaces) and 9.7.9 (data movement: natural alignment, generic addressing). Every
access is checked for bounds and alignment; where a shadow exists, a byte that nobody wrote is poison and a
load of it is a fault. Addresses come as integer arrays of shape [warps, 32]; ``mask`` is None when every
lane takes part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from lethe.ptx.faults import Fault

Array = np.ndarray[Any, Any]

WINDOW_BITS = 56
SHARED_TAG, LOCAL_TAG, PARAM_TAG, CONST_TAG = 0x41, 0x42, 0x43, 0x44
SHARED_FIRST = 1024
"""First shared address a kernel may use: the runtime keeps the first KiB on sm_90 and later."""

_UNSIGNED: dict[int, np.dtype[Any]] = {
    n: np.dtype(d) for n, d in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "u8"), (16, "u8"))
}
_least, _most = np.minimum.reduce, np.maximum.reduce
_any_bit, _all_bits = np.bitwise_or.reduce, np.bitwise_and.reduce
_FULL: dict[int, int] = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


def window_base(tag: int) -> int:
    """Generic address at which a tagged space begins."""
    return tag << WINDOW_BITS


class Window:
    """A contiguous run of bytes.

    Args:
        name: how faults call it.
        base: address of byte 0.
        data: ``uint8[n]``.
        written: ``uint8[n]`` of 0 or 1, or None when everything counts as written.
        writable: whether stores are allowed.
        first: offset of the first byte that may be touched.
    """

    def __init__(
        self,
        name: str,
        base: int,
        data: Array,
        written: Array | None = None,
        writable: bool = True,
        first: int = 0,
    ) -> None:
        self.name, self.base, self.data, self.written, self.writable = name, base, data, written, writable
        self.size, self.first = data.size, first
        self.aligned = base % 16 == 0
        self.watch: Any = None
        self._views: dict[tuple[int, int], tuple[Array, Array | None, int]] = {}

    def rows(self, width: int, count: int) -> tuple[Array, Array | None, int]:
        """Data as rows of ``count`` elements, shadow as rows of words, the value of a written word."""
        found = self._views.get((width, count))
        if found is None:
            nbytes = width * count
            whole = self.size // nbytes * nbytes
            step = min(8, nbytes)
            data = self.data[:whole].view(_UNSIGNED[width])
            shadow = None if self.written is None else self.written[:whole].view(_UNSIGNED[step])
            if count > 1:
                data = data.reshape(-1, count)
                if shadow is not None and step != nbytes:
                    shadow = shadow.reshape(-1, nbytes // step)
            found = self._views[width, count] = (data, shadow, _FULL[step])
        return found

    # -- checks
    def offsets(self, addr: Array, nbytes: int, verb: str, inside: bool = False) -> Array:
        """Byte offsets of the given addresses after bounds (unless known ``inside``) and alignment checks."""
        off = addr.astype(np.int64)
        if self.base:
            off -= self.base
        if off.size:
            flat = off.reshape(-1)
            if not inside and (_least(flat) < self.first or _most(flat) + nbytes > self.size):
                self.out_of_bounds(off, nbytes, verb)
            if nbytes > 1 and (int(_any_bit(flat)) + self.base) & (nbytes - 1):
                self.misaligned(flat, nbytes, verb)
        return off

    def misaligned(self, flat: Array, nbytes: int, verb: str) -> None:
        """Raise the alignment fault for the first offending lane, if there is one."""
        bad = flat[((flat + self.base) & (nbytes - 1)) != 0]
        if bad.size:
            at = int(bad[0]) + self.base
            raise Fault("alignment", f"{verb} of {nbytes} bytes at {self.name} address {at:#x}")

    def out_of_bounds(self, off: Array, nbytes: int, verb: str) -> None:
        """Raise the bounds fault for the first offending lane."""
        flat = off.reshape(-1)
        lane = int(np.argmax((flat < self.first) | (flat + nbytes > self.size)))
        value = int(flat[lane])
        raise Fault(
            "bounds",
            f"{verb} of {nbytes} bytes at {self.name} address {value + self.base:#x} (offset {value}) "
            f"outside [{self.first}, {self.size})",
        )

    def poisoned(self, off: Array, nbytes: int) -> None:
        """Raise the poison fault for the first lane that reads an unwritten byte."""
        assert self.written is not None
        flat = off.reshape(-1)
        bad = ~(self.written[flat[:, None] + np.arange(nbytes)] & 1).astype(bool).all(axis=1)
        value = int(flat[int(np.argmax(bad))])
        raise Fault(
            "poison",
            f"load of {nbytes} bytes at {self.name} address {value + self.base:#x} (offset {value}): "
            f"{int(bad.sum())} of {flat.size} lanes read bytes that nobody wrote",
        )

    # -- vector accesses
    def load(
        self,
        addr: Array,
        mask: Array | None,
        dtype: str,
        count: int,
        dsts: Sequence[Array | None],
        inside: bool = False,
    ) -> None:
        """Load ``count`` consecutive elements per lane into ``dsts`` (None drops an element)."""
        if mask is not None:
            addr = addr[mask]
            if not addr.size:
                return
        kind = np.dtype(dtype)
        width = kind.itemsize
        off = self.offsets(addr, width * count, "load", inside)
        values = self.fetch(off, width, count, mask).view(kind)
        for i, dst in enumerate(dsts):
            if dst is not None:
                value = values if count == 1 else values[..., i]
                if mask is None:
                    dst[...] = value
                else:
                    dst[mask] = value

    def fetch(
        self, off: Array, width: int, count: int, mask: Array | None = None, warps: Array | None = None
    ) -> Array:
        """Raw elements at checked offsets: shape of ``off`` (+ [count] when count > 1).

        ``warps`` says who reads when ``off`` is not one offset per active lane.
        """
        if self.watch is not None:
            self.watch.reading(off, mask, warps)
        if not self.aligned:
            index = off[..., None] + np.arange(width * count)
            if self.written is not None and not (self.written[index] & 1).all():
                self.poisoned(off, width * count)
            raw = self.data[index].view(_UNSIGNED[width])
            return raw[..., 0] if count == 1 else raw
        data, shadow, full = self.rows(width, count)
        index = off >> ((width * count).bit_length() - 1)
        if shadow is not None and _all_bits(shadow.take(index, axis=0).reshape(-1)) != full:
            self.poisoned(off, width * count)
        return data.take(index, axis=0)

    def store(
        self,
        addr: Array,
        mask: Array | None,
        dtype: str,
        count: int,
        srcs: Sequence[Array],
        inside: bool = False,
    ) -> None:
        """Store ``count`` consecutive elements per lane; lanes that collide resolve in lane order."""
        if not self.writable:
            raise Fault("bounds", f"store to read-only {self.name}")
        if mask is not None:
            addr = addr[mask]
            if not addr.size:
                return
            srcs = [s[mask] for s in srcs]
        width = np.dtype(dtype).itemsize
        off = self.offsets(addr, width * count, "store", inside)
        values = [s.astype(_UNSIGNED[width], copy=False) for s in srcs]
        self.put(off, width, values, mask)

    def put(self, off: Array, width: int, values: Sequence[Array], mask: Array | None = None) -> None:
        """Write elements at checked offsets (already restricted to ``mask``) and mark them written."""
        count = len(values)
        if self.watch is not None:
            self.watch.writing(off, width * count, mask)
        if not self.aligned:
            packed = np.stack(values, axis=-1).view(np.uint8)
            index = off[..., None] + np.arange(width * count)
            self.data[index] = packed
            if self.written is not None:
                self.written[index] = 1
            return
        data, shadow, full = self.rows(width, count)
        index = off >> ((width * count).bit_length() - 1)
        if count == 1:
            data[index] = values[0]
        else:
            together = np.empty((*index.shape, count), data.dtype)
            for i, value in enumerate(values):
                together[..., i] = value
            data[index] = together
        if shadow is not None:
            shadow[index] = full

    # -- bulk accesses (asynchronous proxy)
    def view(self, address: int, nbytes: int, verb: str = "access") -> Array:
        """The bytes ``[address, address + nbytes)`` after a bounds check."""
        off = address - self.base
        if off < self.first or off + nbytes > self.size:
            self.out_of_bounds(np.array([off]), nbytes, verb)
        return self.data[off : off + nbytes]

    def shadow(self, address: int, nbytes: int) -> Array:
        """The written flags of ``[address, address + nbytes)``; a scratch array when there is no shadow."""
        off = address - self.base
        if self.written is None:
            return np.ones(nbytes, np.uint8)
        return self.written[off : off + nbytes]


class GlobalMemory:
    """Registered windows of device memory, addressed by their real host addresses.

    So pointers inside captured parameter blocks and tensor maps need no translation.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._windows: list[Window] = []
        self._keep: list[Any] = []

    def add(self, array: Any, name: str = "", writable: bool = True, poison: bool = False) -> int:
        """Register an array as device memory.

        Args:
            array: numpy array or CPU tensor; its memory from the first to the last element is the window.
            name: how faults call it; a default is made from its order.
            writable: whether kernels may store to it.
            poison: whether its present contents count as never written.

        Returns:
            Its device address.

        Raises:
            Fault: kind ``launch`` when the array has negative strides or overlaps a window.
        """
        data = _bytes_of(array)
        base = int(data.ctypes.data)
        position = bisect_right(self._bases, base)
        neighbours = self._windows[max(position - 1, 0) : position + 1]
        for other in neighbours:
            if base < other.base + other.size and other.base < base + data.size:
                raise Fault("launch", f"window {name!r} overlaps window {other.name!r}")
        written = np.zeros(data.size, np.uint8) if poison else None
        window = Window(name or f"global{len(self._windows)}", base, data, written, writable)
        self._bases.insert(position, base)
        self._windows.insert(position, window)
        self._keep.append(array)
        return base

    @property
    def windows(self) -> tuple[Window, ...]:
        """All windows in address order."""
        return tuple(self._windows)

    def window(self, address: int, nbytes: int = 1, verb: str = "access") -> Window:
        """The window that holds an address.

        Raises:
            Fault: kind ``bounds`` when none does.
        """
        position = bisect_right(self._bases, address) - 1
        if position >= 0:
            found = self._windows[position]
            if address + nbytes <= found.base + found.size:
                return found
            if address < found.base + found.size + 4096:
                over = address - found.base
                raise Fault(
                    "bounds",
                    f"{verb} of {nbytes} bytes at {found.name} address {address:#x} (offset {over}) outside "
                    f"[0, {found.size})",
                )
        raise Fault("bounds", f"{verb} of {nbytes} bytes at global address {address:#x}: in no window")

    def _by_window(self, addr: Array, nbytes: int, verb: str) -> Window | None:
        """The one window that holds all addresses, or None when they spread over several."""
        flat = addr.reshape(-1)
        low, high = int(_least(flat)), int(_most(flat))
        found = self.window(low, nbytes, verb)
        if high + nbytes <= found.base + found.size:
            return found
        return None

    def load(
        self, addr: Array, mask: Array | None, dtype: str, count: int, dsts: Sequence[Array | None]
    ) -> None:
        """As ``Window.load``, any window per lane."""
        active = addr if mask is None else addr[mask]
        if not active.size:
            return
        nbytes = np.dtype(dtype).itemsize * count
        found = self._by_window(active, nbytes, "load")
        if found is not None:
            found.load(addr, mask, dtype, count, dsts, True)
            return
        for window, part in self._split(addr, mask, nbytes, "load"):
            window.load(addr, part, dtype, count, dsts)

    def store(self, addr: Array, mask: Array | None, dtype: str, count: int, srcs: Sequence[Array]) -> None:
        """As ``Window.store``, any window per lane."""
        active = addr if mask is None else addr[mask]
        if not active.size:
            return
        nbytes = np.dtype(dtype).itemsize * count
        found = self._by_window(active, nbytes, "store")
        if found is not None:
            found.store(addr, mask, dtype, count, srcs, True)
            return
        for window, part in self._split(addr, mask, nbytes, "store"):
            window.store(addr, part, dtype, count, srcs)

    def _split(self, addr: Array, mask: Array | None, nbytes: int, verb: str) -> list[tuple[Window, Array]]:
        todo = np.ones(addr.shape, bool) if mask is None else mask.copy()
        out = []
        while todo.any():
            window = self.window(int(addr[todo][0]), nbytes, verb)
            base, end = np.uint64(window.base), np.uint64(window.base + window.size)
            part = todo & (addr >= base) & (addr < end)
            out.append((window, part))
            todo &= ~part
        return out


def _bytes_of(array: Any) -> Array:
    """The ``uint8`` memory of an array or CPU tensor, whatever the order of its strides."""
    if not isinstance(array, np.ndarray):
        torch = __import__("torch")
        flat = torch.as_strided(array.detach(), (_extent(array.shape, array.stride()),), (1,))
        array = flat.view(torch.uint8).numpy()
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    if any(s < 0 for s in array.strides):
        raise Fault("launch", "device arrays must not have negative strides")
    strides = [s // array.itemsize for s in array.strides]
    span = np.lib.stride_tricks.as_strided(array, (_extent(array.shape, strides),), (array.itemsize,))
    return span.view(np.uint8)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, both included."""
    if 0 in tuple(shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
