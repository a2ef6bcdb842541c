"""The trainings of `gdn_gpu_training` with the native kernels, judged beside those of the torch backend.

Of each task's losses two numbers are compared (`seed_noise`): the mean over the whole curve, which is the
area under it and says how fast was learnt, and the mean over its last tenth. A training holds if both lie
within the noise of the seeds, all losses and gradients were finite, no call fell back to another backend,
and every replica of both backends learnt its task. The control, whose state is lost between chunks, has to
be rejected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.evidence.gdn_gpu_training import DROPPED, NATIVE, TASKS, TORCH, end, plan
from lethe.evidence.seed_noise import Compared, compare

Row = Mapping[str, Any]

PARTS = ("curve", "end")
COMPARISONS = len(plan()) * len(TASKS) * len(PARTS)
SAME = ("member", "steps", "length", "batch", "seeds", "dv")
"""What the two lines of a comparison have in common."""


@dataclass(frozen=True)
class Judged:
    """One task of a training, native (or the control) beside torch; `parts` are the two comparisons."""

    native: Row
    torch: Row
    task: str
    parts: dict[str, Compared]

    @property
    def control(self) -> bool:
        return bool(self.native["backend"] == DROPPED)

    @property
    def title(self) -> str:
        """The member, and what the control has lost."""
        return f"{self.native['member']}, state dropped" if self.control else str(self.native["member"])

    @property
    def within(self) -> bool:
        return all(part.within for part in self.parts.values())

    @property
    def sound(self) -> bool:
        """Finite, without fallback and, but for the control, learnt, on both sides."""
        sides = (self.native, self.torch)
        learnt = self.control or all(row["learnt"][self.task] for row in sides)
        return learnt and all(row["as_asked"] and not broken(row) for row in sides)

    @property
    def holds(self) -> bool:
        """Whether the two agree; of the control, whether it is noticed that they do not."""
        return self.sound and self.within != self.control


def judged(rows: Sequence[Row]) -> list[Judged]:
    """Every training that has both lines, task by task, in the order of the lines, the control last."""
    return [_judge(*pair, task) for pair in _pairs(rows) for task in TASKS]


def uncompared(rows: Sequence[Row]) -> list[Row]:
    """Lines of trainings that could not be compared: they failed, or there is no other one."""
    compared = [row for pair in _pairs(rows) for row in pair]
    return [row for row in rows if row.get("kind") == "training" and not any(row is x for x in compared)]


def broken(row: Row) -> int:
    """Steps with a loss that was not finite, and steps with such a gradient."""
    return sum(row["non_finite"].values())


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Native lines, then the control's, each with torch's."""
    told = [row for row in rows if row.get("kind") == "training" and "losses" in row]
    ours = [row for backend in (NATIVE, DROPPED) for row in told if row["backend"] == backend]
    theirs = {tuple(row[name] for name in SAME): row for row in told if row["backend"] == TORCH}
    return [(row, theirs[key]) for row in ours if (key := tuple(row[name] for name in SAME)) in theirs]


def _judge(native: Row, torch: Row, task: str) -> Judged:
    reference, candidate = ([_numbers(curve) for curve in row["losses"][task]] for row in (torch, native))
    parts = {
        part: compare([x[part] for x in reference], [x[part] for x in candidate], COMPARISONS)
        for part in PARTS
    }
    return Judged(native, torch, task, parts)


def _numbers(curve: Sequence[float | None]) -> dict[str, float]:
    """What of a curve is compared; a loss that was not finite stands as None in a record."""
    losses = [math.nan if loss is None else loss for loss in curve]
    return {"curve": statistics.fmean(losses), "end": end(losses)}
