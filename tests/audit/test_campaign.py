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
from lethe.audit import (
    campaign,
    campaign_record,
    campaign_summary,
    ledger,
    lines,
    machine,
    measured,
    statics,
    together,
)
from lethe.audit.corpora import CorpusError, ListedCorpus, stratified
from lethe.audit.pool import JudgeSettings
from lethe.audit.progress import quiet
from lethe.audit.run import Selection
from lethe.verifier.verdict import Status
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
    assert both[:3] == ["dlblas_accepted", "dlblas_rejected", "house"]
    assert "dlblas_stack" not in both and "dlblas_rejected_rest" not in both
    with pytest.raises(ValueError, match="unknown step 'sakana'; the steps are dlblas_accepted"):
        campaign.steps_of(campaign.Plan(tmp_path), ["sakana"])
    with pytest.raises(CorpusError, match="needs path and problems"):
        campaign.Plan(tmp_path).open("dlblas")


def test_the_rest_continues_the_file_of_its_sample(tmp_path):
    small = replace(campaign.STEPS[0], limit=6)
    p = plan(tmp_path)
    campaign._audit(p, [small], [ledger.Share("sample")])
    file = tmp_path / "dlblas_accepted.jsonl"
    first = [line["id"] for line in lines.read(file)]
    accepted = [r for r in fake_corpus(24).rows() if r.accepted]
    assert sorted(first) == sorted(r.id for r in stratified(accepted)[:6])
    (rest,) = (s for s in campaign.STEPS if s.name == "dlblas_accepted_rest")
    share = ledger.Share("rest")
    campaign._audit(p, [rest], [share])
    assert (share.rows, share.complete) == (len(accepted) - 6, True)
    assert [line["id"] for line in lines.read(file)][:6] == first


def test_a_step_is_entered_in_the_ledger_and_shards_are_merged_when_recorded(tmp_path):
    for shard in (1, 2):
        done = list(campaign.execute(plan(tmp_path, shard=shard, shards=2), ["dlblas_accepted"]))
        assert [s.step for s in done] == ["dlblas_accepted"] and done[0].complete
    entries = [e for f in campaign_record.shards(tmp_path, "steps") for e in ledger.read(f)]
    assert sum(e.rows for e in entries) == 16
    found = {p.stem: provenance.load(p) for p in campaign_record.record(tmp_path, "cpu", tmp_path / "m")}
    assert set(found) == {"dlblas_accepted_audit", "audit_cost"}
    assert len(found["dlblas_accepted_audit"].samples) == 16
    assert len(found["audit_cost"].parameters["steps"]) == 2
    assert "source" not in json.dumps(found["dlblas_accepted_audit"].samples[0]["verdict"])
    said = campaign_summary.told(tmp_path)
    assert said[0] == "dlblas_accepted: 16 rows (judged 16), 4 convicted, 4 in the floor"
    assert said[1].startswith("dlblas_accepted: 16 in ") and "an hour" in said[1]
    assert "CMP-01" in said[2] and len(said) == 3
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
    (share,) = campaign.execute(plan(tmp_path), ["dlblas_accepted"])
    after = [line["id"] for line in lines.read(file)]
    assert after[: len(before)] == before and len(set(after)) == len(after) == 16
    assert share.rows == 16 - len(before)


def test_steps_that_judge_alike_share_a_pool_and_keep_their_order(tmp_path, monkeypatch):
    wanted = ["dlblas_accepted", "dlblas_rejected", "dlblas_paper"]
    steps = campaign.steps_of(plan(tmp_path), wanted)
    assert [[s.name for s in g] for g in campaign.groups(plan(tmp_path), steps)] == [wanted[:2], wanted[2:]]
    monkeypatch.setattr(FakePlan, "source", SLOW)
    shares = list(campaign.execute(plan(tmp_path, workers=2), wanted[:2]))
    assert [(s.step, s.rows, s.complete) for s in shares] == [(wanted[0], 16, True), (wanted[1], 8, True)]
    held = [{line["id"] for line in lines.read(tmp_path / f"{name}.jsonl")} for name in wanted[:2]]
    accepted = {r.id for r in fake_corpus(24).rows() if r.accepted}
    assert held[0] == accepted and len(held[1]) == 8 and not held[1] & accepted
    entries = ledger.read(tmp_path / "steps.jsonl")
    assert [e.rows for e in entries] == [16, 8] and entries[0].wall > entries[1].wall > 0


def test_rows_without_a_kernel_cost_no_judge(tmp_path):
    file = tmp_path / "lines.jsonl"
    rows = [replace(row(i), language=language) for i, language in (("t", "torch_only"), ("k", "triton"))]
    share = ledger.Share("s")
    parts = [together.Part(share, ListedCorpus("fake", rows), file, Selection())]
    together.run(parts, JudgeSettings(factory=JUDGE), 0, quiet(), statics.decided)
    found = {line["id"]: line["verdict"]["status"] for line in lines.read(file)}
    assert found == {"t": "no_custom_kernel", "k": "judged"} and share.rows == 1 and share.complete
    together.run(parts, JudgeSettings(factory=JUDGE), 0, quiet(), statics.decided)
    assert len(list(lines.read(file))) == 2


def test_cupy_kernels_are_judged_only_where_cupy_is(monkeypatch):
    made = replace(row("r"), language="cuda_cupy")
    monkeypatch.setattr(statics, "find_spec", lambda name: None)
    verdict = statics.decided(made)
    assert verdict is not None and verdict.status is Status.NOT_AUDITABLE and "CuPy" in verdict.message
    monkeypatch.setattr(statics, "find_spec", lambda name: object())
    assert statics.decided(made) is None and statics.decided(row("r")) is None


def test_a_record_names_the_machine_that_ran_and_not_the_one_that_wrote_it(tmp_path):
    list(campaign.execute(plan(tmp_path), ["dlblas_accepted"]))
    there = {"device": {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132}, "versions": {"torch": "9.9"}}
    (tmp_path / machine.FILE).write_text(json.dumps(there))
    paths = campaign_record.record(tmp_path, "cuda", tmp_path / "m")
    found = provenance.load(paths[0])
    assert paths[0].parent.name == "h200" and found.versions == {"torch": "9.9"}
    assert found.device.sm_count == 132
    machine.note(tmp_path, "cpu")
    assert machine.device(tmp_path, "cpu").kind == "cpu"


def test_summary_of_a_folder_without_a_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert campaign.main(["summary", "--out", str(tmp_path / "gone")]) == 2
    assert "gone holds no audit; give the folder of a run with --out" in capsys.readouterr().err
