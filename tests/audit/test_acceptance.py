"""The five-trial check: what it accepts, what it rejects, and that a candidate cannot talk it round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lethe.audit import acceptance
from lethe.audit.acceptance import Acceptance, compare, trial_seeds
from lethe.audit.corpora import open_corpus
from lethe.audit.house import build_manifest, default_folder
from lethe.verifier.problem import Candidate, Problem, ProblemError

REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return torch.softmax(x * self.gain, dim=-1)


rows = 4
width = 33


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
"""


def candidate(body: str, before: str = "") -> Candidate:
    """`REFERENCE`'s module as ModelNew, with another last line of forward."""
    source = REFERENCE.split("rows = 4")[0].replace("class Model(", before + "\n\nclass ModelNew(")
    source = source.replace("return torch.softmax(x * self.gain, dim=-1)", body)
    return Candidate(name="c", source=source, language="python")


@pytest.fixture(scope="module")
def checker() -> Iterator[Acceptance]:
    with Acceptance("cpu") as running:
        yield running


@pytest.mark.parametrize(
    ("body", "accepted", "passed", "message"),
    [
        ("return torch.softmax(x * self.gain, dim=-1)", True, 5, ""),
        ("return torch.softmax(x * self.gain, dim=-1) + 5e-3", True, 5, ""),
        ("return torch.softmax(x * self.gain, dim=-1) + 5e-2", False, 0, "off by up to 0.05"),
        ("return torch.softmax(x, dim=-1)", False, 0, "off by up to"),
        ("return torch.softmax(x * self.gain, dim=-1)[:2]", False, 0, "has shape (2, 33)"),
        ("return torch.softmax(x * self.gain, dim=-1).half()", False, 0, "has dtype torch.float16"),
        ("return torch.softmax(x * self.gain, dim=-1) / 0", False, 0, "not finite alike"),
        ("return (x, x)", False, 0, "2 output tensors, the reference returns 1"),
        ("raise RuntimeError('boom')", False, 0, "boom"),
        ("import os; os._exit(0)", False, 0, ""),
    ],
    ids=["honest", "within", "outside", "no-weight", "shape", "half", "inf", "tuple", "raises", "exits"],
)
def test_what_the_check_accepts(
    checker: Acceptance, body: str, accepted: bool, passed: int, message: str
) -> None:
    check = checker.check(Problem("p", REFERENCE), candidate(body))
    assert (check.accepted, check.passed) == (accepted, passed)
    assert message in check.message


def test_patching_the_comparison_changes_nothing(checker: Acceptance) -> None:
    patched = candidate("return x", before="torch.allclose = torch.equal = lambda *a, **k: True")
    assert not checker.check(Problem("p", REFERENCE), patched).accepted


def test_one_shape_and_no_gradient_is_all_it_sees(checker: Acceptance) -> None:
    """Why the verifier exists: right at the one shape, detached from autograd, wrong elsewhere."""
    body = "assert x.shape == (4, 33)\n        return torch.softmax(x * self.gain, dim=-1).detach()"
    assert checker.check(Problem("p", REFERENCE), candidate(body)).accepted


def test_errors_are_measured(checker: Acceptance) -> None:
    check = checker.check(
        Problem("p", REFERENCE), candidate("return torch.softmax(x * self.gain, dim=-1) + 1e-3")
    )
    assert check.max_abs_error == pytest.approx(1e-3, rel=1e-2)


def test_a_reference_that_raises_is_not_the_candidates_fault(checker: Acceptance) -> None:
    broken = Problem("p", REFERENCE.replace("torch.softmax(x", "torch.softmax(y"))
    with pytest.raises(ProblemError):
        checker.check(broken, candidate("return x"))


def test_trial_seeds_are_kernelbenchs_own() -> None:
    torch.manual_seed(42)
    assert trial_seeds() == [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(5)]


def test_compare_several_outputs_and_nan() -> None:
    x = torch.ones(3)
    assert compare((x, x), [x, x + 2e-3])[1] == ""
    assert "output 1 is off by up to 1" in compare((x, x), (x, x + 1))[1]
    nan = torch.tensor([1.0, float("nan"), 1.0])
    assert compare(nan, nan)[1], "KernelBench compares without equal_nan"
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2]))[1] == ""


def test_build_manifest_measures_and_keeps_what_it_cannot_know(tmp_path: Path) -> None:
    folder = tmp_path / "house"
    for name in ("problems/reduction_sum.py", "kernels/reduction_sum__a.py", "kernels/reduction_sum__cpp.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(default_folder() / name, folder / name)
    wrong = (
        (folder / "kernels/reduction_sum__a.py")
        .read_text()
        .replace("class ModelNew", "raise ValueError\nclass X")
    )
    (folder / "kernels/reduction_sum__b.py").write_text(wrong)
    told = {"id": "reduction_sum__a", "repair_rounds": 2, "approach": "a loop"}
    old = {"schema": "lethe.house/1", "made": {"model": "a model"}, "kernels": [told]}
    (folder / "manifest.json").write_text(json.dumps(old))
    manifest = json.loads(build_manifest(folder).read_text())
    assert (
        manifest["made"]["model"] == "a model" and "without knowledge of the gates" in manifest["made"]["how"]
    )
    assert [(k["id"], k["accepted"], k["repair_rounds"]) for k in manifest["kernels"]] == [
        ("reduction_sum__a", True, 2),
        ("reduction_sum__b", False, None),
        ("reduction_sum__cpp", True, None),
    ]
    assert manifest["kernels"][0]["check"]["max_abs_error"] < 1e-3
    assert manifest["acceptance"]["trials"] == acceptance.TRIALS
    assert [r.accepted for r in open_corpus("house", path=folder).rows()] == [True, False, True]
    again = json.loads(build_manifest(folder, only_changed=True).read_text())
    assert again["kernels"] == manifest["kernels"]
