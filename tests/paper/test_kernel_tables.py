"""Tables of the kernels' chapters: without a record they say so, with one they show its numbers."""

from __future__ import annotations

import pytest

from lethe import plotting
from lethe.evidence import controls
from lethe.paper import kernel_tables
from lethe.provenance import Device, Measurement


def record(samples, **parameters) -> Measurement:
    return Measurement("e", "2026-01-01", Device("d", "cuda"), {}, "", parameters, samples, "s")


NAMES = {
    "auto": "ours auto",
    "serial": "ours serial",
    "cuda": "selective_scan CUDA",
}


def timed(suite: str, length: int, **medians: tuple[float, float]) -> dict:
    """A row of the bench; `medians` are forward and backward microseconds by contestant."""
    times = {
        NAMES[name]: {
            "forward_us": {"median": f, "spread": 0.1}, "both_us": {"median": f + b, "spread": 0.1},
            "backward_us": b,
        }
        for name, (f, b) in medians.items()
    }  # fmt: skip
    return {
        "suite": suite, "batch": 1, "length": length, "width": 256, "states": 16, "ranks": 1,
        "plan": {"mode": "chunked"}, "traffic_bytes": {"forward": 43_000_000, "backward": 86_000_000},
        "times": times,
    }  # fmt: skip


ROWS = [
    timed("scan", 512, auto=(20.0, 40.0), serial=(80.0, 40.0), cuda=(10.0, 60.0)),
    timed("scan", 2048, auto=(20.0, 40.0), serial=(20.0, 40.0), cuda=(30.0, 20.0)),
]


def test_without_records_everything_says_so():
    tables = [
        kernel_tables.control_table({"cpu": None, "gpu": None}),
        kernel_tables.measured_table(None),
        kernel_tables.matrix(None),
        kernel_tables.columns_by_version([], "sm_100"),
        kernel_tables.loading_by_target([]),
        kernel_tables.agreement_table([]),
        kernel_tables.speed_table([], "scan", "selective_scan CUDA"),
    ]
    assert all(len(t) == 1 and t.iloc[0, 0] == kernel_tables.MISSING for t in tables)
    assert kernel_tables.selector_gain([]) is None
    assert kernel_tables.ratio_range([], "selective_scan CUDA", "forward") == kernel_tables.MISSING
    assert kernel_tables.control_score(None) == kernel_tables.MISSING
    assert kernel_tables.speed_rows(None) == kernel_tables.launched(None) == []
    assert kernel_tables.worst_spill([]) == kernel_tables.MISSING


def test_speeds_and_the_distance_to_the_roofline():
    table = kernel_tables.speed_table(ROWS, "scan", "selective_scan CUDA")
    assert list(table["× baseline"]) == ["0.50", "1.50"] and list(table["× baseline "]) == ["1.50", "0.50"]
    assert list(table["× roofline"]) == ["2.0", "2.0"] and list(table["× roofline "]) == ["2.0", "2.0"]
    assert kernel_tables.ratio_range(ROWS, "selective_scan CUDA", "forward") == "0.50 to 1.50"
    assert kernel_tables.selector_gain(ROWS) == pytest.approx(2.0)


def test_kinds_of_baselines_share_no_name():
    assert set(kernel_tables.SUITES) == {s for suites in kernel_tables.KINDS.values() for s in suites}
    names = [n for suites in kernel_tables.KINDS.values() for n in {m for ms in suites.values() for m in ms}]
    assert len(names) == len(set(names))


def test_columns_are_marked_where_they_do_not_load():
    common = {
        "triton": "3.9.0", "target": "sm_100", "num_warps": 4, "maxnreg": None, "registers": 4,
        "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 2048, "trap": False,
    }  # fmt: skip
    refused = {
        **common,
        "num_stages": 2,
        "tmem_columns": 576,
        "load": "out of resource: tensor memory",
        "trap": True,
    }
    rows = [
        {**common, "num_stages": 1, "tmem_columns": 256, "load": "loads"},
        {**common, "num_stages": 1, "tmem_columns": 256, "load": "loads", "maxnreg": 128},
        refused,
        {**refused, "triton": "3.10.0", "maxnreg": 128, "tmem_columns": 512, "load": "loads"},
        {**refused, "triton": "3.10.0"},
        {**refused, "triton": "3.10.0", "maxnreg": 256, "error": "the compiler failed"},
    ]
    table = kernel_tables.columns_by_version(rows, "sm_100")
    assert list(table.columns) == ["stages", "warps", "Triton 3.9.0", "Triton 3.10.0"]
    assert table.iloc[0].tolist() == [1, 4, "256", kernel_tables.MISSING]
    assert table.iloc[1].tolist() == [2, 4, "576 ✗", "512 or 576 ✗"]
    first, second = kernel_tables.loading_by_target(rows).to_dict("records")
    assert first["columns"] == "256 to 576" and first["refused: columns"] == first["a single trap"] == 1
    assert second["compiled"] == "2 of 5" and second["shared, most (KiB)"] == "2"
    assert first["refused: shared"] == 0
    agreed = kernel_tables.agreement_table(rows)
    assert agreed["both refuse"].tolist() == [1, 1] and agreed["both accept"].tolist() == [2, 1]


def test_the_matrix_takes_the_worst():
    row = {
        "kernel": "C1", "function": "f", "target": "sm_80", "num_warps": 4, "registers": 40, "spill_bytes": 0,
        "shared_bytes": 128, "tmem_columns": 0, "exceeds": [],
    }  # fmt: skip
    worse = row | {"target": "sm_90", "registers": 90, "spill_bytes": 8, "exceeds": ["f needs too much"]}
    launched = row | {"num_warps": 8}
    matrix = record([row, worse, launched], launched={"f": 8})
    table = kernel_tables.matrix(matrix)
    assert table["warps"].tolist() == ["4", "8", "as launched"] and table["fits"][2] == "everywhere"
    assert table["registers"][0] == 90 and table["spills (B)"][0] == 8
    assert table["fits"][0] == "f needs too much"
    assert kernel_tables.launched(matrix) == [launched]
    assert kernel_tables.worst_spill([row, worse]) == "8 (C1's f with 4 warps on sm_90)"
    assert kernel_tables.worst_spill([row]) == "none"
    texts = [
        t.get_text() for t in plotting.compile_matrix([row, row | {"registers": 30}, worse]).axes[0].texts
    ]
    assert texts == ["40", "90  (8 B spilt)"]


def test_both_devices_share_a_cell(monkeypatch):
    import pandas as pd

    statuses = pd.DataFrame({name: ["pass"] for name in controls.NAMES}, index=["CMP-01"])
    monkeypatch.setattr(controls, "gate_table", lambda lines: statuses)
    table = kernel_tables.control_table({"cpu": record([]), "gpu": record([])})
    assert table["C1"][0] == "pass / pass"
    assert kernel_tables.control_table({"cpu": None, "gpu": record([])})["C1"][0] == "pass"


def test_figures_draw_without_and_with_rows():
    assert plotting.compile_matrix([]).axes
    assert plotting.tensor_memory([], 512).axes
    row = {"triton": "3.9.0", "num_warps": 8, "num_stages": 2, "tmem_columns": 576}
    assert plotting.tensor_memory([row], 512).axes
    assert plotting.speed_ratios({"a": []}, [0.5], xlabel="x").axes
    assert plotting.speed_ratios({"a": [("L512", 1.2)]}, [0.5], xlabel="x").axes
