"""Which process a gate asks, and what of one gate another may not see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lethe.verifier.docket import Docket
from lethe.verifier.gates import ord02
from lethe.verifier.problem import Candidate, load_problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Settings
from lethe.verifier.sheet import Sheet
from lethe.verifier.structure import flatten
from lethe.verifier.trial import Trial
from tests.verifier.problem_sources import rows

STUCK = """
import torch
import torch.nn as nn

CALLS = 0


class ModelNew(nn.Module):
    def forward(self, x):
        global CALLS
        CALLS += 1
        if CALLS > {good}:
            raise RuntimeError("{says}")
        return x * 2
"""


@pytest.fixture(scope="module")
def server() -> Iterator[SuspectServer]:
    torch.set_num_threads(1)
    with SuspectServer() as s:
        yield s


@pytest.fixture
def trial_of(server: SuspectServer, tmp_path):
    opened: list[Trial] = []

    def make(source: str) -> Trial:
        docket = Docket(load_problem(rows("torch.randn(6, 8)", "x * 2")), Settings(executor="cpu"))
        opened.append(Trial(docket, Candidate("stuck", source, "python"), server, docket.settings, tmp_path))
        return opened[-1]

    yield make
    for trial in opened:
        trial.close()


@pytest.mark.parametrize(
    "says", ["CUDA error: operation not permitted when stream is capturing", "the capture was invalidated"]
)
def test_a_capture_that_fails_is_not_charged_and_its_process_not_asked_again(trial_of, says: str) -> None:
    """Its context is in error: from the failed capture on every call of that process raises."""
    trial = trial_of(STUCK.format(good=2, says=says))
    case, sheet = trial.docket.case("normal", 0), Sheet("ORD-02")
    first = flatten(trial.run(case)[0].outputs)[0]
    ord02._streams_and_graphs(trial, case, first, sheet)
    assert not sheet.findings and not sheet.stopped and set(sheet.skipped) == {"graph"}
    other = trial.docket.case("normal", 1)
    assert torch.equal(trial.run(other)[0].outputs, 2 * other.inputs[0])
