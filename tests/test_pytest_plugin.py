"""The fixture in a suite of somebody else's: what passes, what fails and how that reads."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = "pytester"

REPOSITORY = Path(__file__).resolve().parents[1]
INSTALLED = any(e.value == "lethe.pytest_plugin" for e in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "lethe.pytest_plugin")

CONFTEST = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from types import ModuleType
from tests.audit import fakes
module = ModuleType("lethe.verifier.judge")
module.Judge = fakes.StandIn
sys.modules["lethe.verifier.judge"] = module
"""
REFERENCE = "class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n"
KERNEL = "# {}\nclass ModelNew:\n    pass\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with a reference, a good and a bad kernel, and the fake judge."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest(CONFTEST)
    pytester.path.joinpath("reference.py").write_text(REFERENCE)
    pytester.path.joinpath("good.py").write_text(KERNEL.format("fine"))
    pytester.path.joinpath("bad.py").write_text(KERNEL.format("fail EXC-01"))
    pytester.path.joinpath("unjudged.py").write_text(KERNEL.format("status executor_failed"))
    pytester.path.joinpath("broken.py").write_text("def f(:\n")
    return pytester


def test_fixture_passes_fails_and_reads_well(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from tests.audit import fakes

        def test_good(lethe_verify):
            verdict = lethe_verify("good.py", "reference.py")
            assert verdict.clean and verdict.profile == "paper"

        @pytest.mark.parametrize("name", ["bad", "unjudged", "broken", "gone"])
        def test_not(lethe_verify, name):
            lethe_verify(name + ".py", "reference.py")

        def test_other_gate(lethe_verify):
            lethe_verify("bad.py", "reference.py", gates=["CMP-01"])

        def test_warm():
            assert fakes.StandIn.made == 2, "one judge for each set of options"
        """
    )
    result = suite.runpytest_subprocess(*PLUGIN, "--lethe-profile", "paper", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=4)
    result.stdout.fnmatch_lines(
        [
            "Contract violated: bad breaks EXC-01.",
            "*EXC-01 1 finding in 1 case",
            "*nan:first: finite where the reference has NaN [[]3 > 1, 3 times[]]",
            "Could not be judged (executor_failed)*",
            "could not be judged: broken.py is not valid Python*",
            "could not be judged: gone.py cannot be read*",
        ]
    )
    assert "Traceback" not in result.stdout.str() and "pytest_plugin.py" not in result.stdout.str()


def test_paths_are_found_beside_the_test(suite: pytest.Pytester) -> None:
    folder = suite.mkdir("deep")
    for name in ("good.py", "reference.py"):
        suite.path.joinpath(name).rename(folder / name)
    (folder / "test_here.py").write_text(
        "def test(lethe_verify):\n    lethe_verify('good.py', 'reference.py')\n"
    )
    suite.runpytest_subprocess(*PLUGIN, "deep").assert_outcomes(passed=1)


def test_plugin_options_are_checked(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess(*PLUGIN, "--lethe-device", "tpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_plugin_import_is_cheap_and_without_torch() -> None:
    code = (
        "import pytest, sys, time\n"
        "start = time.perf_counter()\n"
        "import lethe.pytest_plugin\n"
        "elapsed = time.perf_counter() - start\n"
        "assert not {'torch', 'triton', 'rich', 'typer'} & set(sys.modules)\n"
        "print(elapsed)\n"
    )
    runs = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], check=True, cwd=REPOSITORY, capture_output=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert min(runs) < 0.05, runs


def test_fixture_with_the_real_judge(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makepyfile(
        kernels="""
        import torch

        def double(x):
            return x + x

        def drops_nan(x):
            return torch.nan_to_num(x + x, nan=0.0)
        """,
        test_kernels="""
        import pytest
        import torch
        from lethe.verifier.problem import OpSpec
        import kernels

        def inputs(n):
            return [torch.randn(n)]

        SPEC = OpSpec("double", reference=lambda x: 2 * x, inputs=inputs, sizes={"n": 33})

        @pytest.mark.parametrize("kernel", [kernels.double, kernels.drops_nan])
        def test_double(lethe_verify, kernel):
            lethe_verify(kernel, SPEC, gates=["EXC-01", "RES-01"], quick=True)
        """,
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "--lethe-device", "cpu")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["Contract violated: drops_nan breaks EXC-01.", "*EXC-01 * finding* in * case*"]
    )
