"""Install Triton's CPU interpreter as this process's executor, repaired where it differs from a GPU."""

from __future__ import annotations

from lethe.verifier.executors import (
    accesses,
    autotune,
    builder,
    devices,
    language,
    launches,
    libdevice,
    library,
    pretend_cuda,
    reductions,
    resources,
)

TARGET_CAPABILITY = 90
"""The compute capability that interpreted candidates see."""

_installed = False


def install() -> None:
    """Interpret ``@triton.jit`` functions from now on. Repeated calls do nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    library.use_interpreter()
    devices.activate(TARGET_CAPABILITY)
    autotune.install(device=False)
    builder.install()
    accesses.install()
    reductions.install()
    libdevice.install()
    language.install()
    launches.count_interpreted()
    resources.start_recording()
    pretend_cuda.install()
