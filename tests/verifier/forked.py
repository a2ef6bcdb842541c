"""Run a function in a forked child: executors patch torch and triton for the life of a process."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language  # noqa: F401  (preloaded without TRITON_INTERPRET, as a fork server does)


class ChildFailed(AssertionError):
    """The function raised in the child; the message is its traceback."""


def in_child(work: Callable[..., Any], *args: Any, seconds: float = 120.0) -> Any:
    """``work(*args)`` in a forked child; returns its (picklable) result or raises ChildFailed."""
    torch.set_num_threads(1)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = (True, work(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(send, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(send)
    data = b""
    with os.fdopen(receive, "rb") as pipe:
        if select.select([pipe], [], [], seconds)[0]:
            data = pipe.read()
        else:
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not data:
        raise ChildFailed("the child died or took too long")
    succeeded, value = pickle.loads(data)
    if not succeeded:
        raise ChildFailed(value)
    return value


def interpreted(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work(kernels, *args)` in a child that installed the interpreter executor.

    `kernels` is ``tests.verifier.executor_kernels``, imported after the installation.
    """

    def run(*args: Any) -> Any:
        def child() -> Any:
            from lethe.verifier import executors

            executors.install("interpreter")
            from tests.verifier import executor_kernels

            return work(executor_kernels, *args)

        return in_child(child)

    return run
