"""The device executor: launches are counted there, and the loaded kernels tell what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _on_device(body: str, **environment: str) -> str:
    """Standard output of `body` in a fresh process that installed the cuda executor."""
    script = (
        "import torch, triton, triton.language\n"
        "from lethe.verifier import executors\n"
        "from lethe.verifier.executors import autotune, resources\n"
        "executors.install('cuda')\n"
        "from tests.verifier import executor_kernels as k\n"
        "x, o, hooked = (torch.full((n,), v, device='cuda') for n, v in ((64, 1.0), (64, 0.0), (3, 0.0)))\n"
        "grid = lambda meta: (-(-64 // meta['BLOCK']),)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + body],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("preset", [{}, {"TRITON_INTERPRET": "1"}], ids=["plain", "after-interpret"])
def test_launches_are_counted_on_the_device(preset: dict[str, str]) -> None:
    body = (
        "k.double[(1,)](x, o, 64, BLOCK=64)\n"
        "k.double[[1]](x, o, 64, BLOCK=64)\n"
        "k.double[grid](x, o, 64, BLOCK=64)\n"
        "k.double[(0,)](x, o, 64, BLOCK=64)\n"
        "k.double.warmup(x, o, 64, BLOCK=64, grid=(1,))\n"
        "print(executors.launch_count(), executors.launched_names(), o.sum().item())\n"
    )
    assert _on_device(body, **preset) == "3 ['double'] 128.0"


def test_a_precompiled_kernel_counts() -> None:
    body = (
        "kernel = k.double.warmup(x, o, 64, BLOCK=64, grid=(1,))\n"
        "kernel[(1, 1, 1)](x, o, 64, 64)\n"
        "print(executors.launch_count(), executors.launched_names())\n"
    )
    assert _on_device(body) == "1 ['double']"


@pytest.mark.parametrize(("index", "block"), [("0", 16.0), ("1", 32.0), ("2", 64.0)])
def test_each_configuration_runs_alone(index: str, block: float) -> None:
    body = (
        "k.tuned[grid](x, o, hooked, 64)\n"
        "print(executors.launch_count(), hooked[1].item(), o.sum().item(), autotune.choices())\n"
    )
    expected = f"1 {block} 64.0 3"
    assert _on_device(body, LETHE_AUTOTUNE_CONFIG=index) == expected


def test_loaded_kernels_tell_their_needs() -> None:
    body = (
        "k.double[(1,)](x, o, 64, BLOCK=64, num_warps=2)\n"
        "(row,) = resources.resources('sm_90')\n"
        "print(row['name'], row['num_warps'], row['registers'] > 0, row['spill_bytes'], row['error'])\n"
    )
    assert _on_device(body) == "double 2 True 0 None"
