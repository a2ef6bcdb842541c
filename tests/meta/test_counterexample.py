"""A counterexample is a script of its own: it runs without this package and shows the defect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lethe.verifier.counterexample import NOT_A_SCRIPT
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from tests.meta.cheats import CHEATS, Cheat

KERNELS = Path(__file__).parent / "kernels"
SHOWN = [c for c in CHEATS if c.mechanism not in NOT_A_SCRIPT and c.gate not in ("PRC-01", "PRC-02")]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with Judge(device="cpu", counterexamples=tmp_path_factory.mktemp("counterexamples")) as j:
        yield j


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("cheat", SHOWN, ids=lambda c: f"{c.gate}-{c.id}")
def test_script_shows_the_defect(judge, cheat: Cheat):
    problem, candidate = load_problem(cheat.problem()), load_candidate(cheat.candidate(cheat.cheat))
    v = judge.verify(problem, candidate, gates=[cheat.gate])
    assert v.counterexample is not None
    done = run(v.counterexample)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the defect shows" in done.stdout and "reason:" in done.stdout
    text = Path(v.counterexample).read_text()
    assert "import lethe" not in text and "from lethe" not in text


def test_script_of_a_triton_kernel_runs_in_the_interpreter(judge):
    v = judge.verify(
        load_problem(KERNELS / "relu_reference.py"),
        load_candidate(KERNELS / "relu_one_shape.py"),
        gates=["CMP-03"],
    )
    assert v.counterexample is not None
    done = run(v.counterexample)
    assert done.returncode == 1, done.stdout + done.stderr


def test_a_script_does_not_accuse_a_mended_candidate(judge, tmp_path):
    cheat = next(c for c in CHEATS if c.id == "swallows-nan")
    v = judge.verify(
        load_problem(cheat.problem()), load_candidate(cheat.candidate(cheat.cheat)), gates=[cheat.gate]
    )
    assert v.counterexample is not None
    script = Path(v.counterexample).read_text()
    mended = script.replace("torch.nan_to_num(x, nan=0.0", "(lambda x, **_: x)(x, nan=0.0")
    assert mended != script
    (tmp_path / "mended.py").write_text(mended)
    done = run(str(tmp_path / "mended.py"))
    assert done.returncode == 0, done.stdout + done.stderr
