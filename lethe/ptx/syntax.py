"""What a parsed PTX module is made of: plain immutable records, no behaviour beyond naming themselves.

PTX ISA sections 4 (syntax), 5 (state spaces, types, variables) and 6 (operands).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

WIDTHS = {
    **{f"{k}{n}": n // 8 for k in "bsu" for n in (8, 16, 32, 64)},
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "f32x2": 8,
    "tf32": 4,
    "b128": 16,
    "pred": 1,
}


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register; ``name`` is unique in its kernel (scoped names carry their scope)."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Imm:
    """An integer constant, not yet truncated to the instruction's width."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class FloatImm:
    """A floating constant: its IEEE bit pattern and width in bits (a decimal literal is a double)."""

    bits: int
    width: int

    def __str__(self) -> str:
        return f"0{'f' if self.width == 32 else 'd'}{self.bits:0{self.width // 4}X}"


@dataclass(frozen=True, slots=True)
class Special:
    """A predefined read-only register such as ``%tid.x``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or parameter, plus a constant; also a label or a function name."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name


@dataclass(frozen=True, slots=True)
class Sink:
    """The bit bucket ``_``."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate operand ``!p``."""

    reg: Reg

    def __str__(self) -> str:
        return f"!{self.reg}"


@dataclass(frozen=True, slots=True)
class Vector:
    """A brace list ``{a, b, ...}``."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.items)) + "}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations ``a|b``."""

    first: Operand
    second: Operand

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


@dataclass(frozen=True, slots=True)
class Address:
    """A bracketed operand: base, constant offset in bytes, and extra parts such as tensor coordinates."""

    base: Operand
    offset: int = 0
    extra: tuple[Operand, ...] = ()

    def __str__(self) -> str:
        off = f"+{self.offset}" if self.offset else ""
        return "[" + ", ".join([f"{self.base}{off}", *map(str, self.extra)]) + "]"


Operand = Reg | Imm | FloatImm | Special | Symbol | Sink | Not | Vector | Pair | Address


@dataclass(frozen=True)
class Guard:
    """The predicate of ``@p`` or ``@!p``."""

    reg: Reg
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction with its labels resolved.

    Attributes:
        opcode: the part before the first dot.
        modifiers: the dotted rest, in order.
        operands: typed operands, destination first as written.
        guard: predicate or None.
        line: line in the source text, from 1.
        text: the statement as written, white space collapsed.
        target: index of the branch target, for instructions that have one.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    text: str
    target: int | None = None

    @cached_property
    def name(self) -> str:
        """The full dotted name."""
        return ".".join((self.opcode, *self.modifiers))

    def has(self, modifier: str) -> bool:
        """Whether a modifier is present."""
        return modifier in self.modifiers


@dataclass(frozen=True)
class Param:
    """A kernel parameter: element type, alignment and size in bytes."""

    name: str
    type: str
    align: int
    size: int


@dataclass(frozen=True)
class Variable:
    """A module- or kernel-scope variable.

    Attributes:
        space: ``shared``, ``global``, ``const``, ``local`` or ``param``.
        size: bytes; 0 for an ``.extern .shared`` array sized at launch.
        init: initial bytes, or None.
    """

    space: str
    name: str
    type: str
    align: int
    size: int
    extern: bool = False
    init: bytes | None = None


@dataclass
class Kernel:
    """An ``.entry``: what the machine runs."""

    name: str
    params: list[Param] = field(default_factory=list)
    registers: dict[str, Reg] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Module:
    """A translation unit."""

    version: str
    target: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
