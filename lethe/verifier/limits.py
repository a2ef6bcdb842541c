"""A time limit on our own side: a reference that never returns is refused, not waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lethe.verifier.problem import ProblemError


@contextmanager
def time_limit(seconds: float, who: str) -> Iterator[None]:
    """Raise ProblemError in the body after `seconds`. Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise ProblemError(f"{who} did not finish within {seconds:g} s; give it smaller sizes")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
