"""How a process waits for the device: asleep, so that its core compiles and computes for others meanwhile.

CUDA's usual way is to spin as long as a process has fewer contexts than the machine has processors. An audit
has two or three processes a worker, most of which wait, and Triton's compiler beside them wants the cores.
"""

from __future__ import annotations

import ctypes

BLOCKING_SYNC = 4
"""``CU_CTX_SCHED_BLOCKING_SYNC`` of the driver interface."""


def sleep_while_waiting(device: int = 0) -> bool:
    """Have this process's waits for a CUDA device give up the core; call it before the device is used.

    False where there is no driver, or where it refuses.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        started, flagged = driver.cuInit, driver.cuDevicePrimaryCtxSetFlags_v2
    except (OSError, AttributeError):
        return False
    return bool(started(0) == 0 and flagged(device, BLOCKING_SYNC) == 0)
