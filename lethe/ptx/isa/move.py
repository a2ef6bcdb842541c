"""Moves and packing: PTX ISA 9.7.9.3-4 (mov)."""

from __future__ import annotations

import numpy as np

from lethe.ptx.emit import Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import WIDTHS, Imm, Instruction, Reg, Sink, Special, Vector


@instruction("mov", section="9.7.9.3-4", copies=True)
def mov(e: Emit, ins: Instruction) -> None:
    """Scalar moves, predicate constants, pack into and unpack from a wider register."""
    kind = e.type()
    d, a = ins.operands
    if isinstance(a, Vector):
        pack(e, ins)
    elif isinstance(d, Vector):
        unpack(e, ins)
    elif kind == "pred":
        e.put(d, "pred", f"{e.src(a, 'pred')}")
    elif kind == "b128":
        e.put(d, "u64x2", e.src(a, "u64x2"))
    elif kind[0] == "f" and not isinstance(a, Reg):
        e.put(d, kind, e.src(a, kind))
    else:
        view = f"u{8 * WIDTHS[kind]}"
        if isinstance(a, Special) and kind in ("u64", "s64", "b64"):
            e.put(d, view, e.src(a, view))
            return
        e.put(d, view, e.src(a, view))


def pack(e: Emit, ins: Instruction) -> None:
    """mov.bN d, {parts}: the first part is the least significant."""
    d, a = ins.operands
    assert isinstance(a, Vector)
    if isinstance(d, Sink):
        return
    assert isinstance(d, Reg)
    lanes = len(a.items)
    width = WIDTHS[d.type] // lanes
    name = e.name(("part", d.name, d.type, lanes))
    same = [item for item in a.items if item == d]
    sources = [e.src(item, f"u{8 * width}") for item in a.items]
    if same:
        sources = [e.let(f"{s}.copy()") for s in sources]
    for i, source in enumerate(sources):
        target = f"{name}[:, {i}::{lanes}]"
        if e.mask is None:
            e.line(f"{target} = {source}")
        else:
            e.line(f"{e.obj(_copyto)}({target}, {source}, {e.mask})")


def _copyto(target: Array, source: Array, mask: Array) -> None:
    np.copyto(target, source, "unsafe", mask)


def unpack(e: Emit, ins: Instruction) -> None:
    """mov.bN {parts}, a."""
    d, a = ins.operands
    assert isinstance(d, Vector)
    lanes = len(d.items)
    kind = ins.modifiers[-1]
    width = WIDTHS[kind] // lanes
    if isinstance(a, Reg):
        whole = e.name(("part", a.name, a.type, lanes))
        parts = [f"{whole}[:, {i}::{lanes}]" for i in range(lanes)]
    elif isinstance(a, Imm):
        parts = [e.src(Imm(a.value >> (8 * width * i)), f"u{8 * width}") for i in range(lanes)]
    else:
        e.refuse(f"unpacking of {a}")
    if a in d.items:
        parts = [e.let(f"{p}.copy()") for p in parts]
    for item, part in zip(d.items, parts, strict=True):
        if not isinstance(item, Sink):
            e.put(item, f"u{8 * width}", part)
