"""Tables and the map of the kernels for sm_100a: without a record they say so, with one they show it."""

from __future__ import annotations

from lethe import plotting
from lethe.paper import gdn_blackwell_tables as tables
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Device, Measurement

LAUNCHED = {
    "pass": "backward", "stage": "scan", "variant": "scan_a", "threads": 320, "registers": 136, "spilled": 0,
    "shared": 231984, "tmem_columns": 512, "violations": [], "undecided": [], "instructions": 9,
}  # fmt: skip
CASE = {
    "member": "gdn2", "io": "fp16", "gate": "unit", "dv": 128, "schedules": 21, "differ": [],
    "errors": {"dq": 4e-4}, "bounds": {"dq": 1e-3}, "passed": True, "kernels": [LAUNCHED],
}  # fmt: skip


def record(*samples) -> Measurement:
    return Measurement("e", "2026-01-01", Device("d", "cpu"), {}, "", {}, list(samples), "s")


def test_without_a_record_nothing_is_claimed():
    assert tables.resources(None).iloc[0, 0] == MISSING
    assert tables.most_schedules(None) == tables.lifecycle(None) == MISSING


def test_a_kernel_has_one_row_for_its_gates_and_d_v():
    other = {
        **CASE,
        "dv": 64,
        "kernels": [{**LAUNCHED, "variant": "scan_b", "violations": ["line 3: dealloc"]}],
    }
    table = tables.resources(record(CASE, CASE, other, {**CASE, "error": "Fault: no"}))
    assert list(table["d_v"]) == [128, 64] and list(table["violations"]) == [0, 1]
    assert set(table["columns of tensor memory"]) == {512}


def test_the_sentence_counts_kernels_and_what_was_found():
    bad = {
        **CASE,
        "kernels": [LAUNCHED, {**LAUNCHED, "variant": "prep_a", "violations": ["line 3: dealloc"]}],
    }
    said = tables.lifecycle(record(CASE, bad))
    assert said == "2 compiled kernels, 1 violations, 0 questions left undecided"
    assert tables.most_schedules(record(CASE, {**CASE, "schedules": 4})) == "21"


def test_the_map_draws_every_region_and_the_resident_state_alone_in_black():
    figure = plotting.tensor_memory_map(tables.ALLOCATED, tables.REGIONS, tables.RESIDENT)
    boxes = [p for ax in figure.axes for p in ax.patches if p.get_facecolor()[3]]
    black = [p for p in boxes if p.get_facecolor()[:3] == (0, 0, 0)]
    assert len(boxes) == len(tables.REGIONS) and [p.get_width() for p in black] == [128]
