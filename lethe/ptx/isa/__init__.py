"""Instruction semantics, one module per family of the PTX ISA, in one table.

``lookup(instruction)`` returns the ``Entry`` that writes its numpy source; an opcode that is not in the
table is an error with its line and text.
"""

from __future__ import annotations

from lethe.ptx.isa.registry import REGISTRY, Entry, instruction, lookup, writes_of

__all__ = ["REGISTRY", "Entry", "instruction", "load_all", "lookup", "writes_of"]


def load_all() -> None:
    """Import every family so that the table is complete (idempotent)."""
    from lethe.ptx.isa import (  # noqa: F401
        async_copy,
        atomics,
        barriers,
        bits,
        compare,
        control,
        convert,
        floating,
        integer,
        loadstore,
        matrix,
        move,
        special,
        tcgen05,
        tma,
        warp,
        wgmma,
    )
