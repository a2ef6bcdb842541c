"""Everything about the gated-linear-recurrence kernels that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.gdn_gpu build --folder FOLDER [--processes 2]
    LETHE_GDN_LIBRARIES=FOLDER python -m lethe.evidence.gdn_gpu run --out DIR [--seconds 240] [--fla]
    python -m lethe.evidence.gdn_gpu record DIR

`build` needs the compiler (nvidia-cutlass-dsl) and no GPU; it leaves two files for each library that `run`
may need, the most telling first, and skips what is there and current. `run` needs torch and a GPU: accuracy
against float64, equal bits, graphs and red zones (`gdn_gpu_checks`), then speed (`gdn_gpu_speed`), each
finding a line of a file as soon as it is there; a case that fails is a line with its error. ``--fla`` times
flash-linear-attention too, where it can be imported. `record` writes what `run` left to ``data/measured``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe import provenance

ACCURACY, SPEED, DEVICE = "accuracy.jsonl", "speed.jsonl", "device.json"
KERNELS = "lethe/kernels/gdn"

FOR_ACCURACY = 0.4
"""Share of the time for everything but the speeds."""

Row = dict[str, Any]


# --- libraries --------------------------------------------------------------------------------


def wanted() -> list[Any]:
    """The variants that `run` may need, the most telling first."""
    from lethe.kernels.gdn.cute_sm90 import DV, KINDS, Kind, libraries, libraries_to_save

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

    from lethe.kernels.gdn.sm90 import build as compiler

    manifest, current = folder / f"{variant.name}.json", compiler.source_hash(variant.stage)
    if manifest.is_file() and json.loads(manifest.read_text())["source"] == current:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        compiler.build(variant.stage, variant.options, Path(scratch))
        for suffix in (".so", ".json"):
            shutil.move(Path(scratch) / f"{variant.name}{suffix}", folder / f"{variant.name}{suffix}")
    return True


# --- the run ----------------------------------------------------------------------------------


def run(out: Path, seconds: float, fla: bool) -> None:
    """All findings, as lines of two files."""
    from lethe.evidence import gdn_gpu_checks, gdn_gpu_speed

    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    about = {"device": asdict(provenance.device("cuda")), "versions": provenance.versions()}
    provenance.write_atomically(out / DEVICE, json.dumps(about, indent=1) + "\n")
    checks_end = end - (1 - FOR_ACCURACY) * seconds
    _lines(out / ACCURACY, gdn_gpu_checks.tasks(), checks_end)
    _lines(out / SPEED, gdn_gpu_speed.tasks(fla), end)


Task = tuple[Row, Callable[[], Row]]
"""What a line is about, and the work that finds the rest of it."""


def _lines(file: Path, tasks: Iterator[Task], end: float) -> None:
    """A line for each task, until the time is over or the device is lost."""
    with file.open("w", encoding="utf-8") as lines:

        def write(row: Row) -> None:
            lines.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")
            lines.flush()
            print(json.dumps(row, sort_keys=True)[:600], flush=True)

        for about, work in tasks:
            if time.monotonic() > end:
                write({"kind": "end", "why": f"the time was over before {json.dumps(about)}"})
                return
            start = time.monotonic()
            try:
                found = work()
            except Exception as error:  # the other tasks go on; the line says what happened
                found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
            write({**about, **_finite(found), "seconds": round(time.monotonic() - start, 2)})
            if "error" in found and (lost := _lost()):
                write({"kind": "end", "why": f"the device is lost: {lost}"})
                return


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
    machine = json.loads((folder / DEVICE).read_text())
    on = provenance.Device(**machine["device"])
    written = []
    for experiment, file, script, units in (
        ("gdn_accuracy", ACCURACY, "lethe/evidence/gdn_gpu_checks.py", {"errors": "of the largest value"}),
        ("gdn_speed", SPEED, "lethe/evidence/gdn_gpu_speed.py", {"us": "us", "bytes": "B", "peak": "B"}),
    ):
        if not (folder / file).is_file():
            continue
        samples = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        path = measured / on.slug / f"{experiment}.json"
        provenance.record(
            path, experiment=experiment, samples=samples, parameters={}, script=script, sources=[KERNELS],
            units=units, on=on, command="python -m lethe.evidence.gdn_gpu run",
        )  # fmt: skip
        text = path.read_text()
        here, there = (
            json.dumps(v, indent=1, sort_keys=True) for v in (provenance.versions(), machine["versions"])
        )
        provenance.write_atomically(path, text.replace(_nested(here), _nested(there), 1))
        written.append(path)
    return written


def _nested(block: str) -> str:
    """An object as it stands one level down in a measured file."""
    return '"versions": ' + block.replace("\n", "\n ")


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
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "build":
        failed = build(given.folder, given.processes)
        print("\n".join(failed) or "every library is there and current")
        return 1 if failed else 0
    if given.command == "run":
        run(given.out, given.seconds, given.fla)
    else:
        for path in record(given.folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
