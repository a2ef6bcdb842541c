"""The record of the compile matrix: complete and in order, or not written."""

from __future__ import annotations

import json

import pytest

from lethe import provenance
from lethe.evidence import compile_matrix
from lethe.kernels.mamba3 import resources


def test_a_matrix_with_a_gap_is_not_recorded(tmp_path):
    lines = [
        json.dumps({"kernel": kernel, "target": target, "num_warps": warps, "function": function.fn.__name__})
        for kernel, number, warps in resources.cells()
        for target in [f"sm_{number}"]
        for function, _ in resources.specialisations(kernel, warps)
    ]
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    second.write_text("\n".join(lines[:100]))
    first.write_text("\n".join(lines[100:-1]))
    with pytest.raises(ValueError, match="C6 on sm_120 with 8 warps has 2 rows for 3 functions"):
        compile_matrix.record([first, second], tmp_path)
    first.write_text("\n".join(lines[100:]))
    written = provenance.load(compile_matrix.record([first, second], tmp_path))
    assert written.samples == [json.loads(line) for line in lines]
    assert written.parameters["launched"]["C3"] == 8


def test_the_warps_of_the_launches_are_in_the_matrix():
    there = {(kernel, warps) for kernel, _, warps in resources.cells()}
    assert there >= set(resources.LAUNCHED.items())
    assert there >= {(kernel, warps) for kernel in resources.KERNELS for warps in resources.WARPS}
    assert [c[1:] for c in resources.cells(["C1:1"])] == [(t, 1) for t in resources.TARGETS]
