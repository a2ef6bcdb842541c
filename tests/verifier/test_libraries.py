"""Kernels of a candidate's own library: which of a trace are its own, and what they need."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import torch

from lethe.verifier.executors import libraries
from lethe.verifier.executors.resources import exceeded
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import GateStatus

OWN = "kernel_cutlass_prep_0"
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"


def event(name: str, shared: int = 1024, block: tuple[int, ...] = (384, 1, 1), **args) -> dict:
    told = {"registers per thread": 168, "shared memory": shared, "block": list(block), **args}
    return {"cat": "kernel", "name": name, "args": told}


def test_the_needs_of_a_kernel_are_its_largest_launch():
    trace = [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "args": {"block": [1, 1, 1]}},
        event(OWN),
        event(OWN, shared=200 << 10),
        event(OWN, shared=100 << 10),
        event(TORCH, block=(128, 1, 1)),
    ]
    own, other = libraries.needs(trace, "sm_90")
    assert (own.name, own.target, own.num_warps, own.registers) == (OWN, "sm_90", 12, 168)
    assert own.shared_bytes == 200 << 10 and other.num_warps == 4
    assert exceeded(own) == []
    (large,) = libraries.needs([event(OWN, shared=(227 << 10) + 1)], "sm_90")
    assert "bytes of shared memory" in exceeded(large)[0]


@pytest.mark.parametrize(
    ("name", "section"),
    [
        (OWN, b".text." + OWN.encode()),
        ("scale(float*, int)", b".text._Z5scalePfi"),
        ("void ours::scale<float>(float*)", b".text._ZN4ours5scaleIfEEvPT_"),
    ],
)
def test_a_kernel_is_of_the_file_that_holds_its_code(name, section):
    assert libraries.holds([b"", b"\x00" + section + b"\x00"], name)
    assert not libraries.holds([b"\x00" + section + b"\x00"], TORCH)
    assert not libraries.holds([OWN.encode(), b"scale"], name), "a name on the host is no code"


def test_files_of_installed_packages_are_not_the_candidates(tmp_path):
    mine = tmp_path / "prep.so"
    mine.write_bytes(b"x")
    torchs = next(Path(torch.__file__).parent.glob("lib/*.so"))
    assert libraries.own_files([str(mine), str(torchs), "/dev/null", str(tmp_path)]) == [str(mine)]


def test_a_file_that_is_loaded_later_is_seen():
    before = libraries.mapped()
    extension = next(
        str(p) for p in Path(sys.base_prefix).rglob("lib-dynload/_*.so") if str(p.resolve()) not in before
    )
    ctypes.CDLL(extension)
    assert str(Path(extension).resolve()) in libraries.mapped() - before


def test_without_a_gpu_a_library_has_nothing_to_measure():
    problem = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + x


def get_inputs():
    return [torch.randn(8)]
"""
    native = Candidate("twice", problem.replace("Model", "ModelNew"), language="native")
    with Judge(device="cpu", gates=["RES-02"]) as judge:
        (result,) = judge.verify(Problem("twice", problem), native).gates
    assert result.status is GateStatus.NOT_APPLICABLE and "on a GPU only" in result.detail
