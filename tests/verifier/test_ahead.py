"""A process that starts before it is needed: it answers, it fails where it is asked, and it never stays."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from lethe.verifier.ahead import Ahead
from lethe.verifier.custody import SuspectError
from lethe.verifier.docket import Docket
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, load_candidate, load_problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Settings
from lethe.verifier.sheet import CandidateStopped
from lethe.verifier.trial import Trial
from lethe.verifier.verdict import Status
from tests.verifier.problem_sources import rows

TWICE = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def forward(self, x):
        return x * 2
"""


class Counted(SuspectServer):
    """Keeps the suspects that it spawned."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned: list = []

    def spawn(self, *args, **named):
        self.spawned.append(super().spawn(*args, **named))
        return self.spawned[-1]


@pytest.fixture(scope="module")
def server():
    with Counted() as s:
        yield s


def trial_of(server: SuspectServer, source: str, folder: Path) -> Trial:
    docket = Docket(load_problem(rows("torch.randn(6, 8)", "x * 2")), Settings(executor="cpu"))
    return Trial(docket, Candidate("k", source, "python"), server, docket.settings, folder)


def test_the_process_that_was_begun_is_the_one_that_answers(server: Counted, tmp_path: Path) -> None:
    trial, before = trial_of(server, TWICE, tmp_path), len(server.spawned)
    trial.begin()
    trial.begin()
    case = trial.docket.case("normal", 0)
    assert torch.equal(trial.run(case)[0].outputs, 2 * case.inputs[0])
    assert len(server.spawned) == before + 1 and trial.isolation
    trial.begin()
    trial.run(trial.docket.case("normal", 1))
    trial.close()
    assert len(server.spawned) == before + 1, "one that runs is not begun again"


def test_a_second_process_begun_early_knows_what_the_first_found_out_since(server, tmp_path: Path) -> None:
    trial = trial_of(server, TWICE, tmp_path)
    trial.second.begin()
    trial.failed_elsewhere = {"width": 8}, frozenset({"normal:0"})
    assert trial.second.failed_elsewhere == trial.failed_elsewhere
    trial.close()


def test_a_source_that_does_not_load_is_told_where_it_is_asked(server: Counted, tmp_path: Path) -> None:
    trial = trial_of(server, "raise RuntimeError('no')", tmp_path)
    trial.begin()
    with pytest.raises(CandidateStopped) as told:
        trial.run(trial.docket.case("normal", 0))
    assert told.value.status is Status.IMPORT_FAILED and trial.isolation
    trial.close()


def test_what_nobody_asked_is_closed(server: Counted, tmp_path: Path) -> None:
    trial = trial_of(server, TWICE, tmp_path)
    trial.begin()
    trial.close()
    with pytest.raises(SuspectError):
        server.spawned[-1].build([], 0)


def test_whatever_ends_a_start_reaches_whoever_takes_it() -> None:
    def start():
        raise ValueError("whatever")

    with pytest.raises(ValueError, match="whatever"):
        Ahead(start).take()


def test_a_start_does_not_wait_for_its_taker() -> None:
    begun = threading.Event()

    def start():
        begun.set()
        return "ready"

    ahead = Ahead(start)
    assert begun.wait(10) and ahead.take() == "ready"


def test_a_reference_that_fails_leaves_no_process(tmp_path: Path) -> None:
    server = Counted()
    with Judge(device="cpu", quick=True, server=server) as judge:
        broken = load_problem(rows("torch.randn(6, 8)", "x.nothing()"))
        assert judge.verify(broken, load_candidate(TWICE)).status is Status.REFERENCE_FAILED
        for suspect in server.spawned:
            with pytest.raises(SuspectError):
                suspect.build([], 0)
