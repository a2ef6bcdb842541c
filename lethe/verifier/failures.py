"""What an exception out of a candidate means: a status and one sentence.

Runs in the suspect, right after candidate code raised, so it trusts nothing about the
exception but its place in the class hierarchy.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

from lethe.verifier.structure import StructureError
from lethe.verifier.verdict import Status

MAX_LINE = 300

_BY_STAGE = {
    "load": Status.IMPORT_FAILED,
    "build": Status.BUILD_FAILED,
    "resources": Status.HARNESS_FAILED,
}
_COMPILER_ERRORS = {
    "CompilationError",
    "CompileTimeAssertionFailure",
    "UnsupportedLanguageConstruct",
    "PTXASError",
    "OutOfResources",
}
"""Triton's own classes, from triton.compiler.errors and triton.runtime.errors."""
_NO_MEMORY = (
    "can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""As the C library, torch, the CUDA runtime, Triton's driver and the libraries of cuBLAS and cuDNN say it."""
_RESOURCE_ERRNOS = {errno.EAGAIN, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
_STICKY = ("CUDA error:", "device-side assert")
"""After these the CUDA context is lost, and the process with it."""


def classify(
    exc: BaseException, stage: str, executor_failure: Callable[[BaseException], str | None]
) -> tuple[Status, str]:
    """Status and message for `exc`, raised by the candidate during `stage`.

    `executor_failure` returns a reason if the executor, not the candidate, is to blame.
    """
    where = _where(exc)
    chain = _chain(exc)
    said = f"{type(exc).__name__}: {first_line(exc)}{where}"
    if isinstance(exc, StructureError):
        return Status.WRONG_TYPE, f"the candidate returned {first_line(exc)}, which cannot be judged"
    if isinstance(exc, SystemExit):
        return Status.CRASHED, f"the candidate called sys.exit({exc.code!r}){where}"[:MAX_LINE]
    try:
        reason = executor_failure(exc)
    except Exception:
        reason = None  # an exception whose own text raises cannot be the executor's
    if reason is not None:
        return Status.EXECUTOR_FAILED, reason
    for e in chain:
        text = _text(e)
        if (
            isinstance(e, MemoryError)
            or type(e).__name__ == "OutOfMemoryError"
            or any(m in text for m in _NO_MEMORY)
        ):
            return Status.OUT_OF_MEMORY, f"memory ran out in {stage}: {said}"
        if isinstance(e, OSError) and e.errno == errno.ENOMEM:
            return Status.OUT_OF_MEMORY, f"memory ran out in {stage}: {said}"
        if (isinstance(e, OSError) and e.errno in _RESOURCE_ERRNOS) or "can't start new thread" in text:
            return Status.RESOURCE_LIMIT, f"a resource limit stopped {stage}: {said}"
        if {c.__name__ for c in type(e).__mro__} & _COMPILER_ERRORS:
            return Status.COMPILE_FAILED, f"the kernel did not compile: {said}"
        if isinstance(e, subprocess.CalledProcessError) or text.startswith("Error building extension"):
            return Status.COMPILE_FAILED, f"the kernel did not compile: {_compiler_line(chain)}"
    if is_sticky(exc):
        return Status.CRASHED, f"the device failed in {stage}: {said}"
    return _BY_STAGE.get(stage, Status.RUN_FAILED), said


def is_sticky(exc: BaseException) -> bool:
    """True if the CUDA context cannot be used after `exc`."""
    return isinstance(exc, RuntimeError) and any(m in _text(exc) for m in _STICKY)


def first_line(exc: BaseException) -> str:
    lines = [line for line in _text(exc).splitlines() if line.strip()]
    return lines[0].strip()[:MAX_LINE] if lines else "no message"


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return "its message cannot be read"


def _chain(exc: BaseException) -> list[BaseException]:
    """`exc` and its explicit causes, innermost last."""
    chain = [exc]
    while (cause := chain[-1].__cause__) is not None and len(chain) < 20:
        chain.append(cause)
    return chain


def _where(exc: BaseException) -> str:
    """The last line of the candidate's own file that the traceback passes."""
    line = 0
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith("/candidate.py"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def _compiler_line(chain: list[BaseException]) -> str:
    """The first line of a compiler's output that speaks of an error."""
    for e in chain:
        streams = [getattr(e, "output", None), getattr(e, "stderr", None), _text(e)]
        for stream in streams:
            text = stream.decode("utf-8", "replace") if isinstance(stream, bytes) else stream
            for line in text.splitlines() if isinstance(text, str) else ():
                if "error:" in line or "error :" in line:
                    return line.strip()[:MAX_LINE]
    return f"{type(chain[0]).__name__}: {first_line(chain[0])}"
