"""Reading references and candidates, and building references."""

from __future__ import annotations

import functools
import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lethe.verifier.problem import (
    CandidateError,
    OpSpec,
    ProblemError,
    candidate_from_callable,
    instantiate,
    load_candidate,
    load_problem,
    problem_from_spec,
    sizes_as_written,
)
from lethe.verifier.reference import run_reference
from tests.verifier.problem_sources import LINEAR, ROWS, rows

TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    pass

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
"""


def swap(old: str, new: str, source: str = LINEAR) -> str:
    assert old in source
    return source.replace(old, new)


MALFORMED = {
    "empty": ("  \n", "is empty"),
    "syntax": (swap("class Model(nn.Module):", "class Model(nn.Module)"), "is not valid Python: line 5"),
    "null byte": ("x = 1\n\0\n", "is a binary file"),
    "no model": (swap("class Model(", "class Modle("), "defines no class Model"),
    "no inputs": (swap("def get_inputs", "def inputs"), "defines no function get_inputs"),
}

UNUSABLE = {
    "import fails": (
        swap("import torch.nn", "import absent_module\nimport torch.nn"),
        "executing the reference raised",
    ),
    "exits": (
        swap("batch_size = 8 * 2", "raise SystemExit(3)"),
        "executing the reference raised: SystemExit: 3",
    ),
    "not a module": (
        swap("class Model(nn.Module):", "class Model:").replace("super().__init__()", "pass"),
        "not an nn.Module",
    ),
    "constructor": (
        swap("return [in_features, out_features]", "return [in_features]"),
        "constructing Model raised",
    ),
    "init raises": (
        swap("return [in_features, out_features]", "return [absent]"),
        "get_init_inputs raised: NameError",
    ),
    "init type": (swap("return [in_features, out_features]", "return 3"), "get_init_inputs returned a int"),
    "model is a value": (swap("batch_size = 8 * 2", "Model = 3"), "Model and get_inputs must be callable"),
}

BAD_DRAWS = {
    "raises": (swap("torch.rand(", "torch.absent("), "get_inputs raised: AttributeError"),
    "a dict": (
        swap("return [torch.rand(batch_size, in_features)]", "return {'x': 1}"),
        "returned a dict, not a list",
    ),
    "no tensor": (swap("return [torch.rand(batch_size, in_features)]", "return [3]"), "returned no tensor"),
    "an object": (
        swap("return [torch.rand(batch_size, in_features)]", "return [torch.rand(2), object()]"),
        "a value of type object",
    ),
}


@pytest.mark.parametrize(("source", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reference_gives_one_sentence(source: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as e:
        load_problem(source)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("source", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_reference_gives_one_sentence(source: str, message: str) -> None:
    problem = load_problem(source)
    with pytest.raises(ProblemError, match=message) as e:
        instantiate(problem)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("source", "message"), BAD_DRAWS.values(), ids=BAD_DRAWS)
def test_a_bad_draw_gives_one_sentence(source: str, message: str) -> None:
    instance = instantiate(load_problem(source))
    with pytest.raises(ProblemError, match=message):
        instance.draw(0)


def test_a_reference_that_raises_gives_one_sentence() -> None:
    instance = instantiate(load_problem(swap("return self.proj(x)", "return self.proj(x.mT)")))
    with pytest.raises(ProblemError, match="the reference raised: RuntimeError"):
        run_reference(instance, instance.draw(0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe\x00\x01\n", "is not UTF-8 text"),
        (b"\x7fELF\x00\x00\n", "is a binary file"),
        (b"", "is empty"),
    ],
    ids=["not utf-8", "binary", "empty file"],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "candidate.py"
    path.write_bytes(data)
    with pytest.raises(CandidateError, match=f"candidate.py {message}"):
        load_candidate(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"absent\.py cannot be read: No such file"):
        load_problem(tmp_path / "absent.py")
    with pytest.raises(CandidateError, match="cannot be read: Is a directory"):
        load_candidate(tmp_path)


def test_line_ends_and_byte_order_mark_do_not_change_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_bytes(b"\xef\xbb\xbf" + LINEAR.replace("\n", "\r\n").encode())
    problem = load_problem(path)
    assert problem.sha256 == load_problem(LINEAR).sha256
    assert problem.name == "linear" and problem.path == str(path)
    assert instantiate(problem).draw(0)[0].shape == (16, 48)


LANGUAGES = {
    "triton": (TRITON, "triton"),
    "triton autotuned": (
        TRITON.replace("@triton.jit", "@triton.autotune(configs=[], key=[])\n@triton.jit"),
        "triton",
    ),
    "jit imported": (
        TRITON.replace("import triton\n", "from triton import jit as compiled\n").replace(
            "@triton.jit", "@compiled"
        ),
        "triton",
    ),
    "triton only imported": (TRITON.replace("@triton.jit\n", ""), "python"),
    "load_inline": (
        "from torch.utils.cpp_extension import load_inline\nm = load_inline('m', '')\nclass ModelNew: pass\n",
        "cpp",
    ),
    "load_inline by module": (
        "import torch.utils.cpp_extension as e\nm = e.load_inline('m', '')\nclass ModelNew: pass\n",
        "cpp",
    ),
    "torch.load is not a build": ("import torch\ndef ModelNew(x):\n    return torch.load(x)\n", "python"),
}


@pytest.mark.parametrize(("source", "language"), LANGUAGES.values(), ids=LANGUAGES)
def test_the_language_is_read_from_the_syntax(source: str, language: str) -> None:
    assert load_candidate(source).language == language


def test_a_candidate_is_never_executed() -> None:
    candidate = load_candidate("raise SystemExit\nclass ModelNew: pass\n")
    assert candidate.kind == "module"


def test_an_entry_may_be_a_function_or_hide_in_a_branch() -> None:
    source = "try:\n    import fast\nexcept ImportError:\n    def run(x):\n        return x\n"
    assert load_candidate(source, "run").kind == "function"
    with pytest.raises(CandidateError, match=r"defines no 'ModelNew' \(it defines run\)"):
        load_candidate(source)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CandidateError, match="is not valid Python"):
        load_candidate("x = " + "(" * 5000 + ")" * 5000 + "\n")


def test_the_module_is_built_right_after_seeding() -> None:
    instance = instantiate(load_problem(LINEAR), seed=7)
    torch.manual_seed(7)
    expected = nn.Linear(48, 24)
    assert torch.equal(instance.module.proj.weight, expected.weight)
    assert not instance.module.training
    assert instance.init == [48, 24]


def test_drawing_repeats_by_seed_and_leaves_global_state_alone() -> None:
    source = """
import random
import numpy as np
import torch

class Model(torch.nn.Module):
    def forward(self, x, scale):
        return x * scale

def get_inputs():
    x = torch.rand(3, dtype=torch.float64) + float(np.random.rand()) + torch.rand(3, device="cuda")
    return [x, random.random()]
"""
    instance = instantiate(load_problem(source))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    a, b, c = instance.draw(1), instance.draw(1), instance.draw(2)
    assert torch.equal(a[0], b[0]) and a[1] == b[1]
    assert not torch.equal(a[0], c[0]) and a[1] != c[1]
    assert a[0].dtype is torch.float32 and a[0].device.type == "cpu"
    assert instance.init == []
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate() and states[2] == np.random.get_state()[1].tolist()


def test_half_and_double_parameters_become_float32_and_integers_stay() -> None:
    source = rows("torch.rand(rows, width).half(), torch.arange(width)", "x[:, i]", "x, i")
    x, i = instantiate(load_problem(source)).draw(0)
    assert x.dtype is torch.float32 and i.dtype is torch.int64
    double = swap("nn.Linear(in_features, out_features)", "nn.Linear(in_features, out_features).double()")
    assert instantiate(load_problem(double)).module.proj.weight.dtype is torch.float32


def test_init_may_be_keywords() -> None:
    source = swap(
        "return [in_features, out_features]",
        "return {'out_features': out_features, 'in_features': in_features}",
    )
    instance = instantiate(load_problem(source))
    assert instance.module.proj.weight.shape == (24, 48)


def test_sizes_are_substituted() -> None:
    problem = load_problem(LINEAR)
    assert sizes_as_written(problem) == {"batch_size": 16, "in_features": 48, "out_features": 24}
    instance = instantiate(problem, {"batch_size": 3, "in_features": 5})
    assert instance.draw(0)[0].shape == (3, 5) and instance.init == [5, 24]
    with pytest.raises(ProblemError, match="no size named 'absent'"):
        instantiate(problem, {"absent": 3})


def test_the_meta_device_allocates_nothing() -> None:
    instance = instantiate(load_problem(LINEAR), {"batch_size": 2**40}, device="meta")
    assert run_reference(instance, instance.draw(0)).shape == (2**40, 24)


def test_two_instances_share_nothing() -> None:
    source = swap("def get_inputs():", "calls = []\n\ndef get_inputs():\n    calls.append(1)").replace(
        "[torch.rand(batch_size, in_features)]", "[torch.full((2, in_features), float(len(calls)))]"
    )
    first, second = instantiate(load_problem(source)), instantiate(load_problem(source))
    assert float(first.draw(0)[0][0, 0]) == float(second.draw(0)[0][0, 0]) == 1.0


def test_an_operator_given_as_callables() -> None:
    spec = OpSpec(
        "scale",
        reference=lambda x: x * 2,
        inputs=lambda n, width: [torch.randn(n, width, dtype=torch.float64)],
        sizes={"n": 4, "width": 9},
    )
    problem = problem_from_spec(spec)
    assert "x * 2" in problem.source and len(problem.sha256) == 64
    instance = instantiate(problem, {"n": 2})
    (x,) = instance.draw(0)
    assert x.shape == (2, 9) and x.dtype is torch.float32
    assert torch.equal(run_reference(instance, [x]), x * 2)
    with pytest.raises(ProblemError, match="no size named 'm'; the operator has n, width"):
        instantiate(problem, {"m": 2})


def test_a_module_level_function_is_a_candidate() -> None:
    candidate = candidate_from_callable(swap)
    assert candidate.entry == "swap" and candidate.kind == "function"
    assert candidate.source == Path(__file__).read_text() and candidate.path == __file__


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_a_module_class_is_a_candidate_and_relative_imports_become_absolute(tmp_path: Path) -> None:
    assert candidate_from_callable(Squared).kind == "module"
    package = tmp_path / "kernels_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (package / "fast.py").write_text("from .helper import twice\n\ndef run(x):\n    return twice(x)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        from kernels_for_test import fast  # type: ignore[import-not-found]

        candidate = candidate_from_callable(fast.run)
    finally:
        sys.path.remove(str(tmp_path))
    assert candidate.source.startswith("from kernels_for_test.helper import twice\n")


def closure() -> object:
    def inner(x: object) -> object:
        return x

    return inner


REFUSED = {
    "lambda": (lambda x: x, "a lambda has no name"),
    "closure": (closure(), "closure.<locals>.inner is defined inside"),
    "method": (Squared().forward, "a method is not a function"),
    "instance": (Squared(), "a Squared is not a function or an nn.Module class"),
    "partial": (functools.partial(swap, "a"), "a partial is not a function"),
    "other class": (OpSpec, "the class OpSpec is not an nn.Module"),
    "builtin": (len, "a builtin_function_or_method is not a function"),
}


@pytest.mark.parametrize(("f", "message"), REFUSED.values(), ids=REFUSED)
def test_other_callables_are_refused_with_the_remedy(f: object, message: str) -> None:
    with pytest.raises(CandidateError, match=f"{message}.*; define it at module level of a file"):
        candidate_from_callable(f)


def test_a_function_without_a_file_is_refused() -> None:
    namespace: dict[str, object] = {"__name__": "typed_in"}
    exec("def run(x):\n    return x\n", namespace)
    with pytest.raises(
        CandidateError, match=r"the source file of run .* define it at module level of a file"
    ):
        candidate_from_callable(namespace["run"])


def test_reading_sources_does_not_import_torch() -> None:
    assert importlib.util.find_spec("torch") is not None
    code = (
        "import sys; from lethe.verifier.problem import load_candidate, load_problem; "
        f"load_candidate({TRITON!r}); load_problem({ROWS!r}); sys.exit('torch' in sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
