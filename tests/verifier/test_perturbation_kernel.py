"""The one-launch perturbation of a GPU does what the torch form does on a CPU; here in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = r"""
import json, math, sys
import torch
from lethe.verifier import perturbation
from lethe.verifier.operations import Rounding
from lethe.verifier.perturbation import Perturb

def mode(coherent=False, limit=None, seed=3):
    return Perturb(2.0**-24, seed, tiny=2.0**-126, rounding=Rounding("rss"), limit=limit, coherent=coherent)

def at_once(m, t, *rest):
    return m._moved_at_once(t, *(rest or (None, 0.0, 1, False)))

torch.manual_seed(0)
x = torch.randn(3000, dtype=torch.float64)
scale = 1 + x.square()
found = {}
error = (at_once(mode(), x) - x) / (x.abs() * 2.0**-24)
found["plain"] = [float(error.abs().max()), float(error.mean()), float(error.std())]
grown = (at_once(mode(), x, scale, 8.0, 4, False) - x) / (2.0**-24 * (x.abs() + 8 * scale))
found["scaled"] = [float(grown.abs().max()), float(grown.mean()), float(grown.std())]
theirs = (mode()._moved(x, scale, 8.0, 4, False) - x) / (2.0**-24 * (x.abs() + 8 * scale))
found["torch"] = [float(theirs.abs().max()), float(theirs.mean()), float(theirs.std())]
found["again"] = bool(torch.equal(at_once(mode(), x), at_once(mode(), x)))
found["other"] = bool(torch.equal(at_once(mode(), x), at_once(mode(seed=4), x)))
m = mode(); found["second"] = bool(torch.equal(at_once(m, x), at_once(m, x)))
signs = ((at_once(mode(coherent=True), x) - x) / (x.abs() * 2.0**-24)).round(decimals=6).unique()
found["coherent"] = signs.tolist()
edge = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.0e38, -3.0e38, 1e30], dtype=torch.float64)
m = mode(limit=2.0**127)
found["edge"] = [str(v) for v in at_once(m, edge).tolist()]
found["overflowed"] = [m.overflowed]
m = mode(limit=2.0**127); at_once(m, x); found["overflowed"].append(m.overflowed)
zeros = torch.zeros(64, dtype=torch.float64)
flushed = at_once(mode(), zeros), at_once(mode(), zeros, None, 0.0, 1, True)
found["flush"] = [float(t.abs().max()) for t in flushed]
z = torch.randn(40, 8, dtype=torch.complex128).T
moved = at_once(mode(), z)
found["layout"] = [moved.stride() == z.stride(), float(((moved - z).abs() / z.abs()).max())]
small = x * 1e-40
moves = mode(limit=1e-41)._moved_at_once(small, None, 0.0, 1, False, relative=True), mode().jittered(small)
found["jitter"] = [float(((t - small) / small).abs().max()) * 2.0**24 for t in moves]
found["kept"] = str(mode(limit=1.0)._moved_at_once(edge, None, 0.0, 1, False, True)[[0, 2, 3, 4]].tolist())
gaps = x[::3]
found["gaps"] = float(((at_once(mode(), gaps) - gaps) / gaps).abs().max())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_errors_are_uniform_within_their_bound(found):
    largest, mean, deviation = found["plain"]
    assert 0.99 < largest <= 1 + 2.0**-20  # the sum x + error rounds as well
    assert abs(mean) < 5 * 3**-0.5 / 3000**0.5 and abs(deviation - 3**-0.5) < 0.03


def test_accumulation_errors_are_distributed_as_in_torch(found):
    ours, theirs = found["scaled"], found["torch"]
    assert ours[0] <= 1 and theirs[0] <= 1
    # standard errors at n = 3,000: the mean's is 0.009; a standard deviation's 1.3 % of it
    assert abs(ours[1]) < 0.05 and abs(ours[2] - theirs[2]) < 0.05


def test_a_seed_repeats_and_calls_differ(found):
    assert found["again"] and not found["other"] and not found["second"]


def test_coherent_errors_are_of_full_size(found):
    assert set(found["coherent"]) in ({1.0}, {-1.0})


def test_special_values_stay_and_the_limit_is_infinite(found):
    assert found["edge"][:5] == ["0.0", "-0.0", "inf", "-inf", "nan"]
    assert found["edge"][5:7] == ["inf", "-inf"] and found["edge"][7] not in ("inf", "nan")
    assert found["overflowed"] == [True, False]


def test_only_a_vanishing_function_leaves_zero(found):
    zero, vanishing = found["flush"]
    assert zero == 0 and 0 < vanishing <= 2.0**-126


def test_layout_is_kept_and_gaps_are_read_over(found):
    same, largest = found["layout"]
    assert same and 0 < largest < 2 * 2.0**-24
    assert 0 < found["gaps"] <= 1.0001 * 2.0**-24


def test_inputs_and_weights_move_by_one_relative_error_however_small(found):
    assert all(0.9 < largest <= 1.001 for largest in found["jitter"])
    assert found["kept"] == "[0.0, inf, -inf, nan]"
