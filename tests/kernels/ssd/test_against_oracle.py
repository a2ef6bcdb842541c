"""The SSD engine against the float64 oracle: small cases on a CPU, interpreted, and all cases on a GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from lethe.evidence.ssd_accuracy import beyond, measure, ours
from lethe.evidence.ssd_cases import FULL, SMALL, Case

ABSENT = importlib.util.find_spec("lethe.kernels.ssd") is None
pytestmark = pytest.mark.skipif(ABSENT, reason="lethe.kernels.ssd is absent")

QUICK = {
    "everything", "initial state only", "gate only", "recurrence silent", "strong rate", "zero rate",
    "growing rate", "softplus negative tail", "clamp edges", "one token", "cut", "views of a projection",
    "checkpoints bfloat16 reused",
}  # fmt: skip
"""Small cases that run in every test run; the others are marked slow."""


def _marked(case: Case) -> Any:
    return pytest.param(case, id=case.id, marks=() if case.name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("case", [_marked(case) for case in SMALL])
def test_small(case):
    assert beyond(measure(case, ours())) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", FULL, ids=lambda c: c.id)
def test_full(case):
    assert beyond(measure(case, ours(), "cuda")) == []
