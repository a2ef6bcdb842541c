"""The campaign: its steps, resuming after a signal, shards, and what is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lethe import provenance
from lethe.audit import campaign, campaign_record, ledger, lines, measured
from lethe.audit.corpora import CorpusError, ListedCorpus, stratified
from tests.audit.fakes import row

FAMILIES = ("softmax", "norm", "matmul")
JUDGE = "tests.audit.fakes:judge"
SLOW = "# sleep 0.05\n"


def fake_corpus(rows: int, source: str = "") -> ListedCorpus:
    """Two of three rows accepted, every fourth convicted."""
    made = []
    for i in range(rows):
        text = f"# r{i}\n{source}" + ("# fail EXC-01\n" if i % 4 == 0 else "")
        made.append(row(f"r{i}", text, family=FAMILIES[i % 3], accepted=i % 3 != 2))
    return ListedCorpus("fake", made)


class FakePlan(campaign.Plan):
    rows = 24
    source = ""

    def open(self, name: str) -> ListedCorpus:
        return fake_corpus(self.rows, self.source)


def plan(out: Path, **given: object) -> FakePlan:
    made = FakePlan(out=out, device="cpu", workers=0, judge=JUDGE, quick=True)
    return replace(made, **given)  # type: ignore[arg-type]


def test_the_usual_steps_are_those_of_the_corpora_at_hand(tmp_path):
    alone = [s.name for s in campaign.steps_of(campaign.Plan(tmp_path))]
    assert alone == ["house"]
    both = [s.name for s in campaign.steps_of(campaign.Plan(tmp_path, dlblas=tmp_path, cuda_l1=tmp_path))]
    assert both[:3] == ["house", "dlblas_accepted", "cuda_l1"]
    assert "dlblas_stack" not in both and "dlblas_rejected_rest" not in both
    with pytest.raises(ValueError, match="unknown step 'sakana'; the steps are house"):
        campaign.steps_of(campaign.Plan(tmp_path), ["sakana"])
    with pytest.raises(CorpusError, match="needs path and problems"):
        campaign.Plan(tmp_path).open("dlblas")


def test_the_rest_continues_the_file_of_its_sample(tmp_path):
    small = replace(campaign.STEPS[1], limit=6)
    p = plan(tmp_path)
    campaign._audit(p, small)
    file = tmp_path / "dlblas_accepted.jsonl"
    first = [line["id"] for line in lines.read(file)]
    accepted = [r for r in fake_corpus(24).rows() if r.accepted]
    assert sorted(first) == sorted(r.id for r in stratified(accepted)[:6])
    (rest,) = (s for s in campaign.STEPS if s.name == "dlblas_accepted_rest")
    assert campaign._audit(p, rest) == (len(accepted) - 6, True)
    assert [line["id"] for line in lines.read(file)][:6] == first


def test_a_step_is_entered_in_the_ledger_and_shards_are_merged_when_recorded(tmp_path):
    for shard in (1, 2):
        done = list(campaign.execute(plan(tmp_path, shard=shard, shards=2), ["dlblas_accepted"]))
        assert [e.step for e in done] == ["dlblas_accepted"] and done[0].complete
    entries = [e for f in campaign_record.shards(tmp_path, "steps") for e in ledger.read(f)]
    assert sum(e.rows for e in entries) == 16
    found = {p.stem: provenance.load(p) for p in campaign_record.record(tmp_path, "cpu", tmp_path / "m")}
    assert set(found) == {"dlblas_accepted_audit", "audit_cost"}
    assert len(found["dlblas_accepted_audit"].samples) == 16
    assert len(found["audit_cost"].parameters["steps"]) == 2
    assert "source" not in json.dumps(found["dlblas_accepted_audit"].samples[0]["verdict"])
    recorded = measured.Campaign(tmp_path / "m" / "cpu")
    assert len(recorded.audit("dlblas_accepted")) == 16 and len(recorded.steps()) == 2
    assert recorded.origin("dlblas_accepted_audit").startswith("recorded ")
    assert recorded.origin("house_audit") == measured.NOT_RECORDED


CHILD = """
import sys
from tests.audit.test_campaign import FakePlan, JUDGE, SLOW
from lethe.audit import campaign
FakePlan.source = "# sleep 0.05\\n"
plan = FakePlan(out=__import__("pathlib").Path(sys.argv[1]), device="cpu", workers=1, judge=JUDGE, quick=True)
campaign.stop_on_signals(None)
try:
    list(campaign.execute(plan, ["dlblas_accepted"]))
except campaign.Stopped:
    sys.exit(130)
"""


def test_a_terminated_campaign_keeps_its_rows_and_resumes(tmp_path, monkeypatch):
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    file = tmp_path / "dlblas_accepted.jsonl"
    while child.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 2):
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 130
    before = [line["id"] for line in lines.read(file)]
    assert 2 <= len(before) < 16
    (entry,) = ledger.read(tmp_path / "steps.jsonl")
    assert entry.rows == len(before) and not entry.complete
    monkeypatch.setattr(FakePlan, "source", SLOW)
    (entry,) = campaign.execute(plan(tmp_path), ["dlblas_accepted"])
    after = [line["id"] for line in lines.read(file)]
    assert after[: len(before)] == before and len(set(after)) == len(after) == 16
    assert entry.rows == 16 - len(before)
