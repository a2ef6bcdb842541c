"""One contract in the eight parts of the Kernel Contracts language.

Source of the eight parts: C. Veit, "Kernel Contracts: A Specification Language
for ML Kernel Correctness Across Heterogeneous Silicon", arXiv:2604.22032.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Channel(StrEnum):
    """How a gate decides."""

    TOLERANCE_FREE = "T"
    """Masks, bytes or structure are compared for equality; no threshold anywhere."""
    BAND = "B"
    """An error is compared with a derived bound."""
    BOTH = "B+T"
    """The gate has findings of both kinds; each finding names its own."""


@dataclass(frozen=True)
class Contract:
    """What a kernel promises, how the promise is measured, and how a breach looks."""

    identifier: str
    """The gate id, e.g. ``"CMP-01"``."""
    name: str
    channel: Channel
    scope: str
    """Which operators and executors the contract speaks about."""
    precondition: str
    """What must hold before the contract may be charged."""
    postcondition: str
    """What the kernel then guarantees."""
    tolerance: str
    """The allowed deviation, or that there is none."""
    oracle: str
    """What the result is compared with."""
    measurement: str
    """The protocol: draws, sizes, repetitions, statistic."""
    violation: str
    """The signature by which a breach is recognised and reported."""
    crosswalk: str
    """The nearest class of arXiv:2604.22032; the ids do not coincide."""
