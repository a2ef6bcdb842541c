"""The GPU run of the gated linear recurrence: its grids, its lines, what is recorded; without a GPU."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lethe.evidence import (
    elsewhere,
    gdn_gpu,
    gdn_gpu_baselines,
    gdn_gpu_checks,
    gdn_gpu_speed,
)
from lethe.evidence import gdn_gpu_processes as processes
from lethe.evidence.gdn_precision import Case
from lethe.kernels.gdn import torch_path
from lethe.kernels.gdn.cost import least_traffic, traffic
from lethe.provenance import load, stale

DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"}


@pytest.fixture
def left(tmp_path):
    """What a run leaves: device, accuracy and speed."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11.0"}}))
    (folder / gdn_gpu.ACCURACY).write_text(
        '{"kind": "accuracy", "errors": {"dq": 0.001}}\n{"kind": "bits"}\n'
    )
    (folder / gdn_gpu.SPEED).write_text('{"kind": "ours", "median_us": {"backward": 250.0}}\n')
    (folder / "baselines.jsonl").write_text('{"kind": "cudnn", "skipped": "not there"}\n')
    (folder / "training.jsonl").write_text('{"kind": "training", "member": "gla", "passed": true}\n')
    return folder


def test_a_record_names_the_device_that_measured(left, tmp_path):
    written = gdn_gpu.record(left, tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in written] == [
        "h200/gdn_accuracy.json",
        "h200/gdn_training.json",
        "h200/gdn_speed.json",
    ]
    accuracy, training, speed = map(load, written)
    assert [s["kind"] for s in speed.samples] == ["ours", "cudnn"] and training.samples[0]["passed"]
    assert "lethe/evidence/gdn_gpu_baselines.py" in speed.sources
    assert [s["kind"] for s in accuracy.samples] == ["accuracy", "bits"]
    assert speed.samples[0]["median_us"] == {"backward": 250.0}
    for m in (accuracy, speed):
        assert m.versions == {"torch": "2.11.0"} and m.device.sm_count == 132 and stale(m) == []
        assert {"lethe/kernels/gdn/sm90/out.py", "lethe/kernels/gdn/shim.c"} <= set(m.sources)


def test_a_run_that_was_cut_short_is_recorded_as_far_as_it_came(left, tmp_path):
    for name in (gdn_gpu.SPEED, "baselines.jsonl", "training.jsonl"):
        (left / name).unlink()
    assert [p.stem for p in gdn_gpu.record(left, tmp_path)] == ["gdn_accuracy"]


def test_a_task_that_fails_leaves_its_error_and_the_next_one_runs(monkeypatch, capsys):
    def fails():
        raise RuntimeError("no luck")

    todo = [({"kind": "a"}, fails), ({"kind": "b"}, lambda: {"errors": {"dq": float("inf")}})]
    monkeypatch.setattr(gdn_gpu, "tasks", lambda phase: todo)
    monkeypatch.setattr(gdn_gpu, "_lost", lambda: "")
    assert gdn_gpu.serve("checks", [0, 1]) == 0
    first, second = (json.loads(x.removeprefix(processes.MARK)) for x in capsys.readouterr().out.splitlines())
    assert first["error"] == "RuntimeError: no luck" and second["errors"] == {"dq": None}
    monkeypatch.setattr(gdn_gpu, "_lost", lambda: "an illegal address")
    assert gdn_gpu.serve("checks", [0, 1]) == 3
    assert json.loads(capsys.readouterr().out.removeprefix(processes.MARK))["lost"] == "an illegal address"


CHILD = """
import json, os, sys, time
for n in map(int, sys.argv[-1].split(",")):
    time.sleep(60 if n == 1 else 0)
    if n == 2:
        os._exit(7)
    row = {"kind": str(n), "process": os.getpid(), **({"lost": "gone"} if n == 3 else {})}
    print("some library says something")
    print("row " + json.dumps(row), flush=True)
    if n == 3:
        break
"""


def watched(tmp_path, seconds: float, alone: bool = False) -> list:
    """Five tasks: the second never ends, the third ends its process, the fourth loses the device."""
    abouts = [{"kind": str(n)} for n in range(5)]
    end = time.monotonic() + seconds
    processes.watched(tmp_path / "found", abouts, [sys.executable, "-c", CHILD], end, alone)
    return [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(processes, "STARTS", 3.0)
    monkeypatch.setattr(processes, "OTHERWISE", 0.5)


def test_processes_that_are_lost_are_replaced(tmp_path, impatient):
    lines = watched(tmp_path, 60)
    assert [line["kind"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert lines[1]["error"].startswith("no answer within") and "status 7" in lines[2]["error"]
    assert lines[3]["lost"] == "gone" and "error" not in lines[4]


def test_the_end_of_time_is_said(tmp_path):
    lines = watched(tmp_path, 1.5)
    assert lines[-1]["kind"] == "end" and "of 5 tasks" in lines[-1]["why"]


def test_too_many_losses_are_said(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(processes, "LOST", 2)
    lines = watched(tmp_path, 60)
    assert "2 processes were lost in a row; 3 of 5" in lines[-1]["why"]


def test_a_run_goes_on_where_it_was(tmp_path, impatient):
    """What was found stays as it is; errors, ends and a line that was cut short are tried again."""
    kept = {"kind": "0", "process": 1}
    others = [{"kind": "1", "error": "no luck"}, {"kind": "end", "why": "the time was over"}]
    text = "".join(json.dumps(row) + "\n" for row in (kept, *others))
    (tmp_path / "found").write_text(text + '{"kind": "4", "pro')
    lines = watched(tmp_path, 60)
    assert lines[0] == kept and [line["kind"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert "no answer" in lines[1]["error"]


def test_a_task_alone_gets_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-c", CHILD.replace("str(n)", "'x'").replace("n == 1", "False")]
    for alone, count in ((False, 1), (True, 2)):
        file = tmp_path / f"found{alone}"
        processes.watched(file, [{"kind": "x"}] * 2, command, time.monotonic() + 60, alone)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert len({row.get("process", row.get("error")) for row in rows}) == count


@pytest.mark.parametrize("phase", list(gdn_gpu.PHASES))
def test_every_task_is_told_from_the_others(phase):
    abouts = [about for about, _ in gdn_gpu.tasks(phase)]
    for about in abouts:
        row = json.loads(json.dumps({**about, "seconds": 1.0}))
        assert sum(processes._answers_to(row, other) for other in abouts) == 1, about


def test_a_folder_belongs_to_one_device_and_one_state_of_the_sources(tmp_path, monkeypatch):
    note = elsewhere.note
    monkeypatch.setattr(elsewhere, "note", lambda out: note(out, "cpu"))
    gdn_gpu._claimed(tmp_path)
    gdn_gpu._claimed(tmp_path)
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {}}))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="what another device has measured"):
            gdn_gpu._claimed(tmp_path)
    (tmp_path / "sources.sha256").write_text("of yesterday\n")
    with pytest.raises(RuntimeError, match="what other sources have measured"):
        gdn_gpu._claimed(tmp_path)


def test_phases_leave_time_for_those_behind():
    shares = [phase.until for phase in gdn_gpu.PHASES.values()]
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_libraries_cover_every_task_and_the_main_case_comes_first():
    names = [v.name for v in gdn_gpu.wanted()]
    assert len(set(names)) == len(names)
    assert [v.stage for v in gdn_gpu.wanted()[:6]] == ["prep", "scan", "scan", "out", "prep", "forward"]
    assert all("iofloat16" in n or n.startswith("scan") for n in names[:6])
    from lethe.kernels.gdn.native import kind_of, libraries, libraries_to_save

    for about, _ in gdn_gpu_checks.tasks():
        fields = {k: about[k] for k in Case.__dataclass_fields__} | {"length": 70, "heads": 1}
        cuts = (0, 30, 70) if "cuts" in about else None
        kind = kind_of(gdn_gpu_checks.call(Case(**fields), cuts, "cpu").a)
        needed = [*libraries(kind), *(libraries_to_save(kind) if about.get("save") else ())]
        assert {v.name for v in needed} <= set(names), about


def test_what_builds_nothing_new_builds_nothing(tmp_path, monkeypatch):
    from lethe.kernels.gdn import build as compiler
    from lethe.kernels.gdn.declare import Variant

    made = []

    def compile_two_files(architecture, stage, options, folder):
        made.append(stage)
        name = Variant(stage, options).name
        (folder / f"{name}.so").write_text("")
        origin = {"arch": architecture.name, "source": architecture.source_hash(stage)}
        (folder / f"{name}.json").write_text(json.dumps(origin))

    monkeypatch.setattr(compiler, "build", compile_two_files)
    variants = gdn_gpu.wanted()[:3]
    assert gdn_gpu.build(tmp_path, 2, variants) == [] and len(made) == 3
    assert gdn_gpu.build(tmp_path, 2, variants) == [] and len(made) == 3
    assert len(list(tmp_path.iterdir())) == 6


def _by_torch(monkeypatch):
    monkeypatch.setattr(
        gdn_gpu_checks.cute_sm90, "forward", lambda a, save, new=None: torch_path.forward(a, save)
    )
    monkeypatch.setattr(
        gdn_gpu_checks.cute_sm90,
        "backward",
        lambda a, do, dfinal, saved, new=None: torch_path.backward(a, do, dfinal, saved),
    )
    monkeypatch.setattr(gdn_gpu_checks.call, "__defaults__", (None, "cpu", 1))


@pytest.mark.parametrize("member", ["gdn2", "gdn", "linear"])
def test_the_accuracy_task_passes_what_is_right(member, monkeypatch):
    """The torch backend in float32 in place of the kernels."""
    _by_torch(monkeypatch)
    found = gdn_gpu_checks.accuracy(
        Case(member, "unit" if member != "linear" else "none", io="fp16", length=100)
    )
    assert found["passed"] and found["pin"] == 1e-3
    assert max(found["errors"].values()) <= 2.0**-10 and max(found["planned"].values()) < 1e-3
    assert gdn_gpu_checks.same_bits(Case(member, "mild", length=70))["passed"]
    packed = gdn_gpu_checks.accuracy(Case(member, "mild", length=100), cuts=(0, 0, 37, 100))
    assert packed["passed"]


def test_the_control_is_noticed_and_an_unspoiled_one_would_not_be(monkeypatch):
    _by_torch(monkeypatch)
    case = Case("gdn2", "mild", io="fp16", length=80, dv=64, heads=1)
    for name in ("g", "initial_state"):
        assert gdn_gpu_checks.control(case, name)["passed"], name
    assert not gdn_gpu_checks.control(case, "none of them")["passed"]


def test_a_write_into_a_red_zone_is_found():
    zoned = gdn_gpu_checks.Zoned("cpu")
    x = zoned((3, 5), torch.float16, "x")
    zoned.copy("y", torch.ones(4))
    assert zoned.touched() == [] and bool(x.isnan().all())
    x.fill_(1.0)
    assert zoned.touched() == []
    x.as_strided((16,), (1,))[15] = 0
    assert zoned.touched() == ["x"]


def test_the_speed_grid_has_what_was_promised():
    shapes = list(gdn_gpu_speed.shapes())
    assert shapes[0] == gdn_gpu_speed.Shape("gdn2", 2, 16, 2048, 128)
    assert {s.length for s in shapes} >= {512, 16384} and {s.batch for s in shapes} == {1, 2, 8}
    assert {s.heads for s in shapes} == {4, 8, 16, 32} and {s.dv for s in shapes[:16]} == {64, 128}
    assert {s.save for s in shapes} == {False, True} and {s.gate for s in shapes} == {
        "mild",
        "strong",
        "steep",
    }
    small = gdn_gpu_speed.Shape("gdn", 2, 3, 70, 64)
    c = gdn_gpu_speed._inputs(small, "cpu")
    assert [c.a.g.shape[-1], c.a.b.shape[-1], c.a.w.shape[-1]] == list(small.widths) == [1, 1, 1]
    assert c.a.v.shape == (2, 70, 3, 64) and small.chunks == 12


def test_floors_are_bytes_over_a_bandwidth():
    """At the main shape with a terabyte a second; states are 2 x 16 of 128 x 128 in float32."""
    shape, row = gdn_gpu_speed.Shape(), 2 * 64 * 128
    found = gdn_gpu_speed.floors(shape, (2, 16, 128, 128), 1e12)
    chunks = 2 * 16 * 2048 // 64
    assert found["bytes"]["least"] == 15 * row * chunks == least_traffic() * chunks
    assert found["bytes"]["least_forward"] == 8 * row * chunks + 4 * 32 * 128 * 128
    assert found["bytes"]["backward"] == sum(found["bytes"][name] for name in ("prep", "scan", "out"))
    assert found["bytes"]["scan"] == (traffic()["scan"] - 2 * row) * chunks
    assert found["floor_us"]["backward"] == pytest.approx(found["bytes"]["backward"] / 1e6)
    kept = gdn_gpu_speed.floors(replace(shape, save=True), (2, 16, 128, 128), 1e12)["bytes"]
    assert set(kept) == {"least", "least_forward"}
    assert kept["least"] - found["bytes"]["least"] == 2 * row * chunks


def test_a_baseline_that_is_not_installed_is_skipped_with_the_reason(monkeypatch):
    shape = gdn_gpu_speed.Shape("kda", 1, 2, 70)
    inputs = gdn_gpu_speed._inputs(shape, "cpu")
    monkeypatch.setattr(gdn_gpu_speed, "_inputs", lambda shape: inputs)
    for module in ("fla", "cudnn"):
        monkeypatch.setitem(sys.modules, module, None)
    for work in (gdn_gpu_baselines.fla, gdn_gpu_baselines.cudnn):
        assert "cannot be imported" in work(shape)["skipped"]


def test_fla_is_called_with_the_arguments_of_the_same_operator(monkeypatch):
    """The torch path under fla's names, timed by one call: what is compared agrees."""
    from lethe.kernels.gdn import kda

    def chunk_kda(q, k, v, g, beta, scale):
        return kda(q, k, v, g, beta, scale=scale, backend="torch")

    def backward(a, do, dfinal):
        return torch_path.backward(a, do, torch.zeros(a.state_shape), torch_path.forward(a, False)[2])

    _by_torch(monkeypatch)
    monkeypatch.setattr(gdn_gpu_baselines.cute_sm90, "backward", backward)
    for name in ("fla", "fla.ops", "fla.ops.kda"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(chunk_kda=chunk_kda))
    shape = gdn_gpu_speed.Shape("kda", 1, 2, 70)
    inputs = gdn_gpu_speed._inputs(shape, "cpu")
    monkeypatch.setattr(gdn_gpu_speed, "_inputs", lambda shape: inputs)
    monkeypatch.setattr(gdn_gpu_baselines.metadata, "version", lambda name: "1")
    measured = lambda steps, repeats: {name: [step() and 2.0] * 3 for name, step in steps.items()}  # noqa: E731
    monkeypatch.setattr(gdn_gpu_baselines.timing, "measured", measured)
    monkeypatch.setattr(gdn_gpu_baselines.timing, "alone", lambda f, n: ([len(f()) and 4.0] * 3, "graph"))
    row = gdn_gpu_baselines.fla(shape)
    assert max(row["agrees"].values()) < 1e-2 and row["forward+backward"]["over_ours"] == 2.0


def test_bytes_by_the_gates_that_are_there():
    row = 2 * 64 * 128
    assert sum(traffic().values()) == 45 * row and least_traffic() == 15 * row
    erases_nothing = traffic(widths=(128, 0, 0))
    assert erases_nothing["scan"] == traffic()["scan"] - 3 * row
    assert least_traffic(widths=(0, 0, 0)) == 7 * row
