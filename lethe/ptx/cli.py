"""``lethe ptx run|disasm|count|lint|list``: a PTX file, or a recorded example by name.

``run`` executes: a recorded example needs nothing more and is compared with its oracle; a file needs grid,
block and one ``--param`` per kernel parameter:

    i32:500  u64:7  f32:1.5          a number of that type
    zeros:float32:128x64             an array of zeros, and a pointer to it
    normal:float16:256x128           standard normal values (--seed)
    npy:weights.npy                  an array from a file
    bytes:00ff...                    the parameter's bytes

A name may go before: ``--param x=npy:x.npy --save x=out.npy`` writes the array after the run.

Exit codes: 0 done, 1 the kernel is at fault or wrong, 2 usage.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lethe.ptx.examples.record import Record, load, names
from lethe.ptx.faults import Fault
from lethe.ptx.lint import lint
from lethe.ptx.parse import parse
from lethe.ptx.syntax import Instruction, Kernel, Module

OK, AT_FAULT, USAGE = 0, 1, 2
NUMBERS = {f"{kind}{bits}": (kind, bits // 8) for kind in "ius" for bits in (8, 16, 32, 64)}
FLOATS = {"f16": 2, "f32": 4, "f64": 8}


class Mistake(ValueError):
    """A user's mistake, in one sentence."""


def main(arguments: Sequence[str] | None = None, name: str = "lethe ptx") -> int:
    """Run one command; returns the exit code. Mistakes and faults are one sentence on stderr."""
    options = parser(name).parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has gone, as in ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Fault as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return AT_FAULT
    except (Mistake, OSError) as mistake:
        print(f"{name}: {mistake}", file=sys.stderr)
        return USAGE


def parser(name: str) -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command, about in ((run, "execute a kernel"), (count, "opcode counts, static and executed")):
        sub = _command(commands, command, about)
        sub.add_argument("--grid", type=_triple, default=(1, 1, 1), help="blocks, X or X,Y,Z")
        sub.add_argument(
            "--block", type=_triple, help="threads of a block; default: what the kernel requires"
        )
        sub.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
        sub.add_argument("--param", action="append", default=[], help="one kernel parameter; see above")
        sub.add_argument("--save", action="append", default=[], metavar="NAME=FILE.npy")
        sub.add_argument("--schedule", default="early", help="early, late, reverse or a seed")
        sub.add_argument("--seed", type=int, default=0, help="of drawn arrays")
    _command(commands, disassemble, "the instructions as parsed: index, line, text, targets", "disasm")
    sub = _command(commands, check, "static lifecycle checks of tensor memory", "lint")
    sub.add_argument("--threads", type=int, default=0, help="of a block, where the kernel does not say")
    listed = commands.add_parser("list", help="the recorded examples")
    listed.set_defaults(command=show_list)
    return top


def _command(commands: Any, command: Any, about: str, name: str = "") -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(name or command.__name__, help=about)
    sub.add_argument("file", help="FILE.ptx, FILE.ptx.gz, or the name of a recorded example")
    sub.add_argument("--kernel", default="", help="entry, when the module has several (a part of its name)")
    sub.set_defaults(command=command)
    return sub


def _triple(text: str) -> tuple[int, int, int]:
    try:
        parts = [int(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not X or X,Y,Z")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def read(file: str) -> tuple[Module, Record | None]:
    """A module from a path, or a recorded example by name."""
    path = Path(file)
    if not path.exists() and file in names():
        record = load(file)
        return parse(record.ptx), record
    if not path.is_file():
        raise Mistake(f"no file and no recorded example '{file}' (lethe ptx list shows the examples)")
    data = path.read_bytes()
    try:
        text = gzip.decompress(data) if file.endswith(".gz") else data
        return parse(text.decode()), None
    except (gzip.BadGzipFile, UnicodeDecodeError):
        raise Mistake(f"{file} is not PTX text") from None


def choose(module: Module, part: str) -> Kernel:
    """The only kernel, or the only one whose name contains ``part``."""
    found = [kernel for name, kernel in module.kernels.items() if part in name]
    if len(found) != 1:
        known = ", ".join(module.kernels) or "none"
        raise Mistake(f"{len(found)} kernels match '{part}'; choose one with --kernel: {known}")
    return found[0]


def disassemble(options: argparse.Namespace) -> int:
    """Print every instruction."""
    module, _ = read(options.file)
    kernel = choose(module, options.kernel)
    labels: dict[int, list[str]] = {}
    for label, index in kernel.labels.items():
        labels.setdefault(index, []).append(label)
    print(f"{kernel.name}  {module.target}, {len(kernel.instructions)} instructions")
    for index, instruction in enumerate(kernel.instructions):
        for label in labels.get(index, ()):
            print(f"{label}:")
        print(f"{index:6} {_written(instruction)}  // line {instruction.line}{_target(instruction)}")
    return OK


def _written(instruction: Instruction) -> str:
    guard = instruction.guard
    prefix = "" if guard is None else f"@{'!' if guard.negated else ''}{guard.reg} "
    return f"{prefix}{instruction.name} {', '.join(map(str, instruction.operands))}".rstrip()


def _target(instruction: Instruction) -> str:
    return "" if instruction.target is None else f" -> {instruction.target}"


def check(options: argparse.Namespace) -> int:
    """Print lifecycle findings; exit code 1 if there is a violation."""
    module, record = read(options.file)
    threads = options.threads or (record.launch.block[0] if record else 0)
    findings = [
        f for kernel, found in lint(module, threads).items() if options.kernel in kernel for f in found
    ]
    for finding in findings:
        print(finding)
    violated = [f for f in findings if f.rule != "undecided"]
    print(f"{len(violated)} violation{'' if len(violated) == 1 else 's'} in {len(module.kernels)} kernel(s)")
    return AT_FAULT if violated else OK


def show_list(options: argparse.Namespace) -> int:
    """Print the recorded examples."""
    for name in names():
        record = load(name)
        print(f"{name:28} {record.origin['arch']:8} {record.about}")
    return OK


def run(options: argparse.Namespace) -> int:
    """Execute; print counts and, for an example, its error over the oracle's bound."""
    report, verdict = execute(options)
    print(f"{report.instructions} warp instructions")
    if verdict is None:
        return OK
    print(f"largest error: {verdict:.3g} of the bound")
    return OK if verdict <= 1 else AT_FAULT


def count(options: argparse.Namespace) -> int:
    """Print how often each opcode stands in the text, and was executed if it can be run."""
    module, record = read(options.file)
    kernel = choose(module, options.kernel or (record.launch.kernel if record else ""))
    static = Counter(i.name for i in kernel.instructions)
    executed: Counter[str] = Counter()
    if record or options.param:
        executed.update(execute(options)[0].counts)
    print(f"{'static':>8} {'executed':>10}  opcode")
    for name in sorted(static, key=lambda n: (-executed[n], -static[n], n)):
        ran = str(executed[name]) if executed else "-"
        print(f"{static[name]:8} {ran:>10}  {name}")
    total = str(sum(executed.values())) if executed else "-"
    print(f"{sum(static.values()):8} {total:>10}  in all")
    return OK


def execute(options: argparse.Namespace) -> tuple[Any, float | None]:
    """The machine's report, and the error over the oracle's bound for a recorded example."""
    module, record = read(options.file)
    schedule = _schedule(options.schedule)
    if record is not None and not options.param:
        from lethe.ptx.examples.execute import run as run_record

        arrays = record.draw(options.seed)
        expected = record.expected(arrays)
        report = run_record(record, arrays, schedule)
        _save(options.save, arrays)
        return report, record.worst(arrays, expected)
    return _execute_file(options, choose(module, options.kernel), module, schedule), None


def _schedule(text: str) -> str | int:
    if text in ("early", "late", "reverse"):
        return text
    if not text.isdigit():
        raise Mistake(f"a schedule is early, late, reverse or a seed, not '{text}'")
    return int(text)


def _execute_file(options: argparse.Namespace, kernel: Kernel, module: Module, schedule: str | int) -> Any:
    from lethe.ptx.machine import run as run_machine
    from lethe.ptx.memory import GlobalMemory

    if len(options.param) != len(kernel.params):
        sizes = ", ".join(f"{p.name} ({p.size} bytes)" for p in kernel.params)
        raise Mistake(
            f"{kernel.name} has {len(kernel.params)} parameters, {len(options.param)} given: {sizes}"
        )
    block = options.block or kernel.directives.get("reqntid")
    if block is None:
        raise Mistake("the kernel does not say how many threads it needs; give --block")
    generator = np.random.default_rng(options.seed)
    memory = GlobalMemory()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    parameters = []
    for number, (text, formal) in enumerate(zip(options.param, kernel.params, strict=True)):
        name, value = parameter(text, formal.size, generator)
        if isinstance(value, bytes):
            parameters.append(value)
        else:
            arrays[name or str(number)] = value
            parameters.append(int(memory.add(value, name or str(number))).to_bytes(8, "little"))
    padded = (*block, 1, 1)[:3]
    report = run_machine(
        module,
        kernel.name,
        grid=options.grid,
        block=padded,
        params=parameters,
        memory=memory,
        dynamic_shared=options.shared,
        schedule=schedule,
    )
    _save(options.save, arrays)
    return report


def parameter(
    text: str, size: int, generator: np.random.Generator
) -> tuple[str, bytes | np.ndarray[Any, Any]]:
    """One ``--param``: its name and either the parameter's bytes or an array. Raises Mistake."""
    head, _, rest = text.partition("=")
    name, text = (head, rest) if rest and ":" not in head else ("", text)
    kind, _, value = text.partition(":")
    try:
        made = _value(kind, value, generator)
    except (ValueError, OverflowError, TypeError) as reason:
        raise Mistake(f"--param {text}: {reason}") from None
    got = len(made) if isinstance(made, bytes) else 8
    if got != size:
        raise Mistake(f"--param {text}: {got} bytes, the kernel's parameter has {size}")
    return name, made


def _value(kind: str, value: str, generator: np.random.Generator) -> bytes | np.ndarray[Any, Any]:
    if kind in NUMBERS:
        sort, size = NUMBERS[kind]
        return int(value, 0).to_bytes(size, "little", signed=sort != "u")
    if kind in FLOATS:
        return np.array(float(value), f"f{FLOATS[kind]}").tobytes()
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "npy":
        return np.ascontiguousarray(np.load(value, allow_pickle=False))
    if kind in ("zeros", "normal"):
        dtype, _, extents = value.partition(":")
        shape = tuple(int(n) for n in extents.split("x"))
        drawn = np.zeros(shape) if kind == "zeros" else generator.standard_normal(shape)
        return drawn.astype(np.dtype(dtype))
    raise ValueError(f"unknown kind '{kind}'; use i32, u64, f32, ..., zeros, normal, npy or bytes")


def _save(requests: Sequence[str], arrays: dict[str, Any]) -> None:
    for request in requests:
        name, _, file = request.partition("=")
        if name not in arrays or not file:
            raise Mistake(
                f"--save {request}: NAME=FILE.npy with NAME among {', '.join(arrays) or 'no arrays'}"
            )
        np.save(file, arrays[name])
