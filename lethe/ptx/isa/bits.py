"""Logic, shifts and bit fields: PTX ISA 9.7.8 (logic and shift) and 9.7.1.14-22 (bit manipulation)."""

from __future__ import annotations

import numpy as np

from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Imm, Instruction

_LOGIC = {
    "and": (np.bitwise_and, np.logical_and),
    "or": (np.bitwise_or, np.logical_or),
    "xor": (np.bitwise_xor, np.logical_xor),
}


def _view(e: Emit) -> str:
    kind = e.type()
    return kind if kind == "pred" else "u" + kind[1:]


@instruction("and", "or", "xor", section="9.7.8.1-3")
def logic(e: Emit, ins: Instruction) -> None:
    """Bitwise on b16/b32/b64, logical on predicates."""
    view = _view(e)
    d, a, b = ins.operands
    e.ufunc(_LOGIC[ins.opcode][view == "pred"], d, view, e.src(a, view), e.src(b, view))


@instruction("not", "cnot", section="9.7.8.4-5")
def invert(e: Emit, ins: Instruction) -> None:
    """not; cnot is (a == 0)."""
    view = _view(e)
    d, a = ins.operands
    if ins.opcode == "cnot":
        e.put(d, view, f"{e.src(a, view)} == 0")
    else:
        e.ufunc(np.logical_not if view == "pred" else np.invert, d, view, e.src(a, view))


@instruction("lop3", section="9.7.8.6")
def lop3(e: Emit, ins: Instruction) -> None:
    """Arbitrary three-input logic by an 8-bit truth table; optional predicate ``d|p = ... boolop``."""
    if ins.modifiers[0] != "b32":
        e.refuse("lop3 with a predicate destination")
    e.type(("b32",))
    d, a, b, c, table = ins.operands
    if not isinstance(table, Imm):
        e.refuse("lop3 table that is not constant")
    assert isinstance(table, Imm)
    lut = table.value & 0xFF

    def combine(x: Array, y: Array, z: Array) -> Array:
        out = np.zeros_like(x)
        for i in range(8):
            if lut >> i & 1:
                out |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        return out

    e.put(d, "u32", f"{e.obj(combine)}({e.src(a, 'u32')}, {e.src(b, 'u32')}, {e.src(c, 'u32')})")


@instruction("shl", "shr", section="9.7.8.8-9")
def shift(e: Emit, ins: Instruction) -> None:
    """Shift amounts of the width or more give zero (or the sign)."""
    kind = e.type()
    view = kind if kind[0] == "s" and ins.opcode == "shr" else "u" + kind[1:]
    bits = int(kind[1:])
    d, a, n = ins.operands
    func = np.left_shift if ins.opcode == "shl" else np.right_shift
    if isinstance(n, Imm) and 0 <= n.value < bits:
        e.ufunc(func, d, view, e.src(a, view), e.src(n, view))
        return
    dtype = np.dtype(VIEWS[view][0])

    def clamped(x: Array, amount: Array) -> Array:
        if dtype.kind == "i":
            return func(x, np.minimum(amount, bits - 1).astype(dtype))
        return np.where(amount < bits, func(x, (amount & np.uint32(bits - 1)).astype(dtype)), dtype.type(0))

    e.put(d, view, f"{e.obj(clamped)}({e.src(a, view)}, {e.src(n, 'u32')})")


@instruction("shf", section="9.7.8.7")
def funnel(e: Emit, ins: Instruction) -> None:
    """Funnel shift of the 64-bit value b:a, left or right, wrapped or clamped amount."""
    left = e.choice("l", "r") == "l"
    wrap = e.choice("wrap", "clamp") == "wrap"
    e.type(("b32",))

    def shf(a: Array, b: Array, c: Array) -> Array:
        n = (c & np.uint32(31) if wrap else np.minimum(c, np.uint32(32))).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        out = (both << n) >> np.uint64(32) if left else both >> n
        return out.astype(np.uint32)

    d, a, b, c = ins.operands
    e.put(d, "u32", f"{e.obj(shf)}({e.src(a, 'u32')}, {e.src(b, 'u32')}, {e.src(c, 'u32')})")


@instruction("bfe", section="9.7.1.19")
def extract(e: Emit, ins: Instruction) -> None:
    """Bit-field extract with sign extension for signed types."""
    view = e.type()
    bits = int(view[1:])
    dtype = np.dtype(VIEWS[view][0])
    wide = np.dtype("u8")

    def bfe(a: Array, pos: Array, length: Array) -> Array:
        p = (pos & np.uint32(255)).astype(np.int64)
        n = (length & np.uint32(255)).astype(np.int64)
        u = a.astype(dtype.str.replace("i", "u")).astype(wide)
        shifted = np.where(p < bits, u >> np.minimum(p, bits - 1).astype(wide), wide.type(0))
        keep = np.minimum(n, bits)
        ones = np.where(
            keep >= 64, ~wide.type(0), (wide.type(1) << np.minimum(keep, 63).astype(wide)) - wide.type(1)
        )
        out = shifted & ones
        if dtype.kind == "i":
            top = np.minimum(p + n - 1, bits - 1)
            sign = np.where(n > 0, (u >> np.maximum(top, 0).astype(wide)) & wide.type(1), wide.type(0))
            out = np.where(sign == 1, out | ~ones | _above(bits - p), out)
        return out.astype(dtype.str.replace("i", "u")).view(dtype)

    def _above(available: Array) -> Array:
        """Ones above the bits that existed, so a field reaching past the top is sign filled."""
        n = np.clip(available, 0, 63).astype(wide)
        return np.where(available >= 64, wide.type(0), ~((wide.type(1) << n) - wide.type(1)))

    d, a, b, c = ins.operands
    e.put(d, view, f"{e.obj(bfe)}({e.src(a, view)}, {e.src(b, 'u32')}, {e.src(c, 'u32')})")


@instruction("bfi", section="9.7.1.20")
def insert(e: Emit, ins: Instruction) -> None:
    """Insert the low bits of a into b."""
    view = "u" + e.type(("b32", "b64"))[1:]
    bits = int(view[1:])
    dtype = np.dtype(VIEWS[view][0])

    def bfi(a: Array, b: Array, pos: Array, length: Array) -> Array:
        p = (pos & np.uint32(255)).astype(np.int64)
        n = np.minimum((length & np.uint32(255)).astype(np.int64), np.maximum(bits - p, 0))
        one = dtype.type(1)
        ones = np.where(n >= bits, ~dtype.type(0), (one << np.minimum(n, bits - 1).astype(dtype)) - one)
        at = np.minimum(p, bits - 1).astype(dtype)
        field = np.where(p < bits, ones << at, dtype.type(0))
        return (b & ~field) | ((a << at) & field)

    d, a, b, c, n = ins.operands
    args = f"{e.src(a, view)}, {e.src(b, view)}, {e.src(c, 'u32')}, {e.src(n, 'u32')}"
    e.put(d, view, f"{e.obj(bfi)}({args})")


@instruction("bmsk", section="9.7.1.22")
def mask(e: Emit, ins: Instruction) -> None:
    """Ones at [position, position + width), clamped or wrapped."""
    clamp = e.choice("clamp", "wrap") == "clamp"
    e.type(("b32",))

    def bmsk(a: Array, b: Array) -> Array:
        p, n = a.astype(np.uint64), b.astype(np.uint64)
        if clamp:
            p, n = np.minimum(p, np.uint64(32)), np.minimum(n, np.uint64(32))
        else:
            p, n = p & np.uint64(31), n & np.uint64(31)
        return ((((np.uint64(1) << n) - np.uint64(1)) << p) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    d, a, b = ins.operands
    e.put(d, "u32", f"{e.obj(bmsk)}({e.src(a, 'u32')}, {e.src(b, 'u32')})")


def _leading(a: Array) -> Array:
    """Index of the highest set bit, -1 for zero."""
    out = np.full(a.shape, -1, np.int64)
    x = a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        big = x >= (np.uint64(1) << np.uint64(step))
        out[big] += step
        x = np.where(big, x >> np.uint64(step), x)
    out[a != 0] += 1
    return out


@instruction("clz", "popc", "brev", "bfind", section="9.7.1.14-18")
def count(e: Emit, ins: Instruction) -> None:
    """clz, popc, brev, bfind (with shiftamt)."""
    op = ins.opcode
    amount = e.flag("shiftamt")
    kind = e.type()
    view = "u" + kind[1:]
    bits = int(kind[1:])
    signed = kind[0] == "s"

    def clz(a: Array) -> Array:
        return (bits - 1 - _leading(a)).astype(np.uint32)

    def popc(a: Array) -> Array:
        return np.bitwise_count(a).astype(np.uint32)

    def brev(a: Array) -> Array:
        planes = np.unpackbits(
            np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, -1), axis=-1, bitorder="little"
        )
        return np.packbits(planes[..., ::-1], axis=-1, bitorder="little").view(a.dtype)[..., 0]

    def bfind(a: Array) -> Array:
        top = a.dtype.type(1) << a.dtype.type(bits - 1)
        value = np.where(a & top != 0, ~a, a) if signed else a
        found = _leading(value)
        shifted = np.where(found < 0, -1, bits - 1 - found) if amount else found
        return shifted.astype(np.int32).view(np.uint32)

    func = {"clz": clz, "popc": popc, "brev": brev, "bfind": bfind}[op]
    d, a = ins.operands
    e.put(d, view if op == "brev" else "u32", f"{e.obj(func)}({e.src(a, view)})")


@instruction("fns", section="9.7.1.17")
def find_nth(e: Emit, ins: Instruction) -> None:
    """fns has no user among the modelled compilers."""
    e.refuse("fns")


@instruction("prmt", section="9.7.9.7")
def permute(e: Emit, ins: Instruction) -> None:
    """Byte permute of b:a by four selector nibbles; bit 3 of a nibble replicates the sign."""
    e.type(("b32",))
    if len(ins.modifiers) > 1:
        e.refuse("prmt mode ." + ins.modifiers[1])
    d, a, b, c = ins.operands

    def prmt(x: Array, y: Array, sel: Array) -> Array:
        source = np.stack([x, y], axis=-1).view(np.uint8)
        nibbles = (sel[..., None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
        picked = np.take_along_axis(source, (nibbles & np.uint32(7)).astype(np.int64), axis=-1)
        signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
        out = np.where(nibbles & np.uint32(8), signs, picked)
        return np.ascontiguousarray(out).view(np.uint32)[..., 0]

    e.put(d, "u32", f"{e.obj(prmt)}({e.src(a, 'u32')}, {e.src(b, 'u32')}, {e.src(c, 'u32')})")
