"""Named barriers and mbarrier objects: counts, phases, transactions, who waits.

PTX ISA 9.7.13.1 (bar: threads counted in whole warps) and 9.7.13.15 (mbarrier: a phase completes when both
the pending count and the transaction count are zero; the pending count then returns to the expected count).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lethe.ptx.faults import Fault

MAX_COUNT = (1 << 20) - 1
"""Largest expected count and transaction count of an mbarrier object."""


@dataclass
class NamedBarrier:
    """One of the 16 barriers of a CTA."""

    number: int
    expected: int | None = None
    arrived: int = 0
    default: bool = False
    waiters: list[Any] = field(default_factory=list)
    warps: list[int] = field(default_factory=list)
    preds: list[Any] = field(default_factory=list)

    def arrive(self, threads: int, expected: int, default: bool) -> bool:
        """Count arriving threads; True when the barrier completes.

        Raises:
            Fault: kind ``barrier`` when participants disagree on the count or overshoot it.
        """
        if self.expected is not None and not default and not self.default and expected != self.expected:
            raise Fault("barrier", f"barrier {self.number}: thread count {expected} after {self.expected}")
        self.expected, self.default = expected, default
        self.arrived += threads
        if self.arrived > expected:
            raise Fault(
                "barrier", f"barrier {self.number}: {self.arrived} threads arrive, {expected} expected"
            )
        return self.arrived == expected

    def reset(self) -> None:
        """Ready for the next use."""
        self.expected, self.arrived = None, 0
        self.waiters, self.warps, self.preds = [], [], []


@dataclass
class Mbarrier:
    """An mbarrier object in shared memory.

    Attributes:
        count: expected arrivals per phase.
        pending: arrivals still missing in the current phase.
        tx: bytes still missing (negative when completed ahead of their expect_tx).
        phase: number of completed phases.
    """

    address: int
    count: int
    pending: int = 0
    tx: int = 0
    phase: int = 0
    waiters: list[Any] = field(default_factory=list)
    expected_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise Fault(
                "mbarrier", f"mbarrier at {self.address:#x}: count {self.count} outside [1, {MAX_COUNT}]"
            )
        self.pending = self.count

    def arrive(self, count: int, drop: bool = False) -> bool:
        """Count arrivals; True when the phase completes."""
        if count > self.pending:
            raise Fault(
                "mbarrier",
                f"mbarrier at {self.address:#x}: {count} arrivals, only {self.pending} of {self.count} "
                f"pending in phase {self.phase}",
            )
        self.pending -= count
        if drop:
            self.count -= count
        return self._settle()

    def expect(self, nbytes: int) -> bool:
        """Add to the transaction count."""
        self.tx += nbytes
        self.expected_bytes += nbytes
        if abs(self.tx) > MAX_COUNT:
            raise Fault(
                "mbarrier", f"mbarrier at {self.address:#x}: transaction count {self.tx} out of range"
            )
        return self._settle()

    def complete(self, nbytes: int) -> bool:
        """Subtract arrived bytes; True when the phase completes."""
        self.tx -= nbytes
        if abs(self.tx) > MAX_COUNT:
            raise Fault(
                "mbarrier", f"mbarrier at {self.address:#x}: transaction count {self.tx} out of range"
            )
        return self._settle()

    def _settle(self) -> bool:
        if self.pending or self.tx:
            return False
        self.phase += 1
        self.pending = self.count
        self.expected_bytes = 0
        return True

    def done(self, value: int, parity: bool) -> bool:
        """Whether the phase named by a parity, or by a state token, has completed."""
        if parity:
            return (self.phase & 1) != (value & 1)
        return self.phase != value >> 20

    def describe(self) -> str:
        """State for the deadlock report."""
        tx = (
            f", {self.tx} bytes missing" if self.tx > 0 else f", {-self.tx} bytes too many" if self.tx else ""
        )
        arrivals = f"{self.pending} of {self.count} arrivals pending"
        return f"phase {self.phase} (parity {self.phase & 1}), {arrivals}{tx}"
