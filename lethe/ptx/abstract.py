"""Values that a register may have without running the kernel: a few integers, perhaps relative to a symbol.

The lifecycle lint walks every warp's control flow. Most branches that decide who allocates and who
deallocates compare the warp's index with a constant, so it is enough to know ``%tid.x`` of the warp (32
values), the integer instructions that compilers put between, and two symbols: the start of shared memory, and
the tensor-memory address that ``tcgen05.alloc`` left there. Everything else is unknown, and an unknown branch
goes both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from lethe.ptx.syntax import (
    Address,
    Imm,
    Instruction,
    Kernel,
    Not,
    Operand,
    Pair,
    Reg,
    Special,
    Symbol,
    Vector,
)

MOST_VALUES = 64
WARP = 32


@dataclass(frozen=True)
class Value:
    """One of ``numbers``, plus the unknown address ``symbol`` if there is one."""

    numbers: frozenset[int]
    symbol: str = ""

    @property
    def only(self) -> int | None:
        """The number, if there is exactly one and no symbol."""
        return next(iter(self.numbers)) if len(self.numbers) == 1 and not self.symbol else None


Known = Mapping[str, Value]


def constant(number: int) -> Value:
    """A value that is one number."""
    return Value(frozenset((number,)))


def width(instruction: Instruction) -> int:
    """Bits of an instruction's result type, 64 where it says nothing."""
    for modifier in reversed(instruction.modifiers):
        if modifier == "pred":
            return 1
        if modifier[:1] in "busf" and modifier[1:].isdigit():
            return int(modifier[1:])
    return 64


def is_signed(instruction: Instruction) -> bool:
    """Whether an integer instruction is typed ``.s``."""
    return any(m[:1] == "s" and m[1:].isdigit() for m in instruction.modifiers)


def read(operand: Operand, known: Known, warp: int) -> Value | None:
    """What an operand may be for this warp; None when unknown."""
    match operand:
        case Reg(name=name):
            return known.get(name)
        case Not(reg=reg):
            value = known.get(reg.name)
            return None if value is None else Value(frozenset(1 - n for n in value.numbers))
        case Imm(value=number):
            return constant(number)
        case Special(name="%tid.x"):
            return Value(frozenset(range(WARP * warp, WARP * warp + WARP)))
        case Special(name="%tid.y" | "%tid.z"):
            return constant(0)
        case Symbol(name=name, offset=offset):
            return Value(frozenset((offset,)), name)
        case Address(base=base, offset=offset):
            value = read(base, known, warp)
            return None if value is None else shift(value, offset)
        case _:
            return None


def shift(value: Value, offset: int) -> Value:
    """A value plus a constant."""
    return Value(frozenset(n + offset for n in value.numbers), value.symbol)


def evaluate(instruction: Instruction, known: Known, warp: int) -> Value | None:
    """The value of an instruction's first destination; None when unknown."""
    sources = [read(operand, known, warp) for operand in instruction.operands[1:]]
    match instruction.opcode:
        case "mov" | "cvta" | "cvt" if sources and not isinstance(instruction.operands[0], Vector):
            return sources[0]
        case "shfl":
            return sources[0] if sources and sources[0] and len(sources[0].numbers) == 1 else None
        case "selp":
            return _select(sources)
        case "add" | "sub" if len(sources) == 2 and sources[0] and sources[1]:
            moved = _moved(instruction.opcode, sources[0], sources[1])
            if moved is not None:
                return _wrap(moved, width(instruction)) if not moved.symbol else moved
    if None in sources or any(s is not None and s.symbol for s in sources):
        return None
    operation = _operation(instruction)
    return None if operation is None else _apply(operation, [s for s in sources if s], width(instruction))


def _moved(opcode: str, first: Value, second: Value) -> Value | None:
    """An address plus or minus numbers."""
    if second.symbol and opcode == "add":
        first, second = second, first
    if second.symbol or len(first.numbers) * len(second.numbers) > MOST_VALUES:
        return None
    sign = 1 if opcode == "add" else -1
    return Value(frozenset(a + sign * b for a in first.numbers for b in second.numbers), first.symbol)


def _select(sources: list[Value | None]) -> Value | None:
    """selp: one side if the predicate is known, either otherwise."""
    yes, no, predicate = sources
    if predicate is not None and predicate.only is not None:
        return yes if predicate.only else no
    if yes is None or no is None or yes.symbol != no.symbol:
        return None
    return Value(yes.numbers | no.numbers, yes.symbol)


def _operation(instruction: Instruction) -> Callable[..., int] | None:
    """The integer function of an instruction, if it is modelled."""
    bits = width(instruction)
    signed = is_signed(instruction)
    cast = (lambda n: _signed(n, bits)) if signed else (lambda n: n & ((1 << bits) - 1))
    simple: dict[str, Callable[..., int]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "not": lambda a: 1 - a if bits == 1 else ~a,
        "shl": lambda a, b: a << min(b, 64),
        "shr": lambda a, b: cast(a) >> min(b, 64),
        "min": lambda a, b: min(cast(a), cast(b)),
        "max": lambda a, b: max(cast(a), cast(b)),
        "neg": lambda a: -a,
    }
    if instruction.opcode == "setp":
        compare = _COMPARE.get(instruction.modifiers[0])
        return None if compare is None else lambda a, b: int(compare(cast(a), cast(b)))
    if instruction.opcode in ("mul", "mad") and not instruction.has("hi"):
        return lambda a, b, c=0: a * b + c
    return simple.get(instruction.opcode)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _apply(operation: Callable[..., int], sources: list[Value], bits: int) -> Value | None:
    count = 1
    for source in sources:
        count *= len(source.numbers)
    if count > MOST_VALUES * MOST_VALUES:
        return None
    return _wrap(Value(frozenset(operation(*row) for row in product(*(s.numbers for s in sources)))), bits)


def _wrap(value: Value, bits: int) -> Value | None:
    numbers = frozenset(n & ((1 << bits) - 1) for n in value.numbers)
    return Value(numbers) if len(numbers) <= MOST_VALUES else None


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def registers(operand: Operand) -> list[str]:
    """Names of the registers in an operand."""
    match operand:
        case Reg(name=name):
            return [name]
        case Not(reg=reg):
            return [reg.name]
        case Vector(items=items):
            return [name for item in items for name in registers(item)]
        case Pair(first=first, second=second):
            return registers(first) + registers(second)
        case Address(base=base, extra=extra):
            return registers(base) + [name for item in extra for name in registers(item)]
        case _:
            return []


def defined(instruction: Instruction) -> list[str]:
    """Registers that an instruction writes."""
    reads_only = instruction.opcode in ("bar", "barrier", "st", "bra") or instruction.has("dealloc")
    if reads_only or not instruction.operands or isinstance(instruction.operands[0], Address):
        return []
    return registers(instruction.operands[0])


def used(instruction: Instruction) -> list[str]:
    """Registers that an instruction reads, its guard included."""
    first = 1 if defined(instruction) else 0
    names = [name for operand in instruction.operands[first:] for name in registers(operand)]
    return names + ([instruction.guard.reg.name] if instruction.guard else [])


@dataclass(frozen=True)
class Plan:
    """A kernel reduced to what decides branches and reaches tensor memory.

    ``names[i]``: the registers of interest that instruction i writes. ``following[i]``: the first instruction
    from i on that matters.
    """

    names: tuple[tuple[str, ...], ...]
    following: tuple[int, ...]


def plan(kernel: Kernel) -> Plan:
    """Which registers and instructions the walk has to look at."""
    wanted = _wanted(kernel)
    names = tuple(tuple(n for n in defined(i) if n in wanted) for i in kernel.instructions)
    following = [len(kernel.instructions)]
    for index in reversed(range(len(kernel.instructions))):
        instruction = kernel.instructions[index]
        matters = names[index] or instruction.opcode in ("bra", "ret", "exit", "tcgen05")
        following.append(index if matters else following[-1])
    return Plan(names, tuple(reversed(following)))


def extents(instruction: Instruction) -> list[Operand]:
    """Operands of a tcgen05 instruction that say where in tensor memory it works, and how much."""
    operands = list(instruction.operands)
    match instruction.modifiers[0]:
        case "alloc" | "dealloc":
            return operands
        case "ld":
            return operands[1:2]
        case "st":
            return operands[:1]
        case "mma":
            return [operands[0], operands[3], *(o for o in operands[1:2] if isinstance(o, Address))]
        case _:
            return []


def _wanted(kernel: Kernel) -> set[str]:
    """Registers that decide a branch or reach a tensor-memory instruction, and what those are made from."""
    sources: dict[str, set[str]] = {}
    wanted: set[str] = set()
    for instruction in kernel.instructions:
        read_here = used(instruction)
        for name in defined(instruction):
            sources.setdefault(name, set()).update(read_here)
        if instruction.guard and instruction.opcode in ("bra", "ret", "exit", "tcgen05"):
            wanted.add(instruction.guard.reg.name)
        if instruction.opcode == "tcgen05":
            wanted.update(name for operand in extents(instruction) for name in registers(operand))
    pending = list(wanted)
    while pending:
        for name in sources.get(pending.pop(), ()):
            if name not in wanted:
                wanted.add(name)
                pending.append(name)
    return wanted
