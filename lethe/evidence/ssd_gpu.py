"""Everything about the state-space engine that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.ssd_gpu run --out DIR [--official PATH] [--seconds 560] [--only PART ...]
    python -m lethe.evidence.ssd_gpu dry [--target 90] [--compile]
    python -m lethe.evidence.ssd_gpu record DIR

`run` goes through the parts in `PARTS`, each in a process of its own with a share of the time: ``tune`` (the
search for tiles, whose table all parts after it use), ``accuracy`` (`ssd_check`: values against float64, the
controls), ``checks`` (equal bits, no allocation, rebinding, streams, replay, training), ``speed`` (against
mamba-ssm's Triton, whose sources ``--official`` names), ``sanitizer``, ``tests`` (by pytest). Kernels are
compiled beforehand by several processes at once. What exists is in DIR at any time: a file for each part,
rows as they are found. A part that fails is recorded with its error and does not stop the others.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere, ssd_check
from lethe.evidence import ssd_gpu_ahead as ahead
from lethe.kernels.ssd import tiles

KERNELS = "lethe/kernels/ssd"
CHECKS, TUNE, SPEED = "checks.jsonl", "tune.jsonl", "speed.jsonl"
ACCURACY = "accuracy"
"""Folder of `ssd_check`'s lines."""
TILES = "tiles.json"

PARTS = {"tune": 0.15, ACCURACY: 0.25, "checks": 0.08, "speed": 0.42, "sanitizer": 0.05, "tests": 0.05}
"""Parts in their order, and the share of the time that each may take; what one leaves goes to the others."""

COMPILING = 90.0
"""Most seconds spent on compiling beforehand; a part compiles for itself what is missing."""

Row = dict[str, Any]


# --- the run --------------------------------------------------------------------------------------


def run(out: Path, official: str | None, seconds: float, only: list[str]) -> None:
    """All parts; see the module."""
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out)
    target = _target()
    wanted = [part for part in PARTS if not only or part in only]
    behind = [ahead.compiler(target, "rest", i, ahead.COMPILERS - 4) for i in range(ahead.COMPILERS - 4)]
    behind += ahead.warming(official)
    left = sum(PARTS[part] for part in wanted)
    for part in wanted:
        if part == "tune":
            ahead.joined(behind, min(end, time.monotonic() + COMPILING))
        elif not (out / "compile.json").is_file():  # with the tiles that the search has found
            _note(out, "compile", lambda: ahead.compile_all(target, "checks", min(COMPILING, seconds / 6)))
        limit = max(20.0, (end - time.monotonic()) * PARTS[part] / left)
        left -= PARTS[part]
        _note(out, part, lambda p=part, s=limit: _part(p, out, official, s))  # type: ignore[misc]
        if part == "tune" and (out / TILES).is_file():
            os.environ[tiles.VARIABLE] = str(out / TILES)
    for child in behind:
        child.kill()


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
    """A part in a process of its own, under a time limit; it stops itself somewhat before that."""
    given = ["--official", official] if official else []
    if part == "sanitizer":
        return sanitizer(seconds)
    if part == ACCURACY:
        command = [sys.executable, "-m", "lethe.evidence.ssd_check", "run", "--out", str(out / ACCURACY)]
        return _finished([*command, "--seconds", str(seconds - 8), *given], seconds)
    if part == "tests":
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
        return _finished([*command, "tests/kernels/ssd"], seconds)
    command = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "serve", part, "--out", str(out)]
    command += ["--seconds", str(seconds - 8), *given]
    return _finished(command, seconds)


def _finished(command: list[str], seconds: float, keep: int = 3000) -> Row:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=provenance.ROOT, check=False
        )
    except subprocess.TimeoutExpired as late:
        text = late.stdout if isinstance(late.stdout, str) else (late.stdout or b"").decode(errors="replace")
        return {"status": None, "why": f"not finished after {seconds:.0f} s", "output": text[-keep:]}
    return {"status": done.returncode, "output": (done.stdout + done.stderr)[-keep:]}


def serve(part: str, out: Path, official: str | None, seconds: float) -> int:
    """The inside of a part's process."""
    if part == "checks":
        return int(not checks(out / CHECKS, seconds))
    if part == "tune":
        return tune(out, seconds)
    from lethe.kernels.ssd import bench

    options = ["--out", str(out / SPEED), "--seconds", str(seconds)]
    return bench.main(options + (["--official", official] if official else []))


def checks(file: Path, seconds: float, device: str = "cuda") -> bool:
    """A line for each task; whether all that ran held. A task that fails is a line with its error."""
    from lethe.evidence import ssd_gpu_checks

    end, good = time.monotonic() + seconds, True
    with file.open("w", encoding="utf-8") as lines:
        for about, work in ssd_gpu_checks.tasks(device):
            start = time.monotonic()
            if start > end:
                row: Row = {**about, "skipped": "the time was spent"}
            else:
                try:
                    row = {**about, **work()}
                except Exception as error:  # the other tasks go on
                    row = {**about, "ok": False, "error": f"{type(error).__name__}: {str(error)[:500]}"}
            row["seconds"] = round(time.monotonic() - start, 2)
            good = good and row.get("ok", True)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            print(row, flush=True)
    return good


def tune(out: Path, seconds: float) -> int:
    """The search for tiles: a line for each sample, and the table as it stands after each of them."""
    import torch

    from lethe.kernels.ssd import tune as search

    found: list[Row] = []
    source = f"measured on {torch.cuda.get_device_name()}"
    with (out / TUNE).open("w", encoding="utf-8") as lines:
        for row in search.search(_target(), seconds):
            found.append(row)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
    table = {"rows": search.chosen(found, source)}
    provenance.write_atomically(out / TILES, json.dumps(table, indent=1) + "\n")
    print(sum("median_us" in row for row in found), "of", len(found), "variants timed", flush=True)
    return 0


def sanitizer(seconds: float) -> Row:
    """compute-sanitizer over one small case; where it is absent or does not start, that is the finding."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        return {"started": False, "why": "compute-sanitizer is not installed"}
    inner = [sys.executable, "-m", "lethe.evidence.ssd_gpu", "once"]
    found: Row = {"started": True}
    for name in ("memcheck", "racecheck"):
        done = _finished([tool, "--tool", name, "--error-exitcode", "9", *inner], seconds / 2, keep=1 << 22)
        counted = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)", done["output"])
        found[name] = {**done, "output": done["output"][-1500:], "summary": counted[-1:]}
    return found


def once(device: str) -> int:
    """A forward and backward pass of the plain case, launched once: what the sanitizer watches."""
    from lethe.evidence import ssd_gpu_checks
    from lethe.kernels.ssd.cases import PLAIN

    found = ssd_gpu_checks.gradients(PLAIN, *ssd_gpu_checks.drawn(PLAIN, device))
    print({key: float(value.float().abs().max()) for key, value in found.items()})
    return 0


# --- without a GPU, and the record ---------------------------------------------------------------------


def dry(target: int, compile_too: bool) -> int:
    """The whole run but its device: the checks, the search, the speeds and the record, in the interpreter on
    small cases, in a folder that is thrown away; or, with `compile_too`, every kernel of the run compiled."""
    from lethe.verifier.executors import library

    counted = {which: len(list(ahead.launches(which, target))) for which in ("checks", "rest")}
    print("kernels to compile:", counted, flush=True)
    if compile_too:
        failed = sum(ahead.compile_shard(which, target, 0, 1) for which in counted)
        print("do not compile:", failed, flush=True)
        return int(failed > 0)
    library.use_interpreter()
    for name in [name for name in sys.modules if name.startswith("lethe.kernels.ssd")]:
        del sys.modules[name]  # decorated as compiled functions while the launches were counted
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        elsewhere.note(out, "cpu")
        good = checks(out / CHECKS, 600.0, device="cpu")
        rehearse(out)
        for part in PARTS:
            provenance.write_atomically(out / f"{part}.json", "{}")
        written = record(out, out / "measured", out / "table.json")
        print("recorded:", [path.name for path in written], flush=True)
    return int(not good or len(written) != 3)


def rehearse(out: Path) -> None:
    """A sample of the search and a row of the speeds, against a stand-in for the official operator."""
    from dataclasses import replace

    from lethe.kernels.ssd import bench
    from lethe.kernels.ssd import tune as search
    from lethe.kernels.ssd.tiles import Tiles

    small = {"batch": 1, "length": 40, "heads": 1, "dtype": "float16"}
    found = []
    for case in search.cases()[:2]:
        for op, kernel in (("SSD", "scan"), ("SSD", "output"), ("SSD_BWD", "scan"), ("SSD_BWD", "gradient")):
            row = search.timed(replace(case, **small), op, kernel, Tiles(), ("cpu", None), 2)  # type: ignore[arg-type]
            found.append(row)
    _lines(out / TUNE, found)
    table = {"rows": search.chosen(found, "a rehearsal")}
    assert len(table["rows"]) == 5, "the search chose nothing"
    provenance.write_atomically(out / TILES, json.dumps(table))

    def stand_in(x: Any, *others: Any, **options: Any) -> Any:
        tensors = [t for t in (*others, *options.values()) if hasattr(t, "float")]
        return x * sum(t.float().mean() for t in tensors)

    cases = [replace(case, **small) for case in list(bench.speed())[:2]]  # type: ignore[arg-type]
    rows = list(bench.rows(stand_in, 2, 600.0, ("cpu", None), cases))
    problems = [row.get("error") or row.get("problems") for row in rows]
    assert not any(problems), problems
    _lines(out / SPEED, rows)


def _lines(file: Path, rows: list[Row]) -> None:
    provenance.write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def record(
    folder: Path,
    measured: Path = provenance.ROOT / "data" / "measured",
    table: Path = provenance.ROOT / KERNELS / TILES,
) -> list[Path]:
    """Write what `run` left: ``ssd_accuracy`` and ``ssd_controls``, ``ssd_checks``, ``ssd_tune`` and
    ``ssd_speed`` of that device, and the table of tiles to the package. A search that timed nothing leaves
    the table as it is."""
    slug, written = elsewhere.device(folder).slug, []

    def lines(name: str) -> list[Row]:
        file = folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

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
    if found := lines(CHECKS):
        others = {name: part(name) for name in ("sanitizer", "tests")}
        keep("ssd_checks", found, "lethe/evidence/ssd_gpu_checks.py", others | {"tiles_found": bool(chosen)})
    if found := lines(TUNE):
        keep("ssd_tune", found, "lethe/kernels/ssd/tune.py", {})
    if found := lines(SPEED):
        keep("ssd_speed", found, "lethe/kernels/ssd/bench.py", {})
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.ssd_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--seconds", type=float, default=560.0)
    go.add_argument("--only", action="append", choices=list(PARTS), default=[])
    inside = commands.add_parser("serve")
    inside.add_argument("part", choices=["checks", "tune", "speed"])
    inside.add_argument("--seconds", type=float, required=True)
    for command in (go, inside):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--official", help="mamba-ssm's source archive, an unpacked copy, or a checkout")
    compiling = commands.add_parser("compile")
    compiling.add_argument("which", choices=["checks", "rest"])
    compiling.add_argument("--shard", default="0/1")
    without = commands.add_parser("dry")
    without.add_argument("--compile", action="store_true")
    for command in (compiling, without):
        command.add_argument("--target", type=int, default=90)
    heat = commands.add_parser("warm")
    heat.add_argument("--official", required=True)
    heat.add_argument("--chunk", type=int, required=True)
    commands.add_parser("once")
    keep = commands.add_parser("record")
    keep.add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "compile":
        shard, shards = map(int, given.shard.split("/"))
        return ahead.compile_shard(given.which, given.target, shard, shards)
    if given.command == "dry":
        return dry(given.target, given.compile)
    if given.command == "record":
        for path in record(given.folder):
            print(path.relative_to(provenance.ROOT))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("ssd_gpu: no CUDA device is visible to torch; try dry", file=sys.stderr)
        return 2
    if given.command == "warm":
        return ahead.warm(given.official, given.chunk)
    if given.command == "once":
        return once("cuda")
    if given.command == "serve":
        return serve(given.part, given.out, given.official, given.seconds)
    run(given.out, given.official, given.seconds, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
