"""The interpreter executor agrees with what an H200 computed for the same kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.fidelity.cases import CASES, INFORMATIVE
from tests.fidelity.compare import differences, distance
from tests.fidelity.record import source_sha256

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "data" / "measured" / "h200" / "interpreter_fidelity.json"


@cache
def recorded() -> dict[str, Any]:
    if not RECORDING.is_file():
        pytest.skip(f"no recording at {RECORDING.relative_to(ROOT)}: run tests.fidelity.record on a GPU")
    samples: dict[str, Any] = json.loads(RECORDING.read_text())["samples"]
    return samples


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("fidelity") / "interpreter.json"
    command = [sys.executable, "-m", "tests.fidelity.record", "--device", "interpreter", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(out.read_text())["samples"]["results"]
    return results


def test_every_case_runs_in_the_interpreter(computed: dict[str, Any]) -> None:
    assert {name: row["error"] for name, row in computed.items() if "error" in row} == {}


def test_recording_belongs_to_these_sources() -> None:
    assert recorded()["source_sha256"] == source_sha256(), "the kernels changed: record again on a GPU"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ulps != INFORMATIVE])
def test_interpreter_agrees_with_the_recording(name: str, computed: dict[str, Any]) -> None:
    if "error" in recorded()["results"][name]:
        pytest.skip(f"the GPU's triton refused this case: {recorded()['results'][name]['error']}")
    found = differences(recorded()["results"][name], computed[name], CASES[name].ulps)
    assert not found, f"{len(found)} elements differ: " + "; ".join(found[:5])


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (0x3F800000, 0x3F800001, 1.0),
        (0x00000000, -0x80000000, 0.5),
        (0x7FC00000, -1, 0.0),
        (0x7F800000, -1, float("inf")),
    ],
    ids=["neighbours", "zeros", "nan-nan", "inf-nan"],
)
def test_distance_of_float32_bits(a: int, b: int, apart: float) -> None:
    assert distance(a, b, "float32") == apart


def test_differences_names_the_element_that_moved() -> None:
    one = {"dtype": "float32", "bits": [0x3F800000, 0x40000000]}
    other = {"dtype": "float32", "bits": [0x3F800000, 0x40000002]}
    assert differences(one, other, 2) == []
    assert len(differences(one, other, 1)) == 1
    assert "[1]" in differences(one, other, 1)[0]
