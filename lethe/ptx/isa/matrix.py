"""Warp-level matrix instructions: PTX ISA 9.7.14 (mma.sync, ldmatrix, stmatrix, movmatrix)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lethe.ptx import fragments
from lethe.ptx.emit import Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.isa.warp import aligned
from lethe.ptx.memory import Window
from lethe.ptx.syntax import Instruction

_ROWS = np.arange(8)


@instruction("mma.sync", "mma", section="9.7.14.5.14")
def mma(e: Emit, ins: Instruction) -> None:
    """mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c."""
    e.flag("sync", "aligned")
    if ins.has("sp") or any(m.startswith("kind::") for m in ins.modifiers):
        e.refuse("mma form")
    shape = e.prefixed("m16n8", "m8n8")[0]
    e.choice("row")
    e.choice("col")
    c_type, b_type, a_type, d_type = e.type(), e.type(), e.type(), e.type()
    if "f64" in (c_type, a_type):
        e.refuse("double-precision mma")
    types = (d_type, a_type, b_type, c_type)

    def run(
        a: Sequence[Array], b: Sequence[Array], c: Sequence[Array], d: Sequence[Array], m: Array | None
    ) -> None:
        aligned(m)
        left, right, start = (np.stack(x, axis=2) for x in (a, b, c))
        out = fragments.mma_sync(shape, types, left, right, start)
        for i, dest in enumerate(d):
            np.copyto(dest, out[..., i], where=True if m is None else m)

    d, a, b, c = ins.operands
    args = ", ".join(e.srclist(x, "u32") for x in (a, b, c))
    e.line(f"{e.obj(run)}({args}, {e.reglist(d, 'u32')}, {e.m})")


def _row_addresses(addr: Array, num: int) -> Array:
    """int64[W, num, 8]: address of row i of matrix j, from lane 8 j + i."""
    return addr[:, : 8 * num].astype(np.int64).reshape(addr.shape[0], num, 8)


def _whole_warps(mask: Array | None, warps: int) -> Array:
    return np.arange(warps) if mask is None else np.flatnonzero(mask.any(axis=1))


def _form(e: Emit, ins: Instruction) -> tuple[int, bool]:
    e.flag("sync", "aligned", "shared", "shared::cta", "b16", "m8n8")
    num = int(e.choice("x1", "x2", "x4")[1:])
    return num, e.flag("trans")


@instruction("ldmatrix", section="9.7.14.5.15")
def ldmatrix(e: Emit, ins: Instruction) -> None:
    """ldmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 r, [p]."""
    num, trans = _form(e, ins)

    def run(shared: Window, addr: Array, m: Array | None, regs: Sequence[Array | None]) -> None:
        aligned(m)
        warps = _whole_warps(m, addr.shape[0])
        off = shared.offsets(_row_addresses(addr[warps], num), 16, "ldmatrix")
        who = None if shared.watch is None else (warps + shared.watch.rows[0])[:, None, None]
        rows = shared.fetch(off, 8, 2, warps=who).view(np.uint8)
        values = fragments.ldmatrix(rows, trans)
        for i, reg in enumerate(regs):
            if reg is not None:
                reg[warps] = values[..., i]

    r, a = ins.operands
    e.line(f"{e.obj(run)}({e.cta('shared')}, {e.address(a)}, {e.m}, {e.reglist(r, 'u32')})")


@instruction("stmatrix", section="9.7.14.5.16", dests=0)
def stmatrix(e: Emit, ins: Instruction) -> None:
    """stmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 [p], r."""
    num, trans = _form(e, ins)

    def run(shared: Window, addr: Array, m: Array | None, regs: Sequence[Array]) -> None:
        aligned(m)
        warps = _whole_warps(m, addr.shape[0])
        off = shared.offsets(_row_addresses(addr[warps], num), 16, "stmatrix")
        values = np.stack([reg[warps] for reg in regs], axis=2)
        rows = fragments.stmatrix(values, trans).view(np.uint64)
        if shared.watch is not None:
            lanes = np.zeros(addr.shape, bool)
            lanes[warps, : 8 * num] = True
            shared.put(off.reshape(-1), 8, [rows[..., 0].reshape(-1), rows[..., 1].reshape(-1)], lanes)
        else:
            shared.put(off, 8, [rows[..., 0], rows[..., 1]])

    a, r = ins.operands
    e.line(f"{e.obj(run)}({e.cta('shared')}, {e.address(a)}, {e.m}, {e.srclist(r, 'u32')})")


@instruction("movmatrix", section="9.7.14.5.17")
def movmatrix(e: Emit, ins: Instruction) -> None:
    """movmatrix.sync.aligned.m8n8.trans.b16: transpose an 8x8 matrix across the warp."""
    e.flag("sync", "aligned", "m8n8", "trans", "b16")

    def run(value: Array, m: Array | None) -> Array:
        aligned(m)
        rows = fragments.stmatrix(value[..., None], False)
        return fragments.ldmatrix(rows, True)[..., 0]

    d, a = ins.operands
    e.put(d, "u32", f"{e.obj(run)}({e.src(a, 'u32')}, {e.m})")
