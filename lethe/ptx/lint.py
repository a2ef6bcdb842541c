"""Static lifecycle checks of tensor memory: what a kernel does with it on every path of every warp.

PTX ISA, tcgen05.alloc / dealloc / relinquish_alloc_permit: columns are a power of two from 32 to 512; after
relinquishing, a CTA may not allocate again; what was allocated must be deallocated before the kernel ends.
`lint` walks each warp's control flow (see abstract.py), sums what the warps do, and reports:

``once-per-gemm``   the published defect: allocation and relinquish repeated for every GEMM
``columns``         a column count that is not static, not a power of two, or beyond 32..512
``relinquish``      the permit not given up exactly once
``dealloc``         memory not deallocated exactly once on every path, or with another column count
``accumulator``     an operand in tensor memory outside the allocation
``undecided``       something that the walk could not follow, so that a check was left out (no violation)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lethe.ptx.abstract import WARP, Plan, Value, defined, evaluate, plan, read
from lethe.ptx.syntax import Address, Instruction, Kernel, Module

TMEM = "tensor memory"
ALL_COLUMNS, FEWEST_COLUMNS = 512, 32
MOST_STEPS = 400_000
WIDEN_AFTER = 40
LANE_SHIFT = 16
LIFECYCLE = ("alloc", "dealloc", "relinquish_alloc_permit")
COLUMNS_PER_REPEAT = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
DEFECT = "once-per-gemm"


@dataclass(frozen=True)
class Finding:
    """One violated rule, where (line of the PTX text, its statement) and why."""

    rule: str
    message: str
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.rule}: {self.message}" + (f"  [{self.text}]" if self.text else "")


class Life(NamedTuple):
    """What a warp has done so far on one path."""

    allocations: int = 0
    relinquished: int = 0
    deallocations: int = 0


@dataclass
class _Walk:
    """Every path of one warp; ``cells``: where in shared memory tcgen05.alloc leaves addresses."""

    kernel: Kernel
    warp: int
    cells: frozenset[Value]
    findings: dict[tuple[str, int], Finding] = field(default_factory=dict)
    exits: set[Life] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)
    found_cells: set[Value] = field(default_factory=set)
    operands: list[tuple[Instruction, Value | None, int]] = field(default_factory=list)

    def report(self, rule: str, message: str, instruction: Instruction) -> None:
        key = (rule, instruction.line)
        self.findings.setdefault(key, Finding(rule, message, instruction.line, instruction.text))


def lint(module: Module, threads: int = 0) -> dict[str, list[Finding]]:
    """Findings of every kernel, by kernel name; [] for a kernel without tensor memory.

    ``threads``: of a CTA, where the kernel does not say so itself (``.reqntid`` or ``.maxntid``).
    """
    return {name: lint_kernel(kernel, threads) for name, kernel in module.kernels.items()}


def lint_kernel(kernel: Kernel, threads: int = 0) -> list[Finding]:
    """Findings of one kernel, in order of lines."""
    if not any(i.opcode == "tcgen05" and i.has("alloc") for i in kernel.instructions):
        return []
    block = kernel.directives.get("reqntid") or kernel.directives.get("maxntid") or (threads or 128,)
    warps = -(-_product(block) // WARP)
    known_plan = plan(kernel)
    cells: frozenset[Value] = frozenset()
    for _ in range(2):  # the second time every warp knows where the address is
        walks = [_walk(_Walk(kernel, warp, cells), known_plan) for warp in range(warps)]
        cells = frozenset(cell for walk in walks for cell in walk.found_cells)
    findings = {key: f for walk in walks for key, f in walk.findings.items()}
    columns = {c for walk in walks for c in walk.columns}
    for finding in (*_totals(kernel, walks), *_extents(walks, columns)):
        findings.setdefault((finding.rule, finding.line), finding)
    return sorted(findings.values(), key=lambda f: (f.line, f.rule))


def _product(block: tuple[int, ...]) -> int:
    total = 1
    for extent in block:
        total *= extent
    return total


def _walk(walk: _Walk, reduced: Plan) -> _Walk:
    """Depth first over (instruction, life, known registers); what keeps changing is widened to unknown."""
    instructions = walk.kernel.instructions
    seen: set[tuple[int, Life, frozenset[tuple[str, Value]]]] = set()
    visits: Counter[tuple[int, Life]] = Counter()
    last: dict[tuple[int, Life], dict[str, Value]] = {}
    pending: list[tuple[int, Life, dict[str, Value]]] = [(0, Life(), {})]
    steps = 0
    while pending:
        at, life, known = pending.pop()
        while (at := reduced.following[at]) < len(instructions):
            steps += 1
            instruction = instructions[at]
            taken = _guard(instruction, known)
            if instruction.opcode == "bra" or len(taken) == 2:
                key = (at, life)
                visits[key] += 1
                if visits[key] > WIDEN_AFTER:
                    known = {n: v for n, v in known.items() if last[key].get(n) == v}
                last[key] = known
                state = (at, life, frozenset(known.items()))
                if state in seen:
                    break
                seen.add(state)
                taken = _guard(instruction, known)
            if steps > MOST_STEPS:
                walk.report("undecided", f"warp {walk.warp} has too many paths to follow", instruction)
                return walk
            if instruction.opcode == "bra" and instruction.target is not None:
                if taken == {False, True}:
                    pending.append((instruction.target, life, dict(known)))
                at = instruction.target if taken == {True} else at + 1
                continue
            if instruction.opcode in ("ret", "exit") and True in taken:
                walk.exits.add(life)
                if taken == {True}:
                    break
            elif True in taken:
                if (
                    len(taken) == 2
                    and instruction.opcode == "tcgen05"
                    and instruction.modifiers[0] in LIFECYCLE
                ):
                    pending.append((at + 1, life, dict(known)))
                life = _step(walk, instruction, life, known, reduced.names[at], sure=taken == {True})
            at += 1
        else:
            walk.exits.add(life)
    return walk


def _guard(instruction: Instruction, known: dict[str, Value]) -> set[bool]:
    if instruction.guard is None:
        return {True}
    value = known.get(instruction.guard.reg.name)
    if value is None or value.symbol:
        return {False, True}
    return {bool(n) != instruction.guard.negated for n in value.numbers}


def _step(
    walk: _Walk,
    instruction: Instruction,
    life: Life,
    known: dict[str, Value],
    names: tuple[str, ...],
    sure: bool,
) -> Life:
    """One instruction: its tensor-memory effect, and what its destinations hold afterwards."""
    if instruction.opcode == "tcgen05":
        life = _tensor_memory(walk, instruction, life, known)
    if not names:
        return life
    value = _load(walk, instruction, known) or evaluate(instruction, known, walk.warp)
    for index, name in enumerate(names):
        if value is None or index or not sure or len(defined(instruction)) > 1:
            known.pop(name, None)
        else:
            known[name] = value
    return life


def _load(walk: _Walk, instruction: Instruction, known: dict[str, Value]) -> Value | None:
    """A load of the word that tcgen05.alloc wrote is the address of the allocation."""
    if instruction.opcode != "ld" or not any(m.startswith("shared") for m in instruction.modifiers):
        return None
    return (
        Value(frozenset((0,)), TMEM)
        if read(instruction.operands[1], known, walk.warp) in walk.cells
        else None
    )


def _tensor_memory(walk: _Walk, instruction: Instruction, life: Life, known: dict[str, Value]) -> Life:
    operation = instruction.modifiers[0]
    operands = [read(operand, known, walk.warp) for operand in instruction.operands]
    if operation == "alloc":
        return _alloc(walk, instruction, life, operands)
    if operation == "relinquish_alloc_permit":
        return life._replace(relinquished=life.relinquished + 1)
    if operation == "dealloc":
        wrong = operands[1] is not None and walk.columns and not operands[1].numbers & walk.columns
        if wrong and operands[1] is not None:
            got, had = sorted(operands[1].numbers), sorted(walk.columns)
            walk.report(
                "dealloc", f"deallocates {_list(got)} columns, {_list(had)} were allocated", instruction
            )
        return life._replace(deallocations=life.deallocations + 1)
    if operation == "mma":
        described = operands[3] if len(operands) > 3 else None
        for extent in {(n >> 17 & 0x3F) * 8 for n in described.numbers} if described else {1}:
            walk.operands.append((instruction, operands[0], extent))
        if isinstance(instruction.operands[1], Address):
            walk.operands.append((instruction, operands[1], 8))
    elif operation in ("ld", "st"):
        repeat = next((int(m[1:]) for m in instruction.modifiers if m[:1] == "x" and m[1:].isdigit()), 1)
        shape = next((m for m in instruction.modifiers if m in COLUMNS_PER_REPEAT), "32x32b")
        address = operands[1] if operation == "ld" else operands[0]
        walk.operands.append((instruction, address, repeat * COLUMNS_PER_REPEAT[shape]))
    return life


def _alloc(walk: _Walk, instruction: Instruction, life: Life, operands: list[Value | None]) -> Life:
    cell, columns = operands[0], operands[1]
    if cell is not None:
        walk.found_cells.add(cell)
    if columns is None or columns.symbol:
        walk.report("columns", "the number of columns is not static", instruction)
    else:
        walk.columns |= columns.numbers
        for count in sorted(columns.numbers):
            if not FEWEST_COLUMNS <= count <= ALL_COLUMNS or count & (count - 1):
                walk.report("columns", f"{count} columns: must be a power of two from 32 to 512", instruction)
    if life.relinquished:
        again = f"{_list(sorted(columns.numbers))} columns" if columns else "columns"
        walk.report(
            DEFECT,
            f"allocates {again} again after the permit was relinquished: tensor memory must be allocated and "
            "relinquished once per kernel, not once per GEMM",
            instruction,
        )
    return life._replace(allocations=life.allocations + 1)


def _totals(kernel: Kernel, walks: list[_Walk]) -> Iterator[Finding]:
    """What all warps do together, at least and at most."""
    least, most = Counter[str](), Counter[str]()
    for walk in walks:
        for name in Life._fields:
            counts = [getattr(life, name) for life in walk.exits] or [0]
            least[name] += min(counts)
            most[name] += max(counts)
    where = {
        m: next((i for i in kernel.instructions if i.opcode == "tcgen05" and i.has(m)), None)
        for m in LIFECYCLE
    }

    def finding(rule: str, message: str, modifier: str) -> Finding:
        instruction = where[modifier] or where["alloc"]
        assert instruction is not None  # lint_kernel returns early without an allocation
        return Finding(rule, message, instruction.line, instruction.text)

    repeated = any(f.rule == DEFECT for walk in walks for f in walk.findings.values())
    if most["allocations"] > 1 and not repeated:
        yield finding(
            DEFECT, f"{most['allocations']} allocations in one kernel; plan one with static offsets", "alloc"
        )
    if (least["relinquished"], most["relinquished"]) != (1, 1) and not repeated:
        yield finding(
            "relinquish", f"relinquished {_range(least, most, 'relinquished')}, not once", LIFECYCLE[2]
        )
    if least["deallocations"] < most["allocations"]:
        times = _range(least, most, "deallocations")
        yield finding(
            "dealloc", f"allocated {most['allocations']} times, deallocated {times} by some path", "dealloc"
        )
    elif most["deallocations"] > most["allocations"]:
        times = _range(least, most, "deallocations")
        yield finding("dealloc", f"allocated {most['allocations']} times, deallocated {times}", "dealloc")


def _range(least: Counter[str], most: Counter[str], name: str) -> str:
    low, high = least[name], most[name]
    return f"{low} times" if low == high else f"{low} to {high} times"


def _extents(walks: list[_Walk], columns: set[int]) -> Iterator[Finding]:
    """Every operand in tensor memory against the one allocation."""
    if len(columns) != 1:
        return
    allocated = next(iter(columns))
    for walk in walks:
        for instruction, address, extent in walk.operands:
            if address is None or address.symbol != TMEM:
                yield Finding(
                    "undecided",
                    "the address is not followed to the allocation, its extent is left out",
                    instruction.line,
                    instruction.text,
                )
                continue
            for number in address.numbers:
                first = number & 0xFFFF
                if first + extent > allocated:
                    yield Finding(
                        "accumulator",
                        f"columns {first} to {first + extent - 1} of an allocation of {allocated}",
                        instruction.line,
                        instruction.text,
                    )


def _list(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
