"""Addresses of variables and parameters: the same in every CTA of a launch.

PTX ISA 5.1 (state spaces) and 5.4 (variables, alignment). Shared variables start after the KiB that the
runtime keeps; ``.extern .shared`` arrays share the dynamic part behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lethe.ptx.faults import Fault
from lethe.ptx.memory import SHARED_FIRST
from lethe.ptx.program import Program

MAX_SHARED = 227 * 1024
"""Most shared memory of one CTA on sm_90 and sm_100, in bytes."""


def align(value: int, to: int) -> int:
    """Round up to a multiple."""
    return (value + to - 1) // to * to


class Layout:
    """Where everything lies, and the parameter bytes."""

    def __init__(self, program: Program, params: Sequence[bytes], dynamic_shared: int) -> None:
        self.address: dict[str, int] = {}
        self.param_offset: dict[str, int] = {}
        self.param_size = {p.name: p.size for p in program.kernel.params}
        position = 0
        for param in program.kernel.params:
            position = align(position, param.align)
            self.param_offset[param.name] = self.address[param.name] = position
            position += param.size
        self.params = np.zeros(align(position, 16) + 16, np.uint8)
        for param, raw in zip(program.kernel.params, params, strict=True):
            at = self.param_offset[param.name]
            self.params[at : at + param.size] = np.frombuffer(raw, np.uint8)
        self._variables(program, dynamic_shared)

    def _variables(self, program: Program, dynamic_shared: int) -> None:
        shared, local, const = SHARED_FIRST, 0, 0
        self.const_init: list[tuple[int, bytes]] = []
        for v in program.variables.values():
            if v.space == "shared" and not v.extern:
                shared = align(shared, v.align)
                self.address[v.name] = shared
                shared += v.size
            elif v.space == "local":
                local = align(local, v.align)
                self.address[v.name] = local
                local += v.size
            elif v.space == "const":
                const = align(const, v.align)
                self.address[v.name] = const
                self.const_init.append((const, v.init or b"\0" * v.size))
                const += v.size
        externs = [v for v in program.variables.values() if v.space == "shared" and v.extern]
        shared = align(shared, max([16, *(v.align for v in externs)]))
        for v in externs:
            self.address[v.name] = shared
        self.shared_end = shared + dynamic_shared
        if self.shared_end - SHARED_FIRST > MAX_SHARED:
            used = self.shared_end - SHARED_FIRST
            raise Fault("launch", f"{used} bytes of shared memory, a CTA has at most {MAX_SHARED}")
        self.local_size = align(local, 16)
        self.const_size = align(const, 16)
