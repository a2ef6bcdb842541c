"""Is the SSD engine right on a GPU? One call that writes as it goes.

    python -m lethe.evidence.ssd_check run --out FOLDER [--seconds 300] [--workers 6] [--official PATH]
    python -m lethe.evidence.ssd_check dry --out FOLDER [--seconds 300] [--official PATH]
    python -m lethe.evidence.ssd_check record FOLDER

`run` measures every case of `ssd_cases` (``accuracy.*.jsonl``, a line for each as soon as it is done), beside
it judges the two controls by the twelve gates (``ssd_controls.jsonl``), and with the sources of mamba-ssm
measures its Triton kernels on the same cases then. The cases are shared out among processes, which compile
beside each other. A case that raises is a line with its error; a process that dies leaves one for the case it
was at, and another goes on behind it. A second call resumes. `dry` takes the small cases on a CPU, where they
are interpreted, and no controls. `record` writes ``ssd_accuracy`` and ``ssd_controls`` to ``data/measured``.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere, ssd_controls
from lethe.evidence.ssd_accuracy import PEAK, RMS, Engine, Error, beyond, measure, ours, worst
from lethe.evidence.ssd_cases import FULL, SMALL, Case
from lethe.kernels.ssd.device import LOST, lost

OURS, THEIRS = "lethe", "mamba-ssm"
Row = dict[str, Any]


def run(out: Path, seconds: float, where: str | None, workers: int, dry: bool) -> int:
    """All steps; see the module. Returns how many cases of ours missed a bound or were not reached."""
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out, "cpu" if dry else "cuda")
    judge = (
        None
        if dry or ssd_controls.judged_before(out)
        else _python("lethe.evidence.ssd_controls", "run", "--out", str(out))
    )
    for name in (OURS, THEIRS) if where else (OURS,):
        _measured(out, name, where, workers, dry, end)
    if judge is not None:
        try:
            judge.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            judge.kill()
            print("the controls took too long; what their file holds stands", flush=True)
    rows = [row for row in left(out) if row["engine"] == OURS]
    missed = len(_cases(dry)) - sum(row["passed"] for row in rows)
    print(f"{OURS}: {len(rows)} of {len(_cases(dry))} cases measured, {missed} missed or not reached")
    return missed


def _cases(dry: bool) -> tuple[Case, ...]:
    return SMALL if dry else FULL


def _python(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=provenance.ROOT)


def _measured(out: Path, name: str, where: str | None, workers: int, dry: bool, end: float) -> None:
    """One engine on all cases, by `workers` processes; a process that dies is replaced."""

    def start(shard: int) -> subprocess.Popen[bytes]:
        given = ["--out", str(out), "--engine", name, "--shard", str(shard), "--workers", str(workers)]
        given += ["--seconds", str(max(1.0, end - time.monotonic()))]
        given += [*(["--official", where] if where else []), *(["--small"] if dry else [])]
        return _python("lethe.evidence.ssd_check", "serve", *given)

    running = {shard: start(shard) for shard in range(workers)}
    while running and time.monotonic() < end:
        for shard, child in list(running.items()):
            try:
                status = child.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            del running[shard]
            if status == 0:
                continue
            todo = _todo(out, name, shard, workers, dry)
            if status != LOST and todo:
                _write(out, name, shard, todo[0], {"passed": False, "error": f"the process died: {status}"})
            if len(todo) > (status != LOST):
                running[shard] = start(shard)
    for child in running.values():
        child.kill()


def _file(out: Path, name: str, shard: int) -> Path:
    return out / f"accuracy.{name}.{shard}.jsonl"


def _todo(out: Path, name: str, shard: int, workers: int, dry: bool) -> list[Case]:
    """The shard's cases that no process has measured, whatever the number of processes then was."""
    done = {row["id"] for row in left(out) if row["engine"] == name}
    return [case for case in _cases(dry)[shard::workers] if case.id not in done]


def left(out: Path) -> list[Row]:
    """The lines of all processes."""
    files = sorted(out.glob("accuracy.*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _write(out: Path, name: str, shard: int, case: Case, found: Row) -> None:
    file = _file(out, name, shard)
    row = {"id": case.id, "engine": name, "case": case.facts(), **found}
    provenance.write_atomically(file, (file.read_text() if file.is_file() else "") + json.dumps(row) + "\n")
    said = "ok" if found["passed"] else "declined" if "declined" in found else "MISSED"
    print(f"{said} {name} {case.id} {found.get('worst') or found.get('error') or ''}", flush=True)


# --- a process ------------------------------------------------------------------------------------


def serve(
    out: Path, name: str, shard: int, workers: int, seconds: float, where: str | None, dry: bool
) -> int:
    """Measure a shard's cases until the time is over; returns `LOST` once the device takes no more work."""
    import torch

    end, device = time.monotonic() + seconds, "cpu" if dry else "cuda"
    torch.set_num_threads(1)
    if dry:
        interpret()
    with tempfile.TemporaryDirectory() as unpacked:
        engine = _engine(name, where, Path(unpacked))
        for case in _todo(out, name, shard, workers, dry):
            if time.monotonic() > end:
                break
            found = measured_row(case, engine, device)
            _write(out, name, shard, case, found)
            if "error" in found and not dry and lost():
                return LOST
    return 0


def interpret() -> None:
    """Triton interprets from now on, with the verifier's repairs: its own cannot multiply bfloat16."""
    from lethe.verifier.executors import builder, library

    library.use_interpreter()
    builder.install()


def _engine(name: str, where: str | None, unpacked: Path) -> Engine:
    if name == OURS:
        return ours()
    from lethe.evidence import ssd_official

    assert where is not None
    return ssd_official.engine(where, unpacked)


def measured_row(case: Case, engine: Engine, device: str) -> Row:
    """Errors of one case as JSON; an exception is a row as well, a declined case one with the reason."""
    from lethe.evidence.ssd_official import Declined

    start = time.monotonic()
    try:
        errors = measure(case, engine, device)
    except Declined as reason:
        return {"passed": False, "declined": str(reason)}
    except Exception as raised:
        return {"passed": False, "error": f"{type(raised).__name__}: {str(raised).splitlines()[0][:300]}"}
    return {
        "passed": not beyond(errors),
        "worst": _finite(worst(errors.values())),
        "errors": {tensor: _finite(e) for tensor, e in errors.items()},
        "seconds": round(time.monotonic() - start, 2),
    }


def _finite(e: Error) -> list[float | None]:
    """[rms, peak]; null for an infinite error, which JSON does not have."""
    return [v if math.isfinite(v) else None for v in e]


# --- the record -----------------------------------------------------------------------------------


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> list[Path]:
    """Write what `run` left in `folder`: ``ssd_accuracy`` and ``ssd_controls`` of that device."""
    written = []
    if rows := left(folder):
        order = {case.id: i for i, case in enumerate((*FULL, *SMALL))}
        written.append(
            elsewhere.record(
                measured / elsewhere.device(folder).slug / "ssd_accuracy.json", folder,
                experiment="ssd_accuracy", samples=sorted(rows, key=lambda r: (r["engine"], order[r["id"]])),
                parameters={"rms": RMS, "peak": PEAK}, script="lethe/evidence/ssd_check.py",
                sources=[ssd_controls.SOURCE], command="python -m lethe.evidence.ssd_check run",
            )
        )  # fmt: skip
    if (folder / ssd_controls.FILE).is_file():
        written.append(ssd_controls.record(folder, measured))
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.ssd_check", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "dry", "serve"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--seconds", type=float, default=300.0)
        command.add_argument("--workers", type=int, default=1 if name == "dry" else 6)
        command.add_argument("--official")
    command.add_argument("--engine", choices=(OURS, THEIRS), default=OURS)
    command.add_argument("--shard", type=int, default=0)
    command.add_argument("--small", action="store_true")
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "record":
        for path in record(given.folder):
            print(path)
        return 0
    if given.command == "serve":
        g = given
        return serve(g.out, g.engine, g.shard, g.workers, g.seconds, g.official, g.small)
    try:
        ours()
    except ImportError as absent:
        print(f"the engine is absent: {absent}")
        return 2
    return int(run(given.out, given.seconds, given.official, given.workers, given.command == "dry") > 0)


if __name__ == "__main__":
    sys.exit(main())
