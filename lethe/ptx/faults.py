"""What can go wrong, by name: the one exception type that every part of ``lethe.ptx`` raises.

A fault carries a stable ``kind`` (tests and tables key on it), a message, and, once the machine has seen it
pass, the instruction, its line and the warp. Silicon forgives most of these; the emulator does not.
"""

from __future__ import annotations

from typing import Final

KINDS: Final[dict[str, str]] = {
    "parse": "text that is not PTX of the supported subset",
    "unsupported": "instruction, modifier or operand form that is not modelled",
    "bounds": "access outside the space, window or variable",
    "alignment": "address, coordinate or descriptor not aligned as the instruction demands",
    "poison": "read of bytes, columns or registers that nobody wrote",
    "descriptor": "illegal matrix, instruction or tensor-map descriptor",
    "mbarrier": "illegal use of an mbarrier object: uninitialised, count, phase or transaction accounting",
    "barrier": "illegal use of a named barrier",
    "deadlock": "no warp can run and no asynchronous operation is left to complete",
    "divergence": "warp-synchronous instruction executed by part of the warp",
    "tmem": "tensor-memory lifetime: allocation, budget, relinquish, deallocation, leak",
    "missing-wait": "result used before the wait that completes it",
    "missing-fence": "asynchronous proxy reads generic writes that no proxy fence published",
    "race": "buffer read while being filled, or refilled while an asynchronous operation still reads it",
    "limit": "instruction budget exhausted",
    "trap": "the kernel executed trap or a failing assertion",
    "launch": "launch configuration or parameters that the kernel does not accept",
    "schedule": "different answers under different legal schedules",
}


class Fault(Exception):
    """A named violation.

    Args:
        kind: one of ``KINDS``.
        message: what happened, with the numbers that matter (address, column, phase, count).
    """

    def __init__(self, kind: str, message: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown fault kind {kind!r}")
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.where = ""

    def at(self, where: str) -> Fault:
        """Add the place (line, instruction text, warp) once; inner places win."""
        if not self.where:
            self.where = where
        return self

    def __str__(self) -> str:
        place = f"\n  at {self.where}" if self.where else ""
        return f"{self.kind}: {self.message}{place}"
