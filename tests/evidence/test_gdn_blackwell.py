"""The record of the sm_100a kernels in the emulator: what it runs, that it goes on where it was cut short."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from lethe import provenance
from lethe.evidence import gdn_blackwell
from lethe.evidence.gdn_precision import MEMBERS, Case


def test_every_member_is_there_and_the_first_ones_are_thorough():
    cases = list(gdn_blackwell.cases())
    assert {c.member for c in cases} == set(MEMBERS)
    assert {(c.member, c.dv) for c in cases[: gdn_blackwell.THOROUGH]} == {
        (member, dv) for member in ("gdn2", "gdn") for dv in (64, 128)
    }
    assert len(gdn_blackwell.schedules(True, 17)) == 20 and len(gdn_blackwell.schedules(False, 17)) == 4


def test_a_run_that_was_cut_short_goes_on_where_it_was(monkeypatch, tmp_path):
    ran, record = [], tmp_path / "gdn_blackwell.json"

    def measure(case, orders, folder):
        ran.append(case)
        if len(ran) == 2:
            raise ValueError("no luck")
        return {"passed": True, "schedules": len(orders), "kernels": []}

    monkeypatch.setattr(gdn_blackwell, "measure", measure)
    arguments = ["--seeds", "1", "--record", str(record)]
    assert gdn_blackwell.main([*arguments, "--cases", "2"]) == 0
    kept = provenance.load(record)
    assert [s["passed"] for s in kept.samples] == [True, False] and not provenance.stale(kept)
    assert kept.samples[1]["error"] == "ValueError: no luck"
    assert gdn_blackwell.main(arguments) == 0
    count = len(list(gdn_blackwell.cases()))
    assert len(ran) == 2 + count - 1 and ran[2] == ran[1]
    assert all(s["passed"] for s in provenance.load(record).samples)
    assert gdn_blackwell.main(["--seeds", "2", "--record", str(record)]) == 0
    assert len(ran) == 2 + count - 1 + count


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cutlass") is None, reason="compiling the kernels needs nvidia-cutlass-dsl")
def test_a_case_is_executed_as_the_backend_launches_it():
    row = gdn_blackwell.measure(Case("deltanet", "none", "silu", 64, "fp16", 100, 1), ["early", 1], None)
    assert row["passed"] and row["schedules"] == 2
    launched = [(k["pass"], k["stage"], k["tmem_columns"]) for k in row["kernels"]]
    assert sorted(launched) == [
        ("backward", "out", 512),
        ("backward", "prep", 256),
        ("backward", "scan", 512),
        ("forward", "forward", 512),
        ("forward", "prep", 256),
    ]
