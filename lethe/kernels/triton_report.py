"""What a compiled Triton kernel uses, from Triton's own assembling stage. No driver is touched.

Triton shows the assembler's report while it assembles, and not for a kernel that comes out of its cache. Its
stage is therefore run again on the kernel's PTX with the kernel's own options. Another command line will not
do: without Triton's level of register allocation some kernels take a few registers more or less.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import triton
from triton.backends.compiler import Language
from triton.compiler.compiler import make_backend

from lethe.kernels.ptxas import reported


def used(kernel: Any) -> tuple[int, int, int]:
    """Registers, stack and spill bytes (stores and loads) a thread of what ``triton.compile`` returned.

    Raises RuntimeError where the assembler reports nothing.
    """
    metadata = kernel.metadata._asdict()
    backend = make_backend(kernel.metadata.target)
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    backend.add_stages(stages, backend.parse_options(dict(metadata)), Language.TRITON)
    log, before = io.StringIO(), triton.knobs.nvidia.dump_ptxas_log
    triton.knobs.nvidia.dump_ptxas_log = True
    try:
        with contextlib.redirect_stdout(log):
            stages["cubin"](kernel.asm["ptx"], metadata)
    finally:
        triton.knobs.nvidia.dump_ptxas_log = before
    found = reported(log.getvalue())
    if found is None:
        raise RuntimeError(f"ptxas reported no resources for {kernel.metadata.name}")
    return found
