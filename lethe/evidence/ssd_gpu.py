"""Everything about the state-space engine that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.ssd_gpu run --out DIR [--official PATH] [--seconds 560] [--only PART ...]
    python -m lethe.evidence.ssd_gpu dry [--target 90] [--compile]
    python -m lethe.evidence.ssd_gpu record DIR

`run` goes through the parts in `PARTS`, each in a process of its own with a share of the time: ``first`` (one
case with every option against float64), ``tune`` (the search for tiles, whose table all parts after it use),
``accuracy`` (`ssd_check`: values against float64, the controls), ``speed`` (against mamba-ssm's Triton, whose
sources ``--official`` names), ``checks`` (equal bits, no allocation, rebinding, streams, replay, training),
``sanitizer``, ``tests`` (by pytest), ``theirs`` (values of mamba-ssm). Kernels are compiled beforehand by
several processes at once. What exists is in DIR at any time: a file for each part, what it printed, rows as
they are found. A part that fails is recorded with its error and does not stop the others; one that loses the
device goes on in a new process. A second call with the same DIR goes on where the first one stopped.
`dry` goes through the same code on a CPU, in the interpreter, on small cases; with ``--compile`` it compiles
every kernel of the run for the target. `record` writes what `run` left to ``data/measured`` and the table of
tiles to the package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere, ssd_check
from lethe.evidence import ssd_gpu_ahead as ahead
from lethe.kernels.ssd import tiles
from lethe.kernels.ssd.device import LOST, lost

KERNELS = "lethe/kernels/ssd"
FIRST, CHECKS, TUNE, SPEED = "first.jsonl", "checks.jsonl", "tune.jsonl", "speed.jsonl"
ACCURACY = "accuracy"
"""Folder of `ssd_check`'s lines."""
TILES = "tiles.json"

PARTS = {
    "first": 0.12, "tune": 0.14, ACCURACY: 0.18, "speed": 0.31, "checks": 0.09, "sanitizer": 0.08,
    "tests": 0.04, "theirs": 0.04,
}  # fmt: skip
"""Parts in their order, and the share of the time that each may take; what one leaves goes to the others."""

ONCE = ("first", "sanitizer", "tests")
"""Parts that keep no rows to go on from: a second call leaves out those that ended well."""

COMPILING = 60.0
"""Most seconds to wait for what is compiled beforehand; a part compiles for itself what is missing."""

MARGIN = 12.0
"""Seconds before its limit at which a part begins nothing new."""

Row = dict[str, Any]


# --- the run --------------------------------------------------------------------------------------


def run(out: Path, official: str | None, seconds: float, only: list[str]) -> None:
    """All parts; see the module."""
    end = time.monotonic() + seconds
    out, official = out.resolve(), official and str(Path(official).resolve())  # parts run in another folder
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out)
    target, waited = _target(), min(COMPILING, seconds / 6)
    wanted = [part for part in PARTS if (not only or part in only) and not _ended_well(out, part)]
    theirs = ahead.warmers(official) if "speed" in wanted else []
    behind = ahead.compilers("search", target) if "tune" in wanted else []
    left, ready = sum(PARTS[part] for part in wanted), False
    for part in wanted:
        if (out / TILES).is_file():
            os.environ[tiles.VARIABLE] = str(out / TILES)
        if part == "tune":
            ahead.joined(behind, time.monotonic() + waited)
        elif part != "first" and not ready:  # with the tiles that the search found
            _note(out, "compile", lambda: _compiled(target, waited))
            ready = True
        if part == "speed":
            ahead.joined(theirs, time.monotonic() + waited)
        limit = max(20.0, (end - time.monotonic()) * PARTS[part] / left)
        left -= PARTS[part]
        _note(out, part, lambda p=part, s=limit: _part(p, out, official, s))  # type: ignore[misc]
    ahead.joined(theirs + behind, 0.0)


def _ended_well(out: Path, part: str) -> bool:
    file = out / f"{part}.json"
    return part in ONCE and file.is_file() and json.loads(file.read_text()).get("status") == 0


def _compiled(target: int, seconds: float) -> Row:
    children = [child for which in ("speed", "checks") for child in ahead.compilers(which, target)]
    return {"failures": ahead.joined(children, time.monotonic() + seconds)}


def _target() -> int:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _note(out: Path, name: str, work: Callable[[], Row]) -> None:
    """Do one part and write what came of it to ``<name>.json``."""
    start = time.monotonic()
    try:
        found = work()
    except Exception as error:  # the other parts go on; the file says what happened
        found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    found["seconds"] = round(time.monotonic() - start, 1)
    provenance.write_atomically(out / f"{name}.json", json.dumps(found, indent=1) + "\n")
    print(name, {k: v for k, v in found.items() if k != "output"}, flush=True)


def _part(part: str, out: Path, official: str | None, seconds: float) -> Row:
    """A part in a process of its own, under a time limit, and in a new one where the device was lost."""
    given = ["--official", official] if official and part in ("speed", "theirs") else []
    if part == "sanitizer":
        return sanitizer(out, seconds)
    if part == "theirs" and not official:
        return {"skipped": "the sources of mamba-ssm were not named"}
    end, log = time.monotonic() + seconds, out / f"{part}.log"
    while True:
        remains = end - time.monotonic()
        if part in (ACCURACY, "theirs"):
            command = ["lethe.evidence.ssd_check", "run", "--out", str(out / ACCURACY)]
        elif part == "tests":  # values and promises are parts of their own
            command = ["pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/kernels/ssd"]
            command += ["-k", "not test_full and not test_promise"]
        else:
            command = ["lethe.evidence.ssd_gpu", "serve", part, "--out", str(out)]
        if part != "tests":
            command += ["--seconds", str(remains - MARGIN), *given]
        found = _finished([sys.executable, "-m", *command], remains, log)
        if found["status"] != LOST or end - time.monotonic() < MARGIN:
            return found


def _finished(command: list[str], seconds: float, log: Path, keep: int = 3000, **variables: str) -> Row:
    """Run a command with all that it starts; its output goes to `log` as it comes."""
    with log.open("a", encoding="utf-8") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=provenance.ROOT, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        try:
            found: Row = {"status": child.wait(seconds)}
        except subprocess.TimeoutExpired:
            found = {"status": None, "why": f"not finished after {seconds:.0f} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return {**found, "output": log.read_text(encoding="utf-8", errors="replace")[-keep:]}


def serve(part: str, out: Path, official: str | None, seconds: float) -> int:
    """The inside of a part's process."""
    if part == "first":
        return first(out / FIRST)
    if part == "checks":
        return checks(out / CHECKS, seconds)
    if part == "tune":
        return tune(out, seconds)
    from lethe.kernels.ssd import bench

    options = ["--out", str(out / SPEED), "--seconds", str(seconds)]
    return bench.main(options + (["--official", official] if official else []))


def _add(file: Path, row: Row) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    print({k: v for k, v in row.items() if k != "samples_us"}, flush=True)


def _rows(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def first(file: Path) -> int:
    """The case with every option, whole: what is wrong with everything shows here, within seconds."""
    from lethe.evidence.ssd_cases import STRESSES

    case = next(case for case in STRESSES if case.name == "everything")
    row = ssd_check.measured_row(case, ssd_check.ours(), "cuda")
    _add(file, {"id": case.id, **row})
    return int(not row["passed"])


def checks(file: Path, seconds: float, device: str = "cuda") -> int:
    """A line for each task that `file` does not have yet; a task that fails is a line with its error. Returns
    0 where all that ran held, `LOST` where the device was lost."""
    from lethe.evidence import ssd_gpu_checks

    end = time.monotonic() + seconds
    known = [(row["kind"], row["case"]) for row in _rows(file)]
    for about, work in ssd_gpu_checks.tasks(device):
        if (about["kind"], about["case"]) in known:
            continue
        start = time.monotonic()
        if start > end:
            break
        try:
            row: Row = {**about, **work()}
        except Exception as error:  # the other tasks go on
            row = {**about, "ok": False, "error": f"{type(error).__name__}: {str(error)[:500]}"}
        _add(file, {**row, "seconds": round(time.monotonic() - start, 2)})
        if "error" in row and device == "cuda" and lost():
            return LOST
    return int(not all(row.get("ok", True) for row in _rows(file)))


def tune(out: Path, seconds: float) -> int:
    """The search for tiles: a line for each variant, and the table as it stands after each of them."""
    import torch

    from lethe.kernels.ssd import tune as search

    found = _rows(out / TUNE)
    source = f"measured on {torch.cuda.get_device_name()}"
    for row in search.search(_target(), seconds, found.copy()):
        found.append(row)
        _add(out / TUNE, row)
        table = {"rows": search.chosen(found, source)}
        provenance.write_atomically(out / TILES, json.dumps(table, indent=1) + "\n")
    print(sum("median_us" in row for row in found), "of", len(found), "variants timed", flush=True)
    return LOST if lost() else 0


def sanitizer(out: Path, seconds: float) -> Row:
    """compute-sanitizer over one small case; where it is absent or does not start, that is the finding."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        return {"started": False, "why": "compute-sanitizer is not installed"}
    inner = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "once"]
    found: Row = {"started": True}
    for name, share in (("memcheck", 0.6), ("racecheck", 0.4)):
        command, log = [tool, "--tool", name, "--error-exitcode", "9", *inner], out / f"{name}.log"
        log.unlink(missing_ok=True)
        # Each tensor an allocation of its own, so that a step beyond one is seen.
        done = _finished(command, seconds * share, log, 1 << 22, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        counted = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)", done["output"])
        found[name] = {**done, "output": done["output"][-1500:], "summary": counted[-1:]}
    statuses = [found[name]["status"] for name in ("memcheck", "racecheck")]
    return {**found, "status": None if None in statuses else max(statuses)}


def once(device: str) -> int:
    """A forward and backward pass of the plain case, launched once: what the sanitizer watches."""
    from lethe.evidence import ssd_gpu_checks
    from lethe.kernels.ssd.cases import PLAIN

    found = ssd_gpu_checks.gradients(PLAIN, *ssd_gpu_checks.drawn(PLAIN, device))
    print({key: float(value.float().abs().max()) for key, value in found.items()})
    return 0


# --- the record ---------------------------------------------------------------------


def record(
    folder: Path,
    measured: Path = provenance.ROOT / "data" / "measured",
    table: Path = provenance.ROOT / KERNELS / TILES,
) -> list[Path]:
    """Write what `run` left: ``ssd_accuracy`` and ``ssd_controls``, ``ssd_checks``, ``ssd_tune`` and
    ``ssd_speed`` of that device, and the table of tiles to the package. A search that timed nothing leaves
    the table as it is."""
    from lethe.kernels.ssd.bench import latest

    slug, written = elsewhere.device(folder).slug, []

    def part(name: str) -> Row:
        file = folder / f"{name}.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def keep(experiment: str, samples: Any, script: str, parameters: Row) -> None:
        written.append(
            elsewhere.record(
                measured / slug / f"{experiment}.json", folder, experiment=experiment, samples=samples,
                parameters=parameters, script=script, sources=[KERNELS],
                command="python -m lethe.evidence.ssd_gpu run",
            )
        )  # fmt: skip

    chosen = (folder / TILES).read_text() if (folder / TILES).is_file() else ""
    if chosen and len(json.loads(chosen)["rows"]) > 1:
        provenance.write_atomically(table, chosen)
    if (folder / ACCURACY).is_dir():
        written += ssd_check.record(folder / ACCURACY, measured)
    if found := _rows(folder / CHECKS):
        others = {name: part(name) for name in ("first", "sanitizer", "tests")}
        keep("ssd_checks", found, "lethe/evidence/ssd_gpu_checks.py", others | {"tiles_found": bool(chosen)})
    if found := _rows(folder / TUNE):
        keep("ssd_tune", found, "lethe/kernels/ssd/tune.py", {})
    if found := latest(_rows(folder / SPEED)):
        keep("ssd_speed", found, "lethe/kernels/ssd/bench.py", {})
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.ssd_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--seconds", type=float, default=560.0)
    go.add_argument("--only", action="append", choices=list(PARTS), default=[])
    inside = commands.add_parser("serve")
    inside.add_argument("part", choices=["first", "checks", "tune", "speed"])
    inside.add_argument("--seconds", type=float, required=True)
    for command in (go, inside):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--official", help="mamba-ssm's source archive, an unpacked copy, or a checkout")
    compiling = commands.add_parser("compile")
    compiling.add_argument("which", choices=ahead.SETS)
    without = commands.add_parser("dry")
    without.add_argument("--compile", action="store_true")
    for command in (compiling, without):
        command.add_argument("--target", type=int, default=90)
    heat = commands.add_parser("warm")
    heat.add_argument("--official", required=True)
    heat.add_argument("--chunk", type=int, required=True)
    for command in (compiling, heat):
        command.add_argument("--shard", default="0/1")
    commands.add_parser("once")
    keep = commands.add_parser("record")
    keep.add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command in ("compile", "warm"):
        shard, shards = map(int, given.shard.split("/"))
    if given.command == "compile":
        return ahead.compile_shard(given.which, given.target, shard, shards)
    if given.command == "dry":
        from lethe.evidence import ssd_gpu_dry

        return ssd_gpu_dry.dry(given.target, given.compile)
    if given.command == "record":
        for path in record(given.folder):
            print(path.relative_to(provenance.ROOT))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("ssd_gpu: no CUDA device is visible to torch; try dry", file=sys.stderr)
        return 2
    if given.command == "warm":
        return ahead.warm(given.official, given.chunk, shard, shards)
    if given.command == "once":
        return once("cuda")
    if given.command == "serve":
        return serve(given.part, given.out, given.official, given.seconds)
    run(given.out, given.official, given.seconds, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
