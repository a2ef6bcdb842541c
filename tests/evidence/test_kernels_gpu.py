"""The GPU run: what it leaves is what is recorded, and a step that fails does not take the others along."""

from __future__ import annotations

import json
import sys

import pytest

from lethe.evidence import kernels_gpu
from lethe.provenance import load, stale

DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"}


@pytest.fixture
def left(tmp_path):
    """What a run that was cut short leaves: device, tests and two timed cases."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "device.json").write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11.0"}}))
    (folder / "tests.json").write_text(json.dumps({"status": 0, "seconds": 1.0}))
    (folder / "speed.jsonl").write_text('{"suite": "scan"}\n{"suite": "block"}\n')
    return folder


def test_a_record_names_the_device_that_measured(left, tmp_path):
    written = kernels_gpu.record(left, tmp_path)
    assert [p.name for p in written] == ["mamba3_gpu.json", "mamba3_speed.json"]
    assert all(p.parent.name == "h200" for p in written)
    speed = load(written[1])
    assert [s["suite"] for s in speed.samples] == ["scan", "block"]
    assert speed.versions == {"torch": "2.11.0"} and speed.device.sm_count == 132
    assert "lethe/kernels/mamba3/scan_forward.py" in speed.sources and stale(speed) == []
    assert load(written[0]).samples["tests"]["status"] == 0


def test_controls_that_were_judged_alone_are_recorded_alone(left, tmp_path):
    from tests.paper.lines import line

    (left / "tests.json").unlink()
    (left / "speed.jsonl").unlink()
    (left / "controls.jsonl").write_text(json.dumps(line(0)) + "\n")
    written = kernels_gpu.record(left, tmp_path)
    assert [p.name for p in written] == ["controls_audit.json"]
    assert [sample["id"] for sample in load(written[0]).samples] == [line(0)["id"]]


def test_a_failing_step_leaves_its_error(tmp_path):
    def fails():
        raise RuntimeError("no device")

    kernels_gpu._step(tmp_path, "speed", fails)
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["error"] == "RuntimeError: no device" and found["seconds"] >= 0


def test_a_command_that_does_not_end_is_stopped():
    found = kernels_gpu._finished([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert found["status"] is None and "not finished" in found["why"]


def test_an_absent_sanitizer_is_a_finding(monkeypatch):
    monkeypatch.setattr(kernels_gpu.shutil, "which", lambda name: "/nowhere/compute-sanitizer")
    assert kernels_gpu.sanitizer(1.0) == {"started": False, "why": "compute-sanitizer is not installed"}


def test_writes_of_one_value_are_told_from_a_race():
    line = "========= Error: Potential WAW hazard detected at __shared__ 0x0 in block (0,0,0) :\n"
    pair = "=========     Write Thread (3, 0, 0) at 0x10\n=========     Write Thread ({}, 0, 0) at 0x10\n"
    report = (
        f"{line}{pair.format(9)}=========     Current Value : 7, Incoming Value : 7\n"
        f"{line}{pair.format(40)}=========     Current Value : 7, Incoming Value : 9\n"
    )
    found = kernels_gpu.hazards(report)
    assert found == {"hazards": 2, "same_value": 1, "kinds": {"WAW": 2}, "same_warp": 1}
    assert kernels_gpu.hazards("5 passed") == {}


def test_the_grid_spans_what_was_promised():
    from lethe.kernels.mamba3.cases import grid

    cases = grid("scan")
    assert {c.batch for c in cases} >= {1, 8} and {c.length for c in cases} >= {512, 16384}
    assert {c.width for c in cases} >= {256, 4096} and len({c.id for c in cases}) == len(cases)


def test_operands_without_data_have_the_shapes_of_real_ones():
    from lethe.kernels.mamba3.cases import Case, operands, traffic

    for suite in ("scan", "block", "siso", "mimo"):
        case = Case(suite, 1, 4, 128, states=16, ranks=2 if suite == "mimo" else 1)
        real, meta = operands(case, "cpu"), operands(case, "meta")
        assert {k: t.shape for k, t in real.items()} == {k: t.shape for k, t in meta.items()}
        moved = traffic(case, real)
        assert moved == traffic(case, meta) and moved["forward"] < moved["backward"]


def test_the_official_scan_is_built_from_all_its_sources(tmp_path):
    from lethe.kernels.mamba3 import baselines

    folder = tmp_path / "csrc" / "selective_scan"
    folder.mkdir(parents=True)
    for name in ("selective_scan.cpp", "selective_scan_fwd_fp32.cu", "selective_scan.h"):
        (folder / name).write_text("")
    one, link = baselines.commands(tmp_path, tmp_path, 90, "nvcc")
    assert len(one) == 2 and all("-gencode=arch=compute_90,code=sm_90" in c for c in one)
    assert sum(part.endswith(".o") for part in link) == 2
