"""The GPU run of the electrocardiograms: its processes, what they leave, what is recorded; without a GPU."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from lethe.ecg.model import SIZES, parameters
from lethe.ecg.ptbxl import load
from lethe.ecg.synthetic import generate
from lethe.evidence import ecg_gpu, ecg_gpu_work, elsewhere
from lethe.paper import ecg_tables
from lethe.provenance import load as load_record
from lethe.provenance import stale

DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("data"), 20)


@pytest.fixture
def left(tmp_path):
    """What a run leaves: the device, a run of the excerpt, an error."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11.0"}}))
    (folder / "excerpt-mamba-seed0.json").write_text('{"kind": "run", "model": "mamba"}')
    (folder / "paper-fp32.json").write_text('{"kind": "error", "error": "out of memory"}')
    return folder


def test_a_record_names_the_device_that_measured(left, tmp_path):
    written = ecg_gpu.record(left, tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in written] == [
        "h200/ecg_excerpt.json",
        "h200/ecg_paper.json",
    ]
    for m in map(load_record, written):
        assert m.versions == {"torch": "2.11.0"} and m.device.sm_count == 132 and stale(m) == []
        assert {"lethe/ecg/step.py", "lethe/kernels/mamba3/scan.py", "lethe/evidence/ecg_gpu_work.py"} <= set(
            m.sources
        )


def test_the_baseline_is_trained_and_its_record_is_a_table(data, tmp_path):
    """The one model that needs no kernels, through the process that trains it on a GPU."""
    ask = [
        "excerpt",
        "--model",
        "resnet",
        "--out",
        str(tmp_path),
        "--data",
        str(data),
        "--seconds",
        "60",
        "--dry",
    ]
    assert ecg_gpu_work.main(ask) == 0
    assert {p.name for p in tmp_path.glob("*.json")} == {
        "excerpt-records.json", "excerpt-resnet-seed0.json", "excerpt-resnet-search-0.002-0.1.json",
    }  # fmt: skip
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {}}))
    record = load_record(ecg_gpu.record(tmp_path, tmp_path / "measured")[0])
    about, records = ecg_tables.about(record), load(data)
    assert about["test_labels"] == records.labels[records.fold([10])].astype(int).tolist()
    assert about["generated"] and about["train"] == 16
    (run,) = ecg_tables.runs(record)["resnet"]
    assert len(run["test_scores"]) == 2 and run["lr"] == 2e-3 and run["non_finite"] == 0
    assert ecg_tables.excerpt_table(record, draws=5)["model"].tolist() == ["ResNet1D"]


def test_what_fails_leaves_its_error(tmp_path):
    ask = [
        "steps",
        "--result",
        str(tmp_path / "paper.json"),
        "--data",
        str(tmp_path / "gone"),
        "--steps",
        "1",
    ]
    with pytest.raises(ValueError, match="does not exist"):
        ecg_gpu_work.main([*ask, "--seconds", "5"])
    row = json.loads((tmp_path / "paper.json").read_text())
    assert row["kind"] == "error" and "does not exist" in row["error"]


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    log = tmp_path / "log"
    log.write_text("the last line\n")
    child = subprocess.Popen(["sleep", "600"])
    assert ecg_gpu._finish(child, log, time.monotonic()) != 0
    assert child.poll() is not None


def test_a_graph_that_cannot_be_captured_costs_its_process_alone(tmp_path, monkeypatch):
    """A model whose process fails with a graph is asked again without one; the others go on."""
    asked = []

    def child(log, ask, end, processes=1, dry=False):
        asked.append((ask[2], "--graph" in ask))
        return 1 if ask[2] == "mamba3" and "--graph" in ask else 0

    monkeypatch.setattr(ecg_gpu, "_child", child)
    ecg_gpu._excerpt(tmp_path, tmp_path, time.monotonic() + 60, 1, dry=False)
    assert asked == [("mamba", True), ("mamba3", True), ("mamba3", False), ("resnet", True)]


def test_processes_double_up_to_the_devices(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(ecg_gpu, "_together", lambda logs, *a: asked.extend(log.stem for log in logs))
    monkeypatch.setattr(
        ecg_gpu, "_child", lambda log, *a, processes=1, dry=False: asked.append((log.stem, processes))
    )
    ecg_gpu._processes(tmp_path, tmp_path, time.monotonic() + 60, 4, dry=False)
    assert asked == [
        "processes-1-seed0", "processes-1-seed1", ("processes-2-seed0", 2), ("processes-4-seed0", 4),
    ]  # fmt: skip


def test_one_gpu_is_no_reason_to_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(ecg_gpu, "_devices", lambda: 1)
    monkeypatch.setattr(elsewhere, "note", lambda *a: None)
    ecg_gpu.run(tmp_path, tmp_path, 1.0, ["processes"])
    assert json.loads((tmp_path / "processes.json").read_text()) == {"why": "this machine has one GPU"}


def test_models_are_of_one_size():
    sizes = [parameters(SIZES[name]) for name in ecg_gpu_work.MODELS]
    assert max(sizes) < 1.05 * min(sizes)


def test_mistakes_are_one_sentence(tmp_path, capsys):
    assert ecg_gpu.main(["record", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
