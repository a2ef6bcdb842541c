"""Backend ``cute_sm100``: the native kernels for compute capability 10.0 (see `native`).

No GPU of this kind was at hand, so nothing here has been timed or run on silicon: the plans are executed in
`lethe.ptx` (`lethe.evidence.gdn_blackwell`). ``auto`` takes it only where `prove` has shown that it is right.
"""

from __future__ import annotations

from lethe.kernels.gdn.architecture import SM100
from lethe.kernels.gdn.native import Backend

BACKEND = Backend(SM100)
lacks, forward, backward = BACKEND.lacks, BACKEND.forward, BACKEND.backward
plan_forward, plan_backward = BACKEND.plan_forward, BACKEND.plan_backward
