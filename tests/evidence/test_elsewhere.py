"""A record names the machine that measured, not the one that writes it down."""

from __future__ import annotations

import json

import pytest

from lethe.evidence import campaign, elsewhere
from lethe.provenance import load, stale

THERE = {
    "device": {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"},
    "versions": {"torch": "2.11.0", "python": "3.12.3"},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps(THERE))
    return tmp_path


def test_device_and_versions_are_those_of_the_run(folder, tmp_path):
    path = elsewhere.record(
        tmp_path / "m" / "x.json", folder, experiment="x", samples=[{"a": 1}], parameters={},
        script="lethe/evidence/elsewhere.py",
    )  # fmt: skip
    found = load(path)
    assert (found.device.name, found.device.sm_count) == ("NVIDIA H200", 132)
    assert found.versions == THERE["versions"] and stale(found) == []


def test_the_evidence_of_another_machine_is_recorded_as_its_own(folder, tmp_path):
    (folder / "mutants_check.jsonl").write_text("")
    written = campaign.record(folder, "cuda", tmp_path / "m")
    assert [p.relative_to(tmp_path / "m").as_posix() for p in written] == ["h200/mutants_check.json"]


def test_a_run_notes_its_machine(tmp_path):
    plan = campaign.Plan(tmp_path / "out", limit=0)
    assert list(campaign.execute(plan, ("mutants_check",)))
    assert elsewhere.device(tmp_path / "out").slug == "cpu"


def test_without_the_note_nothing_is_recorded(tmp_path):
    with pytest.raises(OSError, match=elsewhere.MACHINE):
        campaign.record(tmp_path, "cpu", tmp_path)
