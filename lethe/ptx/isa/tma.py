"""Tensor copies and tensor-map updates: PTX ISA 9.7.9.27.1 and 9.7.9.28."""

from __future__ import annotations

from lethe.ptx import tma
from lethe.ptx.emit import Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.syntax import Address, Imm, Instruction, Operand, Vector

_DIMS = ("1d", "2d", "3d", "4d", "5d")
_SHARED = ("shared", "shared::cta", "shared::cluster")


def _map_and_coordinates(e: Emit, operand: Operand) -> str:
    """Source of tensor-map addresses and the list of coordinates (signed)."""
    assert isinstance(operand, Address)
    coords = operand.extra[0]
    assert isinstance(coords, Vector)
    names = ", ".join(e.src(c, "s32") for c in coords.items)
    return f"{e.address(Address(operand.base, operand.offset))}, [{names}]"


@instruction("cp.async.bulk.tensor", section="9.7.9.27.1.2", dests=0)
def tensor(e: Emit, ins: Instruction) -> None:
    """Tile-mode loads completing on an mbarrier and stores in a bulk group."""
    tma.refuse(ins.modifiers)
    e.flag("async", "bulk", "tensor", "tile", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint")
    e.flag("cta_group::1")
    dim = int(e.choice(*_DIMS)[0])
    spaces = [m for m in ins.modifiers if m in (*_SHARED, "global")]
    e.flag(*_SHARED, "global")
    d, s, *rest = ins.operands
    where = s if spaces[0] != "global" else d
    assert isinstance(where, Address)
    assert isinstance(where.extra[0], Vector)
    if len(where.extra[0].items) != dim:
        e.refuse("number of coordinates")
    if spaces[0] == "global":
        args = f"{_map_and_coordinates(e, d)}, {e.address(s)}, None"
        e.line(f"{e.cta('copies.tensor_store')}({e.index}, {e.rows}, {args}, {e.m})")
    else:
        args = f"{e.address(d)}, {_map_and_coordinates(e, s)}, {e.address(rest[0])}"
        e.line(f"{e.cta('copies.tensor_load')}({e.index}, {e.rows}, {args}, {e.m})")


@instruction("cp.reduce.async.bulk.tensor", section="9.7.9.27.1.3", dests=0)
def reduce_tensor(e: Emit, ins: Instruction) -> None:
    """cp.reduce.async.bulk.tensor shared -> global."""
    tma.refuse(ins.modifiers)
    e.flag("reduce", "async", "bulk", "tensor", "tile", "bulk_group", "L2::cache_hint", "global", *_SHARED)
    e.choice(*_DIMS)
    op = e.choice("add", "min", "max", "inc", "dec", "and", "or", "xor")
    d, s = ins.operands[:2]
    args = f"{_map_and_coordinates(e, d)}, {e.address(s)}, {op!r}"
    e.line(f"{e.cta('copies.tensor_store')}({e.index}, {e.rows}, {args}, {e.m})")


@instruction("cp.async.bulk.prefetch.tensor", section="9.7.9.27.1.4", dests=0)
def prefetch_tensor(e: Emit, ins: Instruction) -> None:
    """A prefetch has no effect on results."""
    e.flag(*ins.modifiers)


@instruction("tensormap.replace", section="9.7.9.28", dests=0)
def replace(e: Emit, ins: Instruction) -> None:
    """tensormap.replace.tile.field [map] {, ordinal}, value."""
    e.flag("replace", "tile", "b1024", "b32", "b64", "global", *_SHARED)
    fields = (
        "global_address",
        "rank",
        "box_dim",
        "global_dim",
        "global_stride",
        "element_stride",
        "elemtype",
    )
    field = e.choice(*fields, "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode")
    a, *rest = ins.operands
    ordinal = None
    if len(rest) == 2:
        assert isinstance(rest[0], Imm)
        ordinal = rest[0].value
    value = e.src(rest[-1], "u64" if ins.has("b64") else "u32")
    space = "shared" if any(m in _SHARED for m in ins.modifiers) else "global"
    e.line(
        f"{e.cta('copies.replace')}({e.rows}, {space!r}, {e.address(a)}, {field!r}, {ordinal}, "
        f"{value}, {e.m})"
    )


@instruction("tensormap.cp_fenceproxy", section="9.7.13.16", dests=0)
def copy_map(e: Emit, ins: Instruction) -> None:
    """Copy a tensor map from shared to global memory and fence it."""
    e.flag(*ins.modifiers)
    d, s, size = ins.operands
    assert isinstance(size, Imm)
    e.line(f"{e.cta('copies.copy_map')}({e.rows}, {e.address(d)}, {e.address(s)}, {size.value}, {e.m})")
