"""Tensor memory and barriers of `out` (the table of columns is in `out`), and who has which channels."""

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_fragments import asm
from lethe.kernels.gdn.sm90.out_place import Place as Hopper
from lethe.kernels.gdn.sm100 import tensor

Int32 = cutlass.Int32

WRITTEN, STATE_PART, ADJOINT = 0, 64, 128
"""float32: E^T and N^T; D^T Kt^T; dO^T A and R^T."""

E, DN = 192, 224
"""float16 operands: E^T, dN^T; with one gate a head or none k^T and q^T later."""

PAIR, DQ, DP, DK = 256, 320, 384, 448
"""float32: dA in the lower half of the lanes, dM in the upper; dQh^T, dPh^T, dKt^T."""

KEYS, QUERIES, ERASERS = E, DN, WRITTEN
"""float16 operands of the products between tokens; p^T over the dead N^T."""

COLUMNS = 512

GIVEN = ("first", "written", "adjoint", "pair", "tokens", "again", "over")
"""What consumer warps say: operands are there; at last, that they are done with tensor memory."""

MADE = ("states", "local", "written", "adjoint", "pair", "keys", "tokens", "again")
"""What products say when they are complete."""

OFFSET = at.BYTES
SLOT = OFFSET + 8 * (len(GIVEN) + len(MADE))
BYTES = OFFSET + 128


class Exchange:
    """Between the consumers and the multiplier, in one chunk: ``phase`` is its parity."""

    def __init__(self, shared: cute.Pointer, base, warp, phase):
        self.barriers = cute.recast_ptr(shared + OFFSET, dtype=cutlass.Int64)
        self.base, self.phase = base, phase
        self.own = base + tensor.lanes_of(warp, warp // 4)

    def given(self, name: str) -> cute.Pointer:
        """The consumers' barrier of this name."""
        return self.barriers + GIVEN.index(name)

    def made(self, name: str) -> cute.Pointer:
        """The products' barrier of this name."""
        return self.barriers + len(GIVEN) + MADE.index(name)

    def give(self, name: str) -> None:
        """A consumer warp's operands are there."""
        tensor.arrive(self.given(name))

    def wait(self, name: str) -> None:
        """A consumer waits for products."""
        tensor.wait(self.made(name), self.phase)

    def load(self, column: int) -> list:
        """This warp's fragment of an accumulator of 64 columns."""
        return tensor.load(self.own + Int32(column), 64)

    def put(self, column: int, values: Sequence) -> None:
        """The same the other way round."""
        tensor.put(self.own + Int32(column), values)

    def put_words(self, column: int, words: Sequence) -> None:
        """A packed fragment as operand A."""
        tensor.put_words(self.own + Int32(column), words)


class Place(Hopper):
    """Addresses of `sm90.out_place`, with channels as M = 128 gives them to the lanes of a warp.

    Warp w of group g has the 16 channels from ``16 (2 w + g)`` on of tiles of d_k, and of d_v if that is 128;
    with d_v = 64 both groups have those from ``16 w`` on. ``warp`` and ``group`` stay those of the CTA, of
    row blocks of dA and dM.
    """

    def __init__(self, base, thread, warp, panels: int):
        super().__init__(base, thread, warp, panels)
        self.spread = 2 * (warp & 3) + self.group
        channels = Hopper(base, thread, self.spread, panels)
        self.keys, self.state, self.gate = channels.keys, channels.state, channels.gate
        if panels == 2:
            self.vals = self.keys


def allocate(shared: cute.Pointer) -> None:
    """By the multiplier, before a barrier: tensor memory; behind its address, that of shared memory."""
    tensor.allocate(COLUMNS, cute.recast_ptr(shared + SLOT, dtype=Int32))
    asm("st.shared.b32 [$0+4], $1;", "", [(shared + SLOT).toint(), shared.toint()], "rr", True)


def address(shared: cute.Pointer) -> Any:
    """Of tensor memory, after it."""
    return tensor.address(cute.recast_ptr(shared + SLOT, dtype=Int32))


def start(shared: cute.Pointer, warps: int) -> None:
    """By one thread: set up the barriers."""
    barriers = cute.recast_ptr(shared + OFFSET, dtype=cutlass.Int64)
    for number in range(len(GIVEN) + len(MADE)):
        cute.arch.mbarrier_init(barriers + number, warps if number < len(GIVEN) else 1)
