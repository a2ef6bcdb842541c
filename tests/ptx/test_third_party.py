"""NVIDIA's own CuTe DSL kernels, compiled here and executed: right numbers, and a habit that the ISA forbids.

Needs nvidia-cutlass-dsl and a checkout of NVIDIA/cutlass, whose folder ``examples/python/CuTeDSL`` is named
by ``LETHE_CUTLASS_EXAMPLES``. The kernels are compiled at test time and never copied.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = os.environ.get("LETHE_CUTLASS_EXAMPLES", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl"),
    pytest.mark.skipif(not EXAMPLES, reason="LETHE_CUTLASS_EXAMPLES names no checkout of NVIDIA/cutlass"),
]


def execute(kernel, schedule, checks):
    script = Path(__file__).with_name("third_party.py")
    command = [sys.executable, str(script), EXAMPLES, kernel, schedule, str(int(checks))]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("schedule", ["early", "late", "reverse"])
def test_hopper_dense_gemm(schedule):
    found = execute("hopper_dense_gemm", schedule, checks=True)
    assert found["fault"] == "" and found["error"] <= 1, found


@pytest.mark.parametrize("schedule", ["early", "late"])
def test_blackwell_mamba2_ssd(schedule):
    found = execute("mamba2_ssd", schedule, checks=True)
    assert found["fault"] == "" and found["error"] <= 1, found


@pytest.mark.parametrize("kernel", ["dense_gemm", "dense_gemm_persistent"])
def test_blackwell_dense_gemm(kernel):
    """Right when loads complete at once. If the PTX never waits for them, the checks say so."""
    plain = execute(kernel, "early", checks=False)
    assert plain["fault"] == "" and plain["error"] <= 1, plain
    checked = execute(kernel, "late", checks=True)
    assert checked["fault"] == ("" if plain["waits"] else "missing-wait"), checked
