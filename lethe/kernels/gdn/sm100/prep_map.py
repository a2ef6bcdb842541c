"""Tensor memory and barriers of `prep` (the table of columns is in `prep`)."""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm100 import tensor

W, LOCAL, P = 0, 64, 128
"""float32 accumulators: W^T, then P^T's second A operand over it; dNloc^T, then U^T; P^T."""

PH, NEGATED, WV = 128, 0, 32
"""float16 A operands: Ph^T, until P^T's first product; -dNloc^T and (w v)^T over the dead W^T."""

COLUMNS = 256
"""Half of what an SM has: two CTAs share it."""

BARRIERS, SLOT = 416, 480
"""Bytes of SMALL that `sm90.prep` leaves free: four mbarriers, the address of tensor memory."""

OF_W, OF_LOCAL, OF_P, OF_LAST = range(4)
"""Barrier by product; the last one serves P^T's second product, and then that of U^T."""


@dataclass(frozen=True)
class Memory:
    """``base``: address of tensor memory; ``own``: of this warp's 16 lanes."""

    base: Any
    own: Any
    barriers: Any

    def wait(self, number: int, phase: int = 0) -> None:
        """Until this product is complete."""
        tensor.wait(self.barriers + number, Int32(phase))


Int32 = cutlass.Int32


def start(small: cute.Pointer, warp) -> None:
    """By all threads, before a barrier: one warp allocates, another sets up the barriers."""
    barriers = cute.recast_ptr(small + BARRIERS, dtype=cutlass.Int64)
    _start(barriers, cute.recast_ptr(small + SLOT, dtype=Int32), warp)


@cute.jit
def _start(barriers: cute.Pointer, slot: cute.Pointer, warp):
    if warp == 0:
        tensor.allocate(COLUMNS, slot)
    if warp == 1:
        with cute.arch.elect_one():
            for number in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(barriers + number, 1)
        cute.arch.mbarrier_init_fence()


def memory(small: cute.Pointer, warp) -> Memory:
    """After that barrier."""
    base = tensor.address(cute.recast_ptr(small + SLOT, dtype=Int32))
    barriers = cute.recast_ptr(small + BARRIERS, dtype=cutlass.Int64)
    return Memory(base, base + tensor.lanes_of(warp, warp // 4), barriers)
