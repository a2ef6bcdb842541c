"""The process in which a KernelBench check runs, reference and candidate side by side.

``python -m lethe.audit.differential_child`` is a fork server (`lethe.verifier.server`) whose
children answer one request, ``check``, instead of being suspects. The sandbox around them is the
suspects' own: namespaces, no network, Landlock, limits. Inside it the candidate may do what it
likes to the check, as it may in KernelBench; that is part of what is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lethe.audit import kernelbench_check, kernelbench_original
from lethe.audit.kernelbench_check import VARIANTS, Outcome, said
from lethe.verifier import executors, sandbox, server
from lethe.verifier.sandbox import Isolation, Limits
from lethe.verifier.suspect import Wire
from lethe.verifier.verdict import Status

NO_MEMORY = "out of memory"
"""In the text of torch's errors, on a GPU and off it; a rejection for want of memory says nothing."""


def main(fd: int, executor: str, limits: Limits, scratch: str, cache: str, report: Isolation) -> None:
    """Body of the forked process: greet, run the checks that are asked for, end with the connection."""
    os.environ.update(
        HOME=scratch,
        TMPDIR=scratch,
        XDG_CACHE_HOME=cache,
        TRITON_CACHE_DIR=os.path.join(cache, "triton"),
        TORCH_EXTENSIONS_DIR=os.path.join(cache, "torch_extensions"),
        CUDA_CACHE_PATH=os.path.join(cache, "nv"),
        OMP_NUM_THREADS=str(limits.threads),
    )
    tempfile.tempdir = None
    os.chdir(scratch)
    sandbox.set_limits(limits, executor, report)
    if executor == "interpreter":
        executors.install(executor)
    wire = Wire(fd)
    wire.send({"isolation": report})
    while True:
        request = wire.receive()
        try:
            answer = {"ok": True, **answered(request, executor)}
        except ImportError as e:
            needs = f"KernelBench's own code cannot be imported ({said(e)}); install what it needs"
            answer = {"ok": False, "status": str(Status.HARNESS_FAILED), "message": needs}
        except BaseException as e:
            answer = {"ok": False, "status": str(Status.HARNESS_FAILED), "message": said(e)}
        wire.send(answer)


def answered(request: dict[str, Any], executor: str) -> dict[str, Any]:
    """Run the requested check: its outcome, and which placeholders their code was given."""
    variant = VARIANTS[request["variant"]]
    texts = request["reference"], request["candidate"], variant
    triton, precision = bool(request["triton"]), request["precision"]
    made: list[str] = []
    if request["checkout"]:
        module, made = kernelbench_original.load(Path(request["checkout"]), variant)
        begun = time.perf_counter()
        outcome = kernelbench_original.check(module, *texts, triton=triton, precision=precision)
    else:
        device = "cpu" if executor == "cpu" else "cuda"  # the interpreter's tensors pass for CUDA's
        begun = time.perf_counter()
        outcome = kernelbench_check.check(*texts, device=device, triton=triton, precision=precision)
    outcome.seconds = round(time.perf_counter() - begun, 3)
    sys.stdout.flush()
    return {"outcome": _excused(outcome, executor).to_dict(), "placeholders": made}


def _excused(outcome: Outcome, executor: str) -> Outcome:
    """An outcome without a verdict where it was memory or the interpreter that failed."""
    if outcome.accepted:
        return outcome
    if NO_MEMORY in outcome.message:
        outcome.accepted, outcome.status = None, str(Status.OUT_OF_MEMORY)
    elif executor == "interpreter":
        reason = executors.is_executor_failure(RuntimeError(outcome.message))
        if reason:
            outcome.accepted, outcome.status = None, str(Status.EXECUTOR_FAILED)
    return outcome


if __name__ == "__main__":
    server.main(main)
