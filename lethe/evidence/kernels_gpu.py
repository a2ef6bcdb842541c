"""Everything about the six kernels that needs a GPU, in one call that writes as it goes.

    python -m lethe.evidence.kernels_gpu run --out FOLDER --official PATH [--seconds 480]
    python -m lethe.evidence.kernels_gpu controls --out FOLDER
    python -m lethe.evidence.kernels_gpu dry [--target 90] [--shard i/n]
    python -m lethe.evidence.kernels_gpu record FOLDER

`run` builds mamba-ssm's CUDA scan and compiles the speed grid in the background while it runs the GPU tests
(values, gradients, the same bits twenty times, graph replay), the sanitizer where it starts, and the audit of
the controls; then the speed grid for the time that is left. Each step leaves a file, so that a run which is
cut short keeps what it has; `controls` judges the controls alone, those that a folder lacks: the heads of
C3 compile for nine minutes. It needs torch, triton, numpy and pytest. `dry` needs no GPU: it goes through
every launch of the speed grid and compiles it for the target, so that no compile error is first seen on a
device. `record` writes what `run` left to ``data/measured``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere

TESTS = "tests/kernels/mamba3/test_cuda.py"
SANITIZED = f"{TESTS}::test_scan_with_other_states"
TOOLS = {
    "memcheck": [],
    "racecheck": ["--racecheck-report", "hazard", "--print-limit", "20000"],
}
VALUES = re.compile(r"Current Value\s*:\s*(\S+?),\s*Incoming Value\s*:\s*(\S+)")
SPEED = "speed.jsonl"
KERNELS = "lethe/kernels/mamba3"

QUIET = 0.4
"""Share of the time that the speeds keep for themselves: nothing else may run on the device meanwhile."""

ASIDE = 8
"""Processes that compile beside each other: half a minute goes into one kernel of the wide heads."""

Step = dict[str, Any]


def run(out: Path, where: str | None, seconds: float) -> None:
    """All steps; see the module. A step that fails says so in its file and does not stop the others."""
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out)
    library = Path(tempfile.gettempdir()) / "lethe-selective-scan"  # too large for `out`, which comes back
    children = {"controls": _start("controls", "--out", str(out))}
    target = str(_target())
    warm = [
        _start("dry", "--target", target, "--shard", f"{i + 1}/{ASIDE}", quiet=True) for i in range(ASIDE)
    ]
    if where:
        children["build"] = _start("build", "--out", str(out), "--official", where, "--folder", str(library))
    _step(out, "tests", lambda: tests(seconds / 3))
    _step(out, "sanitizer", lambda: sanitizer(seconds / 10))
    quiet = end - max(120.0, QUIET * seconds)
    for name, child in children.items():
        try:
            child.wait(max(0.0, quiet - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            _write(
                out / f"{name}.json",
                {"built": False, "error": "it took too long; what its file holds stands"},
            )
    for child in warm:
        child.kill()
    _step(out, "speed", lambda: speed(out, where, end - time.monotonic() - 10))


def _start(*arguments: str, quiet: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lethe.evidence.kernels_gpu", *arguments],
        cwd=provenance.ROOT,
        stdout=subprocess.DEVNULL if quiet else None,
    )


def _target() -> int:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _write(file: Path, content: Any) -> None:
    provenance.write_atomically(file, json.dumps(content, indent=1) + "\n")


def _step(out: Path, name: str, work: Callable[[], Step]) -> None:
    start = time.monotonic()
    try:
        found = work()
    except Exception as error:  # the other steps go on; the file says what happened
        found = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    found["seconds"] = round(time.monotonic() - start, 1)
    _write(out / f"{name}.json", found)
    print(name, {k: v for k, v in found.items() if k != "output"}, flush=True)


def build(where: str, folder: Path, out: Path) -> None:
    """Build the official CUDA scan for the device's architecture; writes ``build.json``."""
    import os

    from lethe.kernels.mamba3 import baselines, official

    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as unpacked:
            root = official.unpack(official.locate(where), Path(unpacked))
            library = baselines.build(root, folder, _target(), max(2, (os.cpu_count() or 4) // 2))
        found: Step = {"built": True, "library": str(library)}
    except (official.OfficialMissing, OSError) as error:
        found = {"built": False, "why": str(error)[:500]}
    _write(out / "build.json", {**found, "seconds": round(time.monotonic() - start, 1)})


def tests(seconds: float) -> Step:
    """The GPU tests, by pytest in several processes: most of their time goes into compiling."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    listed = _finished([*pytest, "--collect-only", TESTS], seconds, keep=1 << 20)
    names = [line for line in listed["output"].splitlines() if "::" in line]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(ASIDE) as pool:
        parts = [names[i::ASIDE] for i in range(min(ASIDE, len(names)))]
        found = list(pool.map(lambda part: _finished([*pytest, *part], end - time.monotonic()), parts))
    words = re.findall(r"(\d+) (passed|failed|skipped|error)", " ".join(r["output"][-200:] for r in found))
    counts: dict[str, int] = {}
    for count, word in words:
        counts[word] = counts.get(word, 0) + int(count)
    wrong = [r for r in found if r["status"] != 0]
    return {"tests": len(names), **counts, "status": wrong[0]["status"] if wrong else 0, "parts": wrong}


def sanitizer(seconds: float) -> Step:
    """compute-sanitizer over small shapes; where it is absent or does not start, that is the finding."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        return {"started": False, "why": "compute-sanitizer is not installed"}
    found: Step = {"started": True}
    for name, options in TOOLS.items():
        command = [
            tool,
            "--tool",
            name,
            *options,
            "--error-exitcode",
            "9",
            sys.executable,
            "-m",
            "pytest",
            "-q",
        ]
        done = _finished([*command, "-p", "no:cacheprovider", SANITIZED], seconds, keep=1 << 24)
        found[name] = {**done, "output": done["output"][-3000:], **hazards(done["output"])}
    return found


def hazards(report: str) -> Step:
    """What racecheck's list of hazards comes to: how many pairs of accesses, and in how many of them both
    threads write the same value, as threads that hold copies of one element of a Triton tensor do."""
    values = VALUES.findall(report)
    if not values:
        return {}
    kinds = Counter(re.findall(r"Potential (WAW|WAR|RAW) hazard", report))
    same = sum(before == after for before, after in values)
    found: Step = {"hazards": len(values), "same_value": same, "kinds": dict(kinds)}
    threads = [int(x) // 32 for x in re.findall(r"(?:Write|Read) Thread \((\d+),", report)]
    if len(threads) == 2 * len(values):
        found["same_warp"] = sum(a == b for a, b in zip(threads[::2], threads[1::2], strict=True))
    return found


def _finished(command: list[str], seconds: float, keep: int = 3000) -> Step:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=provenance.ROOT, check=False
        )
    except subprocess.TimeoutExpired as late:
        text = late.stdout if isinstance(late.stdout, str) else (late.stdout or b"").decode(errors="replace")
        return {"status": None, "why": f"not finished after {seconds:.0f} s", "output": text[-keep:]}
    return {"status": done.returncode, "output": (done.stdout + done.stderr)[-keep:]}


def controls(out: Path) -> Step:
    """The six controls on the device, judged as the audit judges; a line for each as soon as it is done. A
    folder that has some of them gets the others."""
    from lethe.audit import run
    from lethe.audit.pool import JudgeSettings
    from lethe.evidence import controls as corpus

    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out)
    judging = JudgeSettings(device="cuda", quick=True)
    done = run.run(corpus.load(), out / "controls.jsonl", settings=judging, workers=len(corpus.NAMES))
    found = run.merge([done.path])
    return {"passed": corpus.passed(found), "of": len(corpus.NAMES), "shortfalls": corpus.shortfalls(found)}


def speed(out: Path, where: str | None, seconds: float) -> Step:
    """The speed grid against what baselines there are; the official SISO last, in a process of its own."""
    built = json.loads((out / "build.json").read_text()) if (out / "build.json").is_file() else {}
    command = [sys.executable, "-m", "lethe.kernels.mamba3.bench", "--out", str(out / SPEED)]
    command += ["--official", where] if where else []
    command += ["--extension", built["library"]] if built.get("built") else []
    found: Step = {}
    for name, suites, share in (("ours", ("scan", "block", "mimo"), 0.7), ("siso", ("siso",), 0.3)):
        chosen = [part for suite in suites for part in ("--suite", suite)]
        limit = max(40.0, share * seconds)
        found[name] = _finished([*command, *chosen, "--seconds", str(limit - 30)], limit)
    return found


# --- without a GPU ---------------------------------------------------------------------------


def dry(target: int, shard: int = 1, shards: int = 1) -> Iterator[Step]:
    """Compile every launch of the speed grid for ``sm_<target>``; a row for each kernel specialisation.

    Turns this process into a compiler for that target. Tensors are without data, so any size costs nothing.
    """
    from triton.runtime.jit import JITFunction

    from lethe.kernels.mamba3 import cases
    from lethe.verifier.executors import devices

    devices.activate(target)
    seen: dict[str, Step] = {}
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            meta = kernel.metadata
            seen[kernel.hash] = {
                "function": self.fn.__name__, "num_warps": meta.num_warps, "shared_bytes": meta.shared,
                "tmem_columns": getattr(meta, "tmem_size", 0) or 0,
            }  # fmt: skip
        return kernel

    JITFunction.run = compile_only
    try:
        every = [case for suite in ("scan", "block", "siso", "mimo") for case in cases.grid(suite)]
        for case in every[shard - 1 :: shards]:
            for mode in ("serial", "chunked", "auto"):
                before = len(seen)
                _launches(case, mode)
                for row in list(seen.values())[before:]:
                    yield {"case": case.id, "mode": mode, "target": f"sm_{target}", **row}
    finally:
        JITFunction.run = run


def _launches(case: Any, mode: str) -> None:
    """Every launch of a forward and backward pass of `case`, on tensors without data."""
    import torch

    from lethe.kernels.mamba3 import cases, head_launch, scan_launch
    from lethe.kernels.mamba3.bench import plan_of

    o: dict[str, Any] = dict(cases.operands(case, "meta"))
    chunk = plan_of(case, o, mode)["chunk"]
    if "v" not in o:
        operands = scan_launch.Operands(
            o["u"] if "u" in o else o["x"], o["dt"], o["A"], o["B"], o["C"], o["D"], o["z"], o["dt_bias"],
            None, None,
            o.get("conv_weight"), o.get("conv_bias"), None, True,
        )  # fmt: skip
        y, final = scan_launch.forward(operands, chunk)
        scan_launch.backward(operands, torch.empty_like(y), torch.empty_like(final))
        return
    cos, sin, _ = head_launch.angle_forward(o["angle"], o["dt"], None)
    head_launch.angle_backward(o["angle"], o["dt"], cos, sin, cos, sin)
    head = head_launch.Operands(
        o["q"], o["k"], o["v"], o["adt"], o["dt"], o["dt"], o["q_bias"], o["k_bias"], cos, sin, o["D"],
        o["z"],
        o.get("mimo_x"), o.get("mimo_z"), o.get("mimo_o"), None, case.ranks == 1,
    )  # fmt: skip
    out, final, entry = head_launch.forward(head, chunk)
    head_launch.backward(head, torch.empty_like(out), torch.empty_like(final), entry, chunk)


# --- the record -------------------------------------------------------------------------------


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> list[Path]:
    """Write what `run` or `controls` left: ``mamba3_speed``, ``mamba3_gpu`` and ``controls_audit`` of that
    device."""
    from lethe.audit import lines
    from lethe.audit.run import merge

    slug, written = elsewhere.device(folder).slug, []

    def keep(experiment: str, samples: Any, script: str, parameters: dict[str, Any]) -> None:
        written.append(
            elsewhere.record(
                measured / slug / f"{experiment}.json", folder, experiment=experiment, samples=samples,
                parameters=parameters, script=script, sources=[KERNELS, "data/corpus/controls"],
                command="python -m lethe.evidence.kernels_gpu run",
            )
        )  # fmt: skip

    def read(name: str) -> Any:
        file = folder / name
        return json.loads(file.read_text()) if file.is_file() else {}

    steps = {name: read(f"{name}.json") for name in ("tests", "sanitizer", "build", "controls", "speed")}
    if "library" in steps["build"]:
        steps["build"]["library"] = Path(steps["build"]["library"]).name
    if steps["tests"]:
        keep("mamba3_gpu", steps, "lethe/evidence/kernels_gpu.py", {})
    if (folder / SPEED).is_file():
        samples = [json.loads(line) for line in (folder / SPEED).read_text().splitlines()]
        keep("mamba3_speed", samples, "lethe/kernels/mamba3/bench.py", {"build": steps["build"]})
    if (folder / "controls.jsonl").is_file():
        judged = [lines.compact(line) for line in merge([folder / "controls.jsonl"])]
        keep("controls_audit", judged, "lethe/evidence/controls.py", {"device": "cuda"})
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.kernels_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--seconds", type=float, default=480.0)
    make = commands.add_parser("build")
    make.add_argument("--folder", type=Path, required=True)
    for command in (go, make):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--official")
    for name in ("controls", "sanitizer"):
        commands.add_parser(name).add_argument("--out", type=Path, required=True)
    compiled = commands.add_parser("dry")
    compiled.add_argument("--target", type=int, default=90)
    compiled.add_argument("--shard", default="1/1", metavar="i/n")
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "run":
        run(given.out, given.official, given.seconds)
    elif given.command == "build":
        build(given.official, given.folder, given.out)
    elif given.command == "controls":
        _step(given.out, "controls", lambda: controls(given.out))
    elif given.command == "sanitizer":
        _step(given.out, "sanitizer", lambda: sanitizer(120.0))
    elif given.command == "dry":
        shard, _, shards = given.shard.partition("/")
        for row in dry(given.target, int(shard), int(shards or 1)):
            print(json.dumps(row), flush=True)
    else:
        for path in record(given.folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
