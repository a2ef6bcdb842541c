"""mamba-ssm's own Triton kernels on the same cases: a second engine, written by others, that must agree."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from lethe.evidence import ssd_official
from lethe.evidence.ssd_accuracy import Engine, beyond, measure
from lethe.evidence.ssd_cases import SMALL
from lethe.kernels.mamba3.official import OfficialMissing

BY_NAME = {case.name: case for case in SMALL}


@cache
def engine() -> Engine:
    if importlib.util.find_spec("einops") is None:
        pytest.skip("the official kernels use einops")
    try:
        return ssd_official.engine("", Path(tempfile.mkdtemp()))
    except OfficialMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["everything", "strong rate", "clamp edges"])
def test_it_passes(name):
    assert beyond(measure(BY_NAME[name], engine())) == []


@pytest.mark.slow
def test_its_softplus_is_zero_below_minus_seventeen():
    """It computes log(1 + e^x) in float32, where 1 + e^-18 is 1: the whole output is lost."""
    errors = measure(BY_NAME["softplus negative tail"], engine())
    assert errors["y"].rms == 1.0 and errors["dx"].rms == 1.0


def test_what_it_has_no_argument_for_is_declined():
    for name in ("cut", "cut from zero states", "checkpoints bfloat16"):
        with pytest.raises(ssd_official.Declined, match="mamba-ssm has no"):
            measure(BY_NAME[name], engine())


def test_tokens_know_their_sequence():
    cuts = torch.tensor([0, 0, 2, 2, 5], dtype=torch.int32)
    found = ssd_official._indices(cuts, 5)
    assert found.tolist() == [[1, 1, 3, 3, 3]] and found.dtype == torch.int32
