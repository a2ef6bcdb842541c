"""Loads and stores: PTX ISA 9.7.9.8-11 (ld, ld.global.nc, ldu, st) and 9.7.9.15-19 (prefetch, isspacep)."""

from __future__ import annotations

import numpy as np

from lethe.ptx.emit import VIEWS, Array, Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.memory import CONST_TAG, LOCAL_TAG, PARAM_TAG, SHARED_TAG, WINDOW_BITS
from lethe.ptx.syntax import WIDTHS, Address, Instruction, Operand, Sink, Symbol

_ORDER = ("weak", "volatile", "relaxed", "acquire", "release", "mmio", "nc", "unified")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
_SPACES = ("shared", "shared::cta", "shared::cluster", "global", "local", "const", "param", "param::entry")


def common(e: Emit) -> tuple[str, int, str]:
    """Consume ordering, cache and vector modifiers: (space, element count, type)."""
    e.flag(*_ORDER)
    e.flag(*_SCOPES)
    e.flag(*_CACHE)
    e.prefixed("L1::", "L2::")
    space = e.choice(*_SPACES, default="generic").split("::")[0]
    count = int(e.choice("v2", "v4", "v8", default="v1")[1:])
    return space, count, e.type()


def _element(kind: str) -> str:
    if kind == "b128":
        return "u64"
    width = WIDTHS[kind]
    return f"s{8 * width}" if kind[0] == "s" else f"u{8 * width}"


def fast(e: Emit, space: str, verb: str) -> str:
    """Source of the bound access method up to its address argument."""
    if space in ("shared", "global", "const", "param"):
        return f"{e.cta(f'{space}.{verb}')}("
    return f"{e.cta(f'{space}_{verb}')}({e.rows}, "


@instruction("ld", "ldu", section="9.7.9.8-10", dests=1)
def ld(e: Emit, ins: Instruction) -> None:
    """ld{.order}{.space}{.cache}{.vec}.type d, [a]."""
    space, count, kind = common(e)
    d, a = ins.operands[:2]
    view = _element(kind)
    assert isinstance(a, Address)
    if kind == "b128":
        count, items = 2 * count, None
        e.refuse("128-bit load")
    if space == "param" and isinstance(a.base, Symbol):
        if e.is_local(a.base.name):
            space = "local"
        else:
            load_param(e, d, a.base.name, a.offset, view)
            return
    call = fast(e, space, "load")
    items = e.reglist(d, view, wide=True)
    dtype = VIEWS[view][0]
    e.line(f"{call}{e.address(a)}, {e.m}, {dtype!r}, {count}, {items})")


def load_param(e: Emit, d: Operand, name: str, offset: int, view: str) -> None:
    """Parameters are constants of the launch: a view into the parameter buffer."""
    width = np.dtype(VIEWS[view][0]).itemsize
    for i, item in enumerate(e.items(d)):
        if not isinstance(item, Sink):
            e.put(item, view, e.name(("param", name, offset + i * width, view)), wide=True)


@instruction("st", section="9.7.9.11", dests=0)
def st(e: Emit, ins: Instruction) -> None:
    """st{.order}{.space}{.cache}{.vec}.type [a], b."""
    if ins.has("async"):
        e.refuse("st.async")
    space, count, kind = common(e)
    a, b = ins.operands[:2]
    if kind == "b128":
        e.refuse("128-bit store")
    view = f"u{8 * WIDTHS[kind]}"
    assert isinstance(a, Address)
    if space == "param":
        space = "local"
    call = fast(e, space, "store")
    e.line(f"{call}{e.address(a)}, {e.m}, {VIEWS[view][0]!r}, {count}, {e.srclist(b, view)})")


@instruction("prefetch", "prefetchu", "applypriority", "discard", section="9.7.9.15-17", dests=0)
def prefetch(e: Emit, ins: Instruction) -> None:
    """No effect on results."""
    e.flag("global", "local", "L1", "L2", "tensormap", "param", "const")
    e.prefixed("L1", "L2", "tensormap")


@instruction("createpolicy", section="9.7.9.18")
def createpolicy(e: Emit, ins: Instruction) -> None:
    """A cache policy is an opaque number without effect on results."""
    e.flag("fractional", "range", "cvt", "global", "b64")
    e.prefixed("L1::", "L2::")
    e.put(ins.operands[0], "u64", "0")


@instruction("isspacep", section="9.7.9.19")
def isspacep(e: Emit, ins: Instruction) -> None:
    """Which space a generic address lies in."""
    space = e.prefixed("shared", "global", "local", "const", "param")[0].split("::")[0]
    tag = {"shared": SHARED_TAG, "local": LOCAL_TAG, "const": CONST_TAG, "param": PARAM_TAG, "global": 0}[
        space
    ]

    def run(address: Array) -> Array:
        return (address >> np.uint64(WINDOW_BITS)) == tag

    d, a = ins.operands
    e.put(d, "pred", f"{e.obj(run)}({e.src(a, 'u64')})")
