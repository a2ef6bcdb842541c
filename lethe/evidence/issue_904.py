"""state-spaces/mamba#904 without a Blackwell GPU: the official backward over its own tuning space.

Every configuration of ``mamba3_siso_bwd_kernel_dqkv`` is compiled by the Triton of this process for an
architecture, with the arguments that the official launcher builds. Two things are then asked of each: how
many columns of tensor memory its metadata names, and whether Triton's own loader would refuse it. No GPU is
needed: the overflow stands in the compiled artefact. What RES-02 says of the same numbers is asked anew
wherever they are shown (`lethe.evidence.issue_904_res02`), so that no record of it grows old.

``python -m lethe.evidence.issue_904 --official PATH`` compiles and prints a JSON line for each
configuration; run it under other versions of Triton to compare them, then write the record with
``--record FILE.jsonl ...``. Triton's cache, whose key holds its own version and the kernel's source, lets a
compilation that was cut short go on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.kernels.mamba3 import official

TARGETS = (90, 100, 103)
COLUMNS = 512
"""Tensor memory of a multiprocessor, in columns of 128 lanes (PTX ISA, Tensor Memory)."""

SHARED_BYTES = 227 * 1024
"""Shared memory that a block may use on these architectures (CUDA programming guide)."""

SHAPE = {"batch": 2, "length": 2048, "heads": 32, "groups": 1, "d_state": 128, "headdim": 64, "chunk": 64}
"""The official module's defaults for a model width of 1024."""

KERNEL = "mamba3_siso_bwd_kernel_dqkv"
EXPERIMENT = "issue_904"
Row = dict[str, Any]


class _Recorder:
    """Stands in for a kernel and keeps the arguments of its launch."""

    def __init__(self) -> None:
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.call = (args, kwargs)

        return launch


def launch_arguments(module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the official `compute_dqkv` passes to its kernel at `SHAPE`, bfloat16; tensors without data."""
    import torch

    class OnDevice(torch.Tensor):
        is_cuda = True

    def tensor(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta").as_subclass(OnDevice)

    b, length, heads, p, n = (SHAPE[k] for k in ("batch", "length", "heads", "headdim", "d_state"))
    chunks = -(-length // SHAPE["chunk"])
    recorder, kernel = _Recorder(), getattr(module, KERNEL)
    setattr(module, KERNEL, recorder)
    try:
        module.compute_dqkv(
            tensor(b, length, heads, n), tensor(b, length, heads, n), tensor(b, length, heads, p),
            tensor(b, heads, length, dtype=torch.float32), tensor(b, heads, chunks, dtype=torch.float32),
            tensor(b, heads, length, dtype=torch.float32), tensor(b, heads, p, chunks * n),
            tensor(b, length, heads, p), D=tensor(heads, dtype=torch.float32), chunk_size=SHAPE["chunk"],
        )  # fmt: skip
    finally:
        setattr(module, KERNEL, kernel)
    if recorder.call is None:
        raise RuntimeError(f"the official launcher did not launch {KERNEL}")
    return recorder.call


def compile_space(root: Path, target: int) -> Iterator[Row]:
    """A row for each configuration of the official tuning space, compiled for ``sm_<target>``.

    Turns this process into a compiler for that target; use a process for each. Raises OfficialMissing.
    """
    import importlib

    import triton

    official.install(root)
    activate(target)
    triton.knobs.nvidia.dump_ptxas_log = True
    module = importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_bwd")
    tuner = getattr(module, KERNEL)
    args, constants = launch_arguments(module)
    for config in tuner.configs:
        options = {k: v for k, v in config.all_kwargs().items() if v is not None}
        row = {"triton": triton.__version__, "target": f"sm_{target}", "maxnreg": None, **options}
        log = io.StringIO()
        try:
            with contextlib.redirect_stdout(log):
                kernel = tuner.fn.warmup(*args, grid=(1,), **constants, **options)
        except Exception as error:  # a compiler may fail in any way; what it said is the result
            row["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        else:
            row |= _described(kernel, log.getvalue())
        yield row


def _described(kernel: Any, log: str) -> Row:
    from lethe.kernels.ptxas import reported
    from lethe.kernels.triton_report import used

    meta, ptx = kernel.metadata, kernel.asm["ptx"]
    registers, stack, spill = reported(log) or used(kernel)  # no log: it came out of a cache
    return {
        "tmem_columns": getattr(meta, "tmem_size", 0) or 0, "shared_bytes": meta.shared,
        "registers": registers, "stack_bytes": stack, "spill_bytes": spill, "trap": is_trap(ptx),
        "load": loading(kernel),
    }  # fmt: skip


def is_trap(ptx: str) -> bool:
    """Whether the kernel's whole body is one ``trap``: what the compiler leaves of one that cannot run."""
    body = ptx[ptx.index("{") + 1 : ptx.rindex("}")]
    lines = (line.split("//")[0].strip() for line in body.splitlines())
    kept = [line for line in lines if line and not line.startswith((".", "$", "{", "}"))]
    return [line.rstrip(";") for line in kept if line not in ("ret;", "exit;")] == ["trap"]


def loading(kernel: Any) -> str:
    """What Triton's own loader says of a compiled kernel: ``"loads"``, or the error it raises.

    The loader runs as it is, on the device of `activate`.
    """
    import triton

    try:
        kernel._init_handles()
    except triton.runtime.errors.OutOfResources as error:
        return str(error)
    return "loads"


def activate(capability: int) -> None:
    """Make a device of compute capability ``major * 10 + minor`` Triton's active driver, without a GPU."""
    import triton

    triton.runtime.driver.set_active(_Device(capability))


class _Device:
    """What compiler and loader ask of a driver: an architecture, shared memory, and a binary it took."""

    def __init__(self, capability: int) -> None:
        self.capability, self.utils = capability, self

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> None:
        """Nothing is launched."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        module = function = registers = spills = 0
        return module, function, registers, spills, 1024

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""


def refused(row: Row) -> bool:
    """Whether Triton's loader refuses the configuration (or its compiler did)."""
    return bool(row.get("load", "error") != "loads")


def compiled(
    path: str | Path | None, targets: Iterable[int] = TARGETS, tell: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Rows of this environment's Triton, one child process for each target. Raises OfficialMissing."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = official.unpack(official.locate(path), Path(folder))
        for target in targets:
            command = [sys.executable, "-m", "lethe.evidence.issue_904", "--official", str(root)]
            with subprocess.Popen(
                [*command, "--target", str(target)], stdout=subprocess.PIPE, text=True, cwd=provenance.ROOT
            ) as child:
                assert child.stdout is not None
                for line in child.stdout:
                    rows.append(json.loads(line))
                    tell(rows[-1])
            if child.returncode:
                raise RuntimeError(f"compiling for sm_{target} ended with status {child.returncode}")
    return rows


def record(files: Iterable[Path], measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write ``cpu/issue_904.json`` from files of JSON lines, sorted by version, target and configuration."""
    rows = list(itertools.chain.from_iterable(map(json.loads, f.read_text().splitlines()) for f in files))
    order = ("target", "num_stages", "num_warps")
    rows.sort(key=lambda r: (version(r["triton"]), *(r[k] for k in order), r["maxnreg"] or 0))
    path = measured / "cpu" / f"{EXPERIMENT}.json"
    provenance.record(
        path,
        experiment=EXPERIMENT,
        samples=rows,
        parameters={"mamba-ssm": official.VERSION, "sha256": official.SHA256, "dtype": "bfloat16", **SHAPE},
        script="lethe/evidence/issue_904.py",
        on=provenance.device("cpu"),
        command="python -m lethe.evidence.issue_904 --record",
        units={"shared_bytes": "B", "stack_bytes": "B", "spill_bytes": "B"},
    )
    return path


def version(text: str) -> tuple[int, ...]:
    """``"3.10.0"`` -> (3, 10, 0), so that versions sort as numbers."""
    return tuple(int(part) for part in text.split("+")[0].split(".")[:3])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.issue_904", description=__doc__)
    parser.add_argument("--official", help="the source archive, an unpacked copy, or a checkout")
    parser.add_argument("--target", type=int, help="only this architecture, in this process")
    parser.add_argument("--record", type=Path, nargs="+", metavar="JSONL", help="write the record from these")
    given = parser.parse_args(argv)

    def tell(row: Row) -> None:
        print(json.dumps(row), flush=True)

    try:
        if given.record:
            print(record(given.record))
        elif given.target:
            for row in compile_space(official.locate(given.official), given.target):
                tell(row)
        else:
            compiled(given.official, tell=tell)
    except (official.OfficialMissing, RuntimeError, OSError) as e:
        print(f"issue_904: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
