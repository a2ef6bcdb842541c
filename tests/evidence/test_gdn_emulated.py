"""The record of the native kernels in the emulator: its cases and rows; one case executed with the DSL."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from lethe.evidence import gdn_emulated
from lethe.evidence.gdn_precision import MEMBERS, Case
from lethe.provenance import load


def test_every_member_is_executed_with_a_ragged_chunk():
    cases = list(gdn_emulated.cases())
    assert {c.member for c in cases} == set(MEMBERS)
    assert {(c.io, c.dv) for c in cases} >= {("fp16", 128), ("bf16", 64)}
    assert all(c.length > 128 and c.length % 64 for c in cases)
    assert len(gdn_emulated.schedules(True, 20)) == 23 and len(gdn_emulated.schedules(False, 20)) == 5


def test_a_case_that_fails_is_a_row_with_its_error(monkeypatch, tmp_path):
    def measure(case, orders, folder):
        if case.member == "gla":
            raise RuntimeError("no luck")
        return {"passed": True}

    monkeypatch.setattr(gdn_emulated, "measure", measure)
    monkeypatch.setattr(gdn_emulated, "RECORD", tmp_path / "gdn_emulated.json")
    assert gdn_emulated.main(["--seeds", "1"]) == 0
    record = load(tmp_path / "gdn_emulated.json")
    assert {r["member"]: r.get("error") for r in record.samples if "error" in r} == {
        "gla": "RuntimeError: no luck"
    }
    assert "lethe/kernels/gdn/sm90/out.py" in record.sources


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
def test_a_case_is_right_and_says_what_was_launched():
    row = gdn_emulated.measure(Case("gdn2", "unit", "silu", 128, "fp16", 100, 1), ["early", 1], None)
    assert row["passed"] and row["differ"] == []
    launched = [(k["pass"], k["stage"]) for k in row["kernels"]]
    assert launched == [
        ("forward", "prep"),
        ("forward", "forward"),
        ("backward", "prep"),
        ("backward", "scan"),
        ("backward", "out"),
    ]
