"""Gradients that end at a launch: a finding of CMP-02, with a sub-label of its own."""

from __future__ import annotations

import pytest

from lethe.verifier import semantics
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        return self.last(x * self.scale)

rows = 5
width = 12

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return [width]
"""
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def scaled(x_ptr, w_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < width
    x = tl.load(x_ptr + row * width + at, mask=keep)
    tl.store(y_ptr + row * width + at, x * tl.load(w_ptr + at, mask=keep), mask=keep)

def launch(x, w):
    x, y = x.contiguous(), torch.empty_like(x)
    scaled[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
{top}
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        return {result}
"""
HALF = """
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return launch(x, w)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None
"""


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as running:
        yield running


def gradient(judge, result: str, top: str = ""):
    candidate = load_candidate(KERNEL.replace("{top}", top).replace("{result}", result))
    return judge.verify(load_problem(PROBLEM), candidate, gates=["CMP-02"]).gate("CMP-02")


def missing(found) -> dict[str, bool]:
    return {
        f.output: bool(f.extra.get("detached")) for f in found.findings if f.mechanism == "missing_gradient"
    }


def test_a_launch_before_a_layer_is_charged_and_said_to_be_detached(judge):
    found = gradient(judge, "self.last(launch(x, self.scale))")
    assert found.status == "fail"
    assert missing(found) == {"grad:input:0": True, "grad:param:scale": True}


def test_a_backward_that_leaves_a_gradient_out_is_not(judge):
    found = gradient(judge, "self.last(Half.apply(x, self.scale))", HALF)
    assert missing(found) == {"grad:param:scale": False}


def test_nor_is_one_that_switches_gradients_off_itself(judge):
    found = gradient(judge, "self.last(launch(x, self.scale).detach())")
    assert missing(found) == {"grad:input:0": False, "grad:param:scale": False}


def test_nor_is_what_launches_nothing(judge):
    through_numpy = PROBLEM.replace("Model(", "ModelNew(").replace(
        "x * self.scale", "torch.from_numpy(x.numpy(force=True)) * self.scale"
    )
    found = judge.verify(load_problem(PROBLEM), load_candidate(through_numpy), gates=["CMP-02"]).gate(
        "CMP-02"
    )
    assert missing(found) == {"grad:input:0": False}


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ("y = kernel[grid](x)", True),
        ("class F(torch.autograd.Function): ...", False),
        ("from torch.autograd import Function\nclass F(Function): ...", False),
        ("torch.library.register_autograd('a::b', backward)", False),
        ("@op.register_autograd\ndef backward(ctx, g): ...", False),
        ("library.impl('f', f, 'AutogradCUDA')", False),
        ("SOURCE = 'struct F : torch::autograd::Function<F> {};'", False),
        ("with torch.no_grad():\n    y = f(x)", False),
        ("no Python", False),
    ],
)
def test_what_the_source_says_of_gradients(source, alone):
    assert semantics.leaves_gradients_alone(source) is alone
