"""Tensor memory and tcgen05.mma for fragments: what the three kernels for sm_100a share.

A *fragment* is what a warp's thread holds of 16 rows of a matrix (`sm90.out_fragments`): the accumulator of a
wgmma, index ``4 j + 2 h + e`` for row ``8 h + lane / 4`` and column ``8 j + 2 (lane mod 4) + e``. Tensor
memory has two shapes of load and store that are just that, for 16 lanes:

===============  =====================================================================================
``.16x256b``     float32, a column each: a fragment as it is (`load`, `put`)
``.16x128b``     two float16 a column: the packed fragment, which is operand A of tcgen05.mma (`put_words`)
===============  =====================================================================================

So nothing is shuffled on the way. Warp w reaches lanes ``32 (w mod 4)`` and the 31 after them. Rows live

* M = 64 (layout F): the 16 rows from 16 r on in the lanes from ``32 r + half`` on, half 0 or 16. A warp
  group's four warps hold the four r; two groups share the same columns, one half each;
* M = 128 (layout D): row i in lane i, so that warp w of group g has 16 rows from ``16 (2 (w mod 4) + g)`` on.

`Shared` describes a tile as TMA writes it with a 128-byte swizzle: panels of 64 16-bit columns, one after the
other, of rows of 128 bytes. K-major, K runs along the columns; MN-major, along the rows (PTX ISA, "matrix
descriptor": stride 1024 from eight rows to the next, leading dimension from panel to panel).

One thread issues a product and the commit behind it; who waits for the commit may read the result. Orders:
``publish`` between a store to tensor memory (or a read of it) and the arrival that tells of it, ``observe``
between a wait and what relies on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

from lethe.kernels.gdn.sm90.out_fragments import Int32, asm

LANE = 1 << 16
"""From one lane of tensor memory to the next, in addresses; a column is 1."""

HALF_LANES = 16 * LANE
ALL_COLUMNS = 512
K = 16
"""Depth of one tcgen05.mma on float16."""

_FLOAT32_RESULT = 1 << 4
_HIGH = (1024 >> 4) | 1 << 14 | 2 << 29
"""Upper word of a matrix descriptor: stride 1024, the constant 1, 128-byte swizzle."""


def publish() -> None:
    """What this thread stored to tensor memory, or has read of it, is done before its next arrival."""
    asm("tcgen05.wait::st.sync.aligned;\n\ttcgen05.fence::before_thread_sync;", "", [], "", True)


def observe() -> None:
    """What follows is ordered after the wait or barrier just passed."""
    asm("tcgen05.fence::after_thread_sync;", "", [], "", True)


def allocate(columns: int, slot: cute.Pointer) -> None:
    """By one warp, once: allocate, give up the permit, and leave the address at `slot` (shared, Int32)."""
    assert columns in (32, 64, 128, 256, 512), columns
    cute.arch.alloc_tmem(columns, slot)
    cute.arch.relinquish_tmem_alloc_permit()
    asm("tcgen05.fence::before_thread_sync;", "", [], "", True)


def address(slot: cute.Pointer):
    """What `allocate` left, after a barrier."""
    observe()
    return asm("ld.shared.b32 $0, [$1];", "r", [slot.toint()], "r", True)


def again(slot):
    """A word of shared memory (its address is an Int32), read here and now."""
    return asm("ld.volatile.shared.b32 $0, [$1];", "r", [slot], "r", True)


def deallocate(base, columns: int) -> None:
    """By the same warp, once, after a barrier behind everybody's last use."""
    observe()
    asm(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 $0, {columns};", "", [base], "r", True)


def lanes_of(warp, half):
    """Offset of the 16 lanes of a warp, in the lower (0) or upper (1) half of its 32."""
    return (warp % 4) * Int32(32 * LANE) + half * Int32(HALF_LANES)


def load(place, columns: int) -> list:
    """A float32 fragment of `columns` columns, arrived."""
    registers = columns // 2
    names = ", ".join(f"${i}" for i in range(registers))
    text = f"tcgen05.ld.sync.aligned.16x256b.x{columns // 8}.b32 {{{names}}}, [${registers}];"
    return list(asm(text + "\n\ttcgen05.wait::ld.sync.aligned;", "f" * registers, [place], "r", True))


def put(place, values: Sequence) -> None:
    """A float32 fragment to tensor memory."""
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    text = f"tcgen05.st.sync.aligned.16x256b.x{len(values) // 4}.b32 [$0], {{{names}}};"
    asm(text, "", [place, *values], "r" + "f" * len(values), True)


def put_words(place, words: Sequence) -> None:
    """A packed fragment as operand A: a quarter as many columns as the fragment has registers, twice over."""
    names = ", ".join(f"${i + 1}" for i in range(len(words)))
    text = f"tcgen05.st.sync.aligned.16x128b.x{len(words) // 2}.b32 [$0], {{{names}}};"
    asm(text, "", [place, *words], "r" * (len(words) + 1), True)


@dataclass(frozen=True)
class Shared:
    """A tile as an operand: ``offset`` (bytes, static, a multiple of 1024) from a shared address (Int32).

    ``panel``: bytes of a panel; ``mn``: MN-major, where rows of the tile are K and its columns are M or N.
    """

    address: Any
    panel: int
    mn: bool = False
    offset: int = 0

    def step(self, k: int) -> int:
        """What K = 16 k adds to the matrix descriptor of `address`: start, and the leading dimension."""
        if self.mn:
            return (self.offset + 128 * K * k) >> 4 | self.panel >> 4 << 16
        return (self.offset + self.panel * (k // 4) + 2 * K * (k % 4)) >> 4


@dataclass(frozen=True)
class Columns:
    """Operand A in tensor memory: packed fragments from this address on."""

    address: Any

    def step(self, k: int) -> int:
        """What K = 16 k adds to the address."""
        return 8 * k


def product(
    rows: int, columns: int, depth: int, place, a: Shared | Columns, b: Shared, accumulate: bool
) -> None:
    """Issue ``[rows x columns] (+)= A B`` at a place in tensor memory; by one thread.

    Descriptors are made where they are used, so that the compiler does not keep dozens of them in registers.
    """
    inside = isinstance(a, Columns)
    kind = _FLOAT32_RESULT | (not inside and a.mn) << 15 | b.mn << 16 | columns >> 3 << 17 | rows >> 4 << 24
    for k in range(depth // K):
        lines = [".reg .pred p;", ".reg .b32 low, high, at, kind;", ".reg .b64 a, b;"]
        if inside:
            lines += [f"add.s32 at, $1, {a.step(k)};"]
        else:
            lines += _descriptor("a", "$1", a.step(k))
        lines += _descriptor("b", "$2", b.step(k))
        lines += [
            f"mov.b32 low, {int(accumulate or k > 0)};",
            "setp.ne.b32 p, low, 0;",
            f"mov.b32 kind, {kind};",
            f"tcgen05.mma.cta_group::1.kind::f16 [$0], {'[at]' if inside else 'a'}, b, kind, p;",
        ]
        asm("{\n\t" + "\n\t".join(lines) + "\n\t}", "", [place, a.address, b.address], "rrr", True)


def _descriptor(name: str, address: str, further: int) -> list[str]:
    """Lines that make a matrix descriptor; the parts do not overlap, so that their sum is their union."""
    return [
        f"shr.u32 low, {address}, 4;",
        f"add.s32 low, low, {further};",
        f"mov.b32 high, {_HIGH};",
        f"mov.b64 {name}, {{low, high}};",
    ]


def commit(barrier: cute.Pointer) -> None:
    """Arrive when everything that this thread issued so far has completed; by one thread."""
    tcgen05.commit(barrier)


def arrive(barrier: cute.Pointer) -> None:
    """Arrive once for the whole warp, with its work on tensor memory published."""
    publish()
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)


def wait(barrier: cute.Pointer, phase) -> None:
    """Until the phase of this parity is complete; then its products may be read."""
    cute.arch.mbarrier_wait(barrier, phase)
    observe()
