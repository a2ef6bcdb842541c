"""The multiplier warp of `out`: every tcgen05.mma of a chunk, in the order in which operands come.

Where there are 128 rows (channels), M = 128; d_v = 64 rows are formed twice, M = 64 in either half of the
lanes, for both groups. dA and dM are M = 64 by nature (rows are tokens): the halves are the two matrices.
"""

from collections.abc import Callable

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_spec import CHUNK, DK, Spec
from lethe.kernels.gdn.sm100 import out_map as to
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.tensor import Columns, Shared

Int32 = cutlass.Int32
PANEL = 128 * CHUNK
"""Bytes of 64 tokens of 64 channels."""


class Multiplier:
    """The products of one chunk."""

    def __init__(self, spec: Spec, shared: cute.Pointer, barriers: cute.Pointer, exchange: to.Exchange):
        self.spec, self.x, self.loaded = spec, exchange, barriers
        self.slot, self.base, self.address = (shared + to.SLOT).toint(), exchange.base, shared.toint()

    def chunk(self) -> None:
        """All of them."""
        spec, x = self.spec, self.x
        for loaded in (at.FULL_STATES, at.FULL_SQUARES):
            cute.arch.mbarrier_wait(self.loaded + loaded, x.phase)
        if spec.erases:
            self.group("first", (self.erased, "states"), (self.local, "local"))
            self.group("written", (self.written, "written"))
            self.group("adjoint", (self.adjoint, "adjoint"))
        else:
            self.group("first", (self.local, "local"))
        self.group("pair", (self.pair, "pair"), (self.keys, "keys"))
        if spec.gate != "channel":
            self.group("tokens", (self.tokens, "tokens"))
            if spec.erases:
                self.group("again", (self.again, "again"))

    def group(self, given: str, *products: tuple[Callable[[], None], str]) -> None:
        """Once operands are given, issue products, each with its barrier behind it.

        Addresses are read again each time: the assembler would keep the descriptors of all products of the
        loop in registers, of which this warp has few.
        """
        tensor.wait(self.x.given(given), self.x.phase)
        self.base, self.address = tensor.again(self.slot), tensor.again(self.slot + 4)
        with cute.arch.elect_one():
            for issue, made in products:
                issue()
                tensor.commit(self.x.made(made))

    def tile(self, offset: int, mn: bool = False, panel: int = PANEL) -> Shared:
        """A tile in shared memory as an operand."""
        return Shared(self.address, panel, mn, offset)

    def values(self, depth: int, column: int, a: Shared | int, b: Shared, accumulate: bool) -> None:
        """A product whose rows are d_v; ``a``: a tile, or a column of tensor memory."""
        rows = self.spec.dv
        for half in range(1 if rows == 128 else 2):
            base = self.base + Int32(half * tensor.HALF_LANES)
            left = Columns(base + Int32(a)) if isinstance(a, int) else a
            tensor.product(rows, CHUNK, depth, base + Int32(column), left, b, accumulate)

    def state(self, offset: int, mn: bool) -> Shared:
        """S^T or D^T [d_v, d_k]."""
        return self.tile(offset, mn, 128 * self.spec.dv)

    def erased(self) -> None:
        """S^T Ph^T."""
        self.values(DK, to.WRITTEN, self.state(at.S, False), self.tile(at.PH), False)

    def local(self) -> None:
        """D^T Kt^T and dO^T A."""
        self.values(DK, to.STATE_PART, self.state(at.D, False), self.tile(at.KT), False)
        self.values(CHUNK, to.ADJOINT, self.tile(at.DO, True), self.tile(at.A, True), False)

    def written(self) -> None:
        """N^T = E^T + E^T T'^T."""
        self.values(CHUNK, to.WRITTEN, to.E, self.tile(at.T), True)

    def adjoint(self) -> None:
        """R^T = dN^T + dN^T T'."""
        self.values(CHUNK, to.ADJOINT, to.DN, self.tile(at.T, True), True)

    def pair(self) -> None:
        """dO N^T and R N^T (dO N^T again without erasure)."""
        for half, rows in enumerate((at.DO, at.R if self.spec.erases else at.DO)):
            place = self.base + Int32(half * tensor.HALF_LANES + to.PAIR)
            tensor.product(64, CHUNK, self.spec.dv, place, self.tile(rows), self.tile(at.N), False)

    def keys(self) -> None:
        """S dO^T, S R^T, D N^T."""
        for column, state, b in ((to.DQ, at.S, at.DO), (to.DP, at.S, at.R), (to.DK, at.D, at.N)):
            if column != to.DP or self.spec.erases:
                a = self.state(state, True)
                place = self.base + Int32(column)
                tensor.product(DK, CHUNK, self.spec.dv, place, a, self.tile(b), False)

    def between(self, column: int, operand: int, b: Shared) -> None:
        """Onto a gradient of d_k rows, from an operand in tensor memory."""
        a = Columns(self.base + Int32(operand))
        tensor.product(DK, CHUNK, CHUNK, self.base + Int32(column), a, b, True)

    def tokens(self) -> None:
        """k^T dA^T, q^T dA, k^T dM^T."""
        self.between(to.DQ, to.KEYS, self.tile(at.A))
        self.between(to.DK, to.QUERIES, self.tile(at.A, True))
        if self.spec.erases:
            self.between(to.DP, to.KEYS, self.tile(at.T))

    def again(self) -> None:
        """p^T dM."""
        self.between(to.DK, to.ERASERS, self.tile(at.T, True))
