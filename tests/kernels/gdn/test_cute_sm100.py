"""Backend `cute_sm100`: its plans, its refusals, its place in the choice, its record and its map."""

from __future__ import annotations

import ast
from itertools import combinations

import pytest
import torch

from lethe.evidence.gdn_emulated import poisoned
from lethe.evidence.gdn_gpu_checks import call
from lethe.evidence.gdn_precision import Case
from lethe.kernels.gdn import cute_sm90, cute_sm100, dispatch, launch
from lethe.kernels.gdn.architecture import HERE, SM90, SM100, STAGES, Architecture, _sources
from lethe.kernels.gdn.checks import check
from lethe.kernels.gdn.declare import Variant
from lethe.paper import gdn_blackwell_tables as tables
from lethe.provenance import ROOT

CASE = Case("gdn2", "mild", "silu", 64, "fp16", 70, 1)


def test_a_plan_has_the_launches_and_arguments_of_sm_90a():
    c = call(CASE, device="cpu")
    ours, made = cute_sm100.plan_backward(c.a, c.do, c.dfinal, None, poisoned, 2)
    theirs, _ = cute_sm90.plan_backward(c.a, c.do, c.dfinal, None, poisoned, 2)
    assert [(s.stage, s.options, s.arguments.keys()) for s in ours] == [
        (s.stage, s.options, s.arguments.keys()) for s in theirs
    ]
    assert set(made) == {"q", "k", "v", "g", "b", "w", "initial_state"}
    assert [s.stage for s in cute_sm100.plan_forward(c.a, True, poisoned)[0]] == ["prep", "forward"]


@pytest.fixture
def missing(monkeypatch, tmp_path):
    """A machine without the compiler and without libraries."""
    cute_sm100.BACKEND.ready.clear()
    monkeypatch.setattr(launch, "available", lambda: False)
    monkeypatch.setattr(Architecture, "libraries", lambda self: tmp_path)
    monkeypatch.setenv("LETHE_GDN_CACHE", str(tmp_path))
    monkeypatch.delenv("LETHE_GDN_LIBRARIES", raising=False)


def test_without_compiler_and_libraries_it_says_how_to_get_them(missing):
    why = cute_sm100.lacks("float16", 128, 64, "channel", "channel", "channel", False)
    assert why.startswith("prep_adjoint1") and "build --arch sm_100a prep" in why
    with pytest.raises(launch.LibraryError, match="is not built for sm_100a"):
        launch.find(SM100, Variant("scan", {"dk": 128}))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (("float16", 96, 64, "head", "head", "head", False), "d_k is 96"),
        (("float16", 128, 96, "head", "head", "head", False), "d_v is 96"),
        (("float16", 128, 64, "none", "channel", "head", False), "come as none, channel, head"),
    ],
)
def test_what_it_cannot_run_it_says(kind, why):
    assert why in cute_sm100.lacks(*kind)


def test_explain_names_it_and_why_it_is_not_taken_here():
    q, k, v = (torch.randn(1, 64, 1, 128) for _ in range(3))
    choice = dispatch.choose(check(q, k, v, None, None, None, None, None, None), "auto")
    assert "cute_sm100" in dispatch.INSTALLED
    assert choice.backend == "torch" and choice.refusals["cute_sm100"].startswith("q is on cpu")


def test_on_another_gpu_it_is_refused_in_one_sentence(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(dispatch, "_capability", lambda index: (9, 0))
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 64, 1, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        arguments = check(q, k, v, None, None, None, None, None, None)
    with pytest.raises(ValueError, match=r"this GPU has compute capability 9.0, the kernels need 10.0"):
        dispatch.choose(arguments, "cute_sm100")


def test_a_library_depends_on_both_packages():
    """The hash sees what both architectures share, and tells architectures and stages apart."""
    hashes = {a.source_hash(stage) for a in (SM90, SM100) for stage in STAGES}
    assert len(hashes) == 2 * len(STAGES)
    found = {path.relative_to(HERE).as_posix() for path in _sources(HERE / "sm100" / "scan.py")}
    assert found >= {"sm100/scan.py", "sm100/tensor.py", "sm90/scan.py", "sm90/parts.py", "declare.py"}
    assert "sm90/out.py" not in found


def constants(kernel: str) -> dict[str, int]:
    """What a kernel's map sets its columns to, read from the source."""
    tree = ast.parse((ROOT / f"lethe/kernels/gdn/sm100/{kernel}_map.py").read_text())
    found: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets[0], node.value
            pairs = (
                zip(targets.elts, value.elts, strict=True)
                if isinstance(targets, ast.Tuple) and isinstance(value, ast.Tuple)
                else [(targets, value)]
            )
            for name, number in pairs:
                if isinstance(number, ast.Constant):
                    found[name.id] = number.value
                elif isinstance(number, ast.Name):
                    found[name.id] = found[number.id]
    return found


@pytest.mark.parametrize("kernel", list(tables.ALLOCATED))
def test_the_map_of_the_book_is_that_of_the_kernels(kernel):
    own = [r for r in tables.REGIONS if r.kernel == kernel]
    there = constants(kernel)
    assert there["COLUMNS"] == tables.ALLOCATED[kernel]
    assert {r.name: r.first for r in own} == {r.name: there[r.name] for r in own}
    assert all(r.first + r.columns <= tables.ALLOCATED[kernel] for r in own)
    for one, two in combinations(own, 2):
        apart = one.first + one.columns <= two.first or two.first + two.columns <= one.first
        assert apart or one.turn != two.turn, (one.name, two.name)
