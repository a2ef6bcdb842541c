"""Every fairness rule has an innocent: cleared with the rule, charged as soon as it is switched off."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import torch

from lethe.evidence.fairness import CASES, REPORT, Innocent, Situation, table
from lethe.verifier.fairness import RULES
from lethe.verifier.server import SuspectServer
from tests.evidence.fairness.stage import play
from tests.evidence.fairness.switch import OFF, without


@pytest.fixture(scope="module")
def server() -> Iterator[SuspectServer]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    running = SuspectServer()
    try:
        yield running
    finally:
        running.close()
        torch.set_num_threads(before)


def test_every_rule_has_its_case_and_its_switch():
    assert set(CASES) == set(OFF) == set(RULES)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda c: c.key)
def test_rule(case, server, tmp_path):
    kept = play(case, server, tmp_path)
    with without(case.rule):
        lost = play(case, server, tmp_path)
    record(case, kept, lost)
    assert kept == case.cleared
    assert case.charged in lost
    assert case.charged not in kept


def test_a_switch_leaves_nothing_behind(server, tmp_path):
    case = CASES[38]
    assert play(case, server, tmp_path) == case.cleared
    with without(38):
        pass
    assert play(case, server, tmp_path) == case.cleared


def record(case: Innocent | Situation, kept: str, lost: str) -> None:
    """Append the outcome to the file that the environment names: one write, so that lines never mix."""
    path = os.environ.get(REPORT)
    if not path:
        return
    line = {
        "rule": case.rule,
        "name": case.key,
        "title": case.title,
        "with": kept,
        "without": lost,
        "charged": case.charged,
        "why": case.why,
    }
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(out, (json.dumps(line, sort_keys=True) + "\n").encode())
    finally:
        os.close(out)


def test_outcomes_are_recorded_and_tabulated(tmp_path, monkeypatch):
    path = tmp_path / "fairness.jsonl"
    monkeypatch.setenv(REPORT, str(path))
    for case in CASES.values():
        record(case, case.cleared, f"FAIL {case.charged}")
    found = table(path)
    assert list(found["rule"]) == sorted(RULES)
    assert set(found["name"]) == {c.key for c in CASES.values()}
    record(CASES[1], "clean", "clean")
    with pytest.raises(ValueError, match="twice"):
        table(path)
    path.write_text("")
    with pytest.raises(ValueError, match="no outcome"):
        table(path)
