"""Tables about the state-space engine, with records and without."""

from __future__ import annotations

from types import SimpleNamespace

from lethe.paper import ssd_tables as tables
from lethe.paper.kernel_tables import MISSING


def entry(forward: float, both: float) -> dict:
    return {"forward_us": {"median": forward}, "both_us": {"median": both}, "backward_us": both - forward}


ROW = {
    "id": "L2048-N64-G1-plain", "batch": 2, "length": 2048, "heads": 64, "groups": 1, "n": 64, "gated": False,
    "times": {
        "ours": entry(50, 200), "ours, recomputed": entry(50, 240),
        "official, chunk 64": entry(150, 700), "official, chunk 256": entry(120, 800),
    },
    "launches": [{"op": "SSD", "kernel": "scan", "us": {"median": 32.6}}],
    "host": {"prepared_forward_us": 11.0, "prepared_backward_us": 17.0, "public_forward_us": 60.0,
             "public_both_us": 150.0},
    "official_kernels": [{"kernel": "_chunk_scan_fwd_kernel", "calls": 1, "us": 44.4}],
}  # fmt: skip

CHECKS = SimpleNamespace(samples=[
    {"kind": "streams", "case": "plain", "ok": False, "changed": ["dx"]},
    {"kind": "replay", "case": "plain", "skipped": "the time was spent"},
])  # fmt: skip

VALUES = SimpleNamespace(samples=[
    {"id": "plain", "engine": "lethe", "passed": True, "worst": [0.004, 0.003],
     "errors": {"y": [0.002, 0.003], "dA": [0.004, 0.001]}},
    {"id": "ragged", "engine": "lethe", "passed": False, "error": "RuntimeError: out of memory"},
    {"id": "plain", "engine": "mamba-ssm", "passed": False, "worst": [None, 1.0],
     "errors": {"y": [None, 1.0]}},
    {"id": "ragged", "engine": "mamba-ssm", "passed": False, "declined": "it has no such argument"},
])  # fmt: skip


def test_without_records_every_table_says_so():
    for table in (
        tables.accuracy([]), tables.checks(None), tables.speeds([]), tables.ways([]), tables.host([]),
        tables.official_launches([]), tables.resources(None), tables.executed(None),
    ):  # fmt: skip
        assert len(table) == 1 and table.iloc[0, 0] == MISSING
    assert set(tables.prediction([])["measured, µs"]) == {MISSING}
    assert tables.held([]) == tables.worst([], 0) == MISSING


def test_accuracy_names_the_worst_and_counts_failures():
    rows, theirs = tables.by(VALUES, "lethe"), tables.by(VALUES, "mamba-ssm")
    table = tables.accuracy(rows, theirs).set_index("case")
    assert list(table.loc["plain"]) == ["dA", "0.400", "y", "0.300", "yes", "beyond, inf%"]
    assert table.loc["ragged", "worst by RMS"] == "RuntimeError: out of memory"
    assert table.loc["ragged", "mamba-ssm"] == "declines"
    assert set(tables.accuracy(rows, [])["mamba-ssm"]) == {MISSING}
    assert "mamba-ssm" not in tables.accuracy(rows)
    assert tables.held(rows, "passed") == "1 of 2"
    assert (tables.worst(rows, 0), tables.worst(rows, 1)) == ("0.40%", "0.30%")


def test_failures_are_counted_by_their_first_line():
    rows = [{"error": "out of memory\nhere"}, {"error": "out of memory\nthere"}, {"errors": {}}]
    assert tables.failures(rows) == "2 of 3: out of memory"
    assert tables.failures(rows[2:]) == "none" and tables.failures([]) == MISSING


def test_controls_show_every_gate_of_both():
    from lethe import provenance

    record = provenance.load(provenance.ROOT / "data" / "measured" / "h200" / "ssd_controls.json")
    table = tables.controls(record).set_index("gate")
    assert list(table.columns) == ["S1", "S2"] and len(table) == 12
    assert set(table["S2"]) <= {"pass", "fail", "not applicable"} and table.loc["CMP-02", "S2"] == "pass"
    assert tables.controls(None)["gate"].tolist() == [MISSING]


def test_promises_that_were_not_held_say_what_differed():
    table = tables.checks(CHECKS).set_index("promise")
    assert list(table.index) == ["one plan on several streams"]
    assert list(table.iloc[0]) == ["0 of 1", "['dx']"]


def test_speed_compares_with_the_best_chunk_of_each_direction():
    (row,) = tables.speeds([ROW]).to_dict("records")
    assert (row["both"], row["official both"], row["its chunk"]) == ("200.0", "700.0", "64")
    assert (row["× forward"], row["× backward"], row["× both"]) == ("2.40", "3.67", "3.50")
    alone = {**ROW, "times": {"ours": ROW["times"]["ours"]}}
    assert tables.speeds([alone]).iloc[0]["official both"] == MISSING


def test_shapes_that_miss_the_target_are_named():
    slow = {**ROW, "n": 128, "times": {**ROW["times"], "ours": entry(200, 600)}}
    assert tables.missed([ROW, slow]) == "L 2,048, N 128, G 1, ungated (1.17)"
    assert tables.missed([ROW]) == "none" and tables.missed([]) == MISSING


def test_predictions_stand_beside_what_was_measured():
    table = tables.prediction([ROW]).set_index(["shape", "launch"])
    found = table.loc[("L2048-N64-G1-plain", "SSD scan")]
    assert found["measured, µs"] == "32.6" and found["× floor"] == f"{32.6 / float(found['floor, µs']):.1f}"
    assert table.loc[("L2048-N64-G1-plain", "SSD output"), "measured, µs"] == MISSING
    assert len(table) == 12


def test_own_ways_host_times_and_official_kernels():
    assert list(tables.ways([ROW])["way"]) == ["ours", "ours, recomputed"]
    kept = ROW | {"host": dict(sorted(ROW["host"].items()))}  # as a record keeps them
    assert list(tables.host([kept]).iloc[0]) == ["L2048-N64-G1-plain", "11", "17", "60", "150"]
    assert list(tables.official_launches([ROW]).iloc[0]) == ["`_chunk_scan_fwd_kernel`", 1, "44.4"]


def test_contract_and_rules_are_complete():
    contract = tables.contract()
    assert list(contract.columns) == ["feature", "PR #1133", "mamba-ssm", "ours"]
    assert (contract != "").all(axis=None) and len(tables.rules()) >= 12


def test_other_targets():
    row = {"kernel": "scan", "target": "sm_90", "registers": 140, "spill_bytes": 0, "shared_bytes": 20480,
           "tmem_columns": 0, "products": {"mma.sync": 16}, "read_early": 0}  # fmt: skip
    run = {"target": "sm_100", "checks": True, "instructions": {"SSD scan": 1000}, "status": "missing-wait",
           "message": "first line\nsecond"}  # fmt: skip
    lost = {"kernel": "gradient", "target": "sm_100", "error": "PassManager::run failed"}
    samples = {"resources": [row, {**row, "registers": 150}, lost], "executed": [run]}
    record = SimpleNamespace(samples=samples)
    first, second = tables.resources(record).values.tolist()
    assert first == ["gradient", "sm_100", 0, *[""] * 4, "does not compile: PassManager::run failed", ""]
    assert second == ["scan", "sm_90", 2, 150, 0, 20480, 0, "`mma.sync`", 0]
    assert list(tables.executed(record).iloc[0]) == [
        "sm_100",
        "on",
        "1,000",
        "missing-wait",
        "",
        "first line",
    ]
    errors = {"y": [0.001, 0.002], "dx": [0.0025, 0.002]}
    record.samples["executed"].append(
        {**run, "checks": False, "status": "right", "errors": errors, "message": ""}
    )
    assert tables.executed(record)["worst RMS, %"].tolist() == ["", "0.25"]
    assert tables.outcome(record, "sm_100") == "missing-wait"
    assert tables.outcome(record, "sm_100", checks=False) == "right"
    assert tables.outcome(record, "sm_90") == tables.outcome(None, "sm_90") == MISSING
