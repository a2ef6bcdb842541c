"""Shared-memory swizzles: which 16-byte granule of a 128-byte row holds what.

TMA and the matrix descriptors of ``wgmma`` and ``tcgen05`` share the same patterns (PTX ISA 5.5.7, and the
shared-memory matrix layouts of ``wgmma`` 9.7.15.5.1.2 and ``tcgen05`` 9.7.16.10.6).  A pattern XORs address
bits into lower ones, so it acts on absolute shared-memory addresses:

================  ==================================  ===================
mode              XOR                                 pattern repeats at
================  ==================================  ===================
32B               bit  7     into bit  4              256 bytes
64B               bits 7, 8  into bits 4, 5           512 bytes
128B              bits 7-9   into bits 4-6            1024 bytes
128B_ATOM_32B     bits 7, 8  into bits 5, 6           512 bytes
================  ==================================  ===================

A matrix descriptor whose pattern does not start at such a boundary says so in its base offset, in units of
128 bytes; the row number that is XORed in counts from there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lethe.ptx.faults import Fault

# mode -> (mask of the 128-byte row number, left shift of the masked row number)
_PATTERN: Final = {"none": (0, 4), "32B": (1, 4), "64B": (3, 4), "128B": (7, 4), "128B_ATOM_32B": (3, 5)}

GRANULE: Final = 16
PERIOD: Final = 1024


def apply(addresses: NDArray[np.int64], mode: str, base_offset: int = 0) -> NDArray[np.int64]:
    """Physical addresses of logical ones.

    Args:
        addresses: byte addresses in shared memory, int64, any shape.
        mode: a key of the table above, or "none".
        base_offset: row number (address / 128, modulo 8) at which the pattern starts.

    Raises:
        Fault: ``unsupported`` for the 64-byte atom and the 8-byte flip, whose bit pattern is not public.
    """
    if mode not in _PATTERN:
        raise Fault("unsupported", f"swizzle {mode} is not modelled")
    mask, shift = _PATTERN[mode]
    if not mask:
        return addresses
    row = ((addresses >> 7) - base_offset) & mask
    return addresses ^ (row << shift)
