"""Everything about the gated-linear-recurrence kernels that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.gdn_gpu build --folder FOLDER [--processes 2]
    LETHE_GDN_LIBRARIES=FOLDER python -m lethe.evidence.gdn_gpu run --out DIR [--seconds 240]
        [--fla] [--only checks | speed]
    python -m lethe.evidence.gdn_gpu record DIR

`build` needs the compiler (nvidia-cutlass-dsl) and no GPU; it leaves two files for each library that `run`
may need, the most telling first, and skips what is there and current. `run` needs torch and a GPU: accuracy
against float64, equal bits, graphs and red zones (`gdn_gpu_checks`), then speed (`gdn_gpu_speed`), each
finding a line of a file as soon as it is there. A task that fails is a line with its error; one that loses
the device or never ends costs its process, and the next one starts in another. ``--fla`` times
flash-linear-attention too, where it can be imported. `record` writes what `run` left to ``data/measured``.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere

ACCURACY, SPEED = "accuracy.jsonl", "speed.jsonl"
KERNELS = "lethe/kernels/gdn"

FOR_ACCURACY = 0.4
"""Share of the time for everything but the speeds."""

Row = dict[str, Any]


# --- libraries --------------------------------------------------------------------------------


def wanted() -> list[Any]:
    """The variants that `run` may need, the most telling first."""
    from lethe.kernels.gdn.native import DV, KINDS, Kind, libraries, libraries_to_save

    def kind(io: str, dv: int, come: tuple[str, str, str], packed: bool = False) -> Any:
        return Kind(io, 128, dv, *come, packed)

    general = KINDS[0]
    kinds = [kind(io, dv, general) for io, dv in (("float16", 128), ("bfloat16", 128))]
    kinds += [kind("bfloat16", 128, come) for come in KINDS]
    kinds += [kind("float16", 128, general, packed=True)]
    kinds += [kind(io, dv, come) for dv in reversed(DV) for io in ("float16", "bfloat16") for come in KINDS]
    found: dict[str, Any] = {}
    for at, one in enumerate(kinds):
        for variant in (*libraries(one), *(libraries_to_save(one) if at < 2 else ())):
            found.setdefault(variant.name, variant)
    return list(found.values())


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

    from lethe.kernels.gdn import build as compiler
    from lethe.kernels.gdn.architecture import SM90

    if compiler.is_current(SM90, variant, folder):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        compiler.build(SM90, variant.stage, variant.options, Path(scratch))
        for suffix in (".so", ".json"):
            shutil.move(Path(scratch) / f"{variant.name}{suffix}", folder / f"{variant.name}{suffix}")
    return True


# --- the run ----------------------------------------------------------------------------------

Task = tuple[Row, Callable[[], Row]]
"""What a line is about, and the work that finds the rest of it."""

PHASES = {"checks": ACCURACY, "speed": SPEED}
PATIENCE = {"checks": 25.0, "ours": 25.0, "fla": 120.0}
"""Seconds that one task may take: a kernel that waits for ever is ended with its process."""

STARTS = 30.0
"""Seconds that a process has for itself before its first task."""

LOST = 5
"""Processes that may be lost in a row before a phase is given up."""

MARK = "row "


def tasks(phase: str, fla: bool) -> list[Task]:
    """A phase's tasks; needs no device."""
    from lethe.evidence import gdn_gpu_checks, gdn_gpu_speed

    return list(gdn_gpu_checks.tasks() if phase == "checks" else gdn_gpu_speed.tasks(fla))


def run(out: Path, seconds: float, fla: bool, phases: list[str]) -> None:
    """All findings, as lines of a file for each phase; the checks leave time for the speeds."""
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out)
    for phase in phases:
        share = FOR_ACCURACY if phase == "checks" and len(phases) > 1 else 1.0
        limit = end - (1 - share) * seconds
        command = [sys.executable, "-m", "lethe.evidence.gdn_gpu", "serve", phase]
        abouts = [about for about, _ in tasks(phase, fla)]
        _watched(out / PHASES[phase], abouts, command + ["--fla"] * fla, limit)


def serve(phase: str, first: int, fla: bool) -> int:
    """A process of `run`: the tasks from one on, a marked line for each, until the device is lost."""
    for about, work in tasks(phase, fla)[first:]:
        start = time.monotonic()
        try:
            found = work()
        except Exception as error:  # the other tasks go on; the line says what happened
            found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        row = {**about, **_finite(found), "seconds": round(time.monotonic() - start, 2)}
        lost = _lost() if "error" in found else ""
        row |= {"lost": lost} if lost else {}
        print(MARK + json.dumps(row, sort_keys=True, allow_nan=False), flush=True)
        if lost:
            return 3
    return 0


def _watched(file: Path, abouts: list[Row], command: list[str], end: float) -> None:
    """A line for each task; processes that die, lose the device or do not answer are replaced."""
    at, lost = 0, 0
    with file.open("w", encoding="utf-8") as lines:

        def write(row: Row) -> None:
            lines.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")
            lines.flush()
            print(_brief(row), flush=True)

        while at < len(abouts) and lost < LOST:
            why = ""
            for row in _answers([*command, "--first", str(at)], abouts[at:], end):
                if isinstance(row, str):
                    why = row
                    break
                write(row)
                at += 1
                lost = lost + 1 if "lost" in row else 0
            if time.monotonic() >= end:
                write({"kind": "end", "why": f"the time was over after {at} of {len(abouts)} tasks"})
                return
            if why:
                write({**abouts[at], "error": why})
                at, lost = at + 1, lost + 1
        if at < len(abouts):
            why = f"{LOST} processes were lost in a row; {at} of {len(abouts)} tasks done"
            write({"kind": "end", "why": why})


def _answers(command: list[str], abouts: list[Row], end: float) -> Iterator[Row | str]:
    """Each task's answer by a new process; unless it answers all, at last why the next one has none."""
    answers: queue.Queue[str | None] = queue.Queue()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=provenance.ROOT)

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(MARK):
                answers.put(line.removeprefix(MARK))
        answers.put(None)

    threading.Thread(target=read, daemon=True).start()
    extra = STARTS
    try:
        for about in abouts:
            patience = PATIENCE.get(about["kind"], PATIENCE["checks"]) + extra
            wait, extra = min(patience, end - time.monotonic()), 0.0
            try:
                answer = answers.get(timeout=max(0.0, wait))
            except queue.Empty:
                yield f"no answer within {patience:.0f} s"
                return
            if answer is None:
                yield f"the process ended with status {child.wait()}"
                return
            row: Row = json.loads(answer)
            yield row
            if "lost" in row:
                return
    finally:
        child.kill()
        child.wait()


def _brief(row: Row) -> str:
    """A line for whoever watches."""
    names = ("kind", "member", "gate", "io", "dv", "batch", "heads", "length", "cuts", "save")
    text = " ".join(str(row[name]) for name in names if name in row)
    if "why" in row or "error" in row:
        return f"{text}: {row.get('why') or row['error']}"
    if "passed" in row:
        worst = row.get("errors") and max(row["errors"].items(), key=lambda x: x[1] if x[1] else 9.0)
        return f"{text}: {'passed' if row['passed'] else 'FAILED'} {worst or ''}"
    median = {name: round(us, 1) for name, us in row.get("median_us", {}).items()}
    ratio = {name: round(x, 2) for name, x in row.get("ratio", {}).items()}
    against = {n: round(row[n]["fla_over_ours"], 2) for n in ("forward", "forward+backward") if n in row}
    return f"{text}: {median or ''} {ratio or ''} {against or ''} {row.get('agrees', '')}"


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
    """Write what `run` left: ``gdn_accuracy`` and ``gdn_speed`` of that device, with its own versions."""
    slug, written = elsewhere.device(folder).slug, []
    for experiment, file, script, units in (
        ("gdn_accuracy", ACCURACY, "lethe/evidence/gdn_gpu_checks.py", {"errors": "of the largest value"}),
        ("gdn_speed", SPEED, "lethe/evidence/gdn_gpu_speed.py", {"us": "us", "bytes": "B", "peak": "B"}),
    ):
        if not (folder / file).is_file():
            continue
        rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        # a case whose library was not in the folder has not been measured
        samples = [_told(row) for row in rows if not str(row.get("error", "")).startswith("LibraryError")]
        written.append(
            elsewhere.record(
                measured / slug / f"{experiment}.json", folder, experiment=experiment, samples=samples,
                parameters={}, script=script, sources=[KERNELS], units=units,
                command="python -m lethe.evidence.gdn_gpu run",
            )
        )  # fmt: skip
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
    go.add_argument("--seconds", type=float, default=240.0)
    go.add_argument("--fla", action="store_true")
    go.add_argument("--only", choices=list(PHASES))
    child = commands.add_parser("serve")
    child.add_argument("phase", choices=list(PHASES))
    child.add_argument("--first", type=int, default=0)
    child.add_argument("--fla", action="store_true")
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "build":
        failed = build(given.folder, given.processes)
        print("\n".join(failed) or "every library is there and current")
        return 1 if failed else 0
    if given.command == "serve":
        return serve(given.phase, given.first, given.fla)
    if given.command == "run":
        run(given.out, given.seconds, given.fla, [given.only] if given.only else list(PHASES))
    else:
        for path in record(given.folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
