"""Poisoned, guarded memory: what a kernel never wrote reads as NaN, what it wrote outside is seen.

Every tensor made here, and every one that candidate code gets from ``torch.empty`` and
its relatives, lies in the middle of a larger buffer::

    [ guard | the tensor's elements | guard ]

The whole buffer holds a pattern that reads as NaN in every floating dtype (all bits set),
as a large number in integers (0x7f bytes) and as True in bool. `Ledger.check` looks at
the guards again after a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from lethe.verifier.channel import span

MIN_GUARD = 64 << 10
"""16,384 fp32 elements: more than the widest one-dimensional tile in the public corpora."""
MAX_GUARD = 1 << 20
READ = "read"
"""Stands in a note about a load, as opposed to a store, outside a tensor."""
PAGE = 4096
"""Guards are whole pages, so the tensor keeps the alignment that torch's allocator gives."""
LARGEST_GUARDED = 1 << 30
"""Above this a second copy would tip the memory limit; such tensors are poisoned in place."""
BUDGET = 256 << 20
"""So much guarded memory is kept from being reused until the end of a call."""

_empty, _no_grad = torch.empty, torch.no_grad
_Tensor, _strided, _uint8, _bool = torch.Tensor, torch.strided, torch.uint8, torch.bool
_fill, _set, _ne, _zero = torch.Tensor.fill_, torch.Tensor.set_, torch.Tensor.ne, torch.Tensor.zero_
_count, _data_ptr, _storage = torch.Tensor.count_nonzero, torch.Tensor.data_ptr, torch.Tensor.untyped_storage
_stack, _tolist = torch.stack, torch.Tensor.tolist
_stream_captures = torch.cuda.is_current_stream_capturing
_compiling, _plain = torch.compiler.is_compiling, torch._C.DisableTorchFunction


GIVEN = ("input:", "param:")


def pattern(dtype: torch.dtype) -> int:
    """The poison byte for `dtype`."""
    return 0xFF if dtype.is_floating_point or dtype.is_complex else 0x7F


SCRATCH_GUARD = 0x7F
"""The byte around what a candidate allocates itself, other than around what it is given: a NaN that is read
beyond a bias and stored beyond an output would else leave the output's guard as it was."""


class _Zone:
    """One tensor and the buffer around it."""

    def __init__(self, tensor: torch.Tensor, raw: torch.Tensor, guard: int, size: int, label: str) -> None:
        self.tensor = tensor
        self.raw = raw
        self.guard = guard
        self.size = size
        self.label = label
        self.byte = pattern(tensor.dtype) if label.startswith(GIVEN) else SCRATCH_GUARD
        for zone in self._sides():
            _fill(zone, self.byte)
        self.start = _data_ptr(tensor)

    def _sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.raw[: self.guard], self.raw[self.guard + self.size :]

    def give(self, label: str) -> None:
        """From now on this is a parameter: it is read, and its guard is an input's."""
        self.label = label
        wanted = pattern(self.tensor.dtype)
        if self.byte != wanted and self.overrun() is None:
            self.byte = wanted
            for zone in self._sides():
                _fill(zone, wanted)

    def overrun(self) -> str | None:
        """Where something was written outside, in words."""
        return self.told(_read(self.wrong()))

    def wrong(self) -> list[torch.Tensor]:
        """How many bytes of either side have changed, as tensors that nobody has waited for; empty if the
        candidate resized the tensor, which is its right."""
        t = self.tensor
        reach = span(tuple(t.shape), tuple(t.stride())) * t.element_size()
        if _data_ptr(t) == self.start and reach > self.size:
            return []
        return [_count(_ne(side, self.byte)) for side in self._sides()]

    def told(self, counts: list[int]) -> str | None:
        """What `wrong` counted, in words; None if nothing."""
        for where, count in zip(("before its start", "after its end"), counts, strict=False):
            if count:
                return f"{self.label}: {count} bytes {where}"
        return None


def _read(counts: list[torch.Tensor]) -> list[int]:
    """The values of scalar tensors, with one wait for each device they are on."""
    found: dict[int, int] = {}
    for device in {c.device for c in counts}:
        here = [i for i, c in enumerate(counts) if c.device == device]
        found |= zip(here, _tolist(_stack([counts[i] for i in here])), strict=True)
    return [found[i] for i in range(len(counts))]


class Ledger:
    """The guarded tensors of one call."""

    def __init__(self) -> None:
        self.active = False
        self._zones: list[_Zone] = []
        self._kept: list[_Zone] = []
        self._bytes = 0
        self._found: list[str] = []
        self._regions: _Regions | None = None

    def begin(self) -> None:
        """Forget what the last call allocated."""
        self._zones.clear()
        self._found.clear()
        self._bytes = 0
        self._regions = None

    def keep(self, labels: dict[int, str]) -> None:
        """Keep guarding the tensors whose storage address is in `labels`, under that label."""
        found = [z for z in (*self._kept, *self._zones) if _storage(z.raw).data_ptr() in labels]
        for z in found:
            z.give(labels[_storage(z.raw).data_ptr()])
        self._kept = found
        self.begin()

    def wrap(self, t: torch.Tensor, label: str, *, zero: bool = False, lead: int = 0) -> torch.Tensor:
        """Move `t`, whose values do not matter, into a guarded buffer; returns `t` itself.

        It begins at a page, or `lead` elements behind one.
        """
        size = span(tuple(t.shape), tuple(t.stride())) * t.element_size()
        if size == 0:
            return t
        if size > LARGEST_GUARDED:
            if not zero:
                with _no_grad():
                    _poison(t)
            return t
        after = min(max(MIN_GUARD, -(-size // PAGE) * PAGE), MAX_GUARD)
        guard = after + lead * t.element_size()
        shape, stride = tuple(t.shape), tuple(t.stride())
        with _no_grad():
            raw = _empty(guard + size + after, dtype=_uint8, device=t.device)
            _fill(raw, pattern(t.dtype))
            _set(t, _storage(raw), guard // t.element_size(), shape, stride)
            if zero:
                _zero(t)
            elif t.dtype is _bool:
                _fill(t, True)
        self._zones.append(_Zone(t, raw, guard, size, label))
        self._regions = None
        self._bytes += raw.numel()
        while self._bytes > BUDGET and len(self._zones) > 1 and not _capturing(t):
            oldest = self._zones.pop(0)
            self._bytes -= oldest.raw.numel()
            self._note(oldest)
        return t

    def name(self, start: int, label: str) -> None:
        """Call the guarded tensor that begins at address `start` by `label` from now on."""
        for z in self._zones:
            if z.start == start:
                z.label = label

    def check(self) -> list[str]:
        """Every guarded tensor that was written outside since `begin`."""
        zones = [*self._zones, *self._kept]
        with _no_grad():
            counts = [z.wrong() for z in zones]
            flat = iter(_read([c for pair in counts for c in pair]))
        for zone, pair in zip(zones, counts, strict=True):
            self._add(zone.told([next(flat) for _ in pair]))
        return list(self._found)

    def _note(self, zone: _Zone) -> None:
        with _no_grad():
            wrong = zone.overrun()
        self._add(wrong)

    def _add(self, wrong: str | None) -> None:
        if wrong is not None and len(self._found) < 16 and wrong not in self._found:
            self._found.append(wrong)

    def saw_load(self, addresses: Any, size: int) -> None:
        """An interpreted kernel read `size` bytes at each of `addresses`: note what lies in a guard."""
        if not self.active:
            return
        if self._regions is None:
            self._regions = _Regions([*self._zones, *self._kept])
        for zone, count in self._regions.outside(addresses, size):
            self._add(f"{zone.label}: {READ} {count} elements outside")


class _Regions:
    """Buffers of the guarded tensors by address, to find which one a load went to."""

    def __init__(self, zones: list[_Zone]) -> None:
        self.zones = sorted(zones, key=lambda z: int(_data_ptr(z.raw)))
        low = [_data_ptr(z.raw) for z in self.zones]
        self.low = np.array(low, dtype=np.int64)
        self.high = np.array([a + z.raw.numel() for a, z in zip(low, self.zones, strict=True)], np.int64)
        self.start = np.array([a + z.guard for a, z in zip(low, self.zones, strict=True)], dtype=np.int64)
        self.end = self.start + np.array([z.size for z in self.zones], dtype=np.int64)

    def outside(self, addresses: Any, size: int) -> list[tuple[_Zone, int]]:
        """Zones in whose guards some of the addresses lie, with how many. Memory of others is not judged."""
        if not self.zones:
            return []
        at = addresses.reshape(-1).astype(np.int64)
        least, most = at.min(), at.max()
        k = int(np.searchsorted(self.low, least, side="right")) - 1
        if k >= 0 and self.start[k] <= least and most + size <= self.end[k]:
            return []
        which = np.searchsorted(self.low, at, side="right") - 1
        ours = (which >= 0) & (at < self.high[which])
        wrong = ours & ((at < self.start[which]) | (at + size > self.end[which]))
        return [(self.zones[k], int((which[wrong] == k).sum())) for k in np.unique(which[wrong])]


def _capturing(t: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured: nothing may be read then."""
    return t.device.type == "cuda" and bool(_stream_captures())


def _poison(t: torch.Tensor) -> None:
    if t.dtype is _bool:
        _fill(t, True)
    elif t.dtype.is_floating_point or t.dtype.is_complex:
        _fill(t, float("nan"))
    else:
        _fill(t, int.from_bytes(bytes([pattern(t.dtype)]) * t.element_size(), "little"))


ALLOCATORS = {
    torch: ("empty", "empty_like", "empty_strided", "empty_permuted", "zeros", "zeros_like"),
    torch.Tensor: ("new_empty", "new_empty_strided", "new_zeros"),
}
"""What is replaced in the suspect: uninitialised memory is poisoned; zeroed memory is only guarded."""


def install(ledger: Ledger) -> None:
    """Replace torch's allocators in this process by guarded ones that act while `ledger.active`."""
    for owner, names in ALLOCATORS.items():
        for name in names:
            _replace(owner, name, ledger, zero="zeros" in name)


def _replace(owner: Any, name: str, ledger: Ledger, *, zero: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        t = original(*args, **kwargs)
        if not ledger.active or _compiling() or type(t) is not _Tensor:
            return t
        if kwargs.get("out") is not None or kwargs.get("pin_memory"):
            return t
        with _plain():
            if t.layout is _strided and t.device.type in ("cpu", "cuda") and not t.is_quantized:
                with suppress(RuntimeError):
                    ledger.wrap(t, f"torch.{name}{list(t.shape)}", zero=zero)
        return t

    setattr(owner, name, allocate)
    if owner is torch:
        with suppress(Exception):
            torch.jit._builtins._register_builtin(allocate, f"aten::{name}")
