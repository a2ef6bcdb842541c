"""Time limits on our own side: a reference that never returns is refused, not waited for, and a busy machine
is not held against anybody."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lethe.verifier.problem import ProblemError

MOST_CROWDING = 8.0
"""Waiting is never extended beyond this factor: what is stuck must end some day."""


def crowding() -> float:
    """How many runnable processes share one processor, by the load of the last minute: at least 1.

    Wall limits are multiplied by it, so that a candidate has the same share of a processor before it is
    called late, whatever else the machine does.
    """
    try:
        share = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        return 1.0
    return min(max(share, 1.0), MOST_CROWDING)


@contextmanager
def time_limit(seconds: float, who: str) -> Iterator[None]:
    """Raise ProblemError in the body after `seconds`. Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise ProblemError(f"{who} did not finish within {seconds:g} s; give it smaller sizes")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds * crowding())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block: the order of a sum, and so the last digits of what a verdict
    records, would otherwise depend on the number of processors. Budgets count one thread as well."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
