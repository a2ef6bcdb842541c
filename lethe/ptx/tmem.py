"""Tensor memory: 128 lanes x 512 columns of 32 bits, its allocation, and the shapes of its loads and stores.

PTX ISA "Tensor Memory" 9.7.16.1, "Data Movement Shape" 9.7.16.2.3, ``tcgen05.alloc``, ``tcgen05.ld`` and
``tcgen05.st``.  An address is ``lane << 16 | column``.  Cells that nobody wrote since their allocation are
poison; silicon gives whatever the last kernel left.  Allocation is first fit in units of 32 columns; a
request that does not fit blocks, as on silicon.  Not modelled: other CTAs of the same SM that hold columns.

Rows and columns of the fragments of one warp, thread t (0..31), register r:

==========  ==========================  ==================================
shape       lane                        column
==========  ==========================  ==================================
32x32b      t                           r
16x64b      t/4 + 8 (t mod 2)           2 r + (t/2 mod 2)
16x128b     t/4 + 8 (r mod 2)           4 (r/2) + t mod 4
16x256b     t/4 + 8 (r/2 mod 2)         8 (r/4) + 2 (t mod 4) + r mod 2
16x32bx2    t mod 16                    r + (t/16) * half-split offset
==========  ==========================  ==================================

With ``.pack::16b`` a register takes the low halves of two adjacent columns, the lower column in its low half;
``.unpack::16b`` is the inverse, and writes zero to the upper halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx.faults import Fault

LANES: Final = 128
COLUMNS: Final = 512
Region = tuple[int, int, int, int]

# shape -> (lanes, registers of .x1, columns of .x1, largest .num)
_SHAPES: Final = {
    "32x32b": (32, 1, 1, 128),
    "16x64b": (16, 1, 2, 128),
    "16x128b": (16, 2, 4, 64),
    "16x256b": (16, 4, 8, 32),
    "16x32bx2": (16, 1, 1, 128),
}


@dataclass(frozen=True)
class Allocation:
    """Live columns [column, column + columns)."""

    column: int
    columns: int


class TensorMemory:
    """The cells of one CTA's tensor memory with their lifetime.

    Attributes:
        data: uint32[128, 512].
        written: bool[128, 512], false for poison.
        whole: regions of MMA results known to be written; cleared when columns are freed.
    """

    def __init__(self) -> None:
        self.data = np.zeros((LANES, COLUMNS), np.uint32)
        self.written = np.zeros((LANES, COLUMNS), np.bool_)
        self.whole: set[Region] = set()
        self._owner = np.zeros(COLUMNS, np.int32)
        self._live: dict[int, Allocation] = {}
        self._serial = 0
        self._relinquished = False

    def reset(self) -> None:
        """As at the start of a CTA."""
        self.__init__()  # type: ignore[misc]

    def alloc(self, columns: int) -> int | None:
        """``tcgen05.alloc``: the address of the new columns, or None when the instruction has to block.

        Raises:
            Fault: ``tmem`` for a size that is not a power of two in 32..512, or after relinquishing.
        """
        _check_size(columns, "tcgen05.alloc")
        if self._relinquished:
            raise Fault("tmem", f"tcgen05.alloc of {columns} columns after tcgen05.relinquish_alloc_permit")
        for column in range(0, COLUMNS - columns + 1, 32):
            if not self._owner[column : column + columns].any():
                self._serial += 1
                self._owner[column : column + columns] = self._serial
                self._live[self._serial] = Allocation(column, columns)
                return column
        return None

    def dealloc(self, address: int, columns: int) -> None:
        """``tcgen05.dealloc``; ``Fault('tmem')`` unless it names exactly one live allocation."""
        _check_size(columns, "tcgen05.dealloc")
        wanted = Allocation(address & 0xFFFF, columns)
        serial = next((s for s, a in self._live.items() if a == wanted), None)
        if serial is None or address >> 16:
            raise Fault(
                "tmem",
                f"tcgen05.dealloc of {columns} columns at {address:#x}; live allocations: {self._describe()}",
            )
        del self._live[serial]
        self._owner[wanted.column : wanted.column + columns] = 0
        self.written[:, wanted.column : wanted.column + columns] = False
        self.whole.clear()

    def relinquish(self) -> None:
        """``tcgen05.relinquish_alloc_permit``; ``Fault('tmem')`` when repeated."""
        if self._relinquished:
            raise Fault("tmem", "tcgen05.relinquish_alloc_permit executed twice by one CTA")
        self._relinquished = True

    def leaks(self) -> list[Allocation]:
        """Allocations still live, oldest first; at the end of a CTA each one is a leak."""
        return list(self._live.values())

    def check_region(self, lane0: int, lane1: int, col0: int, col1: int, what: str) -> None:
        """Raise unless the half-open rectangle lies inside one live allocation.

        Raises:
            Fault: ``bounds`` outside 128 x 512, ``tmem`` outside a live allocation.
        """
        if not (0 <= lane0 < lane1 <= LANES and 0 <= col0 < col1 <= COLUMNS):
            raise Fault(
                "bounds", f"{what}: lanes {lane0}..{lane1 - 1}, columns {col0}..{col1 - 1} of 128 x 512"
            )
        owner = self._owner[col0]
        if not owner or self._owner[col1 - 1] != owner:
            raise Fault(
                "tmem",
                f"{what}: columns {col0}..{col1 - 1} are not inside a live allocation ({self._describe()})",
            )

    def check_written(self, lanes: NDArray[np.int64], cols: NDArray[np.int64], what: str) -> None:
        """``Fault('poison')`` naming the first cell of the index arrays that nobody wrote."""
        known = self.written[lanes, cols]
        if not known.all():
            lane, col = (int(np.broadcast_to(i, known.shape)[~known][0]) for i in (lanes, cols))
            raise Fault("poison", f"{what}: lane {lane}, column {col} of tensor memory was never written")

    def _describe(self) -> str:
        spans = [f"{a.column}..{a.column + a.columns - 1}" for a in self._live.values()]
        return "columns " + ", ".join(spans) if spans else "none"


def _check_size(columns: int, what: str) -> None:
    if not 32 <= columns <= COLUMNS or columns & (columns - 1):
        raise Fault("tmem", f"{what} of {columns} columns; expected a power of two in 32..512")


def _shape(shape: str, num: int) -> tuple[int, int, int]:
    if shape not in _SHAPES:
        raise Fault("unsupported", f"tcgen05.ld/st shape {shape} is not modelled")
    lanes, registers, columns, most = _SHAPES[shape]
    if not 1 <= num <= most or num & (num - 1):
        raise Fault("unsupported", f"tcgen05.ld/st {shape}.x{num}: expected a power of two up to x{most}")
    return lanes, registers * num, columns * num


@lru_cache(maxsize=256)
def ld_index(
    shape: str, num: int, half_split: int | None = None, pack16: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(lanes, columns) relative to the address: int64[32, R] each, read-only.

    With `pack16` the columns are those of the low halves; the high halves sit one column further.
    """
    _, registers, _ = _shape(shape, num)
    t = np.arange(32, dtype=np.int64)[:, None]
    r = np.arange(registers, dtype=np.int64)[None, :]
    step = 2 if pack16 else 1
    if shape == "32x32b":
        lanes, cols = t + 0 * r, step * r + 0 * t
    elif shape == "16x64b":
        lanes, cols = t // 4 + 8 * (t % 2) + 0 * r, step * (2 * r + t // 2 % 2)
    elif shape == "16x128b":
        lanes, cols = t // 4 + 8 * (r % 2), step * (4 * (r // 2) + t % 4)
    elif shape == "16x256b":
        lanes, cols = t // 4 + 8 * (r // 2 % 2), step * (8 * (r // 4) + 2 * (t % 4) + r % 2)
    else:
        if half_split is None:
            raise Fault("unsupported", "tcgen05.ld/st .16x32bx2 without its half-split offset")
        lanes, cols = t % 16 + 0 * r, step * r + half_split * (t // 16)
    lanes.setflags(write=False)
    cols.setflags(write=False)
    return lanes, cols


def region(taddr: int, shape: str, num: int, offset: int | None = None, pack16: bool = False) -> Region:
    """Half-open rectangle (lane0, lane1, column0, column1) that a load or store touches."""
    lanes, _, columns = _shape(shape, num)
    lane, col = taddr >> 16, taddr & 0xFFFF
    width = columns * (2 if pack16 else 1)
    if shape == "16x32bx2":
        low, high = min(0, offset or 0), max(0, offset or 0)
        return lane, lane + lanes, col + low, col + high + width
    return lane, lane + lanes, col, col + width


def _cells(
    tm: TensorMemory, taddr: int, shape: str, num: int, warp: int, offset: int | None, pack16: bool, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    area = region(taddr, shape, num, offset, pack16)
    quarter = 32 * (warp % 4)
    if not (quarter <= area[0] and area[1] <= quarter + 32) or area[0] % 16:
        raise Fault(
            "bounds",
            f"{what}: lanes {area[0]}..{area[1] - 1} from warp {warp}, which may touch lanes "
            f"{quarter}..{quarter + 31} in steps of {32 if shape == '32x32b' else 16}",
        )
    tm.check_region(*area, what)
    lanes, cols = ld_index(shape, num, offset if shape == "16x32bx2" else None, pack16)
    return lanes + (taddr >> 16), cols + (taddr & 0xFFFF)


def load(
    tm: TensorMemory,
    taddr: int,
    shape: str,
    num: int,
    warp_in_warpgroup: int,
    pack16: bool = False,
    offset: int | None = None,
) -> NDArray[np.uint32]:
    """``tcgen05.ld``: registers uint32[32, R] of one warp.

    Raises:
        Fault: ``bounds`` for lanes of another warp, ``tmem`` outside live columns, ``poison`` for cells that
            nobody wrote.
    """
    what = f"tcgen05.ld.{shape}.x{num}"
    lanes, cols = _cells(tm, taddr, shape, num, warp_in_warpgroup, offset, pack16, what)
    tm.check_written(lanes, cols, what)
    low = tm.data[lanes, cols]
    if not pack16:
        return low
    tm.check_written(lanes, cols + 1, what)
    return (low & np.uint32(0xFFFF)) | tm.data[lanes, cols + 1] << np.uint32(16)


def store(
    tm: TensorMemory,
    taddr: int,
    shape: str,
    num: int,
    warp_in_warpgroup: int,
    values: NDArray[np.uint32],
    unpack16: bool = False,
    offset: int | None = None,
) -> None:
    """``tcgen05.st`` of registers uint32[32, R]; faults as :func:`load`, without the poison."""
    what = f"tcgen05.st.{shape}.x{num}"
    lanes, cols = _cells(tm, taddr, shape, num, warp_in_warpgroup, offset, unpack16, what)
    tm.written[lanes, cols] = True
    if not unpack16:
        tm.data[lanes, cols] = values
        return
    tm.written[lanes, cols + 1] = True
    tm.data[lanes, cols] = values & np.uint32(0xFFFF)
    tm.data[lanes, cols + 1] = values >> np.uint32(16)
