"""Tables and figures of the gated linear recurrence: without records they say so, with one they show it."""

from __future__ import annotations

import json

import pytest

from lethe import plotting
from lethe.evidence.gdn_gpu_training import DROPPED, NATIVE, TORCH
from lethe.evidence.sequence_tasks import TASKS
from lethe.paper import gdn_speed_tables as speeds
from lethe.paper import gdn_tables as values
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import ROOT, Device, Measurement


def record(samples) -> Measurement:
    return Measurement("e", "2026-01-01", Device("d", "cuda"), {}, "", {}, samples, "s")


CASE = {"member": "gdn2", "io": "fp16", "gate": "unit", "dv": 128, "heads": 2, "length": 497}
ACCURATE = {
    **CASE, "kind": "accuracy", "errors": {"dq": 4e-4, "dg": 9.9e-4}, "pin": 1e-3, "stored": 5e-4,
    "passed": True,
}  # fmt: skip
WRONG = {**ACCURATE, "gate": "mild", "errors": {"dq": None, "dg": 1e-4}, "passed": False}
MEASURED = record(
    [
        ACCURATE,
        WRONG,
        {**CASE, "kind": "accuracy", "gate": "strong", "error": "RuntimeError: no luck\nat all"},
        {**CASE, "kind": "bits", "passed": True},
        {**CASE, "kind": "red zones", "cuts": [0, 64], "passed": False},
        {"kind": "end", "why": "the time was over"},
    ]
)

MEDIANS = {
    "forward": 70.0,
    "backward": 240.0,
    "backward.prep": 60.0,
    "backward.scan": 50.0,
    "backward.out": 120.0,
}
FLOORS = {"prep": 55.0, "scan": 43.0, "out": 78.0, "backward": 176.0, "least": 58.0}


def ours(**shape) -> dict:
    ratio = {"backward": 240 / 176, "least": 240 / 58}
    size = {name: us * 4e6 for name, us in FLOORS.items()}
    row = {"kind": "ours", "median_us": MEDIANS, "floor_us": FLOORS, "bytes": size, "ratio": ratio}
    return {**speeds.MAIN, **shape, **row, "peak": {"backward": 3 << 20}}


def theirs(length: int, ratio: float) -> dict:
    side = {"their_us": [300.0 * ratio] * 3, "clock": "graph", "over_ours": ratio}
    us = {"forward": [300.0] * 3, "forward+backward": [300.0] * 3}
    row = {
        "kind": "fla",
        "us": us,
        "forward": side,
        "forward+backward": side,
        "agrees": {"o": 1e-3, "dq": 2e-3},
    }
    return {**speeds.MAIN, "length": length, **row}


TIMED = record([ours(), ours(member="kda", length=512), theirs(2048, 2.0), theirs(512, 0.8)])


def first(table) -> str:
    return table.iloc[0, 0]


def test_without_records_everything_says_so():
    tables = [
        *(values.precision(None, io) for io in ("bf16", "fp16")), values.kernels(None), values.emulated(None),
        values.accuracy(None), values.checks(None), speeds.speed([]), speeds.against([]),
    ]  # fmt: skip
    assert all(len(t) == 1 and first(t) == MISSING for t in tables)
    assert list(speeds.targets(None, None)["met"]) == ["–"] * 4
    assert set(speeds.breakdown([])["measured (µs)"]) == {MISSING}
    assert MISSING in values.unfinished(None, None) and values.worst(None) == MISSING
    assert speeds.main_time([], "backward") == speeds.main_ratio([], "least") == speeds.span([]) == MISSING
    assert values.passed([]) == MISSING


def test_accuracy_shows_the_result_nearest_to_its_bound():
    row = values.accuracy(MEASURED).iloc[0]
    assert row["g within [−1, 0]"] == "dg 0.99 of 1.00"
    assert row["g mild"] == "dq ∞ of 1.50 ✗"
    assert row["g to −5"] == "did not run" and row["g none or near zero"] == "–"
    assert values.worst(MEASURED).startswith("inf")


def test_checks_count_and_say_what_failed():
    table = values.checks(MEASURED).set_index("check")
    assert table.loc["accuracy", "cases"] == 3 and table.loc["accuracy", "pass"] == 1
    assert "RuntimeError: no luck" in table.loc["accuracy", "the others"]
    assert table.loc["red zones", "the others"] == "gdn2 fp16 unit d_v 128 packed"
    assert "graph" not in table.index
    told = values.unfinished(MEASURED, TIMED)
    assert told.startswith("The run ended early: the time was over.") and "no luck" in told


def test_targets_are_met_or_not():
    table = speeds.targets(TIMED, MEASURED)
    assert list(table["met"]) == ["**no**", "yes", "**no**", "–"]
    assert table["measured"][1] == "240 µs" and table["measured"][2] == "0.80 to 2.00 times"


def test_times_stand_beside_predictions_and_floors():
    assert set(speeds.predictions()) == set(speeds.STAGES)
    table = speeds.breakdown(speeds.timed(TIMED)).set_index("kernel")
    assert table.loc["prep", "measured (µs)"] == "60.0" and table.loc["prep", "× floor"] == "1.09"
    assert table.loc["backward", "measured (µs)"] == "240.0"
    assert list(speeds.speed(speeds.timed(TIMED))["member"]) == ["gdn2", "kda"]
    against = speeds.against(speeds.compared(TIMED))
    assert list(against["theirs / ours"]) == ["2.00", "2.00", "0.80", "0.80"]
    assert list(against["theirs"]) == ["600", "600", "240", "240"] and set(against["whose"]) == {"fla"}


def test_shapes_are_found_by_mode_and_gates_too():
    other = [ours(save=True), ours(gate="steep"), ours()]
    for r in other[:2]:
        del r["ratio"]["backward"]
    assert speeds.at(other) is other[2] and speeds.at(other, gate="steep") is other[1]
    assert speeds.over_length(other) == other[2:]
    table = speeds.speed(other)
    assert list(table["mode"]) == ["recompute", "recompute", "save"]
    assert list(table["× traffic"]) == ["1.36", "–", "–"] and set(table["× least"]) == {"–"}


def test_cudnn_is_a_target_where_it_was_timed_and_otherwise_says_why_not():
    back = {"their_us": [500.0] * 3, "clock": "graph", "over_ours": 1.5}
    row = {**theirs(2048, 1.0), "kind": "cudnn", "us": {"backward": [300.0] * 3}, "backward": back}
    told = speeds.targets(record([row]), None)
    assert told["measured"][3] == "1.50 to 1.50 times" and told["met"][3] == "yes"
    assert speeds.skipped(record([{"kind": "cudnn", "skipped": "it is not there"}] * 2)) == "it is not there."


def trained(backend: str, by: float = 0.0, member: str = "gla", **other) -> dict:
    """Curves of three seeds that fall from 4 to 1 and end 0.1 apart; `by` is added to them."""
    losses = [[4.0 - 3.0 * i / 29 + 0.1 * seed + by for i in range(30)] for seed in range(3)]
    row = {
        "kind": "training", "member": member, "backend": backend, "steps": 300, "length": 128, "batch": 4,
        "seeds": 3, "dv": 64, "losses": dict.fromkeys(TASKS, losses), "memoryless": dict.fromkeys(TASKS, 3.0),
        "non_finite": {"losses": 0, "gradients": 0}, "learnt": dict.fromkeys(TASKS, True), "as_asked": True,
        "right": {task: [0.5, 0.6, 1.0] for task in TASKS},
    }  # fmt: skip
    return row | other


TRAINED = record(
    [
        trained(NATIVE, by=0.02),
        trained(NATIVE, by=90.0, member="gdn"),
        trained(NATIVE, member="kda"),
        trained(DROPPED, by=90.0, member="gdn"),
        *(trained(TORCH, member=m) for m in ("gla", "gdn")),
        {
            **{k: trained(TORCH)[k] for k in ("kind", "backend", "steps", "length")},
            "member": "ssd",
            "error": "no luck\nat all",
        },
        {"kind": "end", "why": "the time was over"},
    ]
)


def test_training_shows_ends_distances_and_what_failed():
    table = values.training(TRAINED)
    assert list(table["holds"]) == ["yes"] * 2 + ["**no**"] * 2 + ["noticed"] * 2 + ["**no**"] * 2
    assert list(table["task"]) == [*TASKS * 3, "nothing to compare with", "no luck"]
    row = table.iloc[0]
    assert (row["torch"], row["native"], row["between seeds"]) == ("1.203", "1.223", "0.100")
    assert row["apart, end"] == row["apart, curve"] == "+0.20" and float(row["allowed"]) > 0.2
    assert row["right (%)"] == "70.0, 70.0"
    assert table["member"][4] == "gdn, state dropped" and table["member"][7] == "ssd, torch"
    assert first(values.training(None)) == MISSING


def test_trainings_in_short():
    found = values.trained(TRAINED)
    assert found["hold"] == "1 of 3" and found["non_finite"] == "0 of 900" and found["control"] == "noticed"
    assert found["apart"] == "900.00" and found["allowed"] == values.training(TRAINED)["allowed"][0]
    assert set(values.trained(None).values()) == {MISSING}
    early = values.trained(record([trained(NATIVE)]))
    assert early["hold"] == "0 of 1" and early["apart"] == early["control"] == MISSING
    missed = values.trained(record([trained(NATIVE), trained(DROPPED), trained(TORCH)]))
    assert missed["control"] == "not noticed"


def test_learning_curves_are_drawn_as_far_as_they_are_finite():
    panels = values.learning(TRAINED)
    assert [(p["title"], p["task"]) for p in panels] == [
        (f"{member}, L 128", task) for task in TASKS for member in ("gla", "gdn")
    ]
    panels[0]["native"] = [[1.0] * 20 + [None] * 10] * 3
    drawn = [ax for ax in plotting.learning_curves(panels).axes if ax.lines]
    assert len(drawn) == len(panels) and {len(ax.lines) for ax in drawn} == {1 + 3 + 1}
    assert plotting.learning_curves([]).axes


def test_the_emulator_table_marks_what_misses():
    case = {**CASE, "schedules": 3, "differ": [], "errors": {"dq": 2e-3}, "bounds": {"dq": 1e-3}}
    table = values.emulated(record([case, {**CASE, "error": "Fault: no"}]))
    assert table["bound"][0] == "1.00 ✗" and table["same bits"][0] == "yes"
    assert table["nearest to its bound"][1] == "Fault: no"


@pytest.mark.parametrize("name", ["faults", "levers"])
def test_notes_are_complete(name):
    rows = speeds.noted(ROOT / "data" / "review" / f"gdn_{name}.json", name)
    assert rows and len({tuple(sorted(r)) for r in rows}) == 1


def test_every_fault_is_in_the_bridge_once():
    rows = speeds.noted(ROOT / "data" / "review" / "gdn_faults.json", "faults")
    published = json.loads((ROOT / "data" / "published" / "figures.json").read_text())
    table = speeds.bridge(rows, published)
    assert sum(table["our own faults"]) == len(rows) == len(speeds.faults(rows))
    assert sum(int(part.split()[-1]) for part in speeds.found_by(rows).split(", ")) == len(rows)


def test_levers_show_times_only_where_they_were_measured():
    rows = speeds.noted(ROOT / "data" / "review" / "gdn_levers.json", "levers")
    assert len(speeds.levers(rows, [])) + len(speeds.killed(rows)) == len(rows)
    assert any("240 µs" in cell for cell in speeds.levers(rows, speeds.timed(TIMED))["measured"])
    names = {*MEDIANS, ""}
    assert {r["timed"] for r in rows} <= names and {r["state"] for r in rows} == {"built", "open", "killed"}


def test_figures_draw_without_and_with_rows():
    assert plotting.times_over_length({"backward": []}, []).axes
    lines = {"backward": [(512, 90.0), (2048, 240.0)], "floor": [(512, 45.0)], "published": [(512, 7e3)]}
    assert plotting.times_over_length(lines, ["floor"]).axes
    assert plotting.errors_and_pins([], [1e-3], [3e-3]).axes
    assert plotting.errors_and_pins(values.error_points(MEASURED, None), [1e-3, 5e-3], [3e-3]).axes
