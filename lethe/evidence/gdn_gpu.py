"""Everything about the gated-linear-recurrence kernels that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.gdn_gpu build --folder FOLDER [--processes 2]
    LETHE_GDN_LIBRARIES=FOLDER python -m lethe.evidence.gdn_gpu run --out DIR [--seconds 480]
        [--only PHASE ...]
    LETHE_GDN_LIBRARIES=FOLDER python -m lethe.evidence.gdn_gpu run --only controls --out DIR --seconds 590
    python -m lethe.evidence.gdn_gpu record DIR

`build` needs the compiler (nvidia-cutlass-dsl) and no GPU; it leaves two files for each library that `run`
may need, the most telling first, and skips what is there and current. `run` needs torch and a GPU, and goes
through its phases (`PHASES`) in the order of their importance: accuracy against float64, equal bits, graphs
and red zones (`gdn_gpu_checks`), training (`gdn_gpu_training`), speed (`gdn_gpu_speed`), what bounds the
kernels (`gdn_gpu_bounds`), and other people's kernels beside ours, where they can be imported
(`gdn_gpu_baselines`). Each finding is a line of a file as
soon as it is there, and what a folder has already is not found again, so that a run may be continued. A task
that fails is a line with its error; one that loses the device or never ends costs its process, and the next
one starts in another. ``controls``, only where it is asked for, judges the seven members as the audit judges
any kernel (`gdn_controls`), several beside each other. `record` writes what `run` left to ``data/measured``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere
from lethe.evidence import gdn_gpu_processes as processes

ACCURACY, SPEED = "accuracy.jsonl", "speed.jsonl"
KERNELS = "lethe/kernels/gdn"
PROBES = {"bounds": ["lethe/evidence/gdn_probes"]}
"""Kernels that a phase times beside those."""

Row = dict[str, Any]


# --- libraries --------------------------------------------------------------------------------


def wanted() -> list[Any]:
    """The variants that `run` may need, the most telling first; probes are the last."""
    from lethe.evidence.gdn_gpu_bounds import libraries as probes
    from lethe.kernels.gdn.declare import KINDS
    from lethe.kernels.gdn.native import DV, Kind, libraries, libraries_to_save

    def kind(io: str, dv: int, come: tuple[str, str, str], packed: bool = False) -> Any:
        return Kind(io, 128, dv, *come, packed)

    general = KINDS[0]
    kinds = [kind(io, dv, general) for io, dv in (("float16", 128), ("bfloat16", 128))]
    kinds += [kind("bfloat16", 128, come) for come in KINDS]
    kinds += [kind("float16", 128, general, packed=True)]
    kinds += [kind(io, dv, come) for dv in reversed(DV) for io in ("float16", "bfloat16") for come in KINDS]
    found: dict[str, Any] = {}
    for at, one in enumerate(kinds):
        saves = at < 2 or (one.io == "bfloat16" and not one.packed)
        for variant in (*libraries(one), *(libraries_to_save(one) if saves else ())):
            found.setdefault(variant.name, variant)
    return [*found.values(), *probes()]


def build(folder: Path, processes: int, variants: Iterable[Any] | None = None) -> list[str]:
    """Compile what is missing or not current; the sentences of what could not be."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(variant: Any) -> str:
        start = time.monotonic()
        try:
            done = _compile(variant, folder)
        except Exception as error:  # the others are still worth having
            return f"{variant.name}: {type(error).__name__}: {str(error).splitlines()[0]}"
        if done:
            print(f"{variant.name} {time.monotonic() - start:.0f} s", flush=True)
        return ""

    with ThreadPoolExecutor(processes) as pool:
        return [why for why in pool.map(one, wanted() if variants is None else variants) if why]


def _compile(variant: Any, folder: Path) -> bool:
    """Two files into the folder, the manifest last; False if they are there and current."""
    import shutil

    from lethe.evidence import gdn_probes
    from lethe.kernels.gdn import build as compiler
    from lethe.kernels.gdn.architecture import SM90

    probe = variant.stage in gdn_probes.STAGES
    if compiler.is_current(gdn_probes.PROBES if probe else SM90, variant, folder):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        if probe:
            gdn_probes.build(variant, Path(scratch))
        else:
            compiler.build(SM90, variant.stage, variant.options, Path(scratch))
        for suffix in (".so", ".json"):
            shutil.move(Path(scratch) / f"{variant.name}{suffix}", folder / f"{variant.name}{suffix}")
    return True


# --- the run ----------------------------------------------------------------------------------

Task = tuple[Row, Callable[[], Row]]
"""What a line is about, and the work that finds the rest of it."""


@dataclass(frozen=True)
class Phase:
    """A part of the run: the module that has its tasks, the file of its lines, and until which share of the
    time it may go on. ``alone``: each task gets a process of its own."""

    module: str
    file: str
    until: float
    alone: bool = False


PHASES = {
    "checks": Phase("gdn_gpu_checks", ACCURACY, 0.2),
    "training": Phase("gdn_gpu_training", "training.jsonl", 0.5),
    "speed": Phase("gdn_gpu_speed", SPEED, 0.73),
    "bounds": Phase("gdn_gpu_bounds", "bounds.jsonl", 0.75),
    "baselines": Phase("gdn_gpu_baselines", "baselines.jsonl", 1.0, alone=True),
}
"""In the order of their importance."""

CONTROLS = "controls"
"""The part that is no `Phase`: its judges have processes of their own."""

JUDGES = 7
"""Members judged beside each other; a judge waits for its suspects most of the time."""


def tasks(phase: str) -> list[Task]:
    """A phase's tasks; needs no device."""
    module = importlib.import_module(f"lethe.evidence.{PHASES[phase].module}")
    return list(module.tasks())


def run(out: Path, seconds: float, phases: Sequence[str]) -> None:
    """All findings, as lines of a file for each phase; what lies there already is not found again.

    Baselines are compiled in processes beside the checks and the training, and these are ended before
    anything is timed.
    """
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    _claimed(out)
    warming = _warming() if "baselines" in phases else []
    for phase in phases:
        if phase == CONTROLS:
            controls(out, start + seconds)
            continue
        how = PHASES[phase]
        share = how.until if len(phases) > 1 else 1.0
        if phase in ("speed", "bounds", "baselines"):
            _joined(warming, start + 0.5 * seconds)
        command = [sys.executable, "-m", "lethe.evidence.gdn_gpu", "serve", phase]
        abouts = [about for about, _ in tasks(phase)]
        processes.watched(out / how.file, abouts, command, start + share * seconds, how.alone)
    _joined(warming, 0.0)


def controls(out: Path, end: float) -> None:
    """The positive control, until `end`; what is judged by then has its line, and is not judged again."""
    command = [sys.executable, "-m", "lethe.evidence.gdn_controls", "run", "--out", str(out)]
    child = subprocess.Popen([*command, "--workers", str(JUDGES)], cwd=provenance.ROOT)
    try:
        child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("controls: the time was over; run again to judge the others", flush=True)
    finally:
        child.terminate()
        child.wait()


def _claimed(out: Path) -> None:
    """Write down whose findings a folder holds. RuntimeError if they are another device's, or those of other
    sources."""
    sources, machine = out / "sources.sha256", out / elsewhere.MACHINE
    here = f"{provenance.digest(['lethe/evidence/gdn_gpu.py', KERNELS])}\n"
    if sources.is_file() and sources.read_text() != here:
        raise RuntimeError(f"{out} holds what other sources have measured; give another folder")
    before = machine.read_text() if machine.is_file() else ""
    elsewhere.note(out)
    if before and json.loads(before)["device"] != json.loads(machine.read_text())["device"]:
        provenance.write_atomically(machine, before)
        raise RuntimeError(f"{out} holds what another device has measured; give another folder")
    provenance.write_atomically(sources, here)


def serve(phase: str, numbers: Sequence[int]) -> int:
    """A process of `run`: the tasks of these numbers, a marked line for each, until the device is lost."""
    todo = tasks(phase)
    for about, work in (todo[number] for number in numbers):
        start = time.monotonic()
        try:
            found = work()
        except Exception as error:  # the other tasks go on; the line says what happened
            found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        row = {**about, **_finite(found), "seconds": round(time.monotonic() - start, 2)}
        lost = _lost() if "error" in found else ""
        row |= {"lost": lost} if lost else {}
        print(processes.MARK + json.dumps(row, sort_keys=True, allow_nan=False), flush=True)
        if lost:
            return 3
    return 0


def _warming() -> list[subprocess.Popen[bytes]]:
    """Processes that compile the baselines beforehand."""
    from lethe.evidence.gdn_gpu_baselines import WARMED

    command = [sys.executable, "-m", "lethe.evidence.gdn_gpu", "warm"]
    how: dict[str, Any] = {"cwd": provenance.ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return [
        subprocess.Popen([*command, member, "--dv", str(dv), "--shard", f"{shard}/{shards}"], **how)
        for (member, dv), shards in WARMED.items()
        for shard in range(shards)
    ]


def _joined(children: list[subprocess.Popen[bytes]], end: float) -> None:
    """Wait for children until `end`, then end those that still run."""
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
        child.kill()
        child.wait()
    children.clear()


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _lost() -> str:
    """Why nothing more can run on the device, or an empty string."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception as error:
        return str(error).splitlines()[0]
    return ""


# --- the record -------------------------------------------------------------------------------


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> list[Path]:
    """Write what `run` left: ``gdn_accuracy``, ``gdn_training``, ``gdn_speed`` and ``gdn_bounds`` of that
    device, with its own versions; the baselines are part of the speed."""
    slug, written = elsewhere.device(folder).slug, []
    for experiment, phases, units in (
        ("gdn_accuracy", ("checks",), {"errors": "of the largest value"}),
        ("gdn_training", ("training",), {"losses": "bits an answer"}),
        ("gdn_speed", ("speed", "baselines"), {"us": "us", "their_us": "us", "bytes": "B", "peak": "B"}),
        ("gdn_bounds", ("bounds",), {"us": "us", "bytes": "B"}),
    ):
        files = [folder / PHASES[phase].file for phase in phases if (folder / PHASES[phase].file).is_file()]
        if not files:
            continue
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        # a case whose library was not in the folder has not been measured
        samples = [_told(row) for row in rows if not str(row.get("error", "")).startswith("LibraryError")]
        scripts = [f"lethe/evidence/{PHASES[phase].module}.py" for phase in phases]
        probes = [path for phase in phases for path in PROBES.get(phase, [])]
        written.append(
            elsewhere.record(
                measured / slug / f"{experiment}.json", folder, experiment=experiment, samples=samples,
                parameters={}, script=scripts[0], sources=[KERNELS, *scripts[1:], *probes], units=units,
                command="python -m lethe.evidence.gdn_gpu run",
            )
        )  # fmt: skip
    from lethe.evidence import gdn_controls

    if (folder / gdn_controls.FILE).is_file():
        written.append(gdn_controls.record(folder, measured))
    return written


def _told(row: Row) -> Row:
    """A row whose error, if it has one, is a sentence: where the sources lay on that machine is of no use."""
    return row | {"error": row["error"].split("\n")[0]} if "error" in row else row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.gdn_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build")
    make.add_argument("--folder", type=Path, required=True)
    make.add_argument("--processes", type=int, default=2)
    go = commands.add_parser("run")
    go.add_argument("--out", type=Path, required=True)
    go.add_argument("--seconds", type=float, default=480.0)
    go.add_argument("--only", nargs="+", choices=[*PHASES, CONTROLS], default=list(PHASES))
    child = commands.add_parser("serve")
    child.add_argument("phase", choices=list(PHASES))
    child.add_argument("--tasks", default="")
    ahead = commands.add_parser("warm")
    ahead.add_argument("member")
    ahead.add_argument("--dv", type=int, default=128)
    ahead.add_argument("--shard", default="0/1", metavar="i/n", help="counted from 0")
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "build":
        failed = build(given.folder, given.processes)
        print("\n".join(failed) or "every library is there and current")
        return 1 if failed else 0
    if given.command == "serve":
        return serve(given.phase, [int(number) for number in given.tasks.split(",") if number])
    if given.command == "warm":
        from lethe.evidence.gdn_gpu_baselines import warm

        shard, _, shards = given.shard.partition("/")
        warm(given.member, given.dv, int(shard), int(shards))
    elif given.command == "run":
        try:
            run(given.out, given.seconds, given.only)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
    else:
        for path in record(given.folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
