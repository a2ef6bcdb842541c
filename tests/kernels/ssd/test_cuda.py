"""On a GPU: what the engine promises beside values, and a few of the stress cases against float64."""

from __future__ import annotations

import pytest
import torch

from lethe.evidence import ssd_gpu_checks as checks
from lethe.kernels.ssd.cases import stress

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible to torch"),
]

PROMISES = [(row, work) for row, work in checks.tasks("cuda") if row["kind"] != "accuracy"]
TELLING = ("plain", "packed", "n-128", "checkpoints-bfloat16-recomputed-chunk-128")


@pytest.mark.parametrize("about", PROMISES, ids=lambda a: f"{a[0]['kind']}-{a[0]['case']}".replace(" ", "-"))
def test_promise(about):
    found = about[1]()
    assert found["ok"], found


@pytest.mark.parametrize("case", [c for c in stress() if c.id in TELLING], ids=lambda c: c.id)
def test_accuracy(case):
    pytest.importorskip("lethe.references.ssd")
    found = checks.accuracy(case, "cuda")
    assert found["ok"], found["errors"]


def test_a_capture_that_would_have_to_build_a_plan_is_refused(monkeypatch):
    """The capture is pretended: one that fails leaves a process unfit for the next."""
    from dataclasses import replace

    from lethe.kernels.ssd.cases import operands
    from lethe.kernels.ssd.operator import ssd

    o = operands(replace(stress()[0], length=77), "cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="first time inside a CUDA-graph capture"):
        ssd(**o, dt_softplus=True)
