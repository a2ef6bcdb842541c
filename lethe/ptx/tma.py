"""TMA tensor copies as pure functions: which bytes move between a tensor in global memory and a shared tile.

PTX ISA sections ``cp.async.bulk.tensor`` and ``cp.reduce.async.bulk.tensor``, tiled mode: a box of the tensor
is copied to (from) a dense tile whose innermost dimension comes first, swizzled in 16-byte granules.
Elements outside the tensor read as zero (or NaN) and are never written.  The machine decides when each half
happens: :func:`load_tile` reads global memory, :func:`shared_chunks` names the granules of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx import numeric, swizzle
from lethe.ptx.faults import Fault
from lethe.ptx.tensormap import SWIZZLE_SPAN, TensorMap, decode, encode, replace

__all__ = [
    "Fetch",
    "TensorMap",
    "decode",
    "encode",
    "load_tile",
    "refuse",
    "replace",
    "shared_chunks",
    "store_tile",
]

Bytes = NDArray[np.uint8]
Fetch = Callable[[int, int], Bytes]

_REFUSED: Final = {
    "multicast::cluster": "multicast to several CTAs",
    "cta_group::2": "pairs of CTAs",
    "im2col": "im2col mode",
    "im2col_no_offs": "im2col mode",
    "im2col::w": "im2col mode",
    "im2col::w::128": "im2col mode",
    "tile::gather4": "gather4 mode",
    "tile::scatter4": "scatter4 mode",
}


def refuse(modifiers: Sequence[str]) -> None:
    """Raise ``Fault('unsupported')`` for modifiers of tensor copies that are not modelled."""
    for modifier in modifiers:
        if modifier in _REFUSED:
            raise Fault(
                "unsupported", f"cp.async.bulk.tensor: {_REFUSED[modifier]} (.{modifier}) not modelled"
            )


@lru_cache(maxsize=4096)
def _relative_chunks(nbytes: int, mode: str, phase: int) -> NDArray[np.int64]:
    linear = phase + np.arange(0, nbytes, swizzle.GRANULE, dtype=np.int64)
    chunks = swizzle.apply(linear, mode)
    chunks.setflags(write=False)
    return chunks


def shared_chunks(tmap: TensorMap, base: int) -> NDArray[np.int64]:
    """Addresses of the tile's 16-byte granules in box order, swizzled: int64[box_bytes / 16].

    Args:
        base: shared address operand; 128-byte aligned.

    Raises:
        Fault: ``alignment`` for a bad base; ``unsupported`` for a swizzle span wider than the inner box,
            whose padding the documentation leaves open.
    """
    if base % 128:
        raise Fault("alignment", f"tensor copy: shared address {base:#x} is not 128-byte aligned")
    inner, span = tmap.box[0] * tmap.element_bytes, SWIZZLE_SPAN[tmap.swizzle]
    if span and inner != span:
        raise Fault(
            "unsupported", f"tensor copy: inner box of {inner} bytes under a {tmap.swizzle} swizzle of {span}"
        )
    phase = base % swizzle.PERIOD
    return _relative_chunks(tmap.box_bytes, tmap.swizzle, phase) + (base - phase)


def _inside(tmap: TensorMap, coords: Sequence[int]) -> list[tuple[int, int]] | None:
    """Per dimension the half-open range of tile positions inside the tensor; None when there are none."""
    if len(coords) != tmap.rank:
        raise Fault("descriptor", f"tensor copy: {len(coords)} coordinates for a map of rank {tmap.rank}")
    ranges = []
    for start, extent, count, step in zip(coords, tmap.shape, tmap.tile, tmap.element_strides, strict=True):
        low, high = max(0, -(start // step)), min(count, -((start - extent) // step))
        if low >= high:
            return None
        ranges.append((low, high))
    return ranges


def _window(tmap: TensorMap, coords: Sequence[int], ranges: list[tuple[int, int]], fetch: Fetch) -> Bytes:
    """Writable view of the in-bounds part of the box: uint8[outermost, ..., inner bytes]."""
    size = tmap.element_bytes
    pitch = [size, *tmap.strides]
    first = tmap.address + sum(
        p * (c + low * s)
        for p, c, s, (low, _) in zip(pitch, coords, tmap.element_strides, ranges, strict=True)
    )
    counts = [high - low for low, high in ranges]
    steps = [p * s for p, s in zip(pitch, tmap.element_strides, strict=True)]
    extent = counts[0] * size + sum((n - 1) * s for n, s in zip(counts[1:], steps[1:], strict=True))
    shape, strides = (*counts[:0:-1], counts[0] * size), (*steps[:0:-1], 1)
    return np.ndarray(shape, np.uint8, fetch(first, extent), 0, strides)


def _part(tmap: TensorMap, ranges: list[tuple[int, int]]) -> tuple[slice, ...]:
    outer = [slice(low, high) for low, high in ranges[:0:-1]]
    low, high = ranges[0]
    return (*outer, slice(low * tmap.element_bytes, high * tmap.element_bytes))


def _box_shape(tmap: TensorMap) -> tuple[int, ...]:
    return (*tmap.tile[:0:-1], tmap.tile[0] * tmap.element_bytes)


def load_tile(tmap: TensorMap, coords: Sequence[int], fetch: Fetch, outside: int | None = None) -> Bytes:
    """Read the box at `coords` (innermost first) from global memory.

    Args:
        fetch: ``fetch(address, nbytes)`` gives the uint8 view of global memory that starts there, or raises
            ``Fault('bounds')``.  One call covers the in-bounds part, gaps between rows included, so a fetch
            should not test the gaps for poison; read the shadow with a second call and ``outside=1`` instead.
        outside: byte for elements outside the tensor, instead of the map's own fill; also turns off value
            conversion, for reading shadows.

    Returns:
        uint8[box_bytes] in box order, before the swizzle.
    """
    ranges = _inside(tmap, coords)
    if ranges is not None and all(high - low == n for (low, high), n in zip(ranges, tmap.tile, strict=True)):
        whole = _window(tmap, coords, ranges, fetch).reshape(-1)
        return whole if outside is not None else _converted(tmap, whole)
    tile = np.full(_box_shape(tmap), outside or 0, np.uint8)
    if outside is None and tmap.fill == "nan":
        tile = _nan_tile(tmap)
    if ranges is not None:
        tile[_part(tmap, ranges)] = _window(tmap, coords, ranges, fetch)
    flat = tile.reshape(-1)
    return flat if outside is not None else _converted(tmap, flat)


def _nan_tile(tmap: TensorMap) -> Bytes:
    """The documentation asks for a NaN, not for its payload: all ones below the sign."""
    element = np.full(tmap.element_bytes, 0xFF, np.uint8)
    element[-1] = 0x7F
    shape = _box_shape(tmap)
    return np.tile(element, int(np.prod(shape)) // tmap.element_bytes).reshape(shape)


def _converted(tmap: TensorMap, flat: Bytes) -> Bytes:
    """Flush subnormals (``_ftz``) and round to tf32, to nearest even, where the element type says so."""
    if tmap.dtype not in ("tf32", "tf32_ftz", "f32_ftz"):
        return flat
    bits = flat.view(np.uint32)
    if tmap.dtype.endswith("ftz"):
        bits = np.where(bits & np.uint32(0x7F800000), bits, bits & np.uint32(0x80000000))
    if tmap.dtype.startswith("tf32"):
        finite = bits & np.uint32(0x7F800000) != np.uint32(0x7F800000)
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        bits = np.where(finite, rounded & np.uint32(0xFFFFE000), bits)
    return bits.view(np.uint8)


def store_tile(
    tmap: TensorMap, coords: Sequence[int], tile: Bytes, fetch: Fetch, reduce: str | None = None
) -> None:
    """Write a tile to the box at `coords`; elements outside the tensor are dropped.

    Args:
        tile: uint8[box_bytes] in box order (swizzle undone).
        fetch: as in :func:`load_tile`; its view is written.
        reduce: None, or the operation of ``cp.reduce.async.bulk.tensor``: add min max inc dec and or xor.
    """
    ranges = _inside(tmap, coords)
    if ranges is None:
        return
    source = tile.reshape(_box_shape(tmap))[_part(tmap, ranges)]
    window = _window(tmap, coords, ranges, fetch)
    window[...] = source if reduce is None else _reduced(tmap.dtype, reduce, window, source)


def _half(name: str) -> tuple[Callable[[Bytes], NDArray[np.float32]], Callable[[NDArray[np.float32]], Bytes]]:
    pack = numeric.encode_f16 if name == "f16" else numeric.encode_bf16

    def values(raw: Bytes) -> NDArray[np.float32]:
        return numeric.decode(raw.view(np.uint16), name)

    return values, lambda result: pack(result).view(np.uint8)


_INTEGER: Final = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}
_LOGIC: Final = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_ARITHMETIC: Final = {"add": np.add, "min": np.minimum, "max": np.maximum}


def _reduced(dtype: str, op: str, old: Bytes, new: Bytes) -> Bytes:
    before, value = np.ascontiguousarray(old), np.ascontiguousarray(new)
    if dtype in _INTEGER:
        kind = _INTEGER[dtype]
        x, y = before.view(kind), value.view(kind)
        if op in _LOGIC or op in _ARITHMETIC:
            return np.asarray((_LOGIC | _ARITHMETIC)[op](x, y)).view(np.uint8)
        if dtype == "u32" and op in ("inc", "dec"):
            return _wrapped(op, x, y).view(np.uint8)
    elif dtype in ("f16", "bf16") and op in _ARITHMETIC:
        values, pack = _half(dtype)
        return pack(_ARITHMETIC[op](values(before), values(value)))
    elif dtype == "f32" and op == "add":
        return np.asarray(before.view(np.float32) + value.view(np.float32)).view(np.uint8)
    raise Fault("unsupported", f"cp.reduce.async.bulk.tensor: {op} of {dtype} elements is not defined")


def _wrapped(op: str, old: NDArray[np.uint32], limit: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """``atom.inc`` and ``atom.dec`` (PTX ISA ``atom``): count up to, or down from, the operand and wrap."""
    if op == "inc":
        return np.where(old >= limit, np.uint32(0), old + np.uint32(1))
    return np.where((old == 0) | (old > limit), limit, old - np.uint32(1))


def strides_of(shape: Sequence[int], element_bytes: int) -> tuple[int, ...]:
    """Byte strides of dimensions 1.. of a dense tensor, for :func:`encode`; extents innermost first."""
    return tuple(element_bytes * n for n in accumulate(shape[:-1], lambda x, y: x * y))
