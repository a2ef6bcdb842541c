"""The resources of a kernel are the same whether Triton assembled it just now or took it from its cache."""

from __future__ import annotations

import contextlib
import io

import pytest

pytestmark = pytest.mark.compiles


def test_a_cached_kernel_reports_what_a_fresh_one_did(tmp_path, monkeypatch):
    """On a kernel that takes a register less when it is assembled without Triton's options."""
    import triton

    from lethe.kernels.mamba3 import resources
    from lethe.kernels.ptxas import reported
    from lethe.kernels.triton_report import used

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    function, constants = resources.specialisations("C1", 4)[2]
    logs = []
    for _ in range(2):
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            kernel = resources._compile(function, constants, 90, 4)
        logs.append(reported(log.getvalue()))
    assert logs[0] is not None and logs[1] is None
    assert used(kernel) == logs[0]
