"""Fault injection: break a working kernel in one line of its PTX, and see whether anyone notices.

An operator looks at a parsed instruction and proposes one-line edits of the kind that people make in kernels
by hand: a wait or fence dropped, a phase flipped, a byte count off, a descriptor swapped, a barrier confused,
tensor memory given back too early. `mutations` applies every operator everywhere; `detect` runs a mutant and
says by what it was noticed, from weakest to strongest:

``answer``     it computes something wrong, or hangs, when asynchronous work completes as early as possible
``checks``     the machine's checks fault under that same schedule
``schedules``  answer or checks, under adversarial schedules
``lint``       the static lifecycle check, without running it

Dropping ``fence.mbarrier_init`` is no fault here: it publishes initialisations to the other CTAs of a cluster
(PTX ISA 9.7.13.4), clusters have one CTA, and inside a CTA the barrier that follows orders them.

``python -m lethe.ptx.injection --out table.json`` writes the table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lethe.ptx.examples.execute import Outcome, outcome
from lethe.ptx.examples.record import Record, load
from lethe.ptx.faults import Fault
from lethe.ptx.lint import lint
from lethe.ptx.parse import parse
from lethe.ptx.syntax import Instruction

KERNELS = ("gemm_sm100_wide", "chain_sm100", "scan_sm100", "gemm_sm90_wide", "chain_sm90")
BUDGET = 2_000_000  # warp instructions; a mutant that spins ends here


@dataclass(frozen=True)
class Mutation:
    """One edited line: ``before`` and ``after`` are its text."""

    kernel: str
    operator: str
    line: int
    before: str
    after: str

    def apply(self, ptx: str) -> str:
        """The mutated module."""
        lines = ptx.splitlines()
        lines[self.line - 1] = self.after
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Verdict:
    """By what a mutant was noticed; each text says how, or is empty."""

    mutation: Mutation
    answer: str
    checks: str
    schedules: str
    lint: str

    @property
    def detected(self) -> bool:
        """Whether anything noticed."""
        return bool(self.answer or self.checks or self.schedules or self.lint)


Edit = Callable[[Instruction, str], Iterator[str]]


def _drop(*patterns: str) -> Edit:
    """Remove an instruction whose full name matches; its guard and other statements of the line go with
    it."""
    compiled = [re.compile(p) for p in patterns]

    def edit(instruction: Instruction, line: str) -> Iterator[str]:
        if any(p.match(instruction.name) for p in compiled):
            yield ""

    return edit


def _rewrite(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Edit:
    """Rewrite the line of an instruction whose name matches, where ``pattern`` is found in it."""
    compiled = re.compile(name)

    def edit(instruction: Instruction, line: str) -> Iterator[str]:
        if compiled.match(instruction.name):
            edited, count = re.subn(pattern, replacement, line, count=1)
            if count and edited != line:
                yield edited

    return edit


def _flipped(match: re.Match[str]) -> str:
    """try_wait with the other parity, computed in a scope of its own when it is a register."""
    head, parity, tail = match.groups()
    if parity.isdigit():
        return f"{head}{1 - int(parity)}{tail}"
    return f"{{ .reg .b32 flipped; xor.b32 flipped, {parity}, 1; {head}flipped{tail} }}"


def _more(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + 1}"


OPERATORS: dict[str, Edit] = {
    "dropped wait": _rewrite(
        r"mbarrier\.try_wait", r"mbarrier\.try_wait\S+\s+(\w+),.*?;", r"setp.eq.b32 \1, 0, 0;"
    ),
    "wrong phase": _rewrite(
        r"mbarrier\.try_wait",
        r"(mbarrier\.try_wait\S+\s+\w+,\s*\[[^\]]*\],\s*)([%\w]+)(\s*(?:,\s*\d+)?\s*;)",
        _flipped,
    ),
    "wrong barrier in a wait": _rewrite(r"mbarrier\.try_wait", r"\[(%\w+)\]", r"[\1+8]"),
    "expect_tx without arriving bytes": _rewrite(
        r"mbarrier\.arrive\.expect_tx", r",\s*(%\w+);", lambda m: f", {1 << 17};"
    ),
    "expect_tx of no bytes": _rewrite(r"mbarrier\.arrive\.expect_tx", r",\s*(%\w+);", ", 0;"),
    "dropped arrive": _drop(r"mbarrier\.arrive"),
    "double arrive": _rewrite(r"mbarrier\.arrive\.shared", r"^(.*)$", r"\1 \1"),
    "dropped barrier init": _drop(r"mbarrier\.init"),
    "wrong arrival count": _rewrite(r"mbarrier\.init", r",\s*[%\w]+;", ", 3;"),
    "dropped proxy fence": _drop(r"fence\.proxy"),
    "dropped tcgen05 fence": _drop(r"tcgen05\.fence"),
    "dropped wgmma fence": _drop(r"wgmma\.fence"),
    "dropped wait::ld": _drop(r"tcgen05\.wait::ld"),
    "dropped wait::st": _drop(r"tcgen05\.wait::st"),
    "dropped commit": _drop(r"tcgen05\.commit", r"wgmma\.commit_group"),
    "commit to another barrier": _rewrite(
        r"tcgen05\.commit", r"\[(%\w+)(?:\+(\d+))?\]", lambda m: f"[{m[1]}+{int(m[2] or 0) + 8}]"
    ),
    "weaker wait_group": _rewrite(r"wgmma\.wait_group", r"(wait_group\S*\s+)(\d+)", _more),
    "dropped wait_group": _drop(r"wgmma\.wait_group"),
    "dropped bar.sync": _drop(r"bar\.sync", r"barrier\.sync"),
    "dropped TMA load": _drop(r"cp\.async\.bulk\.tensor"),
    "TMA completes another barrier": _rewrite(
        r"cp\.async\.bulk\.tensor", r"(\}\],\s*)\[(%\w+)\]", r"\1[\2+8]"
    ),
    "TMA coordinates swapped": _rewrite(r"cp\.async\.bulk\.tensor", r"\{(%\w+), (%\w+)\}", r"{\2, \1}"),
    "TMA to another place": _rewrite(
        r"cp\.async\.bulk\.tensor", r"\[(%\w+)\+(\d+)\]", lambda m: f"[{m[1]}+{int(m[2]) + 4096}]"
    ),
    "TMA misaligned": _rewrite(
        r"cp\.async\.bulk\.tensor", r"\[(%\w+)\+(\d+)\]", lambda m: f"[{m[1]}+{int(m[2]) + 64}]"
    ),
    "descriptors swapped": _rewrite(r"(tcgen05\.mma|wgmma\.mma_async)", r"(%rd\d+), (%rd\d+)", r"\2, \1"),
    "wrong column of a load": _rewrite(r"tcgen05\.ld", r"\[(%\w+)\];", r"[\1+8];"),
    "wrong column of a store": _rewrite(r"tcgen05\.st", r"\[(%\w+)\]", r"[\1+4]"),
    "wrong column of an accumulator": _rewrite(r"tcgen05\.mma", r"\[(%\w+)\], (?=%rd|\[)", r"[\1+32], "),
    "dropped MMA": _drop(r"tcgen05\.mma", r"wgmma\.mma_async"),
    "accumulates from the start": _rewrite(
        r"tcgen05\.mma", r"(.*, )(%p\d+);", r"{ .reg .pred yes; setp.eq.b32 yes, 0, 0; \1yes; }"
    ),
    "never accumulates": _rewrite(
        r"tcgen05\.mma", r"(.*, )(%p\d+);", r"{ .reg .pred no; setp.ne.b32 no, 0, 0; \1no; }"
    ),
    "dropped alloc": _drop(r"tcgen05\.alloc"),
    "too few columns": _rewrite(r"tcgen05\.alloc", r",\s*%\w+;", ", 32;"),
    "dropped dealloc": _drop(r"tcgen05\.dealloc"),
    "double dealloc": _rewrite(r"tcgen05\.dealloc", r"^(.*)$", r"\1 \1"),
    "double relinquish": _rewrite(r"tcgen05\.relinquish", r"^(.*)$", r"\1 \1"),
    "dropped relinquish": _drop(r"tcgen05\.relinquish"),
    "every lane elected": _rewrite(
        r"elect\.sync", r"elect\.sync\s+%\w+\|(%p\d+), -1;", r"setp.eq.b32 \1, 0, 0;"
    ),
    "no lane elected": _rewrite(
        r"elect\.sync", r"elect\.sync\s+%\w+\|(%p\d+), -1;", r"setp.ne.b32 \1, 0, 0;"
    ),
    "dropped store": _drop(r"st\.shared", r"st\.global\.v4"),
}
ASYNCHRONOUS = ("tcgen05.mma", "tcgen05.cp", "tcgen05.ld", "tcgen05.st", "tcgen05.shift")
"""What ``tcgen05.fence`` orders."""
MOST_SITES = 2  # of one operator in one kernel: unrolled loops repeat the same statement many times


def mutations(record: Record) -> list[Mutation]:
    """Every operator at its first sites in a kernel, and an early deallocation, in the order of OPERATORS."""
    lines = record.ptx.splitlines()
    kernel = parse(record.ptx).kernels[record.launch.kernel]
    found = []
    for operator, edit in OPERATORS.items():
        sites = 0
        for index, instruction in enumerate(kernel.instructions):
            line = lines[instruction.line - 1]
            for after in edit(instruction, line):
                if same_meaning(operator, kernel.instructions, index):
                    continue
                if sites < MOST_SITES:
                    found.append(
                        Mutation(record.name, operator, instruction.line, line.strip(), after.strip())
                    )
                sites += 1
    return found + _early_deallocation(record, kernel.instructions)


def same_meaning(operator: str, instructions: Sequence[Instruction], index: int) -> bool:
    """Whether an edit changes nothing.

    A predicate set to what it is; a barrier initialised by every lane; a ``tcgen05.fence`` that has no
    asynchronous tcgen05 work on one of its sides, as around alloc and dealloc.
    """
    if operator in ("accumulates from the start", "never accumulates"):
        made = [i for i in instructions if i.operands and i.operands[0] == instructions[index].operands[-1]]
        values = {str(i.operands[1]) for i in made if i.name == "mov.pred"}
        already = {"-1"} if operator == "accumulates from the start" else {"0"}
        return len(made) == 1 and values == already
    if operator == "every lane elected":
        return any(i.name.startswith("mbarrier.init") for i in instructions[index : index + 6])
    if operator == "dropped tcgen05 fence":
        work = [i for i, ins in enumerate(instructions) if ins.name.startswith(ASYNCHRONOUS)]
        behind = any(index in reachable(instructions, i) for i in work)
        return not behind or reachable(instructions, index).isdisjoint(work)
    return False


def reachable(instructions: Sequence[Instruction], start: int) -> set[int]:
    """Indices of the instructions that may follow one, whatever branches do."""
    found: set[int] = set()
    todo = [start]
    while todo:
        ins = instructions[todo[-1]]
        leaves = ins.opcode in ("bra", "ret", "exit") and ins.guard is None
        following = [] if ins.target is None else [ins.target]
        following += [] if leaves else [todo[-1] + 1]
        todo.pop()
        new = [i for i in following if i < len(instructions) and i not in found]
        found.update(new)
        todo += new
    return found


def _early_deallocation(record: Record, instructions: Sequence[Instruction]) -> list[Mutation]:
    """The dealloc statement also in front of the first load from tensor memory of the epilogue."""
    lines = record.ptx.splitlines()
    free = [i for i in instructions if i.name.startswith("tcgen05.dealloc")]
    loads = [i for i in instructions if i.name.startswith("tcgen05.ld")]
    if not free or not loads:
        return []
    columns = re.search(r"dealloc\S+\s+(%\w+),", lines[free[-1].line - 1])
    size = next((i for i in instructions if i.name.startswith("tcgen05.alloc")), None)
    if columns is None or size is None:
        return []
    count = str(size.operands[1])
    line = lines[loads[-1].line - 1]
    early = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {columns[1]}, {count}; {line.strip()}"
    return [Mutation(record.name, "early dealloc", loads[-1].line, line.strip(), early)]


def detect(record: Record, mutation: Mutation, schedules: Sequence[str | int]) -> Verdict:
    """Run one mutant: without checks, with checks, and (when still unnoticed) under ``schedules``."""
    ptx = mutation.apply(record.ptx)
    plain = outcome(record, "early", ptx, checks=False, limit=BUDGET)
    checked = outcome(record, "early", ptx, limit=BUDGET)
    adversarial = _say(checked)
    for schedule in schedules:
        if adversarial:
            break
        said = _say(outcome(record, schedule, ptx, limit=BUDGET))
        adversarial = f"{schedule}: {said}" if said else ""
    return Verdict(mutation, _say(plain), _say(checked), adversarial, _lint(ptx, record))


def _say(result: Outcome) -> str:
    if result.status == "right":
        return ""
    return result.status if result.status == "wrong" else result.kind


def _lint(ptx: str, record: Record) -> str:
    try:
        found = lint(parse(ptx), record.launch.block[0])[record.launch.kernel]
    except Fault as fault:
        return fault.kind
    return ", ".join(sorted({f.rule for f in found if f.rule != "undecided"}))


def table(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Counts by what noticed, and every mutant; ready for JSON."""
    ways = {
        "answer": lambda v: bool(v.answer),
        "checks": lambda v: bool(v.answer or v.checks),
        "schedules": lambda v: bool(v.answer or v.checks or v.schedules),
        "with lint": lambda v: v.detected,
    }
    missed = Counter(v.mutation.operator for v in verdicts if not v.detected)
    return {
        "mutants": len(verdicts),
        "detected": {way: sum(map(test, verdicts)) for way, test in ways.items()},
        "missed": dict(sorted(missed.items())),
        "rows": [{**asdict(v), "detected": v.detected} for v in verdicts],
    }


def main(arguments: Sequence[str]) -> int:
    """Command line; see the module's docstring."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True, help="JSON table to write")
    options.add_argument("--kernel", action="append", default=[], help=f"default: {', '.join(KERNELS)}")
    options.add_argument("--seeds", type=int, default=4, help="random schedules beside late and reverse")
    chosen = options.parse_args(arguments)
    schedules: list[str | int] = ["late", "reverse", *range(chosen.seeds)]
    verdicts = []
    for name in chosen.kernel or KERNELS:
        record = load(name)
        for mutation in mutations(record):
            verdict = detect(record, mutation, schedules)
            verdicts.append(verdict)
            how = verdict.answer or verdict.checks or verdict.schedules or verdict.lint or "NOT DETECTED"
            print(f"{name:12} line {mutation.line:4} {mutation.operator:34} {how}", flush=True)
    result = table(verdicts)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    print({key: result[key] for key in ("mutants", "detected", "missed")})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
