"""A suspect's process that gets ready while the judge does something else.

A process and, on a GPU, its context take a second or two, as long as the reference's first answers. Both are
needed for every verdict and neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from lethe.verifier.custody import SuspectError

if TYPE_CHECKING:
    from lethe.verifier.custody import Suspect
    from lethe.verifier.problem import Candidate
    from lethe.verifier.server import SuspectServer
    from lethe.verifier.settings import Settings


def start(server: SuspectServer, candidate: Candidate, settings: Settings, cache_dir: Path) -> Suspect:
    """A fresh process within the budget that has loaded the candidate. Raises SuspectError."""
    limits = settings.budget.limits()
    suspect = server.spawn(candidate, executor=settings.executor, limits=limits, cache_dir=cache_dir)
    try:
        suspect.load()
    except BaseException:
        suspect.close()
        raise
    return suspect


class Ahead:
    """One suspect, started at once in a thread of its own. Either `take` it or `discard` it."""

    def __init__(self, start: Callable[[], Suspect]) -> None:
        self._coming: Future[Suspect] = Future()
        Thread(target=self._run, args=(start,), daemon=True).start()

    def _run(self, start: Callable[[], Suspect]) -> None:
        try:
            self._coming.set_result(start())
        except BaseException as e:  # whoever takes it is told, whatever it is
            self._coming.set_exception(e)

    def take(self) -> Suspect:
        """The suspect, once it is ready. Raises what its start raised."""
        return self._coming.result()

    def discard(self) -> None:
        """Nobody wants it any more: it is waited for and ended."""
        with suppress(SuspectError):
            self.take().close()
