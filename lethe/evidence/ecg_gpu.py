"""Everything about the electrocardiograms that needs GPUs, in one call that writes as it goes.

    python -m lethe.evidence.ecg_gpu run --out DIR --data PATH [--seconds 420] [--only PART ...]
    python -m lethe.evidence.ecg_gpu dry --out DIR
    python -m lethe.evidence.ecg_gpu record DIR

`run` has three parts, each of processes of their own, so that one that fails costs its own part alone:

* ``excerpt``: the classifiers of about 0.4 M parameters on the two blocks and the ResNet, each with its
  learning rate and dropout chosen on fold 9 from the same grid, then three seeds; predictions are kept, so
  that every area and interval can be computed again anywhere;
* ``paper``: the classifier of 1.10 B parameters, 200 steps in float32 through C5 and C6, and fewer steps with
  the matrix products in TF32; the backend is the kernels and there is nothing to fall back to;
* ``processes``, where there are several GPUs: the same classifier by DistributedDataParallel on 1, 2, 4, ...
  GPUs with one global batch, two seeds on one GPU showing what a loss curve differs by anyway.

`dry` runs all of it on a CPU, kernels in Triton's interpreter, with small shapes. `record` writes what `run`
left to ``data/measured``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import ecg_gpu_work as work
from lethe.evidence import elsewhere

Step = Callable[[float], None]
PARTS = ("excerpt", "paper", "processes")
SHARES = {"excerpt": 0.62, "paper": 0.38, "processes": 1.0}
"""Of the time that is left when a part begins, if another part follows."""


def run(out: Path, data: Path, seconds: float, parts: list[str], dry: bool = False) -> None:
    """The parts in order; see the module."""
    end = time.monotonic() + seconds
    out, data = out.resolve(), data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out, "cpu" if dry else "cuda")
    devices = 2 if dry else _devices()
    if "processes" in parts and devices < 2:
        parts = [p for p in parts if p != "processes"]
        _note(out / "processes.json", {"why": "this machine has one GPU"})
    for i, part in enumerate(parts):
        left = end - time.monotonic()
        limit = time.monotonic() + (left * SHARES[part] if i + 1 < len(parts) else left)
        {"excerpt": _excerpt, "paper": _paper, "processes": _processes}[part](out, data, limit, devices, dry)


def _devices() -> int:
    import torch

    return torch.cuda.device_count()


def _excerpt(out: Path, data: Path, end: float, devices: int, dry: bool) -> None:
    """A process a model, beside each other; one that dies with a captured graph is started again without."""

    def one(model: str) -> None:
        def ask(limit: float) -> list[str]:
            place = [
                "--out",
                str(out),
                "--data",
                str(data),
                "--seconds",
                f"{limit - time.monotonic() - 3:.0f}",
            ]
            return ["excerpt", "--model", model, *place, *["--dry"] * dry]

        if dry:
            _child(out / f"excerpt-{model}.log", ask(end), end, dry=True)
        elif _child(out / f"excerpt-{model}.log", [*ask(end), "--graph"], end):
            _child(out / f"excerpt-{model}-eager.log", ask(end), end)

    with ThreadPoolExecutor(len(work.MODELS)) as pool:
        list(pool.map(one, work.MODELS))


def _paper(out: Path, data: Path, end: float, devices: int, dry: bool) -> None:
    for name, steps, precision in (("paper-fp32", 200, "fp32"), ("paper-tf32", 40, "tf32")):
        ask = _steps(out / f"{name}.json", data, 2 if dry else steps, precision, 0, end, dry)
        _child(out / f"{name}.log", ask, end, dry=dry)


def _processes(out: Path, data: Path, end: float, devices: int, dry: bool) -> None:
    """Two seeds at the same time on one GPU each, then one model on two GPUs, on four, ..."""
    steps = 2 if dry else 300
    logs = [out / f"processes-1-seed{seed}.log" for seed in (0, 1)]
    asks = [_steps(log.with_suffix(".json"), data, steps, "fp32", i, end, dry) for i, log in enumerate(logs)]
    _together(logs, asks, end, dry)
    count = 2
    while count <= devices:
        log = out / f"processes-{count}-seed0.log"
        ask = _steps(log.with_suffix(".json"), data, steps, "fp32", 0, end, dry)
        _child(log, ask, end, processes=count, dry=dry)
        count *= 2


def _steps(
    result: Path, data: Path, steps: int, precision: str, seed: int, end: float, dry: bool
) -> list[str]:
    ask = ["steps", "--result", str(result), "--data", str(data), "--steps", str(steps), "--seed", str(seed)]
    ask += ["--precision", precision, "--seconds", f"{max(1.0, end - time.monotonic() - 5):.0f}"]
    return ask + ["--dry"] * dry


# --- processes --------------------------------------------------------------------------------


def _start(
    log: Path, ask: list[str], processes: int, visible: int | None, dry: bool
) -> subprocess.Popen[bytes]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [
        sys.executable,
        *(launcher if processes > 1 else []),
        "-m",
        "lethe.evidence.ecg_gpu_work",
        *ask,
    ]
    environment = {**os.environ, "PYTHONPATH": str(provenance.ROOT)}
    alone = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= alone if dry else {}
    environment |= {} if visible is None or dry else {"CUDA_VISIBLE_DEVICES": str(visible)}
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=provenance.ROOT, env=environment
        )


def _finish(child: subprocess.Popen[bytes], log: Path, end: float) -> int:
    """Its status, after its last lines were told; one that takes too long is ended."""
    try:
        status = child.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.terminate()  # torchrun then ends its own processes
        try:
            status = child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-4:]
    print("\n".join([f"{log.stem}: status {status}", *(f"  {line[:180]}" for line in last)]), flush=True)
    return status


def _child(log: Path, ask: list[str], end: float, processes: int = 1, dry: bool = False) -> int:
    if time.monotonic() >= end:
        print(f"{log.stem}: no time left", flush=True)
        return 0
    return _finish(_start(log, ask, processes, None, dry), log, end)


def _together(logs: list[Path], asks: list[list[str]], end: float, dry: bool) -> None:
    """One process for each, on GPUs of their own; one after the other where there is no GPU."""
    if dry:
        for log, ask in zip(logs, asks, strict=True):
            _child(log, ask, end, dry=True)
        return
    children = [_start(log, ask, 1, i, dry) for i, (log, ask) in enumerate(zip(logs, asks, strict=True))]
    for child, log in zip(children, logs, strict=True):
        _finish(child, log, end)


def _note(file: Path, content: Any) -> None:
    provenance.write_atomically(file, json.dumps(content) + "\n")


# --- the record -------------------------------------------------------------------------------


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> list[Path]:
    """Write what `run` left, with that machine's versions: a file a part that left anything."""
    slug, written = elsewhere.device(folder).slug, []
    for part, units in (
        ("excerpt", {"seconds": "s"}),
        ("paper", {"step_seconds": "s", "peak_bytes": "B"}),
        ("processes", {"step_seconds": "s", "peak_bytes": "B"}),
    ):
        found = sorted(folder.glob(f"{part}-*.json"))
        if not found:
            continue
        samples = [json.loads(file.read_text()) for file in found]
        written.append(
            elsewhere.record(
                measured / slug / f"ecg_{part}.json", folder, experiment=f"ecg_{part}", samples=samples,
                parameters={}, script="lethe/evidence/ecg_gpu_work.py", sources=["lethe/ecg/__main__.py"],
                units=units, command=f"python -m lethe.evidence.ecg_gpu run --only {part}",
            )
        )  # fmt: skip
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lethe.evidence.ecg_gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    go, try_out = commands.add_parser("run"), commands.add_parser("dry")
    for one in (go, try_out):
        one.add_argument("--out", type=Path, required=True)
        one.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    go.add_argument("--data", type=Path, required=True, help="PTB-XL or its excerpt, a folder or an archive")
    go.add_argument("--seconds", type=float, default=420.0)
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    try:
        if given.command == "record":
            print("\n".join(map(str, record(given.folder))) or f"{given.folder} holds no result")
        elif given.command == "dry":
            from lethe.ecg.synthetic import generate

            run(given.out, generate(given.out / "data", 20), 3600.0, given.only, dry=True)
        else:
            run(given.out, given.data, given.seconds, given.only)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
