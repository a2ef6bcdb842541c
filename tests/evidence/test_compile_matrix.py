"""The record of the compile matrix: complete and in order, or not written."""

from __future__ import annotations

import json

import pytest
import torch

from lethe import provenance
from lethe.evidence import compile_matrix
from lethe.kernels.mamba3 import (
    angles,
    head_backward,
    head_forward,
    head_launch,
    resources,
    scan_backward,
    scan_ends,
    scan_forward,
    scan_launch,
    states,
)


def test_a_matrix_with_a_gap_is_not_recorded(tmp_path):
    lines = [
        json.dumps({"kernel": kernel, "target": target, "num_warps": warps, "function": function.fn.__name__})
        for kernel, number, warps in resources.cells()
        for target in [f"sm_{number}"]
        for function, _ in resources.specialisations(kernel, warps)
    ]
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    cut = next(i for i, line in enumerate(lines) if '"C4"' in line)
    second.write_text("\n".join(lines[:cut]))
    first.write_text("\n".join(lines[cut:-1]))
    with pytest.raises(ValueError, match="C6 on sm_120 with 8 warps has 2 rows for 3 functions"):
        compile_matrix.record([first, second], tmp_path)
    first.write_text("\n".join(lines[cut:]))
    written = provenance.load(compile_matrix.record([first, second], tmp_path))
    assert written.samples == [json.loads(line) for line in lines]
    assert written.parameters["launched"]["head_gradient"] == 8


class Spy:
    """Stands in for a kernel and notes the warps of its launches, for which Triton's default is four."""

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def __getitem__(self, grid):
        return lambda *args, num_warps=4, **kwargs: self.seen.setdefault(self.name, set()).add(num_warps)


def test_the_warps_of_the_launches_are_in_the_matrix(monkeypatch):
    seen: dict[str, set[int]] = {}
    modules = (angles, head_backward, head_forward, scan_backward, scan_ends, scan_forward, states)
    for name in resources.LAUNCHED:
        module = next(m for m in modules if hasattr(m, name))
        monkeypatch.setattr(module, name, Spy(name, seen))
    batch, length, width, n, heads, rank = 1, 70, 8, 2, 2, 4
    along, by_head = torch.ones(batch, length, width), torch.ones(batch, heads, length)
    B, row = torch.ones(batch, length, n), torch.ones(width)
    scan = scan_launch.Operands(
        along,
        along,
        torch.ones(width, n),
        B,
        B,
        row,
        along,
        row,
        None,
        None,
        torch.ones(width, 4),
        row,
        None,
        True,
    )
    scan_launch.forward(scan, 32)
    scan_launch.backward(scan, along, None)
    key, v = torch.ones(batch, length, rank, 1, n), torch.ones(batch, length, heads, width)
    angle, bias = torch.ones(batch, length, heads, 1), torch.ones(heads, rank, n)
    project = torch.ones(heads, rank, width)
    head = head_launch.Operands(
        key, key, v, by_head, by_head, by_head, bias, bias, angle, angle, torch.ones(heads), v, project,
        project, project, None, False,
    )  # fmt: skip
    _, _, entry = head_launch.forward(head, 32)
    head_launch.backward(head, v, None, entry, 32)
    head_launch.angle_forward(angle, by_head, None)
    head_launch.angle_backward(angle, by_head, angle, angle, angle, angle)
    assert seen == {name: {warps} for name, warps in resources.LAUNCHED.items()}


def test_the_matrix_holds_every_number_of_warps():
    there = {(kernel, warps) for kernel, _, warps in resources.cells()}
    assert there >= {(kernel, warps) for kernel in resources.KERNELS for warps in resources.WARPS}
    functions = {
        (function.fn.__name__, warps)
        for kernel, warps in there
        for function, _ in resources.specialisations(kernel, warps)
    }
    assert functions >= set(resources.LAUNCHED.items())
    assert [c[1:] for c in resources.cells(["C1:1"])] == [(t, 1) for t in resources.TARGETS]
