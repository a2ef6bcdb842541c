"""The positive control: six rows that load, references that run, a score that hides no shortfall."""

from __future__ import annotations

import json

import pytest

from lethe import provenance
from lethe.audit.corpora import open_corpus
from lethe.evidence import controls
from lethe.verifier import catalog
from lethe.verifier.problem import instantiate
from lethe.verifier.verdict import GateResult, GateStatus, Reason, Status, Verdict


def line(name: str, **changed: GateStatus) -> dict:
    """A line in which every gate passes but those that are named (``CMP_02=...``)."""
    gates = []
    for c in catalog.CONTRACTS:
        status = changed.get(c.identifier.replace("-", "_"), GateStatus.PASS)
        reason = Reason.NO_GRADIENT if status is GateStatus.NOT_APPLICABLE else None
        gates.append(
            GateResult(c.identifier, status, str(c.channel), cases=1, reason=reason, measured={"x": 0.25})
        )
    verdict = Verdict(name, name, "derived", Status.JUDGED, "judged", tuple(gates))
    return {"id": name, "verdict": json.loads(verdict.canonical())}


def test_the_corpus_is_the_six_kernels():
    corpus = open_corpus("controls")
    rows = list(corpus.rows())
    assert [r.id for r in rows] == list(controls.NAMES)
    assert all(
        r.candidate.language == "triton" and "sha256 of the operator's sources" in r.candidate.source
        for r in rows
    )


@pytest.mark.parametrize("name", list(controls.NAMES))
def test_a_reference_runs_and_its_first_output_has_a_gradient(name):
    instance = instantiate(controls.load().get(name).problem)
    found = instance.module(*(t.requires_grad_() for t in instance.draw(0)))
    outputs = found if isinstance(found, list) else [found]
    assert all(t.isfinite().all() for t in outputs)
    assert outputs[0].requires_grad and not any(t.requires_grad for t in outputs[1:])
    assert (len(outputs) > 1) == (name in ("C2", "C3", "C6"))


def test_sizes_are_realistic():
    """Several chunks, the last cut short; channels beyond one tile."""
    from lethe.verifier.problem import sizes_as_written

    for row in controls.load().rows():
        sizes = sizes_as_written(row.problem)
        chunk = next(
            int(s.split("=")[1]) for s in row.candidate.source.splitlines() if s.startswith("CHUNK =")
        )
        assert sizes["length"] > 2 * chunk and sizes["length"] % chunk
        assert sizes["width"] > (16 if row.id in ("C3", "C4") else 32)


def test_a_full_score():
    lines = [line(name) for name in controls.NAMES]
    assert controls.shortfalls(lines) == [] and controls.passed(lines) == 6
    table = controls.gate_table(lines)
    assert list(table.index) == list(catalog.IDS) and (table == "pass").all(axis=None)


def test_what_is_not_a_pass_is_said():
    lines = [line(name) for name in controls.NAMES]
    lines[1] = line("C2", CMP_02=GateStatus.NOT_APPLICABLE)
    lines[3] = line("C4", EXC_01=GateStatus.FAIL)
    assert controls.shortfalls(lines[:5]) == [
        "C6 was not judged",
        "C2: CMP-02 is not_applicable ()",
        "C4 is rejected by EXC-01",
    ]
    assert controls.passed(lines) == 4


def test_a_gate_that_may_not_apply_is_no_shortfall():
    assert controls.passed([line("C1", PRC_02=GateStatus.NOT_APPLICABLE)]) == 1


def test_the_text_changes_with_the_operators(monkeypatch):
    before = controls.load().get("C1").candidate.sha256
    monkeypatch.setattr("lethe.provenance.digest", lambda paths: "changed")
    assert controls.load().get("C1").candidate.sha256 != before


def test_only_a_full_run_is_recorded(monkeypatch, tmp_path):
    judged = [line(name) for name in controls.NAMES]
    monkeypatch.setattr(controls, "merge", lambda files: judged)
    written = provenance.load(controls.record(tmp_path / "controls.jsonl", tmp_path))
    assert controls.passed(written.samples) == 6
    assert any(source.startswith("lethe/kernels/mamba3/") for source in written.sources)
    del judged[2]["verdict"]["gates"][0]
    with pytest.raises(ValueError, match="C3 was not judged on CMP-01"):
        controls.record(tmp_path / "controls.jsonl", tmp_path)
