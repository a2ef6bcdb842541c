"""What a run did: instruction counts, time, asynchronous operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Result of a run that raised no fault.

    Attributes:
        instructions: warp-instructions executed.
        counts: the same by instruction name.
        seconds, cpu_seconds: wall and processor time of execution, compilation of blocks included.
        operations: asynchronous operations completed.
        ctas: thread blocks run.
        schedule: the completion schedule.
    """

    schedule: str | int
    instructions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    operations: int = 0
    ctas: int = 0

    @property
    def rate(self) -> float:
        """Warp-instructions per second of processor time."""
        return self.instructions / self.cpu_seconds if self.cpu_seconds else 0.0
