"""Write the Python source of a basic block: every instruction becomes a few numpy calls on bound views.

A block is compiled once for full warps and, when needed, once for partial ones (each write under
``where``). The source mentions names only; ``bindings`` says what each name is (a view of a register, a
constant array, a memory method). Binding happens per CTA and per run of warps, so one batch of warps costs
one numpy call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from lethe.ptx.faults import Fault
from lethe.ptx.syntax import (
    WIDTHS,
    Address,
    FloatImm,
    Imm,
    Instruction,
    Not,
    Operand,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)

Array = np.ndarray[Any, Any]

VIEWS: dict[str, tuple[str, int]] = {
    **{f"u{n}": (f"u{n // 8}", 1) for n in (8, 16, 32, 64)},
    **{f"s{n}": (f"i{n // 8}", 1) for n in (8, 16, 32, 64)},
    "f16": ("f2", 1),
    "f32": ("f4", 1),
    "f64": ("f8", 1),
    "bf16": ("u2", 1),
    "pred": ("?", 1),
    "f16x2": ("f2", 2),
    "bf16x2": ("u2", 2),
    "f32x2": ("f4", 2),
    "u32x2": ("u4", 2),
    "u16x2": ("u2", 2),
    "u8x4": ("u1", 4),
    "s16x2": ("i2", 2),
    "u64x2": ("u8", 2),
    "u8x2": ("u1", 2),
    "u8x8": ("u1", 8),
    "u16x4": ("u2", 4),
}
"""View name -> numpy dtype and elements per lane."""


def unsigned(width: int) -> str:
    """Name of the unsigned view of a width in bytes."""
    return f"u{8 * width}"


Spec = tuple[Any, ...]


class Emit:
    """The source of one block under construction, and the operand vocabulary of the ``isa`` modules.

    Args:
        masked: whether only some lanes run (parameter ``m`` of the block is then a mask).
        symbols: names of variables and parameters; anything else is an error.
        local: those of them that live in per-thread memory.
    """

    def __init__(self, masked: bool, symbols: set[str], local: set[str] | None = None) -> None:
        self.masked = masked
        self.symbols = symbols
        self.local = local or set()
        self.lines: list[str] = []
        self.owner: list[int] = []
        self.bound: dict[Spec, str] = {}
        self.objects: dict[int, Any] = {}
        self.index = 0
        self.ins: Instruction
        self.used: set[int] = set()
        self.mask: str | None = None
        self.base: str | None = "m" if masked else None
        self.indent = ""
        self._wide_masks: dict[tuple[str, int], str] = {}
        self._temps = 0
        self.end: tuple[Any, ...] = ("fall",)

    # -- instruction frame
    def begin(self, index: int, ins: Instruction) -> None:
        """Start an instruction: compute its mask."""
        self.index, self.ins, self.used = index, ins, set()
        self._wide_masks.clear()
        self.mask = self.base
        if ins.guard is not None:
            p = self.src(ins.guard.reg, "pred")
            if ins.guard.negated:
                p = self.let(f"{self.obj(np.logical_not)}({p})")
            self.mask = self.let(f"{self.obj(np.logical_and)}({p}, {self.base})") if self.base else p

    def finish(self) -> None:
        """End an instruction: every modifier must have been understood."""
        left = [m for i, m in enumerate(self.ins.modifiers) if i not in self.used]
        if left:
            self.refuse("modifier ." + " .".join(left))

    def refuse(self, what: str) -> None:
        """Raise kind ``unsupported`` with the line and its text."""
        raise Fault("unsupported", f"line {self.ins.line}: {what} of `{self.ins.text}` is not modelled")

    # -- modifiers
    def flag(self, *names: str) -> bool:
        """Consume any of the modifiers; True when one was there."""
        hit = False
        for i, m in enumerate(self.ins.modifiers):
            if m in names:
                self.used.add(i)
                hit = True
        return hit

    def choice(self, *names: str, default: str | None = None) -> str:
        """Consume exactly one of the modifiers and return it."""
        for i, m in enumerate(self.ins.modifiers):
            if i not in self.used and m in names:
                self.used.add(i)
                return m
        if default is None:
            self.refuse(f"missing one of .{' .'.join(names)}: form")
        assert default is not None
        return default

    def prefixed(self, *prefixes: str) -> list[str]:
        """Consume modifiers that begin with any prefix (cache hints and the like)."""
        out = []
        for i, m in enumerate(self.ins.modifiers):
            if i not in self.used and m.startswith(prefixes):
                self.used.add(i)
                out.append(m)
        return out

    def type(self, allowed: tuple[str, ...] = ()) -> str:
        """Consume and return the last unconsumed type modifier."""
        for i in range(len(self.ins.modifiers) - 1, -1, -1):
            m = self.ins.modifiers[i]
            if i not in self.used and m in WIDTHS:
                if allowed and m not in allowed:
                    self.refuse(f"type .{m}")
                self.used.add(i)
                return m
        self.refuse("missing type: form")
        raise AssertionError

    # -- lines and names
    def line(self, code: str) -> None:
        """Append a line of source that belongs to the current instruction."""
        self.lines.append(self.indent + code)
        self.owner.append(self.index)

    def let(self, expression: str) -> str:
        """Assign an expression to a fresh temporary and return its name."""
        self._temps += 1
        name = f"t{self._temps}"
        self.line(f"{name} = {expression}")
        return name

    def name(self, spec: Spec) -> str:
        """The name bound to a spec, introducing it when new."""
        found = self.bound.get(spec)
        if found is None:
            found = self.bound[spec] = f"b{len(self.bound)}"
        return found

    def obj(self, value: Any) -> str:
        """Name of a Python object (a ufunc, a helper)."""
        self.objects[id(value)] = value
        return self.name(("obj", id(value)))

    def cta(self, path: str) -> str:
        """Name of an attribute of the running CTA, e.g. ``shared.load``."""
        return self.name(("cta", path))

    @property
    def rows(self) -> str:
        """Name of the slice of warps that runs."""
        return self.name(("rows",))

    @property
    def m(self) -> str:
        """Mask expression for helper calls: a name or ``None``."""
        return self.mask or "None"

    def lanes_mask(self, lanes: int) -> str | None:
        """Mask for a view with several elements per lane."""
        if self.mask is None or lanes == 1:
            return self.mask
        key = (self.mask, lanes)
        if key not in self._wide_masks:
            self._wide_masks[key] = self.let(f"{self.obj(np.repeat)}({self.mask}, {lanes}, 1)")
        return self._wide_masks[key]

    # -- operands
    def src(self, operand: Operand, view: str) -> str:
        """Name of an input of shape [warps, 32 * elements per lane]."""
        if isinstance(operand, Reg):
            return self.name(("reg", operand.name, operand.type, view))
        if isinstance(operand, Imm | FloatImm):
            return self.name(("const", self.constant(operand, view), view))
        if isinstance(operand, Special):
            return self.name(("special", operand.name, view))
        if isinstance(operand, Symbol):
            if operand.name not in self.symbols:
                self.refuse(f"unknown name {operand.name}: operand")
            return self.name(("symbol", operand.name, operand.offset, view))
        if isinstance(operand, Not):
            return self.let(f"{self.obj(np.logical_not)}({self.src(operand.reg, 'pred')})")
        self.refuse(f"operand {operand}")
        raise AssertionError

    def constant(self, operand: Imm | FloatImm, view: str) -> int:
        """Bit pattern of an immediate in a view."""
        dtype, lanes = VIEWS[view]
        bits = 8 * np.dtype(dtype).itemsize * lanes
        if isinstance(operand, Imm):
            if view in ("f32", "f64", "f16"):
                self.refuse(f"integer constant {operand} for a floating operand")
            return operand.value & ((1 << bits) - 1)
        if view == "f32" and operand.width == 64:
            value = struct.unpack("<d", struct.pack("<Q", operand.bits))[0]
            return int(np.float32(value).view(np.uint32))
        if view == "f64" and operand.width == 32:
            single = struct.unpack("<f", struct.pack("<I", operand.bits))[0]
            return int(np.float64(single).view(np.uint64))
        if operand.width != bits:
            self.refuse(f"constant {operand} for .{view}")
        return operand.bits

    def dst(self, operand: Operand, view: str) -> str:
        """Name of an output view; the register must have exactly the view's width."""
        if not isinstance(operand, Reg):
            self.refuse(f"destination {operand}")
        assert isinstance(operand, Reg)
        return self.name(("reg", operand.name, operand.type, view))

    def wide(self, operand: Operand, view: str) -> str:
        """As ``dst``, but a wider register is filled by sign or zero extension (ld, cvt)."""
        assert isinstance(operand, Reg)
        dtype, lanes = VIEWS[view]
        if lanes == 1 and WIDTHS[operand.type] > np.dtype(dtype).itemsize:
            signed = view[0] == "s"
            view = ("s" if signed else "u") + str(8 * WIDTHS[operand.type])
        return self.dst(operand, view)

    def put(self, operand: Operand, view: str, expression: str, wide: bool = False) -> None:
        """Write a value under the mask."""
        if isinstance(operand, Sink):
            self.line(expression)
            return
        name = self.wide(operand, view) if wide else self.dst(operand, view)
        mask = self.lanes_mask(VIEWS[view][1])
        if mask is None:
            self.line(f"{name}[...] = {expression}")
        else:
            self.line(f"{self.obj(np.copyto)}({name}, {expression}, 'unsafe', {mask})")

    def ufunc(self, func: Callable[..., Any], operand: Operand, view: str, *args: str, out: str = "") -> None:
        """``func(*args)`` written in place under the mask; ``out`` names the view when it differs."""
        if isinstance(operand, Sink):
            return
        view = out or view
        name = self.dst(operand, view)
        mask = self.lanes_mask(VIEWS[view][1])
        where = f", where={mask}" if mask else ""
        self.line(f"{self.obj(func)}({', '.join(args)}, out={name}{where})")

    def address(self, operand: Operand, view: str = "u64") -> str:
        """Name of the byte addresses of a bracketed operand, as unsigned integers [warps, 32]."""
        if not isinstance(operand, Address):
            self.refuse(f"address {operand}")
        assert isinstance(operand, Address)
        base = operand.base
        if isinstance(base, Symbol):
            return self.src(Symbol(base.name, base.offset + operand.offset), view)
        if isinstance(base, Imm):
            return self.src(Imm(base.value + operand.offset), view)
        if isinstance(base, Reg) and WIDTHS[base.type] == 4:
            view = "u32"
        name = self.src(base, view)
        if operand.offset:
            return self.let(f"{self.obj(np.add)}({name}, {self.src(Imm(operand.offset), view)})")
        return name

    def is_local(self, name: str) -> bool:
        """Whether a variable lives in per-thread memory."""
        return name in self.local

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        """Elements of a vector operand; a scalar is a vector of one."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def reglist(self, operand: Operand, view: str, wide: bool = False) -> str:
        """Source of a tuple of destination views, None for sinks."""
        names = []
        for item in self.items(operand):
            if isinstance(item, Sink):
                names.append("None")
            else:
                names.append(self.wide(item, view) if wide else self.dst(item, view))
        return "(" + ", ".join(names) + ",)"

    def srclist(self, operand: Operand, view: str) -> str:
        """Source of a tuple of input views."""
        return "(" + ", ".join(self.src(item, view) for item in self.items(operand)) + ",)"
