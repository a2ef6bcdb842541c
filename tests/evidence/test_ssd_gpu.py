"""The GPU run of the state-space engine, as far as it goes without a GPU: tasks, kernels, record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lethe.evidence import elsewhere, ssd_api, ssd_gpu, ssd_gpu_checks, ssd_here, ssd_predicted
from lethe.evidence import ssd_gpu_ahead as ahead
from lethe.evidence.ssd_emulated import products, read_early
from lethe.kernels.ssd import bench, tune
from lethe.kernels.ssd.device import LOST
from lethe.kernels.ssd.engine import specialisation
from lethe.kernels.ssd.tiles import Tiles


def test_every_promise_is_a_task():
    kinds = {row["kind"] for row, _ in ssd_gpu_checks.tasks("cuda")}
    assert kinds == {
        "deterministic", "rebinding", "allocation", "streams", "replay", "compile", "training graph",
    }  # fmt: skip


def test_what_needs_cuda_says_so_and_what_fails_is_a_row(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("no such kernel")

    rows = [
        ({"kind": "streams", "case": "plain"}, lambda: ssd_gpu_checks.streams(None, "cpu")),
        ({"kind": "rebinding", "case": "plain"}, broken),
        ({"kind": "replay", "case": "plain"}, lambda: {"ok": True}),
    ]
    monkeypatch.setattr(ssd_gpu_checks, "tasks", lambda device: iter(rows))
    assert ssd_gpu.checks(tmp_path / "c.jsonl", 60.0, device="cpu") == 1
    assert ssd_gpu.checks(tmp_path / "c.jsonl", 60.0, device="cpu") == 1
    found = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert found[0]["skipped"] == "needs a CUDA device"
    assert found[1]["error"] == "RuntimeError: no such kernel" and found[1]["ok"] is False
    assert found[2]["ok"] is True and len(found) == 3, "a second call repeats nothing"


def test_the_run_s_kernels_are_each_listed_once():
    listed = {which: list(ahead.launches(which, 90)) for which in ahead.SETS}
    for launches in listed.values():
        assert {x.kernel for x in launches} == {"scan", "output", "gate", "gradient", "finish"}
        assert len({specialisation(x) for x in launches}) == len(launches)
    # Neither heads a program nor a gate make another kernel: two numbers of states, three cuts each.
    assert sum(x.kernel == "gradient" for x in listed["search"]) == 3 * 2


def test_the_search_takes_the_fastest_cut_of_each_kernel_and_the_faster_tile():
    rows = []
    for case in tune.cases():
        for op in ("SSD", "SSD_BWD"):
            for i, (kernel, tiles) in enumerate(tune.variants(case, op)):
                time = 100.0 - i if tiles.tile == 64 else 1000.0
                rows.append(
                    {"case": case.id, "op": op, "kernel": kernel, "tiles": tiles.record(), "median_us": time}
                )
    table = tune.chosen(rows, "here")
    assert table[0]["where"] == {} and all(row["source"] == "here" for row in table[1:])
    first = next(r for r in table if r["where"].get("op") == "SSD" and r["where"]["chunk"] == 64)
    assert first["tiles"] == {"tile": 64} | tune.SCANS[-1] | tune.OUTPUTS[-1]
    plain, gated = [r["tiles"] for r in table if r["where"].get("op") == "SSD_BWD"][:2]
    assert plain == {"tile": 64} | tune.SCANS[-1] | tune.GRADIENTS[-1]
    assert gated == plain | tune.OUTPUTS[-1], "the launch that forms dz is searched where there is a gate"
    assert all(row["tiles"].get("tile", 64) == 64 for row in table)
    assert {row["where"].get("chunk") for row in table} == {None, 64, 128, 256}
    for row in table:
        Tiles(**row["tiles"])


def test_a_search_that_timed_only_some_kernels_leaves_no_half_rows():
    plain, gated = tune.cases()[:2]
    for case, op, kernels in ((plain, "SSD", ["scan"]), (gated, "SSD_BWD", ["scan", "gradient"])):
        about = {"case": case.id, "op": op, "tiles": Tiles().record(), "median_us": 1.0}
        assert len(tune.chosen([{**about, "kernel": kernel} for kernel in kernels], "here")) == 1


def test_a_ratio_takes_the_official_operator_at_its_best_chunk():
    def times(forward, both):
        return {"forward_us": {"median": forward}, "both_us": {"median": both}, "backward_us": both - forward}

    found = {
        "ours": times(10, 40),
        "official, chunk 64": times(30, 90),
        "official, chunk 256": times(20, 100),
    }
    assert bench.best(found) == "official, chunk 64"
    assert bench.ratios(found) == {"forward": 2.0, "backward": 2.0, "both": 2.25}
    assert bench.ratios({"ours": times(10, 40)}) == {} == bench.ratios({"official, chunk 64": times(1, 2)})


def test_the_record_keeps_the_rows_and_the_table(tmp_path):
    elsewhere.note(tmp_path, "cpu")
    (tmp_path / "checks.jsonl").write_text(json.dumps({"kind": "replay", "ok": True}) + "\n")
    (tmp_path / "tests.json").write_text(json.dumps({"status": 0}))
    (tmp_path / "speed.jsonl").write_text(json.dumps({"id": "one"}) + "\n")
    (tmp_path / "tiles.json").write_text(json.dumps({"rows": [{}]}))
    table = tmp_path / "table.json"
    paths = ssd_gpu.record(tmp_path, tmp_path / "measured", table)
    assert sorted(path.name for path in paths) == ["ssd_checks.json", "ssd_speed.json"]
    assert not table.exists()
    kept = json.loads(next(p for p in paths if p.name == "ssd_checks.json").read_text())
    assert kept["samples"] == [{"kind": "replay", "ok": True}]
    assert kept["parameters"]["tests"] == {"status": 0}
    (tmp_path / "tiles.json").write_text(json.dumps({"rows": [{}, {}]}))
    kept = json.loads(ssd_gpu.record(tmp_path, tmp_path / "measured", table)[0].read_text())
    assert len(json.loads(table.read_text())["rows"]) == 2
    assert kept["parameters"]["tiles_found"]


def test_without_a_device_the_run_says_so(monkeypatch, tmp_path, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ssd_gpu.main(["run", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "ssd_gpu: no CUDA device is visible to torch; try dry\n"


def test_parts_share_the_time_and_one_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    """The parent's loop with stand-ins for the parts: order, limits within the time, an error in a file."""
    seen = []

    def part(name, out, official, seconds):
        seen.append((name, seconds, os.environ[ssd_gpu.tiles.VARIABLE]))
        if name == "tune":
            (out / "tiles.json").write_text("{}")
            raise OSError("no space")
        return {"status": 0}

    monkeypatch.setattr(ssd_gpu, "_target", lambda: 90)
    monkeypatch.setattr(ssd_gpu, "_part", part)
    monkeypatch.setattr(ssd_gpu.elsewhere, "note", lambda out: None)
    monkeypatch.setattr(ahead, "compilers", lambda which, target: [])
    monkeypatch.setenv(ssd_gpu.tiles.VARIABLE, "")
    ssd_gpu.run(tmp_path, None, 500.0, [])
    assert [name for name, *_ in seen] == list(ssd_gpu.PARTS)
    assert all(0 < seconds <= 500 for _, seconds, _ in seen)
    assert [table for *_, table in seen] == ["", ""] + [str(tmp_path / "tiles.json")] * (len(seen) - 2)
    assert json.loads((tmp_path / "tune.json").read_text())["error"] == "OSError: no space"
    assert json.loads((tmp_path / "tests.json").read_text())["status"] == 0
    seen.clear()
    ssd_gpu.run(tmp_path, None, 500.0, [])
    assert [name for name, *_ in seen] == [name for name in ssd_gpu.PARTS if name not in ssd_gpu.ONCE]


def test_a_part_that_lost_the_device_goes_on_in_a_new_process(monkeypatch, tmp_path):
    """Until its time is spent; what it started dies with it, and what it printed is kept."""
    statuses, commands = [LOST, LOST, 0], []
    run = ssd_gpu._finished

    def finished(command, seconds, log):
        commands.append(command)
        return run(["sh", "-c", f"echo again; exit {statuses.pop(0)}"], seconds, log)

    monkeypatch.setattr(ssd_gpu, "_finished", finished)
    found = ssd_gpu._part("checks", tmp_path, None, 60.0)
    assert found == {"status": 0, "output": "again\n" * 3} and len(commands) == 3
    monkeypatch.undo()
    late = ssd_gpu._finished(["sh", "-c", "sleep 60 & echo $! ; wait"], 0.5, tmp_path / "late.log")
    assert late["status"] is None
    state = Path(f"/proc/{int(late['output'])}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_search_goes_on_where_it_stopped(monkeypatch):
    """Variants that are known, with a time or an error, are not tried again."""
    from lethe.kernels.ssd import bound

    monkeypatch.setattr(bound, "bind", lambda *a, **k: "bound")
    monkeypatch.setattr(tune, "timed", lambda *a: {"median_us": 1.0})
    whole = list(tune.search(90, 60.0, []))
    assert len(whole) == len({json.dumps(tune.variant(row)) for row in whole}) > 200
    assert list(tune.search(90, 60.0, whole[:-2])) == whole[-2:]
    assert list(tune.search(90, -1.0, [])) == []

    def lost(*_):
        raise RuntimeError("illegal address")

    monkeypatch.setattr(tune, "timed", lost)
    monkeypatch.setattr(tune, "lost", lambda: True)
    (row,) = tune.search(90, 60.0, whole[:5])
    assert row["error"] == "RuntimeError: illegal address" and tune.variant(row) == tune.variant(whole[5])


def test_shapes_have_a_line_of_ours_before_the_official_one(monkeypatch):
    """The first shapes; a call later leaves out what is whole, and the record keeps the last line of each."""
    cases = list(bench.speed())[:3]
    monkeypatch.setattr(bench, "row", lambda case, operator, *_: {"id": case.id, "against": operator})
    rows = list(bench.rows("theirs", 1, 60.0, ("cpu", None), cases))
    assert [row["against"] for row in rows] == [None, "theirs", None, "theirs", "theirs"]
    assert bench.left(cases, rows[:3]) == cases[1:] and bench.left(cases, rows) == []
    assert [row["against"] for row in bench.latest(rows)] == ["theirs"] * 3
    assert list(bench.rows("theirs", 1, -1.0, ("cpu", None), cases)) == []


PTX = """
tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r1, %r2}, [%r9], 16;
add.f32 %r3, %r1, %r1;
tcgen05.wait::ld.sync.aligned;
add.f32 %r4, %r2, %r1;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd1, %rd2, %r6, %p2;
wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r7}, %rd3, %rd4, 1, 1, 1, 0, 0;
"""


def test_ptx_is_read_for_early_reads_and_matrix_instructions():
    assert read_early(PTX) == 1
    assert read_early(PTX.replace("add.f32 %r3, %r1, %r1;", "add.f32 %r3, %r9, %r9;")) == 0
    assert products(PTX) == {"tcgen05.mma": 1, "wgmma.mma_async": 1}


def test_the_interface_is_described_completely():
    from lethe.kernels import ssd

    names = {name.split(".")[0] for name, _, _ in ssd_api.interface()}
    assert names == set(ssd.__all__) - {"RULES", "TensorSpec"}
    assert all(what for _, _, what in ssd_api.interface())
    assert all(meaning for _, _, meaning in ssd_api.operands())
    assert len(ssd_predicted.launches()) == 12 and len(ssd_predicted.rules()) == len(ssd.RULES)


@pytest.mark.slow
def test_small_cases_are_accurate_here():
    """The first stress case in the interpreter, as the notebook runs it."""
    pytest.importorskip("lethe.references.ssd")
    (row,) = ssd_here.here(1)
    assert row["passed"], row


@pytest.mark.slow
@pytest.mark.compiles
def test_the_kernels_for_hopper_are_right_instruction_by_instruction():
    """Triton's PTX for sm_90, forward and backward, in the emulator with its checks on, loads ending late."""
    pytest.importorskip("lethe.references.ssd")
    from lethe.evidence.ssd_emulated import executed

    found = executed(90, schedule="late")
    assert found["status"] == "right", found
