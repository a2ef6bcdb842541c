"""Backend ``cute_sm90``: the native kernels for compute capability 9.0 (see `native`)."""

from __future__ import annotations

from lethe.kernels.gdn.architecture import SM90
from lethe.kernels.gdn.native import Backend

BACKEND = Backend(SM90)
lacks, forward, backward = BACKEND.lacks, BACKEND.forward, BACKEND.backward
plan_forward, plan_backward = BACKEND.plan_forward, BACKEND.plan_backward
