"""What a candidate's Triton kernels need of a GPU: registers, spills, shared and tensor memory.

In the interpreter every launch is recorded (function, argument types and alignments, launch options), and
`compile_only` compiles those very specialisations for any NVIDIA architecture, without a GPU, in a forked
child. On the device the numbers come from the kernels that were loaded there. Recording keeps no tensor
alive.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lethe.verifier.executors import autotune, launches

MAX_RECORDS = 64
"""Distinct specialisations kept; a candidate with more is compiled for the first ones only."""

COMPILE_SECONDS = 120.0
"""Time for all kernels of one candidate: a kernel takes 0.3-2 s, the slowest seen 20 s."""

MOST_OTHERS = 8
"""Configurations compiled in search of one that fits where the recorded one does not. Counted, not timed, so
that a busy machine judges alike; at 0.3-2 s each they are within what an answer may take."""

ALIGNMENT = 16
"""Bytes; Triton specialises a pointer on divisibility by 16."""


@dataclass(frozen=True)
class KernelResource:
    """Needs of one compiled kernel. Sizes in bytes; -1 where the number could not be read."""

    name: str
    target: str
    num_warps: int
    num_stages: int
    registers: int
    """Registers a thread."""
    spill_bytes: int
    """Spill stores and loads a thread, added up, as ptxas reports them."""
    stack_bytes: int
    """Stack frame a thread."""
    shared_bytes: int
    """Shared memory a block, static and dynamic."""
    tmem_columns: int
    """Tensor-memory columns a block (Blackwell data centre GPUs); 0 elsewhere."""
    error: str | None = None
    """Why the kernel could not be compiled, or None."""
    one_of: int = 1
    """Configurations among which an autotuner chooses; it passes over those that do not fit."""


@dataclass(frozen=True)
class TargetLimits:
    """What one block may use on a target."""

    shared_bytes: int
    tmem_columns: int
    registers: int = 255
    block_registers: int = 65536
    threads: int = 1024


LIMITS: dict[str, TargetLimits] = {
    "sm_80": TargetLimits(shared_bytes=163 * 1024, tmem_columns=0),
    "sm_90": TargetLimits(shared_bytes=227 * 1024, tmem_columns=0),
    "sm_100": TargetLimits(shared_bytes=227 * 1024, tmem_columns=512),
    "sm_103": TargetLimits(shared_bytes=227 * 1024, tmem_columns=512),
    "sm_120": TargetLimits(shared_bytes=99 * 1024, tmem_columns=0),
}
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum shared memory a
thread block (opt-in), 255 registers a thread, 65,536 32-bit registers a block, 1,024 threads a block.
Tensor memory: PTX ISA, "Tensor Memory": 512 columns of 128 lanes a CTA on sm_100 and sm_103."""

REGISTER_UNIT = 8
"""Registers are allocated to the threads of a warp in units of 8 (256 a warp; CUDA occupancy data)."""


def capability(target: str) -> int:
    """``"sm_90"`` -> 90. Raises ValueError for a target that `LIMITS` does not know."""
    if target not in LIMITS:
        raise ValueError(f"unknown target {target!r}; choose one of {', '.join(LIMITS)}")
    return int(target.removeprefix("sm_"))


def exceeded(resource: KernelResource) -> list[str]:
    """Sentences about the limits of its target that `resource` breaks; empty when it fits."""
    limits = LIMITS[resource.target]
    threads = 32 * resource.num_warps
    allocated = -(-max(resource.registers, 0) // REGISTER_UNIT) * REGISTER_UNIT * threads
    checks = (
        ("bytes of shared memory", resource.shared_bytes, limits.shared_bytes),
        ("tensor-memory columns", resource.tmem_columns, limits.tmem_columns),
        ("registers a thread", resource.registers, limits.registers),
        ("registers a block", allocated, limits.block_registers),
        ("threads a block", threads, limits.threads),
    )
    return [
        f"{resource.name} needs {needed} {what} on {resource.target}, which has {available}"
        for what, needed, available in checks
        if needed > available
    ]


class Pointer:
    """A tensor argument reduced to what Triton specialises on: dtype and alignment."""

    def __init__(self, dtype: Any, misalignment: int) -> None:
        self.dtype = dtype
        self._misalignment = misalignment

    def data_ptr(self) -> int:
        return self._misalignment

    def ptr_range(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"{self.dtype}+{self._misalignment}"


@dataclass(frozen=True)
class LaunchRecord:
    """One launch, without its data."""

    function: Any
    """The InterpretedFunction that ran."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: tuple[int, ...]
    offered: tuple[dict[str, Any], ...] = ()
    """What each configuration adds, of which the autotuner that launched it took one; none otherwise."""

    @property
    def name(self) -> str:
        return str(self.function.fn.__name__)


_records: dict[tuple[Any, ...], LaunchRecord] = {}
_compiled: dict[int, tuple[Any, int]] = {}
"""Functions launched on the device, each with the configurations to choose from; 1 if ever launched alone."""


def _without_data(value: Any) -> Any:
    """`value` with every tensor replaced by a `Pointer`."""
    if isinstance(value, tuple):
        parts = tuple(map(_without_data, value))
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    if dataclasses.is_dataclass(value) and hasattr(value, "base") and hasattr(value, "block_shape"):
        descriptor = copy.copy(value)
        descriptor.base = _without_data(value.base)
        return descriptor
    if hasattr(value, "data_ptr"):
        return Pointer(value.dtype, value.data_ptr() % ALIGNMENT)
    return value


def _specialised(value: Any, constexpr: bool) -> Any:
    """What Triton specialises on in an argument: an integer's width, being 1, being divisible by 16."""
    if constexpr or isinstance(value, bool) or not isinstance(value, int):
        return type(value).__name__ if isinstance(value, float) and not constexpr else repr(value)
    return "one" if value == 1 else (value % ALIGNMENT == 0, -(2**31) <= value < 2**31)


def _record(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: tuple[int, ...]) -> None:
    if len(_records) >= MAX_RECORDS:
        return
    options = {name: _without_data(value) for name, value in kwargs.items()}
    offered = tuple(autotune.offered(function.fn))
    record = LaunchRecord(function, tuple(map(_without_data, args)), options, grid, offered)
    constexprs = launches.constexpr_names(function.fn)
    by_name = dict(zip(function.arg_names, record.args, strict=False)) | options
    key: list[Any] = [id(function), bool(offered)]
    for name, value in by_name.items():
        is_option = name not in function.arg_names
        key.append((name, _specialised(value, is_option or name in constexprs)))
    _records.setdefault(tuple(key), record)


def start_recording() -> None:
    """Record interpreted launches from now on."""
    launches.observe(_record)


def records() -> list[LaunchRecord]:
    """The launches recorded so far, one for each distinct specialisation."""
    return list(_records.values())


def clear_records() -> None:
    """Forget what was recorded."""
    _records.clear()


def capture(call: Callable[[], Any]) -> list[LaunchRecord]:
    """Run `call` and return the launches it made, recorded afresh."""
    start_recording()
    clear_records()
    call()
    return records()


def compile_only(
    kernels: list[LaunchRecord], target: str, *, seconds: float = COMPILE_SECONDS
) -> list[KernelResource]:
    """Compile the recorded specialisations for `target` and read what they need.

    One forked child compiles all of them; this process stays an interpreter. A kernel that does not
    compile has its reason in `error`. Results are cached under ``$XDG_CACHE_HOME/lethe/resources``.
    """
    wanted = capability(target)
    if not kernels:
        return []
    rows, trouble = _in_child(lambda: _compile_all(kernels, wanted, target), seconds)
    found = [KernelResource(**row) for row in rows]
    return found + [_failed(record.name, target, record.kwargs, trouble) for record in kernels[len(found) :]]


def _compile_all(kernels: list[LaunchRecord], wanted: int, target: str) -> Any:
    from lethe.verifier.executors import compiling

    compiling.become_compiler([record.function for record in kernels], wanted)
    for record in kernels:
        try:
            yield compiling.compile_record(record, target)
        except Exception as error:
            yield dataclasses.asdict(
                _failed(record.name, target, record.kwargs, compiling.first_lines(error))
            )


def _failed(name: str, target: str, options: dict[str, Any], why: str) -> KernelResource:
    warps, stages = int(options.get("num_warps", 4)), int(options.get("num_stages", 3))
    return KernelResource(name, target, warps, stages, -1, -1, -1, -1, -1, why)


def _in_child(work: Callable[[], Any], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """Rows that `work` yields in a forked child, and why they end early."""
    try:
        receive, send = os.pipe()
        child = os.fork()
    except OSError as error:
        return [], f"the compiler process could not start: {error.strerror}"
    if child == 0:
        _run_child(work, receive, send)
    os.close(send)
    deadline, data, timed_out = time.monotonic() + seconds, b"", False
    while True:
        ready, _, _ = select.select([receive], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            timed_out = True
            break
        chunk = os.read(receive, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(receive)
    _, status = os.waitpid(child, 0)
    rows = [json.loads(line) for line in data.split(b"\n")[:-1]]
    if timed_out:
        return rows, f"compiling took longer than {seconds:g} s"
    if rows and isinstance(rows[-1], str):
        return rows[:-1], f"the compiler process failed: {rows[-1]}"
    return rows, f"the compiler process ended with status {os.waitstatus_to_exitcode(status)}"


def _run_child(work: Callable[[], Any], receive: int, send: int) -> None:
    """Body of the child; never returns. Its output goes nowhere: stdout belongs to the parent.

    A line for each row; if something outside a row's own compilation fails, a last line says what.
    Output is sent to a file in memory: a suspect may be a user who cannot write to the null device.
    """
    code = 1
    try:
        os.close(receive)
        quiet = os.memfd_create("quiet")
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        with os.fdopen(send, "wb", buffering=0) as pipe:
            try:
                for row in work():
                    pipe.write(json.dumps(row).encode() + b"\n")
                code = 0
            except BaseException as error:
                pipe.write(json.dumps(f"{type(error).__name__}: {error}").encode() + b"\n")
    finally:
        os._exit(code)


def remember_compiled(function: Any) -> None:
    """Note a JITFunction that launched on the device, for `loaded`."""
    one_of = max(1, len(autotune.offered(function.fn)))
    _compiled[id(function)] = function, min(one_of, _compiled.get(id(function), (function, one_of))[1])


def loaded() -> list[KernelResource]:
    """What the kernels need that were loaded on this process's device, from their own metadata."""
    found = []
    for function, one_of in _compiled.values():
        for caches in function.device_caches.values():
            target = caches[2]
            compiled = list(caches[0].values())
            # What an autotuner tried in vain is not what the candidate runs.
            held = [kernel for kernel in compiled if getattr(kernel, "n_regs", None) is not None]
            found += [_of_loaded(kernel, f"sm_{target.arch}", one_of) for kernel in held or compiled]
    return found


def _of_loaded(kernel: Any, target: str, one_of: int) -> KernelResource:
    meta = kernel.metadata
    # A kernel that the driver refused to load has neither number.
    registers, local = getattr(kernel, "n_regs", None), getattr(kernel, "n_spills", None)
    return KernelResource(
        name=kernel.name,
        target=target,
        num_warps=meta.num_warps,
        num_stages=meta.num_stages,
        registers=-1 if registers is None else registers,
        # The driver reports local memory in 4-byte units; it holds spills and stack together.
        spill_bytes=-1 if local is None else 4 * local,
        stack_bytes=-1 if local is None else 4 * local,
        shared_bytes=meta.shared,
        tmem_columns=getattr(meta, "tmem_size", 0) or 0,
        one_of=one_of,
    )


def resources(target: str) -> list[dict[str, Any]]:
    """The needs of every kernel launched so far, as plain dicts, for the executor in use.

    Interpreter: compiled for `target`. Device: as loaded there, whatever `target` says. Plain torch
    and C++ candidates have none.
    """
    if not _records:
        return [dataclasses.asdict(row) for row in loaded()]
    launched = records()
    rows = compile_only(launched, target)
    found = []
    for record, row in zip(launched, rows, strict=True):
        one_of = max(1, len(record.offered))
        if one_of > 1 and exceeded(row) and not _another_may_fit(record, target):
            one_of = 1
        found.append(dataclasses.asdict(row) | {"one_of": one_of})
    return found


def _another_may_fit(record: LaunchRecord, target: str) -> bool:
    """Whether an autotuner that passes over the recorded configuration may find one that fits `target`.

    Benefit of the doubt for what does not compile, and for more configurations than `MOST_OTHERS`.
    """
    tried = record.offered[:MOST_OTHERS]
    others = [dataclasses.replace(record, kwargs=record.kwargs | config) for config in tried]
    return len(record.offered) > MOST_OTHERS or not all(exceeded(row) for row in compile_only(others, target))
