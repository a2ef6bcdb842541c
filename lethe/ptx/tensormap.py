"""The 128-byte tensor map (``CUtensorMap``) that TMA instructions take: decode it, and write it.

A tensor map is opaque in the documentation (PTX ISA section "Tensors" 5.5 and the driver's
``cuTensorMapEncodeTiled``).  The layout below was read off maps that the CuTe launcher writes; only the first
64 bytes mean anything.  32-bit words, bit ranges half-open:

====  =========  ==================================================================================
word  bits       field
====  =========  ==================================================================================
0-1   0..57      global address
2     1          always set
2     4..7       rank - 1
2     7..11      element type (``_TYPE_CODE``)
2     11..13     interleave                                                    (inferred, see below)
2     13..15     swizzle span: 0 none, 1 32 B, 2 64 B, 3 128 B
2     15         out-of-bounds elements read as NaN                            (inferred, see below)
2     16         fp32 is rounded to tf32
2     18         always set
2     19..21     swizzle atom: 0 16 B, 1 32 B, 2 32 B with 8 B flip, 3 64 B
2     21         set when rank > 1
2     22..24     L2 promotion                                                  (inferred, see below)
3-6              strides of dimensions 1-4 in units of 16 bytes, low 32 bits
7     4i..4i+4   bits 32..36 of stride i
8-12             dimensions 0-4, minus 1
13    3i..3i+3   element stride of dimension i, minus 1                        (inferred, see below)
13    24..32     box of dimension 0, minus 1
14    8i..8i+8   box of dimension i+1, minus 1
====  =========  ==================================================================================

"Inferred" fields were at their default in every map that could be observed; their places are the gaps that
remain.  They only matter for maps that :func:`encode` writes and :func:`decode` reads back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx.faults import Fault

TYPES: Final = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz",
)  # fmt: skip
SWIZZLES: Final = (
    "none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B",
)  # fmt: skip
INTERLEAVES: Final = ("none", "16B", "32B")
FILLS: Final = ("zero", "nan")
PROMOTIONS: Final = ("none", "64B", "128B", "256B")

_TYPE_CODE: Final = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f32_ftz": 8, "f64": 9,
    "bf16": 10,
}  # fmt: skip
_CODE_TYPE: Final = {code: name for name, code in _TYPE_CODE.items()}
ELEMENT_BYTES: Final = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2,
    "f32_ftz": 4, "tf32": 4, "tf32_ftz": 4,
}  # fmt: skip
FLOATS: Final = ("f16", "bf16", "f32", "f32_ftz", "tf32", "tf32_ftz", "f64")
_SPAN_ATOM: Final = {
    "none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0),
    "128B_ATOM_32B": (3, 1), "128B_ATOM_32B_FLIP_8B": (3, 2), "128B_ATOM_64B": (3, 3),
}  # fmt: skip
SWIZZLE_SPAN: Final = {name: (16 << span if span else 0) for name, (span, _) in _SPAN_ATOM.items()}
_ALWAYS: Final = 1 << 1 | 1 << 18


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map; tuples are innermost dimension first.

    Attributes:
        dtype: element type, one of ``TYPES``.
        address: global byte address of element 0.
        shape: extents in elements; ``rank`` of them, 1 to 5.
        strides: byte strides of dimensions 1.. (dimension 0 is contiguous): ``rank - 1`` of them.
        box: tile extents in elements, before the element strides thin them out.
        element_strides: step through each dimension; dimension 0 always steps by 1.
        swizzle, interleave, fill, promotion: names from ``SWIZZLES``, ``INTERLEAVES``, ``FILLS`` and
            ``PROMOTIONS``.
    """

    dtype: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: str = "none"
    interleave: str = "none"
    fill: str = "zero"
    promotion: str = "none"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.dtype]

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """Elements that arrive in shared memory along each dimension: ceil(box / element stride)."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))

    @cached_property
    def box_bytes(self) -> int:
        """Bytes of one tile in shared memory, also what a load adds to the transaction count."""
        return prod(self.tile) * self.element_bytes


def _named(value: str | int, names: Sequence[str], what: str) -> str:
    if isinstance(value, str) and value in names:
        return value
    if not isinstance(value, str) and 0 <= int(value) < len(names):
        return names[int(value)]
    raise Fault("descriptor", f"tensor map: unknown {what} {value!r}, expected one of {', '.join(names)}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise Fault("descriptor", f"tensor map: {message}")


def check(tmap: TensorMap) -> None:
    """Raise ``Fault('descriptor')`` where ``cuTensorMapEncodeTiled`` would refuse the arguments.

    ``Fault('unsupported')`` marks legal maps that are not modelled (interleaved layouts).
    """
    rank, size = tmap.rank, tmap.element_bytes
    _require(1 <= rank <= 5, f"rank {rank} is not 1..5")
    lengths = (len(tmap.strides), len(tmap.box), len(tmap.element_strides))
    _require(lengths == (rank - 1, rank, rank), f"rank {rank} with {lengths} strides, box, element strides")
    if tmap.interleave != "none":
        raise Fault("unsupported", f"tensor map: interleave {tmap.interleave} is not modelled")
    _require(tmap.address % 16 == 0, f"global address {tmap.address:#x} is not 16-byte aligned")
    _require(0 <= tmap.address < 1 << 57, f"global address {tmap.address:#x} does not fit 57 bits")
    for d, n in enumerate(tmap.shape):
        _require(1 <= n <= 1 << 32, f"dimension {d} has extent {n}, expected 1..2^32")
    for d, s in enumerate(tmap.strides, start=1):
        _require(s % 16 == 0 and 0 <= s < 1 << 40, f"stride {s} of dimension {d} is not 16k < 2^40")
    for d, (b, s) in enumerate(zip(tmap.box, tmap.element_strides, strict=True)):
        _require(1 <= b <= 256, f"box {b} of dimension {d} is not 1..256")
        _require(1 <= s <= 8, f"element stride {s} of dimension {d} is not 1..8")
    inner, span = tmap.box[0] * size, SWIZZLE_SPAN[tmap.swizzle]
    _require(inner % 16 == 0, f"inner box of {inner} bytes is not a multiple of 16")
    _require(not span or inner <= span, f"inner box of {inner} bytes exceeds the {tmap.swizzle} swizzle span")
    _require(tmap.fill == "zero" or tmap.dtype in FLOATS, f"NaN fill of {tmap.dtype} elements")


def encode(
    dtype: str | int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    interleave: str | int = "none",
    swizzle: str | int = "none",
    l2_promotion: str | int = "none",
    fill: str | int = "zero",
) -> NDArray[np.uint8]:
    """Write a tensor map from the arguments of ``cuTensorMapEncodeTiled``.

    Args:
        dtype, interleave, swizzle, l2_promotion, fill: names of this module or the driver's enum integers.
        address: global byte address, 16-byte aligned.
        dims, box, element_strides: innermost first, in elements; element_strides default to ones.
        strides: bytes, of dimensions 1..rank-1.

    Returns:
        uint8[128].

    Raises:
        Fault: ``descriptor`` for arguments that the driver refuses, ``unsupported`` for interleaved layouts.
    """
    ones = (1,) * len(dims) if element_strides is None else tuple(int(s) for s in element_strides)
    tmap = TensorMap(
        dtype=_named(dtype, TYPES, "element type"),
        address=int(address),
        shape=tuple(int(n) for n in dims),
        strides=tuple(int(s) for s in strides),
        box=tuple(int(b) for b in box),
        element_strides=(1, *ones[1:]),
        swizzle=_named(swizzle, SWIZZLES, "swizzle"),
        interleave=_named(interleave, INTERLEAVES, "interleave"),
        fill=_named(fill, FILLS, "fill"),
        promotion=_named(l2_promotion, PROMOTIONS, "L2 promotion"),
    )
    check(tmap)
    return _pack(tmap)


def _pack(tmap: TensorMap) -> NDArray[np.uint8]:
    words = np.zeros(32, np.uint32)
    words[0], words[1] = tmap.address & 0xFFFFFFFF, tmap.address >> 32
    rounds = tmap.dtype.startswith("tf32")
    span, atom = _SPAN_ATOM[tmap.swizzle]
    words[2] = (
        _ALWAYS
        | (tmap.rank - 1) << 4
        | _TYPE_CODE[tmap.dtype.removeprefix("t") if rounds else tmap.dtype] << 7
        | INTERLEAVES.index(tmap.interleave) << 11
        | span << 13
        | FILLS.index(tmap.fill) << 15
        | rounds << 16
        | atom << 19
        | (tmap.rank > 1) << 21
        | PROMOTIONS.index(tmap.promotion) << 22
    )
    for d, stride in enumerate(tmap.strides):
        words[3 + d] = (stride >> 4) & 0xFFFFFFFF
        words[7] |= np.uint32((stride >> 36) << 4 * d)
    for d, n in enumerate(tmap.shape):
        words[8 + d] = n - 1
    packed = words.view(np.uint8)
    steps = sum((s - 1) << 3 * d for d, s in enumerate(tmap.element_strides))
    packed[52], packed[53] = steps & 0xFF, steps >> 8
    packed[55 : 55 + tmap.rank] = [b - 1 for b in tmap.box]
    return packed


def decode(raw: NDArray[np.uint8] | bytes) -> TensorMap:
    """Read a tensor map.

    Args:
        raw: 128 bytes; only the first 64 are looked at.

    Raises:
        Fault: ``descriptor`` when the bytes are no tensor map that the driver could have written.
    """
    data = np.frombuffer(bytes(raw), np.uint8)
    _require(data.size == 128, f"{data.size} bytes instead of 128")
    words = [int(w) for w in data.view(np.uint32)[:16]]
    flags = words[2]
    _require(flags & _ALWAYS == _ALWAYS, f"flag word {flags:#010x}: these 128 bytes hold no tensor map")
    rank, code = (flags >> 4 & 7) + 1, flags >> 7 & 15
    _require(rank <= 5 and code in _CODE_TYPE, f"flag word {flags:#010x}: rank {rank}, element type {code}")
    pair = (flags >> 13 & 3, flags >> 19 & 3)
    swizzle = next((name for name, value in _SPAN_ATOM.items() if value == pair), None)
    interleave = flags >> 11 & 3
    _require(swizzle is not None and interleave < 3, f"flag word {flags:#010x}: swizzle {pair}")
    dtype = _CODE_TYPE[code]
    if flags >> 16 & 1:
        _require(dtype in ("f32", "f32_ftz"), f"tf32 rounding of {dtype} elements")
        dtype = "t" + dtype
    steps = words[13]
    tmap = TensorMap(
        dtype=dtype,
        address=words[0] | (words[1] & 0x1FFFFFF) << 32,
        shape=tuple(w + 1 for w in words[8 : 8 + rank]),
        strides=tuple((words[3 + d] | (words[7] >> 4 * d & 15) << 32) << 4 for d in range(rank - 1)),
        box=tuple(int(b) + 1 for b in data[55 : 55 + rank]),
        element_strides=tuple((steps >> 3 * d & 7) + 1 for d in range(rank)),
        swizzle=str(swizzle),
        interleave=INTERLEAVES[interleave],
        fill=FILLS[flags >> 15 & 1],
        promotion=PROMOTIONS[flags >> 22 & 3],
    )
    check(tmap)
    return tmap


# fields of tensormap.replace that hold one number per dimension -> how many, relative to the rank
_PER_DIMENSION: Final = ("box_dim", "global_dim", "global_stride", "element_stride")
# single-valued bit fields of the flag word: first bit, number of values
_FLAG_FIELDS: Final = {"interleave_layout": (11, 3), "swizzle_mode": (13, 4), "fill_mode": (15, 2)}


def replace(raw: NDArray[np.uint8], field: str, ordinal: int | None, value: int) -> None:
    """``tensormap.replace.tile.field`` (PTX ISA ``tensormap.replace``): overwrite one field in place.

    A map that starts as zeros becomes a legal one when every field has been replaced; setting the rank also
    sets the bits that every map has.

    Args:
        raw: uint8[128], modified.
        field: global_address, rank, box_dim, global_dim, global_stride, element_stride, elemtype,
            interleave_layout, swizzle_mode, swizzle_atomicity or fill_mode.
        ordinal: dimension for the fields that have one per dimension; stride 0 is that of dimension 1.
        value: as the ISA's table gives it: rank - 1, extents, byte strides, enumeration codes.

    Raises:
        Fault: ``descriptor`` for an ordinal or a value outside the field, ``unsupported`` for other fields.
    """
    words, data = raw.view(np.uint32), raw
    flags = int(words[2])
    if field in _PER_DIMENSION:
        dimensions = 4 if field == "global_stride" else 5
        _require(ordinal is not None and 0 <= ordinal < dimensions, f"replace {field}: ordinal {ordinal}")
        _replace_dimension(words, data, field, int(ordinal or 0), value)
    elif field == "global_address":
        words[0], words[1] = value & 0xFFFFFFFF, value >> 32 & 0x1FFFFFF
    elif field == "rank":
        _require(0 <= value <= 4, f"replace rank: {value}, expected rank - 1")
        words[2] = flags & ~(7 << 4 | 1 << 21) | value << 4 | (value > 0) << 21 | _ALWAYS
    elif field == "elemtype":
        _require(0 <= value <= 12, f"replace elemtype: {value} is not modelled")
        code = value if value < 11 else value - 4
        words[2] = flags & ~(15 << 7 | 1 << 16) | code << 7 | (value > 10) << 16
    elif field == "swizzle_atomicity":
        _require(0 <= value <= 3, f"replace swizzle_atomicity: {value}")
        words[2] = flags & ~(3 << 19) | value << 19
    elif field in _FLAG_FIELDS:
        first, count = _FLAG_FIELDS[field]
        _require(0 <= value < count, f"replace {field}: {value} is not modelled")
        mask = 3 if count > 2 else 1
        words[2] = flags & ~(mask << first) | value << first
    else:
        raise Fault("unsupported", f"tensormap.replace.tile.{field} is not modelled")


def _replace_dimension(
    words: NDArray[np.uint32], data: NDArray[np.uint8], field: str, d: int, value: int
) -> None:
    if field == "global_dim":
        words[8 + d] = (value - 1) & 0xFFFFFFFF
    elif field == "box_dim":
        _require(1 <= value <= 256, f"replace box_dim {d}: {value} is not 1..256")
        data[55 + d] = value - 1
    elif field == "element_stride":
        _require(1 <= value <= 8, f"replace element_stride {d}: {value} is not 1..8")
        words[13] = int(words[13]) & ~(7 << 3 * d) | (value - 1) << 3 * d
    else:
        _require(value % 16 == 0 and 0 <= value < 1 << 40, f"replace global_stride {d}: {value}")
        words[3 + d] = value >> 4 & 0xFFFFFFFF
        words[7] = int(words[7]) & ~(15 << 4 * d) | (value >> 36) << 4 * d
