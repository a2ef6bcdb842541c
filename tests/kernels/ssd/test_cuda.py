"""On a GPU: what the engine promises beside values (those are in `test_against_oracle`)."""

from __future__ import annotations

import pytest
import torch

from lethe.evidence import ssd_gpu_checks as checks
from lethe.kernels.ssd.cases import PLAIN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible to torch"),
]

PROMISES = list(checks.tasks("cuda"))


@pytest.mark.parametrize("about", PROMISES, ids=lambda a: f"{a[0]['kind']}-{a[0]['case']}".replace(" ", "-"))
def test_promise(about):
    found = about[1]()
    assert found["ok"], found


def test_a_capture_that_would_have_to_build_a_plan_is_refused(monkeypatch):
    """The capture is pretended: one that fails leaves a process unfit for the next."""
    from dataclasses import replace

    from lethe.kernels.ssd.cases import operands
    from lethe.kernels.ssd.operator import ssd

    o = operands(replace(PLAIN, length=77), "cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="first time inside a CUDA-graph capture"):
        ssd(**o, dt_softplus=True)
