"""A counterexample is a script of its own: it runs without this package, shows the defect, and only that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from lethe.verifier import counterexample
from lethe.verifier.counterexample_source import NoSource, spec_source
from lethe.verifier.judge import Judge
from lethe.verifier.problem import (
    Candidate,
    OpSpec,
    Problem,
    candidate_from_callable,
    load_candidate,
    load_problem,
    problem_from_spec,
)
from lethe.verifier.verdict import Verdict
from tests.meta import test_opspec, test_regressions
from tests.meta.cheats import CHEATS
from tests.meta.kernels import callables
from tests.meta.scripts import Ran, run, with_candidate

KERNELS = Path(__file__).parent / "kernels"
TWICE = "return x * 2"


@dataclass(frozen=True)
class Accused:
    """A problem, a candidate that breaks it, and the gate whose script is asked for."""

    id: str
    gate: str
    problem: Problem
    candidate: Candidate
    gates: tuple[str, ...]


def plain(id: str, gate: str, reference: str, body: str, head: str = "") -> Accused:
    """Both from the body of a ``forward`` of one (9, 40) input."""
    problem = test_regressions.PLAIN.format(name="Model", body=reference) + test_regressions.INPUTS
    candidate = head + test_regressions.PLAIN.format(name="ModelNew", body=body)
    gates = ("ORD-02", "EXC-01") if gate == "INTEGRITY" else (gate,)
    return Accused(id, gate, load_problem(dedent(problem)), load_candidate(dedent(candidate)), gates)


def file(id: str, gate: str, problem: str, candidate: str) -> Accused:
    loaded = load_problem(KERNELS / problem), load_candidate(KERNELS / candidate)
    return Accused(id, gate, *loaded, (gate,))


def of_spec(id: str, gate: str, spec: OpSpec, function: Any) -> Accused:
    return Accused(id, gate, problem_from_spec(spec), candidate_from_callable(function), (gate,))


NORM = test_regressions.norm_candidate("return nn.functional.layer_norm(x, x.shape[-1:])")
STAMP = "import time\nSTAMP = time.time() % 1\n"
BEYOND = "y = x * 2; torch.as_strided(torch.empty_like(x), (x.numel() + 8,), (1,)).fill_(0.0); return y"

MEMO = "KEPT = {}\n"
REMEMBERS = "key = x.data_ptr(), float(x.sum()); KEPT.setdefault(key, x * 2); return KEPT[key].clone()"
TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = {load}
    tl.store(y + at, value * 2, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x) if {all} else x * 2
        twice[({programs},)](x, y, x.numel(), BLOCK=64)
        return y
"""
MASKED = "tl.load(x + at, mask=at < n)"


def triton(id: str, gate: str, **parts: Any) -> Accused:
    problem = test_regressions.PLAIN.format(name="Model", body=TWICE) + test_regressions.INPUTS
    candidate = TRITON.format(**parts)
    return Accused(id, gate, load_problem(dedent(problem)), load_candidate(candidate), ("CMP-01",))


OTHERS = [
    Accused(
        "varied-weights", "CMP-01", load_problem(test_regressions.NORM), load_candidate(NORM), ("CMP-01",)
    ),
    plain("crash", "CMP-03", TWICE, "import os; x.shape[1] == 40 or os.kill(os.getpid(), 11); return x * 2"),
    plain(
        "raises", "CMP-01", TWICE, "if x.abs().max() > 100: raise RuntimeError('too large')\n        " + TWICE
    ),
    plain("shape", "CMP-03", "return x.sum(1)", "return x.sum(1)[:9]"),
    plain("scalar", "CMP-03", "return x * 2, x.shape[-1]", "return x * 2, 40"),
    plain("argmax", "CMP-01", "return x.argmax(1)", "return x[:, :39].argmax(1)"),
    plain("process", "ORD-02", TWICE, "return x * 2 + STAMP", STAMP),
    plain("beyond", "INTEGRITY", TWICE, BEYOND),
    plain(
        "history",
        "INTEGRITY",
        TWICE,
        "global CALLS; CALLS = globals().get('CALLS', 0) + 1; return x * 2 if CALLS < 62 else x * 3",
    ),
    plain("stale", "ORD-02", TWICE, REMEMBERS, MEMO),
    triton("reads-beyond", "INTEGRITY", load="tl.load(x + at)", all=True, programs="(x.numel() + 63) // 64"),
    triton("decoy", "INTEGRITY", load=MASKED, all=False, programs="1"),
    file("triton-one-shape", "CMP-03", "relu_reference.py", "relu_one_shape.py"),
    file("triton-drops-nan", "EXC-01", "softmax_reference.py", "softmax_drops_nan.py"),
    of_spec("spec-value", "CMP-01", test_opspec.MOMENTS, callables.moments_without_weight),
    of_spec("spec-gradient", "CMP-02", test_opspec.MOMENTS, callables.moments_without_weight),
    of_spec("spec-oracle-half", "PRC-01", test_opspec.MATMUL, callables.half_inside),
]
ALL = [
    *(
        Accused(c.id, c.gate, load_problem(c.problem()), load_candidate(c.candidate(c.cheat)), (c.gate,))
        for c in CHEATS
    ),
    *OTHERS,
]


@dataclass(frozen=True)
class Shown:
    verdict: Verdict
    told: dict[str, Any]
    ran: Ran | None
    control: Ran | None
    """The same script with the reference in the candidate's place."""


FEW = ("zeros-below-atol", "writes-its-input", "swallows-nan", "double", "triton-one-shape")
"""Accused of the fast subset: a value, an effect, a non-finite, a type, a refusal."""


@pytest.fixture(scope="module", autouse=True)
def patient():
    """The trials end a search here, never the time, so that a busy machine changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counterexample, "LEAST_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="module")
def shown(patient, tmp_path_factory) -> dict[str, Shown]:
    return _shown([a for a in ALL if a.id in FEW], tmp_path_factory)


@pytest.fixture(scope="module")
def all_shown(tmp_path_factory, shown) -> dict[str, Shown]:
    return shown | _shown([a for a in ALL if a.id not in FEW], tmp_path_factory)


def _shown(accused: list[Accused], tmp_path_factory) -> dict[str, Shown]:
    """Each judged, and each script run with the candidate and with the reference."""
    verdicts = {}
    for a in accused:
        judge = _judge(tmp_path_factory.mktemp("counterexamples"))
        verdicts[a.id] = judge.verify(a.problem, a.candidate, gates=a.gates)
    told = {a.id: verdicts[a.id].counterexamples.get(a.gate, {}) for a in accused}
    scripts = {id: t["path"] for id, t in told.items() if "path" in t}
    ran = run([*([p] for p in scripts.values()), *([p, "--control"] for p in scripts.values())])
    ends = dict(zip(scripts, zip(ran[: len(scripts)], ran[len(scripts) :], strict=True), strict=True))
    return {id: Shown(v, told[id], *ends.get(id, (None, None))) for id, v in verdicts.items()}


_judges: list[Judge] = []


def _judge(folder: Path) -> Judge:
    """One warm judge for all; each verdict has a folder of its own, since anonymous sources share a name."""
    if not _judges:
        _judges.append(Judge(device="cpu"))
    _judges[0]._counterexamples = folder
    return _judges[0]


@pytest.fixture(scope="module", autouse=True)
def close_judge():
    yield
    while _judges:
        _judges.pop().close()


@pytest.mark.parametrize("accused", [a for a in ALL if a.id in FEW], ids=lambda a: f"{a.gate}-{a.id}")
def test_a_script_shows_the_defect_and_acquits_the_reference(shown, accused: Accused):
    _holds(shown[accused.id])


@pytest.mark.slow
@pytest.mark.parametrize("accused", [a for a in ALL if a.id not in FEW], ids=lambda a: f"{a.gate}-{a.id}")
def test_so_does_the_script_of_every_mechanism(all_shown, accused: Accused):
    _holds(all_shown[accused.id])


def _holds(s: Shown) -> None:
    assert s.ran is not None and s.control is not None, s.told or s.verdict.message
    assert s.ran.status == 1, s.ran.printed
    assert "the defect shows" in s.ran.printed and "reason:" in s.ran.printed
    assert "expected" in s.ran.printed and "got" in s.ran.printed
    assert s.control.status == 0, s.control.printed
    text = Path(s.told["path"]).read_text()
    assert "import lethe" not in text and "from lethe" not in text
    assert Path(s.verdict.counterexample).name == "counterexample.py"


def test_a_script_runs_by_itself_and_acquits_a_mended_candidate(shown, tmp_path):
    s = shown["swallows-nan"]
    cheat = next(c for c in CHEATS if c.id == "swallows-nan")
    mended = with_candidate(Path(s.told["path"]), cheat.candidate(cheat.honest), tmp_path / "mended.py")
    ends = [
        subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, cwd=tmp_path)
        for script in (s.told["path"], str(mended))
    ]
    assert [e.returncode for e in ends] == [1, 0], ends


def test_a_machine_that_cannot_run_a_script_is_told_so(shown, tmp_path):
    broken = with_candidate(Path(shown["double"].told["path"]), "import no_such_module\n", tmp_path / "b.py")
    (ran,) = run([[broken]])
    assert ran.status == 2 and "no_such_module" in ran.printed and len(ran.printed.splitlines()) == 1


def test_the_most_telling_script_has_no_tolerance(tmp_path):
    body = "return torch.nan_to_num(torch.tanh(x) * 1.001)"
    accused = plain("both", "CMP-01", "return torch.tanh(x)", body)
    v = _judge(tmp_path).verify(accused.problem, accused.candidate, gates=("CMP-01", "EXC-01"))
    assert set(v.counterexamples) == {"CMP-01", "EXC-01"} == set(v.failed)
    assert Path(v.counterexample).read_text() == Path(v.counterexamples["EXC-01"]["path"]).read_text()


def test_counterexamples_are_no_part_of_the_canonical_verdict(shown, tmp_path):
    accused = next(a for a in ALL if a.id == "writes-its-input")
    with Judge(device="cpu") as bare:
        v = bare.verify(accused.problem, accused.candidate, gates=accused.gates)
    assert v.counterexample is None and not v.counterexamples
    assert v.canonical() == shown[accused.id].verdict.canonical()
    back = Verdict.from_dict(shown[accused.id].verdict.to_dict())
    assert back.counterexamples == shown[accused.id].verdict.counterexamples


def test_the_same_verdict_writes_the_same_scripts(shown, tmp_path):
    accused = next(a for a in ALL if a.id == "zeros-below-atol")
    v = _judge(tmp_path).verify(accused.problem, accused.candidate, gates=accused.gates)
    first, second = shown[accused.id].told, v.counterexamples["CMP-01"]
    assert Path(first["path"]).read_bytes() == Path(second["path"]).read_bytes()


def test_a_missing_script_is_explained(tmp_path):
    spec = OpSpec("twice", lambda x: x * 2, draw_rows, sizes={"rows": 5})
    v = _judge(tmp_path).verify(
        problem_from_spec(spec), candidate_from_callable(callables.thrice), ["CMP-01"]
    )
    assert v.failed == ("CMP-01",) and v.counterexample is None
    assert "module level" in v.counterexamples["CMP-01"]["none"]


def draw_rows(rows):
    return [torch.randn(rows, 7)]


def half(x):
    return x * FACTOR


FACTOR = torch.tensor(0.5)


def test_a_callable_is_cut_out_with_what_it_needs():
    space: dict[str, Any] = {}
    exec(spec_source(OpSpec("half", half, draw_rows)), space)
    assert space["Model"]()(torch.ones(2)).tolist() == [0.5, 0.5]
    assert "draw_rows" not in space and "pytest" not in space
    exec(spec_source(OpSpec("relu", torch.relu, draw_rows)), space)
    assert space["Model"]()(-torch.ones(2)).tolist() == [0.0, 0.0]


def test_a_callable_that_needs_more_than_torch_has_no_source():
    with pytest.raises(NoSource, match="imports pytest"):
        spec_source(OpSpec("bound", needs_pytest, draw_rows))


def needs_pytest(x):
    return pytest.approx(x)


def test_a_folder_that_cannot_be_written_is_refused_before_judging(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="it is a file, not a folder"):
        Judge(device="cpu", counterexamples=tmp_path / "file")
    with pytest.raises(ValueError, match="is not a writable folder"):
        Judge(device="cpu", counterexamples=tmp_path / "file" / "below")


GREEDY = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def greedy(a, b, c, N: tl.constexpr, K, BLOCK: tl.constexpr):
    rows = tl.arange(0, N)
    total = tl.zeros((N, N), tl.float32)
    for k in range(0, K, BLOCK):
        at = k + tl.arange(0, BLOCK)
        x = tl.load(a + rows[:, None] * K + at[None, :])
        y = tl.load(b + at[:, None] * N + rows[None, :])
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + rows[:, None] * N + rows[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(128, 128, device=a.device)
        greedy[(1,)](a, b, c, 128, a.shape[1], 128, num_warps=8, num_stages=4)
        return c
"""
SQUARE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(128, 256), torch.randn(256, 128)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_script_compiles_and_prints_the_resources(tmp_path):
    v = _judge(tmp_path).verify(load_problem(SQUARE), load_candidate(GREEDY), gates=["RES-02"])
    assert v.failed == ("RES-02",)
    path = v.counterexamples["RES-02"]["path"]
    ran, control = run([[path], [path, "--control"]])
    assert (
        ran.status == 1 and "shared_bytes=" in ran.printed and "bytes of shared memory on sm_" in ran.printed
    )
    assert control.status == 0, control.printed
