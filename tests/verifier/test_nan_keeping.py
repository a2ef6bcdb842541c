"""The NaN-keeping twin of a kernel, and the label maxNum that it decides."""

from __future__ import annotations

import ast

import pytest

from lethe.verifier import nan_keeping, semantics
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.trial import Trial

HEAD = '''"""A kernel."""
from __future__ import annotations

import torch
import torch.nn as nn
import triton
import triton.language as tl

'''
ROWS = """
@triton.jit
def rows(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < width
    x = tl.load(x_ptr + row * width + at, mask=keep, other=-float("inf"))
{body}


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty({shape}, device=x.device)
        rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
SIZES = """
rows = 6
width = 24

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return []
"""


def to_row(body: str, top: str = "") -> str:
    """A kernel that stores ``y`` elementwise."""
    return _kernel(f"{body}\ntl.store(y_ptr + row * width + at, y, mask=keep)", "x.shape", top)


def to_number(body: str, top: str = "") -> str:
    """A kernel that stores one ``y`` a row."""
    return _kernel(f"{body}\ntl.store(y_ptr + row, y)", "x.shape[:1]", top)


def _kernel(body: str, shape: str, top: str) -> str:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return HEAD + top + ROWS.format(body=indented, shape=shape)


def problem(expression: str):
    model = "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
    return load_problem(f"{model}        return {expression}\n{SIZES}")


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as running:
        yield running


def exc01(judge, expression: str, candidate: str):
    return judge.verify(problem(expression), load_candidate(candidate), gates=["EXC-01"]).gate("EXC-01")


def labels(judge, expression: str, candidate: str) -> set[tuple[str, bool, str]]:
    return {
        (f.mechanism, f.extra["maxnum"], f.extra["maxnum_by"])
        for f in exc01(judge, expression, candidate).findings
    }


COMBINER = """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

"""
DROPPING = {
    "maximum": ("x.relu()", to_row("y = tl.maximum(x, 0.0)")),
    "clamp": ("x.clamp(-1, 1)", to_row("y = tl.clamp(x, -1.0, 1.0)")),
    "max": ("x.amax(-1)", to_number("y = tl.max(x, axis=0)")),
    "min": ("x.amin(-1)", to_number('y = tl.min(tl.where(keep, x, float("inf")), 0)')),
    "method": ("x.amax(-1)", to_number("y = x.max(axis=0)")),
    "indices": ("x.max(-1)[0]", to_number("y, _ = tl.max(x, 0, return_indices=True)")),
    "reduce": ("x.amax(-1)", to_number("y = tl.reduce(x, 0, larger)", COMBINER)),
    "library's reduce": ("x.amax(-1)", to_number("y = tl.reduce(x, 0, tl.standard._elementwise_max)")),
}


@pytest.mark.parametrize(("expression", "candidate"), DROPPING.values(), ids=DROPPING)
def test_what_a_maximum_dropped_is_gone_in_the_twin(judge, expression, candidate):
    found = labels(judge, expression, candidate)
    assert ("swallowed", True, "experiment") in found
    assert found <= {("swallowed", True, "experiment"), ("inf_for_nan", True, "experiment")}
    verdict = judge.verify(
        problem(expression), load_candidate(nan_keeping.twin(candidate)), gates=["EXC-01", "RES-02"]
    )
    assert [g.status for g in verdict.gates] == ["pass", "pass"], "it keeps NaN, and compiles for a GPU"


def test_a_nan_lost_in_a_comparison_is_no_maximums(judge):
    """Its tl.max is rightly told: a NaN from it reaches the comparison all the same."""
    body = """m = tl.max(x, axis=0)
s = tl.log(tl.sum(tl.exp(x - m), axis=0)) + m
y = tl.where(s > 0, s, 0.0)"""
    assert labels(judge, "x.logsumexp(-1).relu()", to_number(body)) == {("swallowed", False, "experiment")}


def test_a_minimum_of_sizes_drops_no_nan(judge):
    body = "n = tl.minimum(width, BLOCK)\ny = tl.where((x > 0) & (at < n), x, 0.0)"
    assert labels(judge, "x.relu()", to_row(body)) == {("swallowed", False, "experiment")}


def test_an_infinity_in_the_place_of_a_dropped_nan_is_told_too(judge):
    body = "y = 1.0 / (tl.maximum(tl.sum(tl.where(keep, x, 0.0), axis=0), 0.0))"
    found = labels(judge, "1 / x.sum(-1).relu()", to_number(body))
    assert ("inf_for_nan", True, "experiment") in found and {label for _, label, _ in found} == {True}


def test_two_faults_in_one_kernel_are_told_apart(judge):
    """The maximum swallows NaN, and the comparison makes one of infinity: the twin shows the second only."""
    body = 'y = tl.where(x == float("inf"), float("nan"), tl.maximum(x, 0.0))'
    assert labels(judge, "x.relu()", to_row(body)) == {
        ("swallowed", True, "experiment"),
        ("nan_for_inf", False, "experiment"),
    }


def test_a_twin_that_shows_another_fault_explains_nothing(judge):
    """Its NaN turns up in the whole row: what was charged is gone, but the kernel is not right."""
    body = "y = tl.maximum(x, 0.0) + tl.minimum(tl.maximum(tl.max(x, axis=0), 0.0), 0.0)"
    told = {f.case: f.extra["maxnum"] for f in exc01(judge, "x.relu()", to_row(body)).findings}
    assert told["nan:input0:first"] is False
    assert told["nan:input0:whole_row"] is True, "there the row is NaN anyway"


def test_integer_outputs_are_named_as_not_compared(judge):
    both = "x.argmax(-1), x.amax(-1)"
    head = "import torch\nimport torch.nn as nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    found = exc01(judge, both, f"{head}        return {both}\n")
    assert found.status == "pass" and "integers" in found.detail and found.detail.endswith("out[0]")
    assert exc01(judge, "x.amax(-1)", f"{head}        return x.amax(-1)\n").detail == ""


def test_one_twin_for_a_candidate_and_none_without_a_finding(judge, monkeypatch):
    asked = []
    real = Trial.rewritten
    monkeypatch.setattr(Trial, "rewritten", lambda self, source: asked.append(source) or real(self, source))
    keeps = to_row("y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)")
    assert exc01(judge, "x.relu()", keeps).status == "pass" and not asked
    assert exc01(judge, "x.relu()", to_row("y = tl.maximum(x, 0.0)")).status == "fail" and len(asked) == 1
    del asked[:]
    assert exc01(judge, "x.relu()", to_row("y = tl.where(x > 0, x, 0.0)")).status == "fail" and not asked


def test_a_twin_that_does_not_run_leaves_the_label_to_the_text(judge, monkeypatch):
    monkeypatch.setattr(nan_keeping, "twin", lambda source: "raise RuntimeError('no twin')\n")
    assert labels(judge, *DROPPING["maximum"]) == {("swallowed", True, "text")}


class TestText:
    def test_helpers_stand_behind_the_docstring_and_the_future(self):
        tree = ast.parse(nan_keeping.twin(to_row("y = tl.maximum(x, 0.0)")))
        assert isinstance(tree.body[0], ast.Expr) and tree.body[1].module == "__future__"
        assert ast.unparse(tree.body[2]) == "import triton as _lethe_triton"

    @pytest.mark.parametrize(
        ("head", "call", "becomes"),
        [
            ("import triton.language as tl", "tl.maximum(a, b)", "_lethe_tl.maximum(a, b, propagate_nan="),
            (
                "from triton import language",
                "language.clamp(a, b, c)",
                "_lethe_tl.clamp(a, b, c, propagate_nan=",
            ),
            ("import triton", "triton.language.minimum(a, b)", "_lethe_tl.minimum(a, b, propagate_nan="),
            ("from triton.language import maximum as m", "m(a, b)", "_lethe_tl.maximum(a, b, propagate_nan="),
            ("import triton.language as tl", "tl.max(a, 0)", "_lethe_max(a, 0)"),
            (
                "from triton.language.extra import libdevice",
                "libdevice.fmax(a, b)",
                "_lethe_tl.maximum(a, b, propagate_nan=",
            ),
            (
                "import triton.language as tl",
                "tl.maximum(a, b, tl.PropagateNan.NONE)",
                "_lethe_tl.maximum(a, b, propagate_nan=_lethe_tl.PropagateNan.ALL)",
            ),
        ],
    )
    def test_calls_under_any_name(self, head, call, becomes):
        assert becomes in nan_keeping.twin(f"{head}\nz = {call}\n")

    @pytest.mark.parametrize(
        "source",
        [
            "import torch\ny = torch.maximum(a, b).max()\n",
            "import triton.language as tl\ny = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
            "import triton.language as tl\ny = tl.where(a > b, a, b) + max(a, b) + tl.argmax(a, 0)\n",
            "no Python\n",
        ],
    )
    def test_nothing_to_rewrite(self, source):
        assert nan_keeping.twin(source) is None

    def test_maxima_of_c_are_looked_for_in_strings_only(self):
        assert semantics.drops_nan_in_c('SOURCE = "float y = fmaxf(x, 0.f);"\n')
        assert not semantics.drops_nan_in_c("# like fmaxf(x, 0)\ny = 1\n")
        assert not semantics.drops_nan_in_c("y = libdevice.fmax(a, b)\n")
