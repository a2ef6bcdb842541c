"""Inside the forked child of `resources.compile_only`: become a compiler and compile recorded launches."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from lethe.verifier.executors import devices, language, libdevice, library
from lethe.verifier.executors.resources import KernelResource, LaunchRecord

_MESSAGE_LINES = 4


def first_lines(error: BaseException) -> str:
    """The type and the first lines of `error`, and of what caused it."""
    text = f"{type(error).__name__}: {error}"
    if error.__cause__ is not None:
        text += f" ({type(error.__cause__).__name__}: {error.__cause__})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:_MESSAGE_LINES])


def become_compiler(functions: list[Any], capability: int) -> None:
    """Turn this process, an interpreter, into a compiler for an architecture. There is no way back.

    Helper functions are found through the globals and closures of `functions`.
    """
    import triton

    libdevice.uninstall()
    language.uninstall()
    library.use_compiler()
    devices.activate(capability)
    triton.knobs.nvidia.dump_ptxas_log = True
    for function in functions:
        _convert_environment(function.fn, set())


def _convert_environment(fn: Any, seen: set[int]) -> None:
    """Replace interpreted functions by compiled ones wherever `fn` can reach them."""
    from triton.runtime.interpreter import InterpretedFunction

    if id(fn) in seen:
        return
    seen.add(id(fn))
    for name, value in list(fn.__globals__.items()):
        if isinstance(value, InterpretedFunction):
            fn.__globals__[name] = _compiled(value)
            _convert_environment(value.fn, seen)
        elif inspect.ismodule(value) and not value.__name__.startswith(("triton", "torch")):
            for attribute, member in list(vars(value).items()):
                if isinstance(member, InterpretedFunction):
                    setattr(value, attribute, _compiled(member))
                    _convert_environment(member.fn, seen)
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            value = cell.cell_contents
            if isinstance(value, InterpretedFunction):
                cell.cell_contents = _compiled(value)
                _convert_environment(value.fn, seen)


_by_function: dict[Any, Any] = {}


def _compiled(function: Any) -> Any:
    if function.fn not in _by_function:
        _by_function[function.fn] = library.to_compiled(function)
    return _by_function[function.fn]


def _argument(value: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return _compiled(value) if isinstance(value, InterpretedFunction) else value


def _cache_file(function: Any, record: LaunchRecord, target: str) -> Path | None:
    """Where the result for this source, specialisation, target and triton is kept; None without a cache."""
    import triton

    home = os.environ.get("XDG_CACHE_HOME")
    if not home:
        return None
    key = repr((function.cache_key, record.args, sorted(record.kwargs.items()), target, triton.__version__))
    return Path(home) / "lethe" / "resources" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def compile_record(record: LaunchRecord, target: str) -> dict[str, Any]:
    """Compile one recorded launch for `target`; the fields of its `KernelResource`."""
    function = _compiled(record.function)
    cached = _cache_file(function, record, target)
    if cached is not None and cached.is_file():
        found: dict[str, Any] = json.loads(cached.read_text())
        return found
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        kernel = function.warmup(
            *map(_argument, record.args),
            grid=record.grid,
            **{name: _argument(value) for name, value in record.kwargs.items()},
        )
    registers, stack, spill = _ptxas_numbers(log.getvalue()) or _cuobjdump_numbers(kernel)
    meta = kernel.metadata
    row = vars(
        KernelResource(
            name=record.name,
            target=target,
            num_warps=meta.num_warps,
            num_stages=meta.num_stages,
            registers=registers,
            spill_bytes=spill,
            stack_bytes=stack,
            shared_bytes=meta.shared,
            tmem_columns=getattr(meta, "tmem_size", 0) or 0,
        )
    )
    if cached is not None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.write_text(json.dumps(row))
    return dict(row)


def _ptxas_numbers(log: str) -> tuple[int, int, int] | None:
    """Registers, stack bytes and spill bytes from ``ptxas -v``; None when nothing was assembled."""
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    used = re.search(r"Used (\d+) registers", log)
    if frame is None or used is None:
        return None
    return int(used[1]), int(frame[1]), int(frame[2]) + int(frame[3])


def _cuobjdump_numbers(kernel: Any) -> tuple[int, int, int]:
    """The same from the cubin, for a kernel that came out of Triton's cache; spills are not in it (-1)."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return (int(usage[1]), int(usage[2]), -1 if int(usage[2]) else 0) if usage else (-1, -1, -1)
