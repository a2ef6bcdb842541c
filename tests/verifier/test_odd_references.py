"""References in odd but legal forms: a verdict comes of each, and never against a candidate that is the same
code."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
import torch

from lethe.audit.corpora import Row
from lethe.audit.pool import is_crowded, judge_row
from lethe.verifier import memory
from lethe.verifier.absolute import absolute_terms
from lethe.verifier.judge import Judge
from lethe.verifier.oracle import module_copy
from lethe.verifier.problem import (
    Candidate,
    OpSpec,
    Problem,
    instantiate,
    load_candidate,
    load_problem,
    problem_from_spec,
)
from lethe.verifier.profiling import profile_operator
from lethe.verifier.verdict import Status
from lethe.verifier.weights import seeded_alike

X = "torch.randn(9, 24)"
VALUES = ("CMP-01", "EXC-01", "PRC-01")


def source(forward: str, draws: str = X, names: str = "x", init: str = "") -> str:
    head = "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n"
    body = f"def __init__(self):\n    super().__init__()\n{indent(dedent(init), '    ')}\n" if init else ""
    body += f"def forward(self, {names}):\n{indent(dedent(forward), '    ')}\n"
    return head + indent(body, "    ") + f"\ndef get_inputs():\n    return [{draws}]\n"


def same(text: str) -> tuple[Problem, Candidate]:
    """A problem, and the candidate that is the same code."""
    return load_problem(text), load_candidate(text.replace("class Model(", "class ModelNew("))


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


UNUSABLE = {
    "only float32": "if x.dtype != torch.float32:\n    raise TypeError('only float32')\nreturn x.cumsum(-1)",
    "SystemExit: enough": "raise SystemExit('enough')",
    "traced run (SystemExit": "if x.dtype is torch.float64:\n    raise SystemExit('late')\nreturn x * 2",
    "memory ran out (MemoryError": "if x.dtype is torch.float64:\n    raise MemoryError\nreturn x * 2",
    "not implemented for 'Float8_e4m3fn'": "return x.to(torch.float8_e4m3fn)",
    "doesn't support sizes": "return torch.nested.nested_tensor([x[0], x[1, :3]])",
    "an output is empty": "return x[:0]",
    "returns no tensor": "return None",
}


@pytest.mark.parametrize("said", UNUSABLE)
def test_a_reference_that_cannot_be_used_is_a_verdict(judge, said):
    problem, candidate = same(source(UNUSABLE[said]))
    verdict = judge.verify(problem, candidate)
    assert verdict.status is Status.REFERENCE_FAILED
    assert said in verdict.message and "\n" not in verdict.message
    row = Row("1", "none", problem, candidate, "", "torch_only", None, "")
    again = judge_row(judge, row)
    assert (again.status, again.message) == (verdict.status, verdict.message)
    assert is_crowded(again) == ("memory" in said)


def test_uninitialised_weights_are_a_verdict(judge):
    verdict = judge.verify(*same(source("return self.f(x)", init="self.f = nn.LazyLinear(8)")))
    assert verdict.status is Status.REFERENCE_FAILED and "uninitialized parameter" in verdict.message


def _draw(n: int) -> list[torch.Tensor]:
    return [torch.randn(n, 8)]


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _narrow_oracle(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).float()


def _short_oracle(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[:1]


def judged_by(judge, oracle):
    problem = problem_from_spec(OpSpec("double", _double, _draw, {"n": 32}, oracle))
    return judge.verify(problem, load_candidate("def ModelNew(x):\n    return x * 2\n"), gates=["CMP-01"])


def test_an_oracle_in_the_wrong_dtype_is_a_verdict(judge):
    verdict = judged_by(judge, _narrow_oracle)
    assert verdict.status is Status.REFERENCE_FAILED and "must compute and return float64" in verdict.message


def test_an_oracle_of_another_shape_decides_nothing(judge):
    gate = judged_by(judge, _short_oracle).gate("CMP-01")
    assert gate.status == "not_applicable"
    assert "other shapes in float64" in next(iter(gate.skipped.values()))


BY_VALUE = {
    "selected": "return x[x > 0].cumsum(-1)",
    "two": "return x[x > 0], x[x <= 0].sum()",
    "nonzero": "return x[x.nonzero(as_tuple=True)] * 2",
    "rounded": "y = x.cumsum(-1)\nreturn x[(y - y.mean()) > 1e-7].cumsum(-1)",
    "count": "return [x] * (1 + int(x[0, 0] > 0) + int(x[0, 1] > 0))",
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_values_may_decide_which_elements_there_are(judge, name):
    verdict = judge.verify(*same(source(BY_VALUE[name])), gates=VALUES)
    assert verdict.clean and verdict.gate("CMP-01").cases > 10


def test_traits_of_a_reference_whose_shape_its_values_decide():
    instance = instantiate(load_problem(source(BY_VALUE["selected"])))
    found = profile_operator(instance, instance.draw(0))
    assert not found.linear and not found.affine_or_copy


ONCE = source(
    "self.calls += 1\nif self.calls > 1:\n    raise RuntimeError('once')\nreturn x * 2", init="self.calls = 0"
)


def test_a_reference_that_answers_once_remembers_its_calls(judge):
    instance = instantiate(load_problem(ONCE))
    assert memory.keeps_state(instance, instance.draw(0))
    assert judge.verify(*same(ONCE), gates=VALUES).clean


def test_memory_that_runs_out_at_the_second_call_is_no_hidden_state():
    """Other judges may hold the device: this says nothing of the reference (fairness rule 21)."""
    full = instantiate(load_problem(ONCE.replace("RuntimeError('once')", "MemoryError")))
    with pytest.raises(MemoryError):
        memory.keeps_state(full, full.draw(0))


def test_a_reference_whose_number_of_outputs_grows_remembers_its_calls(judge):
    growing = source("self.calls += 1\nreturn [x] * self.calls", init="self.calls = 0")
    assert judge.verify(*same(growing), gates=[*VALUES, "ORD-02"]).clean


PAIR = {"draws": f"{X}, {X}", "names": "x, y"}
COMPLEX = {
    "fft": source("return torch.fft.fft(x)"),
    "fft2": source("return torch.fft.fft2(x)"),
    "rfft": source("return torch.fft.rfft(x)"),
    "conjugate": source("return torch.fft.fft(x).conj()"),
    "product": source("return torch.complex(x, y) @ torch.complex(y, x).mH", **PAIR),
    "sums": source("z = torch.complex(x, 2 * x)\nreturn z.sum(-1), z.mean(-1), z.cumsum(-1), z.prod(-1)"),
    "long sum": source("return torch.complex(x, 2 * x).sum(-1)", "torch.randn(4, 3000)"),
    "inputs": source("return x * y", f"torch.randn(9, 24, dtype=torch.complex64), {X}", "x, y"),
    "weights": source(
        "return torch.fft.fft(x) @ self.w",
        init="self.w = nn.Parameter(torch.randn(24, 5, dtype=torch.complex64))",
    ),
}
ROTATION = source(
    "z = torch.view_as_complex(x.reshape(len(x), -1, 2)) * self.f\nreturn torch.view_as_real(z).flatten(1)",
    init="self.register_buffer('f', torch.polar(torch.ones(12), torch.arange(12.0)))",
)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_outputs_are_judged(judge, name):
    verdict = judge.verify(*same(COMPLEX[name]), gates=("CMP-01", "CMP-03", "PRC-01"))
    assert verdict.clean
    assert verdict.gate("CMP-01").status == verdict.gate("CMP-03").status == "pass"


@pytest.mark.parametrize(
    "wrong", ["torch.fft.fft2(x).conj()", "torch.fft.fft2(x) * (1 + 1e-4j)", "torch.fft.fft2(x).real"]
)
def test_complex_outputs_are_judged_in_both_parts(judge, wrong):
    candidate = load_candidate(source(f"return {wrong}").replace("Model(", "ModelNew("))
    verdict = judge.verify(load_problem(COMPLEX["fft2"]), candidate, gates=["CMP-01"])
    assert verdict.failed == ("CMP-01",)


def test_what_is_not_compared_is_said_of_each_kind_of_output(judge):
    text = source("return torch.fft.fft(x), x.argmax(-1), x * 2")
    told = judge.verify(*same(text), gates=["EXC-01"]).gate("EXC-01").detail
    assert "integers hold no NaN and no infinity: out[1]" in told
    assert "which part is NaN: out[0]" in told


def test_complex_numbers_are_no_sums_of_absolute_terms():
    for text in (COMPLEX["fft2"], ROTATION, source("return x.to(torch.complex64)")):
        instance = instantiate(load_problem(text))
        assert absolute_terms(instance, instance.draw(0)) is None


def test_a_copy_of_the_reference_keeps_imaginary_parts():
    instance = instantiate(load_problem(ROTATION))
    for dtype, kept in ((torch.float32, torch.complex64), (torch.float64, torch.complex128)):
        f = module_copy(instance, dtype).f
        assert f.dtype is kept and torch.equal(f.to(torch.complex64), instance.module.f)


def test_a_complex_buffer_convicts_nobody(judge):
    real = source(
        """
        z = x.reshape(x.shape[0], -1, 2)
        c, s = self.angle.cos(), self.angle.sin()
        a, b = z[..., 0] * c - z[..., 1] * s, z[..., 0] * s + z[..., 1] * c
        return torch.stack([a, b], -1).flatten(1)
        """,
        init="self.register_buffer('angle', torch.arange(12.0), persistent=False)",
    )
    problem, candidate = same(ROTATION)
    assert judge.verify(problem, candidate).clean
    spelled = load_candidate(real.replace("class Model(", "class ModelNew("))
    assert not judge.verify(problem, spelled, gates=VALUES).failed


def test_complex_weights_under_another_name_are_found():
    w = torch.randn(3, 4, dtype=torch.complex64)
    assert seeded_alike({"w": w}, {"v": w.clone()})
    assert not seeded_alike({"w": w}, {"v": w.conj().resolve_conj()})


@pytest.mark.parametrize("forward", ["return w @ x", "return w.mT @ x", "return w.mT"])
def test_a_zero_pattern_in_another_layout(judge, forward):
    text = source(forward, "torch.tril(torch.randn(24, 24)).mT, torch.randn(24, 24)", "w, x")
    assert judge.verify(*same(text), gates=["EXC-01"]).gate("EXC-01").status == "pass"


ODD = {
    "einsum": source(
        "return torch.einsum('...ij,jk->...ik', x, w)", f"torch.randn(3, 9, 24), {X}.mT", "x, w"
    ),
    "where": source("return torch.where(x > 0, x, 0.0) + torch.where(x < 0, 1, 2)"),
    "index_select": source("return x.index_select(1, i)", f"{X}, torch.randint(0, 24, (7,))", "x, i"),
    "scatter_add": source(
        "return torch.zeros_like(x).scatter_add(1, i, x)", f"{X}, torch.randint(0, 24, (9, 24))", "x, i"
    ),
    "cumprod": source("return x.cumprod(-1)", "torch.rand(9, 24) + 0.5"),
    "sort": source("return x.sort(-1)"),
    "containers": source("return {'a': x + 1, 'b': None, 'c': (x.sum(-1), 3)}, None"),
    "scalar": source("return (x * x).sum()"),
    "integer": source("return (x * 4).round().to(torch.int32)"),
    "boolean": source("return x > 0"),
    "within": source("return torch.fft.ifft(torch.fft.fft(x) * 2).real"),
    "in place": source("y = x.clone()\ny.mul_(2).add_(1)\ny[:, 0] = 0\nx.add_(1)\nreturn y, x"),
    "empty input": source("return x.sum(-1), y.sum()", f"{X}, torch.zeros(0, 3)", "x, y"),
    "strides ignored": source("return x.as_strided((4, 4), (1, 2))"),
}


@pytest.mark.parametrize("name", ODD)
def test_the_same_code_keeps_its_contracts(judge, name):
    verdict = judge.verify(*same(ODD[name]), gates=(*VALUES, "CMP-03", "ORD-02"))
    assert verdict.status is Status.JUDGED and verdict.clean
    assert not [g for g in verdict.gates if g.status == "error"]
