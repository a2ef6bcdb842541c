"""What bounds a kernel: the rule, and the table with a record and without one."""

from __future__ import annotations

import pytest

from lethe.paper import gdn_bounds_tables as bounds
from lethe.paper.gdn_speed_tables import MAIN
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Device, Measurement


def test_the_design_says_how_long_the_tensor_cores_are_busy():
    found = bounds.tensor_us(132, 1024)
    assert set(found) == {"prep", "scan", "out"} and found["scan"] == 14.0
    assert found["out"] == pytest.approx(4736 * 1024 / 132 / 1755)


@pytest.mark.parametrize(
    ("times", "share", "said"),
    [
        ((100.0, 60.0, 40.0, 0.9), 0.0, "both in turn"),
        ((80.0, 60.0, 40.0, None), 0.5, "processors"),
        ((60.0, 60.0, 40.0, 0.7), 1.0, "tensor cores"),
        ((60.0, 60.0, 40.0, 0.2), 1.0, "latency and issue"),
        ((50.0, 20.0, 48.0, 0.9), 0.9, "memory"),
        ((120.0, 60.0, 40.0, None), 0.0, "both in turn"),
        ((50.0, 60.0, 40.0, None), 1.0, "processors"),
    ],
)
def test_the_longer_time_bounds_if_the_shorter_one_hides_behind_it(times, share, said):
    measured, near, moved, tensor = times
    assert bounds.hidden(measured, near, moved) == pytest.approx(share)
    assert bounds.verdict(measured, near, moved, tensor) == said


def row(member: str) -> dict:
    us = {
        "prep.measured": 90.0,
        "prep.near": 50.0,
        "prep.bytes": 80.0,
        "scan.measured": 48.0,
        "scan.near": 20.0,
    }
    us |= {"out.measured": 160.0, "out.near": 90.0, "out.bytes": 85.0}
    floor = {"prep": 56.0, "scan": 44.0, "out": 80.0}
    return {"kind": "bounds", "member": member, "median_us": us, "floor_us": floor, "chunks": 1024}


def test_a_line_for_each_kernel_and_member():
    failed = {"kind": "bounds", "member": "kda", "error": "no luck"}
    device = Device("d", "cuda", sm_count=132)
    record = Measurement("e", "2026-01-01", device, {}, "", {}, [row("gdn2"), row("gdn"), failed], "s")
    table = bounds.bounds(record)
    assert list(table["kernel"]) == ["prep", "scan", "out"] * 2
    assert list(table["bound by"]) == ["memory", "memory", "both in turn"] * 2
    assert table["bytes only (µs)"][1] == "44.0 (floor)" and table["hidden"][2] == "18 %"
    assert list(table["tensor cores"])[2:4] == ["23 %", "–"]
    assert bounds.parts(record, "scan") == (48.0, 20.0, 44.0)
    assert bounds.bounds(None).iloc[0, 0] == MISSING and bounds.parts(None, "out") is None


def test_what_misses_the_target_is_named_with_what_one_chunk_takes():
    assert bounds.missed(None) == MISSING
    device, floor = Device("d", "cuda", sm_count=132), {"prep": 56.0, "scan": 44.0, "out": 78.0}

    def told(backward: float, out: float) -> str:
        us = {"backward": backward, "backward.prep": 60.0, "backward.scan": 50.0, "backward.out": out}
        shapes = [{}, {"length": 16384}, {"batch": 1, "heads": 4, "length": 512}]
        rows = [{"kind": "ours", **MAIN, **s, "median_us": us, "floor_us": floor} for s in shapes]
        return bounds.missed(Measurement("e", "2026-01-01", device, {}, "", {}, rows, "s"))

    assert told(240.0, 120.0) == "The target of 250 µs is met."
    text = told(331.0, 161.0)
    assert "missed by 81: `out` takes 66 more than was predicted, `scan` 1." in text
    assert f"one takes a processor {161 / 63:.1f} µs in `out`, and its bytes {78 / 63:.1f};" in text
    assert text.endswith("161.0 with the launch.")
