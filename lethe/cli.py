"""The command line: verify, gates, audit, merge, replay, show, fetch, ptx.

Exit codes: 0 every applicable gate passes (or the command did its work), 1 a contract
is violated (or a replay differs), 2 usage, 3 could not be judged, 130 interrupted.
A user's mistake is one sentence on stderr. torch and everything heavy load inside
the commands that need them.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from lethe.verifier.verdict import Verdict

OK, VIOLATED, USAGE, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    name="lethe",
    help="Does a GPU kernel keep the contract of the operator it replaces?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Mistake(Exception):
    """Ends the command with a code and one sentence on stderr."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class ClosedPipe(Exception):
    """Whoever read the output has gone, as in ``lethe gates | head``; the command ends quietly."""


ProfileOption = Annotated[
    str, typer.Option(help="Bounds: derived (default) or paper (the published formula).")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu (Triton kernels run in its interpreter) or cuda.")]
GatesOption = Annotated[list[str] | None, typer.Option("--gate", help="Run only this gate; repeatable.")]
SEEDS = {"min": 0, "max": 2**32 - 1}
"""What torch and numpy take as a seed, beside the draws that are derived from it."""
FolderOption = Annotated[Path | None, typer.Option(help="Write a script for each failing gate here.")]


@app.command()
def verify(
    candidate: Annotated[Path, typer.Argument(help="Python file with the kernel.")],
    reference: Annotated[Path, typer.Option("--reference", "-r", help="KernelBench-format reference file.")],
    gate: GatesOption = None,
    profile: ProfileOption = "derived",
    device: DeviceOption = "auto",
    entry: Annotated[str, typer.Option(help="Class or function to enter the candidate by.")] = "ModelNew",
    seed: Annotated[int, typer.Option(help="First seed of every draw.", **SEEDS)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and placements per gate.")] = False,
    json: Annotated[
        str, typer.Option(metavar="OUT", help="Write the verdict here; - for stdout alone.")
    ] = "",
    counterexamples: FolderOption = None,
) -> None:
    """Judge one kernel against one reference."""
    from lethe.verifier.replay import judge_files

    gates = gate_ids(gate)
    _output(json)
    try:
        verdict = judge_files(
            candidate,
            reference,
            entry=entry,
            profile=choice("profile", profile, ("derived", "paper")),
            device=choice("device", device, ("auto", "cpu", "cuda")),
            seed=seed,
            gates=gates,
            quick=quick,
            counterexamples=counterexamples,
        )
    except (FileNotFoundError, ValueError) as e:
        raise Mistake(str(e)) from None
    deliver(verdict, json)


@app.command()
def gates(
    identifier: Annotated[str, typer.Argument(help="Show this gate's eight parts.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the contracts as JSON.")] = False,
) -> None:
    """The twelve contracts."""
    from dataclasses import asdict

    from lethe import display
    from lethe.verifier.catalog import CONTRACTS

    wanted = gate_ids([identifier]) if identifier else None
    chosen = tuple(c for c in CONTRACTS if wanted is None or c.identifier in wanted)
    if json:
        print_json([asdict(c) for c in chosen])
    elif identifier:
        display.show_contract(chosen[0], console_for())
    else:
        display.show_gates(chosen, console_for())


@app.command()
def replay(
    verdict: Annotated[Path, typer.Argument(help="JSON file that verify --json wrote.")],
    candidate: Annotated[Path | None, typer.Option(help="The candidate, if it has moved.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The reference, if it has moved.")] = None,
    json: Annotated[str, typer.Option(metavar="OUT", help="Write the new verdict here; - for stdout.")] = "",
    counterexamples: FolderOption = None,
) -> None:
    """Reach a recorded verdict again and compare it byte for byte."""
    from lethe.verifier.replay import ReplayError
    from lethe.verifier.replay import replay as run_replay

    _output(json)
    try:
        result = run_replay(
            verdict, candidate=candidate, reference=reference, counterexamples=counterexamples
        )
    except ReplayError as e:
        raise Mistake(str(e)) from None
    if json:
        _write(json, result.now.to_json())
    if json != "-":
        console = console_for()
        if result.same:
            console.print(
                f"Same verdict: {result.now.digest()[:16]}, {len(result.now.gates)} gates.", soft_wrap=True
            )
        else:
            console.print(
                f"Another verdict. First difference: {result.difference}.", soft_wrap=True, markup=False
            )
            if result.versions:
                console.print(f"The software differs: {result.versions}.", soft_wrap=True, markup=False)
    raise typer.Exit(OK if result.same else VIOLATED)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def ptx(context: typer.Context) -> None:
    """Execute, count, disassemble or lint sm_90a and sm_100a PTX on a CPU."""
    from lethe.ptx.cli import main as run_ptx

    raise typer.Exit(run_ptx(context.args))


def gate_ids(given: list[str] | None) -> tuple[str, ...] | None:
    """Validated gate ids, in catalog order; None if none were given."""
    if not given:
        return None
    from lethe.verifier.catalog import IDS

    wanted = {g.upper() for g in given}
    for g in sorted(wanted - set(IDS)):
        raise Mistake(f"no gate {g!r}; the gates are {', '.join(IDS)}")
    return tuple(i for i in IDS if i in wanted)


def choice(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise Mistake(f"unknown {what} {value!r}; use {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value


def _output(target: str) -> None:
    """Find out before the work is done whether its result can be written."""
    if not target or target == "-":
        return
    file = Path(target)
    if file.is_dir():
        why = "it is a folder"
    elif not file.parent.is_dir():
        why = f"there is no folder {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        why = "Permission denied"
    else:
        return
    raise Mistake(f"cannot write {target}: {why}")


def _write(target: str, text: str) -> None:
    if target == "-":
        say(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        raise Mistake(f"cannot write {target}: {e.strerror}") from None


def deliver(verdict: Verdict, json: str) -> NoReturn:
    from lethe import display

    if json:
        _write(json, verdict.to_json())
    if json != "-":
        display.show_verdict(verdict, console_for())
    raise typer.Exit(display.exit_code(verdict))


def print_json(value: object) -> None:
    import json

    say(json.dumps(value, indent=1))


def say(text: str) -> None:
    """Print to stdout as it is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise ClosedPipe from None


def console_for(stderr: bool = False) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise ClosedPipe

    return Plain(stderr=stderr, highlight=False)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; no traceback for a user's mistake."""
    usage_errors = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        from lethe import cli_audit, cli_show

        app.command()(cli_audit.audit)
        app.command()(cli_audit.merge)
        app.command()(cli_show.show)
        app.command()(cli_audit.fetch)
        code = app(arguments, standalone_mode=False)
    except Mistake as e:
        print(f"lethe: {e}", file=sys.stderr)
        code = e.code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except ClosedPipe:
        _drop_output()
        code = OK
    except Exception as e:
        if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"lethe: {e.strerror}; what was not written is lost", file=sys.stderr)
            _drop_output()
            code = UNDECIDED
        elif isinstance(e, usage_errors):
            print(f"lethe: {e.format_message().rstrip('.')} (see --help)", file=sys.stderr)  # type: ignore[attr-defined]
            code = USAGE
        else:
            traceback.print_exc()
            print("lethe: this is a fault of lethe itself; the kernel was not judged", file=sys.stderr)
            code = UNDECIDED
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code and says nothing
        print("lethe: interrupted", file=sys.stderr)
    sys.exit(code or OK)


def _drop_output() -> None:
    """Nobody can take the rest of the output, so that flushing it at exit must not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
