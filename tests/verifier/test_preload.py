"""What a server for a GPU loads ahead leaves it able to fork, and its suspects nothing to load."""

import os
import subprocess
import sys

PROGRAM = """
import os, sys
import torch
torch.set_num_threads(1)
from lethe.verifier import suspect
suspect._preload_compiler()
before = set(sys.modules)
a = torch.ones(2, requires_grad=True)
torch.autograd.grad(a * 2, a, torch.ones(2))
print(len(os.listdir("/proc/self/task")), len(set(sys.modules) - before), torch.cuda.is_initialized())
"""


def test_what_is_loaded_ahead_starts_no_thread_and_no_device_and_a_backward_pass_imports_nothing() -> None:
    alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, **alone},
    )
    assert done.stdout.split()[-3:] == ["1", "0", "False"]
