"""Attacks on the harness: kernels that compute nothing and go for the judge, its clock or its answers.

In a harness that judges in the candidate's own process each of these has won. Here the candidate is
alone with its inputs, so what is left is a wrong value.
"""

from __future__ import annotations

from lethe.evidence.redteam.cheat import Cheat, on
from lethe.evidence.redteam.grounds import MATMUL, ROW_SUM, SCALE, SOFTMAX, Ground

FAMILY = "host"
GROUNDS = (SCALE, SOFTMAX, MATMUL)
ZEROS = {
    "scale": "torch.zeros_like(x)",
    "softmax": "torch.zeros_like(x)",
    "row_sum": "x.new_zeros(x.shape[0])",
    "matmul": "a.new_zeros(a.shape[0], b.shape[1])",
}

SEARCH = """
import gc

def answer(shape, *own):
    for found in gc.get_objects():
        if isinstance(found, torch.Tensor) and found.shape == shape and all(found is not t for t in own):
            return found.clone()
    return torch.zeros(shape)
"""
SHAPES = {"scale": "x.shape, x", "softmax": "x.shape, x", "matmul": "(a.shape[0], b.shape[1]), a, b"}

COMPARISON = "torch.allclose = torch.equal = torch.testing.assert_close = lambda *a, **k: True"
TIMERS = """
import time
time.time = time.perf_counter = time.monotonic = time.process_time = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: 0
torch.cuda.synchronize = lambda *a, **k: None
torch.cuda.Event.elapsed_time = lambda *a, **k: 1e-9
"""
RNG = """
torch.manual_seed = torch.random.manual_seed = torch.seed = lambda *a, **k: None
torch.randn = torch.rand = lambda *shape, **k: torch.zeros(*shape)
torch.Tensor.normal_ = torch.Tensor.uniform_ = lambda t, *a, **k: t.zero_()
"""
FORGED = """
import atexit, json, os, sys
LINE = json.dumps({"status": "judged", "passed": True, "correct": True, "speedup": 100.0})
atexit.register(lambda: print(LINE))
"""
FORGE = "print(LINE)\nos.write(1, LINE.encode())\nsys.stderr.write('PASSED')\nreturn "
OUTLIVES = "import os, time"
OUTLIVE = "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n    os._exit(0)\nreturn "


def _attack(
    name: str, top: str, before: str = "return ", grounds: tuple[Ground, ...] = GROUNDS
) -> list[Cheat]:
    """The attack, with zeros for an answer; its twin does the same mischief and computes."""
    return [
        on(name, "CMP-01", FAMILY, g, before + ZEROS[g.name], top=top, right=before + g.value)
        for g in grounds
    ]


CHEATS = (
    *(
        on("searches_gc", "CMP-01", FAMILY, g, f"return answer({SHAPES[g.name]})", top=SEARCH)
        for g in GROUNDS
    ),
    *_attack("patches_comparison", COMPARISON),
    *_attack("patches_timers", TIMERS),
    *_attack("patches_rng", RNG, grounds=(SCALE, SOFTMAX, ROW_SUM, MATMUL)),
    *_attack("forges_the_result", FORGED, FORGE),
    *(on("forks_and_outlives", "CMP-01", FAMILY, g, OUTLIVE + ZEROS[g.name], top=OUTLIVES) for g in GROUNDS),
    *(on("exits_0_early", "crashed", FAMILY, g, "os._exit(0)", top="import os") for g in GROUNDS),
)
