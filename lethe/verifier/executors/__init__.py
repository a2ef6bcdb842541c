"""How a candidate's kernels are executed inside the suspect process.

``cpu`` runs C++ and plain torch candidates, ``interpreter`` runs Triton kernels on CPU tensors that pass
for CUDA tensors, ``cuda`` runs on the device. `install` is called once per suspect, before the
candidate's source is loaded; it works in a process that has already imported torch and triton.
"""

from __future__ import annotations

from lethe.verifier.executors.launches import launch_count, launched_names, reset_launches
from lethe.verifier.executors.limits import is_executor_failure, unfaithful

EXECUTORS = ("cpu", "interpreter", "cuda")

__all__ = [
    "EXECUTORS",
    "install",
    "is_executor_failure",
    "launch_count",
    "launched_names",
    "reset_launches",
    "unfaithful",
]


def install(executor: str) -> None:
    """Make this process run candidates under `executor`.

    Raises ValueError for an unknown name, RuntimeError when another executor was installed before.
    """
    global _installed
    if executor not in EXECUTORS:
        raise ValueError(f"unknown executor {executor!r}; choose one of {', '.join(EXECUTORS)}")
    if _installed not in (None, executor):
        raise RuntimeError(f"this process already runs the {_installed!r} executor; start another process")
    _installed = executor
    if executor == "interpreter":
        from lethe.verifier.executors import interpreter

        interpreter.install()
    elif executor == "cuda":
        from lethe.verifier.executors import autotune, launches, library, resources

        library.use_compiler()
        autotune.install(device=True)
        launches.count_compiled(resources.remember_compiled)


_installed: str | None = None
