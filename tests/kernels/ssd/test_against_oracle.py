"""The SSD engine against the float64 oracle: small cases on a CPU, interpreted, and all cases on a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from lethe.evidence import ssd_cases
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


FORGETS = Case(
    "a step that forgets", batch=1, length=69, heads=2, groups=1, chunk=32, io="fp16", rate="vanishing",
    step="forgets", initial=True, final=True, wanted=("x", "B", "C", "initial_states"),
)  # fmt: skip
"""Its steps are given below. What a step of 60 times a rate of -3000 multiplies in the gradients of both is a
sum that cancels; they are not asked for."""


def _forgetful(*shape: int) -> torch.Tensor:
    steps = torch.full(shape, 1e-5)
    steps[:, 7::16] = 60.0
    return steps


def test_small_steps_behind_a_large_one():
    """A step that forgets everything leaves the decays of 3% behind it as they are: beside its 2^-3e5 they
    are less than half a unit of a running sum."""
    with patch.dict(ssd_cases.STEPS, forgets=_forgetful):
        assert beyond(measure(FORGETS, ours())) == []


@pytest.mark.compiles
def test_lanes_that_add_in_another_order():
    """The last token's own term by the PTX of the scan: behind a sum of 1e6 two orders of adding differ by a
    unit of 1/8, which had made the decay of nothing 2^(1/8)."""
    from lethe.evidence.ssd_cases import described, draw
    from lethe.kernels.ssd.emulate import Emulated

    steps = (0.55, 0.285, 1.2, 0.306, 1.39, 0.387, 187392.0, 186368.0, 1.03, 0.91, 113664.0)
    case = replace(FORGETS, length=len(steps), heads=1, io="bf16", initial=False)
    with patch.dict(ssd_cases.STEPS, forgets=lambda *shape: torch.tensor(steps).view(shape)):
        tensors = draw(case).tensors | {"A": torch.tensor([-1.6487])}
    final = Emulated(described(case), 90).run("SSD", tensors)["final_states"][0, 0].double()
    x, B = tensors["x"][0, -1, 0].double(), tensors["B"][0, -1, 0].double()
    term = steps[-1] * x[:, None] * B
    # One operand is rounded to bfloat16, half a unit of 2^-8; the other terms are below 1e-4 of this one.
    assert ((final - term).abs() <= 2.0**-8 * term.abs() + 1e-4 * term.abs().max()).all()
