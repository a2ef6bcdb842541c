"""The cases and the metrics themselves: an honest engine passes, each planted fault is seen."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from lethe.evidence.ssd_accuracy import Error, beyond, error, measure
from lethe.evidence.ssd_cases import SMALL
from tests.kernels.ssd import standin

BY_NAME = {case.name: case for case in SMALL}


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.id)
def test_an_honest_engine_passes(case):
    """Every case is passable at the precision of the io dtype."""
    assert beyond(measure(case, standin.ssd)) == []


@pytest.mark.parametrize("fault", list(standin.FAULTS))
def test_a_planted_fault_is_seen(fault):
    case = BY_NAME[standin.FAULTS[fault]]
    assert beyond(measure(case, partial(standin.ssd, fault=fault))), fault


def test_metrics_of_a_known_error():
    exact = torch.tensor([3.0, -4.0], dtype=torch.float64)
    e = error(torch.tensor([3.0, -3.5]), exact)
    assert e.rms == pytest.approx(0.1) and e.peak == pytest.approx(0.125)
    assert not e.passed and Error(0.0099, 0.0149).passed and not Error(0.0099, 0.015).passed


@pytest.mark.parametrize(
    "got", [None, torch.zeros(3), torch.tensor([math.nan, 1.0]), torch.tensor([math.inf, 1.0])]
)
def test_what_is_missing_or_not_finite_is_wrong(got):
    assert error(got, torch.ones(2, dtype=torch.float64)).rms == math.inf


def test_zero_must_be_zero_unless_terms_cancel():
    zero = torch.zeros(2, dtype=torch.float64)
    assert error(torch.zeros(2), zero).passed
    assert error(torch.tensor([0.0, 1e-30]), zero).peak == math.inf
    assert error(torch.tensor([0.0, 1e-3]), zero, terms=1.0).passed
    assert not error(torch.tensor([0.0, 2e-2]), zero, terms=1.0).passed
