"""The measuring script without a GPU: what it compiles together, its lines, its record, its dry run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from lethe import provenance
from lethe.evidence import elsewhere
from lethe.rl import launch_gpu
from lethe.rl.launch_space import HELD_OUT, SHAPES, SPACES, candidate_of
from lethe.rl.launch_table import tables


@pytest.mark.parametrize("op", SPACES)
def test_groups_share_their_kernels_and_leave_nothing_out(op):
    space, configs = SPACES[op], list(SPACES[op].configs())
    groups = launch_gpu.by_tile(space)
    assert sorted(i for group in groups for i in group) == list(range(len(space)))
    for group in groups:
        assert len({(c.tile, c.by_state) for c in (candidate_of(space, configs[i]) for i in group)}) == 1


def step_clock(step, fastest, repeats):
    """The sample of a configuration without launching anything."""
    return [1.0 if fastest == float("inf") else fastest + 1.0] * repeats


def line(op, shape, errors):
    space = SPACES[op]
    return launch_gpu.measured(space, shape, errors, step_clock, 3, "meta", 132)


def test_a_line_names_what_failed_and_what_was_not_compiled():
    space = SPACES["C2"]
    errors = {i: None for i in range(len(space)) if i != 5} | {2: "ptxas said no"}
    row = line("C2", SHAPES[0], errors)
    assert row["errors"] == {"2": "ptxas said no", "5": "it was not compiled in time"}
    assert row["us"][2] is row["us"][5] is None and len(row["us"][0]) == 3
    assert row["selector"]["pass"] == "backward" and len(row["selector"]["us"]) == 3
    json.dumps(row, allow_nan=False)


def test_record_holds_tables_and_names_the_other_machine(tmp_path):
    folder = tmp_path / "run"
    every = dict.fromkeys(range(120))
    rows = [line("C1", SHAPES[0], every), line("C2", HELD_OUT[0], every)]
    rows.append({"op": "C6", "shape": list(SHAPES[0]), "skipped": "the time was spent"})
    launch_gpu.write(folder, iter(rows))
    device = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "1"}
    (folder / elsewhere.MACHINE).write_text(json.dumps({"device": device, "versions": {"triton": "3.6.0"}}))
    path = launch_gpu.record(folder, tmp_path)
    assert path == tmp_path / "h200" / "launch_table.json"
    found = provenance.load(path)
    assert "lethe/kernels/mamba3/scan_launch.py" in found.sources
    assert "lethe/rl/launch_space.py" in found.sources
    made = tables(found)
    assert set(made) == {"C1", "C2"} and made["C1"].train == (SHAPES[0],)
    assert made["C2"].held_out == (HELD_OUT[0],)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    assert launch_gpu.measured_before(tmp_path) == frozenset()
    row = line("C2", SHAPES[0], {})
    skipped = {"op": "C2", "shape": list(SHAPES[1]), "skipped": "the time was spent"}
    launch_gpu.write(tmp_path, iter([row, skipped]))
    assert launch_gpu.measured_before(tmp_path) == {("C2", SHAPES[0])}


def test_a_wrong_result_is_not_timed(monkeypatch):
    """Speed is worth nothing before the result is right; NaN is not right either."""

    class Fake:
        def __init__(self, value):
            self.value = value

        def step(self, case, where):
            return lambda: (torch.full((4,), self.value), torch.ones(2))

        def facts(self):
            return {"pass": "forward"}

    values = iter([1.0, 1.0 + 2**-6, math.nan] + [1.0] * 21)
    made = {}
    monkeypatch.setattr(launch_gpu, "selected", lambda *_: Fake(1.0))
    monkeypatch.setattr(launch_gpu, "candidate_of", lambda s, c: made.setdefault(str(c), Fake(next(values))))
    row = launch_gpu.measured(SPACES["C2"], SHAPES[0], dict.fromkeys(range(24)), step_clock, 1, "cpu", 132)
    assert len(row["errors"]) == 2 and all("wrong" in why for why in row["errors"].values())
    assert sum(s is None for s in row["us"]) == 2


def test_a_lost_device_ends_the_run():
    def lost(step, fastest, repeats):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    space = SPACES["C2"]
    with pytest.raises(launch_gpu.DeviceLost, match="illegal memory access"):
        launch_gpu.measured(space, SHAPES[0], dict.fromkeys(range(24)), lost, 3, "meta", 132)


def test_says_what_is_missing(tmp_path, capsys):
    assert launch_gpu.main(["record", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run_walks_the_same_path(tmp_path):
    command = [sys.executable, "-m", "lethe.rl.launch_gpu", "dry", "--out", str(tmp_path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(command, check=True, cwd=provenance.ROOT, env=environment, timeout=280)
    rows = [json.loads(text) for text in (tmp_path / launch_gpu.LINES).read_text().splitlines()]
    assert [row["op"] for row in rows] == ["C1", "C2", "C6"]
    assert all(sum(s is not None for s in row["us"]) == 2 and row["selector"]["us"] for row in rows)
