"""pyproject.toml, constraints.txt, environment.yml and the Makefile say the same thing."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from lethe.provenance import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base", "seaborn": "seaborn-base"}
NOT_ON_CONDA = {"triton", "pandas-stubs", "types-pyyaml"}
"""Come with pytorch, or serve the type checker only."""


def name(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower()


def required() -> set[str]:
    return {name(r) for r in [*PROJECT["dependencies"], *EXTRAS["paper"], *EXTRAS["dev"]]}


def test_constraints_pin_exactly_what_make_installs():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {name(line): line for line in lines if line and not line.startswith("#")}
    assert set(pins) == required() - {"triton"}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins.values())


def test_no_upper_bound_on_triton_and_no_local_version_of_torch():
    (triton,) = (r for r in PROJECT["dependencies"] if name(r) == "triton")
    assert "<" not in triton.split(";")[0] and "==" not in triton.split(";")[0]
    assert "+" not in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("torch==")[1].split()[0]


def test_the_conda_environment_mirrors_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda = [d for d in environment["dependencies"] if isinstance(d, str)]
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    listed = {name(d) for d in [*conda, *pip]} - {"python", "pip", "-e"}
    assert listed == {CONDA_NAMES.get(n, n) for n in required() - NOT_ON_CONDA}


def test_versions_agree():
    import lethe

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == lethe.__version__ == citation["version"]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_the_targets_that_the_readme_names():
    done = subprocess.run(["make"], capture_output=True, text=True, cwd=ROOT, check=True)
    listed = set(re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE))
    text = "\n".join(
        (ROOT / f).read_text(encoding="utf-8") for f in ("README.md", "CONTRIBUTING.md", "book/rerun.md")
    )
    named = set(re.findall(r"make ([a-z][a-z-]+)", text)) - {"sure"}
    assert named and named <= listed


def test_ci_ends_with_the_tests():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.strip().splitlines()[-1] == "make test"
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
