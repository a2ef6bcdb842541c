"""The run over the SSD cases without a GPU: cases are data, lines are kept, a record names its machine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch

from lethe.evidence import elsewhere, ssd_accuracy, ssd_check, ssd_controls
from lethe.evidence.ssd_cases import FULL, RATES, SMALL, STEPS, Case, draw
from lethe.evidence.ssd_official import Declined
from tests.evidence.test_ssd_controls import DEVICE, STANDS_FOR_THE_ENGINE
from tests.kernels.ssd import standin

TINY = replace(SMALL[0], name="tiny", length=5)


@pytest.mark.parametrize("cases", [FULL, SMALL], ids=["full", "small"])
def test_ids_are_unique_and_cases_are_json(cases):
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        json.dumps(case.facts(), allow_nan=False)


def test_the_cases_cover_what_the_engine_promises():
    assert {c.chunk for c in FULL} == {32, 64, 128, 256} and {c.states for c in FULL} == {64, 128}
    assert {c.io for c in FULL} == {"bf16", "fp16"} and {c.rate for c in FULL} == set(RATES)
    assert {c.step for c in FULL} == set(STEPS) and {c.D for c in FULL} == {"", "head", "channel"}
    assert {(c.checkpoint, c.reuse) for c in FULL} >= {
        (dtype, reuse) for dtype in ("float32", "bfloat16") for reuse in (True, False)
    }
    assert any(c.cuts and len(set(c.cuts)) < len(c.cuts) for c in FULL), "an empty sequence"
    assert any(c.length == 1 for c in FULL) and any(c.length % c.chunk for c in FULL)
    assert any(c.heads // c.groups % 2 and c.heads > c.groups > 1 for c in FULL), "odd heads in a group"
    assert any(c.gate for c in FULL) and any(not c.gate for c in FULL)


def test_every_stress_has_a_small_form():
    assert {c.name for c in SMALL} >= {c.name for c in FULL if c.chunk == 64 and c.length == 321}


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.id)
def test_a_draw_repeats_and_is_what_the_io_dtype_holds(case):
    first, again = draw(case), draw(case)
    io = torch.bfloat16 if case.io == "bf16" else torch.float16
    for name, t in first.tensors.items():
        assert torch.equal(t, again.tensors[name])
        assert t.dtype == (io if name in ("x", "dt", "B", "C", "z") else torch.float32), name
    if case.initial:
        states = first.tensors["initial_states"]
        assert torch.equal(states, states.to(io).float())


def test_the_edges_of_the_clamp_are_hit():
    call = draw(next(c for c in SMALL if c.name == "clamp edges"))
    for edge in call.case.limit:
        assert bool((call.tensors["dt"] == edge).any())


def test_views_are_views():
    call = draw(next(c for c in SMALL if c.packed))
    assert not any(call.tensors[name].is_contiguous() for name in ("x", "dt", "B", "C"))
    assert call.dy.stride() == (0, 0, 0, 0)


def test_a_wrong_dtype_is_seen():
    def widened(*args, **options):
        return standin.ssd(*args, **options).float()

    assert ssd_accuracy.measure(TINY, standin.ssd)["y"].passed
    assert not ssd_accuracy.measure(TINY, widened)["y"].passed


def test_a_row_tells_errors_exceptions_and_what_is_declined():
    row = ssd_check.measured_row(TINY, standin.ssd, "cpu")
    assert row["passed"] and set(row["errors"]) == {"y", "dx", "ddt", "dA", "dB", "dC"}

    def raises(*args, **options):
        raise RuntimeError("no luck\nand a long story")

    def declines(*args, **options):
        raise Declined("not for this")

    assert ssd_check.measured_row(TINY, raises, "cpu") == {"passed": False, "error": "RuntimeError: no luck"}
    assert ssd_check.measured_row(TINY, declines, "cpu") == {"passed": False, "declined": "not for this"}


@pytest.fixture
def two_cases(monkeypatch):
    cases = (TINY, replace(TINY, name="next"))
    monkeypatch.setattr(ssd_check, "SMALL", cases)
    monkeypatch.setattr(ssd_check, "_engine", lambda *_: standin.ssd)
    monkeypatch.setattr(ssd_check, "interpret", lambda: None)
    return cases


def test_a_second_call_resumes(two_cases, tmp_path):
    ssd_check._write(tmp_path, ssd_check.OURS, 3, two_cases[0], {"passed": True})
    assert ssd_check.serve(tmp_path, ssd_check.OURS, 0, 1, 60.0, None, True) == 0
    assert [row["id"] for row in ssd_check.left(tmp_path)] == [two_cases[1].id, two_cases[0].id]


def test_a_process_that_dies_is_a_line_and_the_next_goes_on(two_cases, tmp_path, monkeypatch):
    """The first process dies before it writes; the second measures what is left."""
    import subprocess

    started = []

    def python(module, *arguments):
        started.append(arguments)
        if len(started) == 1:
            return subprocess.Popen([sys.executable, "-c", "import os; os._exit(9)"])
        ssd_check.serve(tmp_path, ssd_check.OURS, 0, 1, 60.0, None, True)
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(ssd_check, "_python", python)
    assert ssd_check.run(tmp_path, 60.0, None, 1, dry=True) == 1
    rows = ssd_check.left(tmp_path)
    assert rows[0]["error"] == "the process died: 9" and rows[1]["passed"] and len(started) == 2


def test_a_record_names_the_device_that_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(ssd_controls, "SOURCE", STANDS_FOR_THE_ENGINE)
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11"}}))
    for case in (FULL[1], FULL[0]):
        ssd_check._write(tmp_path, ssd_check.OURS, 0, case, {"passed": True, "worst": [0.001, None]})
    (written,) = ssd_check.record(tmp_path, tmp_path / "measured")
    assert written.relative_to(tmp_path / "measured").as_posix() == "h200/ssd_accuracy.json"
    found = json.loads(written.read_text())
    assert [s["id"] for s in found["samples"]] == [FULL[0].id, FULL[1].id]
    assert {"lethe/evidence/ssd_cases.py", "lethe/references/ssd.py"} <= set(found["sources"])


def test_without_the_engine_one_sentence(monkeypatch, tmp_path, capsys):
    def absent():
        raise ModuleNotFoundError("No module named 'lethe.kernels.ssd'")

    monkeypatch.setattr(ssd_check, "ours", absent)
    assert ssd_check.main(["run", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().out == "the engine is absent: No module named 'lethe.kernels.ssd'\n"


def test_an_open_limit_is_null():
    assert "limit" not in Case("x").facts()
    assert Case("x", limit=(0.5, float("inf"))).facts()["limit"] == [0.5, None]
