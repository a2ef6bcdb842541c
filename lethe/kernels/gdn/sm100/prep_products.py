"""The matrix products of prep on tcgen05.mma; fragments, addresses and stores are `sm90.prep_products`'s."""

from collections.abc import Callable

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_fragments as registers
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90 import prep_products as hopper
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, HALF_TILE
from lethe.kernels.gdn.sm100 import prep_map as at
from lethe.kernels.gdn.sm100 import tensor

Int32 = cutlass.Int32


class Products(hopper.Products):
    """One warp's part of every product; ``held``: its tensor memory, None if there is no product."""

    def __init__(self, of, base, places: dict, thread, warp, lane, decay, held: at.Memory | None):
        super().__init__(of, base, places, thread, warp, lane, decay)
        self.held, self.shift = held, Int32(0)
        spread = 2 * (warp % 4) + self.group
        self.key_warp = spread if of.dk == 128 else warp % 4
        self.value_warp = spread if of.dv == 128 else warp % 4

    def shared(self, name: str, mn: bool, further=0) -> tensor.Shared:
        """A tile as an operand."""
        return tensor.Shared(self.at[name] + further, HALF_TILE, mn)

    def by_one(self, issue: Callable[[], None]) -> None:
        """Let one thread issue products."""
        one_thread(self.warp, issue)

    def issue(self, rows: int, columns: int, column: int, a: tuple, b: tuple, accumulate: bool) -> None:
        """One product of 64 tokens: M = 128 at once, or M = 64 in both halves of the lanes.

        ``a``: (tile, MN-major) or a column of tensor memory; ``b``: (tile, MN-major, bytes from one group's
        part to the other's).
        """
        for half in range(1 if rows == 128 else 2):
            base = self.held.base + Int32(half * tensor.HALF_LANES)
            left = self.shared(*a) if isinstance(a, tuple) else tensor.Columns(base + Int32(a))
            right = self.shared(b[0], b[1], half * b[2])
            tensor.product(rows, columns, CHUNK, base + Int32(column), left, right, accumulate)

    def commit(self, number: int) -> None:
        """Let the barrier of this number know."""
        tensor.commit(self.held.barriers + number)

    @property
    def columns_of_p(self) -> int:
        """Columns of P^T that a warp holds."""
        return self.of.dk // (2 if self.of.halved else 1)

    @property
    def between_groups(self) -> int:
        """Bytes from the columns of one group to the other's, in a tile of a key's width."""
        return HALF_TILE if self.of.halved else 0

    def put_erasers(self) -> None:
        """Ph^T as initial accumulator of W^T and as its operand."""
        first = self.decayed_erasers()
        tensor.put(self.held.own + Int32(at.W), first)
        tensor.put_words(self.held.own + Int32(at.PH), registers.pack_all(first))

    def put_local(self) -> None:
        """a dO^T as initial accumulator of dNloc^T, in units of dO's power."""
        do = registers.unpack_all(self.words(self.at["DO"], self.value_warp), parts.HALF)
        a = self.of_tokens(self.at["SMALL"], 0, 8)
        tensor.put(self.held.own + Int32(at.LOCAL), [x * y for x, y in zip(do, a, strict=True)])

    def first(self) -> None:
        """Issue W^T, dNloc^T and dO^T Qh."""
        of = self.of
        if of.erase != "none":
            self.issue(of.dk, CHUNK, at.W, at.PH, ("T", False, 0), True)
            self.commit(at.OF_W)
            if of.adjoint:
                self.issue(of.dv, CHUNK, at.LOCAL, ("DO", True), ("A", True, 0), True)
                self.commit(at.OF_LOCAL)
        if of.adjoint:
            queries = ("Q", True, self.between_groups)
            self.issue(of.dv, self.columns_of_p, at.P, ("DO", True), queries, False)
            self.commit(at.OF_P)

    def second(self) -> None:
        """Issue the second product of P^T."""
        w = ("B", True, self.between_groups)
        self.issue(self.of.dv, self.columns_of_p, at.P, at.NEGATED, w, True)
        self.commit(at.OF_LAST)

    def last(self) -> None:
        """Issue U^T."""
        self.issue(self.of.dv, CHUNK, at.LOCAL, at.WV, ("T", False, 0), True)
        self.commit(at.OF_LAST)

    def finish_w(self) -> None:
        """Write W where b was."""
        self.held.wait(at.OF_W)
        words = registers.pack_all(tensor.load(self.held.own + Int32(at.W), CHUNK))
        place = self.transposed_at(self.at["B"], self.key_warp)
        for step in range(4):
            registers.store_matrices(place + 2048 * step, words[4 * step : 4 * step + 4], transposed=True)

    def negate(self, scale) -> None:
        """-dNloc^T as an operand with a power of the warp's own, and P^T so far in its units."""
        self.held.wait(at.OF_LOCAL)
        values = tensor.load(self.held.own + Int32(at.LOCAL), CHUNK)
        shift = 8 - parts.exponent(registers.largest(values))
        limit = Int32(hopper.MOST_SHIFT)
        self.shift = cutlass.max(cutlass.min(shift, limit), -limit)
        factor = -registers.two_to(self.shift)
        negated = registers.pack_all([x * factor for x in values])
        tensor.put_words(self.held.own + Int32(at.NEGATED), negated)
        self.held.wait(at.OF_P)
        scale = scale * registers.two_to(self.shift)
        tensor.put(self.held.own + Int32(at.P), [x * scale for x in self.p_so_far()])

    def p_so_far(self) -> list:
        """What P^T has of this warp."""
        return tensor.load(self.held.own + Int32(at.P), self.columns_of_p)

    def adjoint(self, scale) -> tuple:
        """(P^T, what its values are to be multiplied by)."""
        _, undo = registers.binade(self.maxima.most(hopper.OF_DO, 4))
        if self.of.erase == "none":
            self.held.wait(at.OF_P)
            return [x * scale for x in self.p_so_far()], undo
        self.held.wait(at.OF_LAST)
        return self.p_so_far(), undo * registers.two_to(-self.shift)

    def values(self, first: list) -> tuple:
        """U^T = (w v)^T + (w v)^T T'^T in units of the power of w v: (values, what to multiply them by)."""
        power, undo = registers.binade(self.maxima.most(hopper.OF_WV))
        scaled = [x * power for x in first]
        if self.of.erase == "none":
            return scaled, undo
        tensor.put(self.held.own + Int32(at.LOCAL), scaled)
        tensor.put_words(self.held.own + Int32(at.WV), registers.pack_all(scaled))
        tensor.publish()
        cute.arch.sync_threads()
        tensor.observe()
        self.by_one(self.last)
        self.held.wait(at.OF_LAST, 1 if self.of.adjoint else 0)
        return tensor.load(self.held.own + Int32(at.LOCAL), CHUNK), undo


@cute.jit
def one_thread(warp, issue: cutlass.Constexpr):
    """By one thread of the first warp."""
    if warp == 0:
        with cute.arch.elect_one():
            issue()
