"""When asynchronous operations complete: early, late, or at seeded random points.

The ISA leaves the completion time of bulk copies, tensor-core operations and ``cp.async`` open between
their issue and the wait that covers them. An ``Operation`` has one or more stages (read the source, write
the destination, signal); operations in one queue keep their order, different queues do not. Under every
legal choice a correct kernel gives the same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from lethe.ptx.faults import Fault

EARLY, LATE, REVERSE = "early", "late", "reverse"


class Operation:
    """A queued asynchronous operation.

    Args:
        queue: operations with equal keys complete in issue order.
        stages: callables run in order, each once.
        where: instruction that issued it.
        reads: 16-byte granules of shared memory that it still reads.
        writes: granules that it will write.
        tmem: TMEM rectangle that it will write, or None.
    """

    __slots__ = ("done", "queue", "reads", "stages", "tmem", "waited", "where", "writes")

    def __init__(
        self,
        queue: Hashable,
        stages: list[Callable[[], None]],
        where: str,
        reads: list[Any] | None = None,
        writes: list[Any] | None = None,
        tmem: tuple[int, int, int, int] | None = None,
    ) -> None:
        self.queue, self.stages, self.where = queue, stages, where
        self.reads, self.writes, self.tmem = reads or [], writes or [], tmem
        self.done = 0
        self.waited = False

    @property
    def finished(self) -> bool:
        """Whether every stage ran."""
        return self.done == len(self.stages)


class Engine:
    """Pending operations of one CTA and the choice of when they run.

    Args:
        schedule: ``"early"``; ``"late"``, only when nothing else can run, oldest first; ``"reverse"``, the
            same with the newest first; or an integer seed.
    """

    def __init__(self, schedule: str | int) -> None:
        if schedule not in (EARLY, LATE, REVERSE) and not isinstance(schedule, int):
            raise Fault("launch", f"schedule {schedule!r} is not 'early', 'late', 'reverse' or a seed")
        self.schedule = schedule
        self.random = np.random.default_rng(schedule) if isinstance(schedule, int) else None
        self.queues: dict[Hashable, deque[Operation]] = {}
        self.completed = 0
        self.retired: Callable[[Operation, bool], None] | None = None

    @property
    def pending(self) -> bool:
        """Whether anything is in flight."""
        return bool(self.queues)

    def issue(self, operation: Operation) -> None:
        """Start an operation; early schedules complete it at once."""
        if self.schedule == EARLY:
            for stage in operation.stages:
                operation.done += 1
                stage()
            self.completed += operation.done
            return
        self.queues.setdefault(operation.queue, deque()).append(operation)
        if self.random is not None:
            while self.queues and self.random.random() < 0.4:
                self.step()

    def _advance(self, operation: Operation) -> None:
        stage = operation.stages[operation.done]
        operation.done += 1
        stage()
        if self.retired is not None:
            self.retired(operation, operation.finished)
        if operation.finished:
            queue = self.queues[operation.queue]
            queue.remove(operation)
            if not queue:
                del self.queues[operation.queue]
        self.completed += 1

    def finish(self, operation: Operation, stages: int | None = None) -> None:
        """Complete an operation (or its first stages) and everything ahead of it in its queue."""
        wanted = len(operation.stages) if stages is None else stages
        while operation.done < wanted:
            self._advance(self.queues[operation.queue][0])

    def step(self) -> bool:
        """Run one stage of one operation: the oldest, newest or a random head; False when none is left."""
        if not self.queues:
            return False
        keys = list(self.queues)
        key = keys[-1] if self.schedule == REVERSE else keys[0]
        if self.random is not None:
            key = keys[int(self.random.integers(len(keys)))]
        self._advance(self.queues[key][0])
        return True

    def idle(self) -> None:
        """A chance to complete something between instructions (seeded schedules only)."""
        if self.random is not None and self.queues and self.random.random() < 0.3:
            self.step()

    def drain(self) -> None:
        """Complete everything."""
        while self.step():
            pass

    def operations(self) -> list[Operation]:
        """All pending operations."""
        return [o for q in self.queues.values() for o in q]


class BulkGroups:
    """Commit groups of one thread: ``commit`` closes a group, ``wait(n)`` leaves at most n pending.

    PTX ISA 9.7.9.25 (asynchronous copy completion) and 9.7.15.7 (wgmma groups).
    """

    def __init__(self) -> None:
        self.open: list[Operation] = []
        self.closed: list[list[Operation]] = []

    def add(self, operation: Operation) -> None:
        """Put an operation in the open group."""
        self.open.append(operation)

    def commit(self) -> None:
        """Close the open group, empty or not."""
        self.closed.append(self.open)
        self.open = []

    def wait(self, n: int) -> list[Operation]:
        """The operations of all but the newest n groups, which leave the list."""
        keep = len(self.closed) - n
        if keep <= 0:
            return []
        out = [o for group in self.closed[:keep] for o in group]
        self.closed = self.closed[keep:]
        return out

    def peek(self, n: int) -> list[Operation]:
        """As ``wait`` without forgetting the groups (``.read`` waits)."""
        return [o for group in self.closed[: max(len(self.closed) - n, 0)] for o in group]
