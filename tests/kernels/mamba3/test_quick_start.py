"""The README's quick-start runs as it is printed, through the interpreter where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from lethe.provenance import ROOT


@pytest.mark.compiles
def test_the_quick_start_runs():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## The kernels")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    assert done.stdout.split() == ["torch.Size([1,", "6,", "4])", "True"]
