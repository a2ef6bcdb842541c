"""A kernel made ready to run: basic blocks, compiled source, what analysis says of registers.

Blocks end at branches and branch targets; an instruction that may block is a block of its own, so that it
can be tried again. Reading a register that no path surely wrote is found here: must-defined analysis over
the control-flow graph leaves few suspicious uses, and only those are checked while running (moves of
undefined values are allowed, as compilers emit them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lethe.ptx import hammock, isa
from lethe.ptx.emit import Array, Emit, Spec
from lethe.ptx.faults import Fault
from lethe.ptx.fenced import Fragments
from lethe.ptx.isa.registry import registers as mentioned
from lethe.ptx.late import Late
from lethe.ptx.syntax import WIDTHS, Instruction, Kernel, Module, Variable

LONGEST = 300
"""Most instructions in one compiled block; longer straight lines fall through."""

_STORAGE: dict[str, str] = {"pred": "?", "b128": "u8"}


@dataclass
class Code:
    """A compiled block: ``factory(*bindings)`` gives ``run(m)``."""

    factory: Callable[..., Callable[[Array | None], Any]]
    specs: list[Spec]
    objects: dict[int, Any]
    end: tuple[Any, ...]
    owner: list[int]
    filename: str


@dataclass
class Block:
    """Instructions ``start`` to ``stop`` (half open) without a branch into the middle."""

    index: int
    start: int
    stop: int
    counts: Counter[str] = field(default_factory=Counter)
    code: dict[bool, Code] = field(default_factory=dict)
    warpgroup: bool = False


class Program:
    """A kernel with its blocks and register storage plan.

    Args:
        module: where module-scope variables are found.
        kernel: the entry.
        checks: whether to look for undefined registers.

    Raises:
        Fault: kind ``unsupported`` for the first instruction or modifier that is not modelled.
    """

    def __init__(self, module: Module, kernel: Kernel, checks: bool = True) -> None:
        isa.load_all()
        self.module, self.kernel = module, kernel
        self.instructions = kernel.instructions
        self.places = [f"line {i.line}: `{i.text}`" for i in self.instructions]
        self.entries = [isa.lookup(i) for i in self.instructions]
        self.variables: dict[str, Variable] = {**module.variables, **kernel.variables}
        self.symbols = set(self.variables) | {p.name for p in kernel.params}
        self.local = {v.name for v in self.variables.values() if v.space == "local"}
        self.hammocks = hammock.find(self.instructions, self.entries)
        self.inside = {j: i for i, stop in self.hammocks.items() for j in range(i + 1, stop)}
        self.bodies = list(self.hammocks)
        self.blocks = self._split()
        self.at = {b.start: b for b in self.blocks}
        self.storage = self._plan()
        self.late = Late(self)
        self.fragments = Fragments(self) if checks else None
        self.suspicious: dict[int, set[str]] = {}
        self.tracked: dict[str, int] = {}
        if checks:
            self._undefined()

    # -- structure
    def _split(self) -> list[Block]:
        n = len(self.instructions)
        leaders = {0}
        for i, (ins, entry) in enumerate(zip(self.instructions, self.entries, strict=True)):
            if i in self.hammocks:
                continue
            if entry.ends:
                leaders.add(i + 1)
                if ins.opcode not in ("bra", "ret", "exit"):
                    leaders.add(i)
            if ins.target is not None:
                leaders.add(ins.target)
        cut = False
        for i, entry in enumerate(self.entries):
            cut = cut and i not in leaders
            if entry.warpgroup and not cut:
                leaders.add(i)
                cut = True
        cuts = sorted(x for x in leaders if x < n)
        blocks: list[Block] = []
        for start, stop in zip(cuts, [*cuts[1:], n], strict=True):
            begin = start
            while begin < stop:
                end = min(begin + LONGEST, stop)
                while end in self.inside:
                    end += 1
                blocks.append(Block(len(blocks), begin, end))
                begin = end
        for block in blocks:
            block.warpgroup = any(x.warpgroup for x in self.entries[block.start : block.stop])
            run = [i for i in range(block.start, block.stop) if i not in self.inside]
            block.counts = Counter(self.instructions[i].name for i in run)
        return blocks

    def successors(self, block: Block) -> list[int]:
        """Start indices of the blocks that may follow."""
        last = self.instructions[block.stop - 1]
        out = []
        if last.target is not None:
            out.append(last.target)
        stops = last.opcode in ("bra", "ret", "exit") and last.guard is None
        if not stops and block.stop < len(self.instructions):
            out.append(block.stop)
        return out

    def _plan(self) -> dict[str, tuple[str, int]]:
        """Register name -> storage dtype and slot."""
        sizes: Counter[str] = Counter()
        plan = {}
        for reg in self.kernel.registers.values():
            dtype = _STORAGE.get(reg.type, f"u{WIDTHS[reg.type]}")
            key = "u8x2" if reg.type == "b128" else dtype
            plan[reg.name] = (key, sizes[key])
            sizes[key] += 1
        plan["%cc.cf"] = ("?", sizes["?"])
        sizes["?"] += 1
        self.slots = sizes
        return plan

    # -- undefined registers
    def _undefined(self) -> None:
        bit = {name: 1 << i for i, name in enumerate(self.kernel.registers)}
        everything = (1 << len(bit)) - 1
        flow = [self._flow(i, bit) for i in range(len(self.instructions))]
        entry_state = {b.start: everything for b in self.blocks}
        entry_state[0] = 0
        work = [b.start for b in self.blocks]
        while work:
            start = work.pop()
            block = self.at[start]
            state = self._defined_after(block, entry_state[start], flow)
            for target in self.successors(block):
                merged = entry_state[target] & state
                if merged != entry_state[target]:
                    entry_state[target] = merged
                    work.append(target)
        self._collect(flow, entry_state, bit)

    def _flow(self, index: int, bit: dict[str, int]) -> tuple[int, int, bool, bool]:
        ins, entry = self.instructions[index], self.entries[index]
        dests, rest = ins.operands[: entry.dests], ins.operands[entry.dests :]
        writes = reads = 0
        for o in dests:
            for r in mentioned(o):
                writes |= bit.get(r.name, 0)
        for o in rest:
            for r in mentioned(o):
                reads |= bit.get(r.name, 0)
        return reads, writes, ins.guard is None, entry.copies

    def _defined_after(
        self,
        block: Block,
        state: int,
        flow: list[tuple[int, int, bool, bool]],
        visit: Callable[[int, int], None] | None = None,
    ) -> int:
        """Registers surely written after a block, of those surely written before it.

        The body of a short branch is straight-line code for the lanes that run it; after it only what all
        lanes have counts. ``visit`` gets every instruction with the state before it.
        """
        outer, end = state, block.start
        for i in range(block.start, block.stop):
            if end == i:
                state &= outer
            if i in self.hammocks:
                outer, end = state, self.hammocks[i]
            reads, writes, sure, copies = flow[i]
            if visit is not None:
                visit(i, state)
            if sure and copies and reads & ~state:
                state &= ~writes
            elif sure:
                state |= writes
        return state & outer if end == block.stop else state

    def _collect(
        self, flow: list[tuple[int, int, bool, bool]], entry_state: dict[int, int], bit: dict[str, int]
    ) -> None:
        names = list(bit)

        def visit(i: int, state: int) -> None:
            missing = flow[i][0] & ~state
            guard = self.instructions[i].guard
            if guard is not None:
                missing |= bit[guard.reg.name] & ~state
            if missing:
                found = {names[k] for k in _bits(missing)}
                self.suspicious[i] = found
                for name in found:
                    self.tracked.setdefault(name, len(self.tracked))

        for block in self.blocks:
            self._defined_after(block, entry_state[block.start], flow, visit)
        changed = True
        while changed:
            changed = False
            for i, (_, writes, _, copies) in enumerate(flow):
                if copies and i in self.suspicious:
                    for k in _bits(writes):
                        if names[k] not in self.tracked:
                            self.tracked[names[k]] = len(self.tracked)
                            changed = True

    # -- compilation
    def code(self, block: Block, masked: bool) -> Code:
        """The compiled source of a block for whole or partial warps."""
        found = block.code.get(masked)
        if found is None:
            found = block.code[masked] = self._compile(block, masked)
        return found

    def _compile(self, block: Block, masked: bool) -> Code:
        e = Emit(masked, self.symbols, self.local)
        for i in range(block.start, block.stop):
            if i in self.hammocks:
                self._body(e, i)
            elif i not in self.inside:
                self.emit(e, i)
        filename = f"<{self.kernel.name[:40]} block {block.index}{' masked' if masked else ''}>"
        body = "\n  ".join(e.lines or ["pass"])
        names = list(e.bound.values())
        source = f"def make({', '.join(names)}):\n def run(m):\n  {body}\n return run\n"
        namespace: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), namespace)
        return Code(namespace["make"], list(e.bound), e.objects, e.end, e.owner, filename)

    def _body(self, e: Emit, index: int) -> None:
        """A short branch: its body under the mask of the lanes that do not take it."""
        ins, base = self.instructions[index], e.base
        e.begin(index, ins)
        e.flag("uni")
        e.finish()
        if base is None:
            fall = e.let(f"{e.obj(np.logical_not)}({e.mask})")
        else:
            fall = e.let(f"{e.obj(np.greater)}({base}, {e.mask})")
        e.line(f"if {fall}.any():")
        e.base, e.indent = fall, "  "
        e.line(f"{e.cta('hits')}[{self.bodies.index(index)}] += {e.obj(_warps)}({fall})")
        for i in range(index + 1, self.hammocks[index]):
            self.emit(e, i)
        e.base, e.indent = base, ""

    def emit(self, e: Emit, index: int) -> None:
        """Write the source of one instruction."""
        ins, entry = self.instructions[index], self.entries[index]
        e.begin(index, ins)
        if index in self.suspicious and not entry.copies:
            for name in sorted(self.suspicious[index]):
                tracked = e.name(("defined", name))
                e.line(f"{e.obj(_require)}({tracked}, {e.m}, {name!r})")
        used = self.late.used(index)
        if used and entry.pure and ins.guard is None:
            self._deferred(e, ins, index)
            return
        if used:
            e.line(f"if {e.cta('tensor.pending')}: {e.cta('tensor.touch')}({e.rows}, {e.obj(used)}, {e.m})")
        self._write(e, ins, index)

    def _deferred(self, e: Emit, ins: Instruction, index: int) -> None:
        """Arithmetic on a result in flight (compilers emit it) is done again when the result arrives."""
        reads = tuple({r.name for o in ins.operands[1:] for r in mentioned(o)})
        writes = tuple({r.name for r in mentioned(ins.operands[0])})
        at = len(e.lines)
        self._write(e, ins, index)
        body, e.lines[at:], e.owner[at:] = e.lines[at:], [], []
        e.line("def again():")
        for code in body:
            e.line("  " + code.removeprefix(e.indent))
        e.line("again()")
        e.finish()
        copied = e.cta("tensor.copied")
        e.line(f"if {e.cta('tensor.pending')}: {copied}({e.rows}, {e.obj(reads)}, {e.obj(writes)}, again)")

    def _write(self, e: Emit, ins: Instruction, index: int) -> None:
        entry = self.entries[index]
        try:
            if entry.ends:
                self._mark(e, ins, index)
            entry.write(e, ins)
        except (ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError) as error:
            raise Fault(
                "unsupported", f"line {ins.line}: operands of `{ins.text}` are not modelled ({error})"
            ) from error
        if not entry.ends:
            self._mark(e, ins, index)
        touched = self.fragments.written(index) if self.fragments is not None else None
        if touched is not None and not entry.ends:
            e.line(f"{e.cta('tensor.touched')}({e.rows}, {e.obj(touched[0])}, {e.obj(touched[1])}, {e.m})")
        e.finish()

    def _mark(self, e: Emit, ins: Instruction, index: int) -> None:
        """Record definitions of tracked registers."""
        entry = self.entries[index]
        for operand in ins.operands[: entry.dests]:
            for reg in mentioned(operand):
                if reg.name not in self.tracked:
                    continue
                dest = e.name(("defined", reg.name))
                value = "True"
                if entry.copies and index in self.suspicious:
                    guard = ins.guard.reg.name if ins.guard else None
                    parts = [e.name(("defined", s)) for s in sorted(self.suspicious[index]) if s != guard]
                    value = " & ".join(parts) or "True"
                if e.mask is None:
                    e.line(f"{dest}[...] = {value}")
                else:
                    e.line(f"{e.obj(np.copyto)}({dest}, {value}, where={e.mask})")


def _warps(mask: Array) -> int:
    return 1 if len(mask) == 1 else int(np.logical_or.reduce(mask, axis=1).sum())


def _require(defined: Array, mask: Array | None, name: str) -> None:
    bad = ~defined if mask is None else mask & ~defined
    if bad.any():
        warp, lane = (int(x[0]) for x in np.nonzero(bad))
        raise Fault(
            "poison", f"register {name} is read before it is written (lane {lane} of batch row {warp})"
        )


def _bits(value: int) -> list[int]:
    out = []
    while value:
        low = value & -value
        out.append(low.bit_length() - 1)
        value ^= low
    return out
