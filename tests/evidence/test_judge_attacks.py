"""What a kernel does to the judge does not change what the judge says about it, and nothing is left behind.

Single answers of a misbehaving suspect are tests/verifier/test_suspect.py and test_custody.py; here whole
verdicts are compared.
"""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path

import pytest

from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.settings import Budget
from lethe.verifier.verdict import CANDIDATE_FAULTS, Status, Verdict
from tests.evidence.judge_attacks import REFERENCE, RIGHT, SAME_VERDICT, TYPED, candidate

GATES = ("CMP-01", "RES-01")
BUDGET = Budget(memory_bytes=1 << 30, processes=24)
SHORT = Budget(memory_bytes=1 << 30, processes=24, wall_seconds=3.0)
MARK = f"rt{os.getpid()}"
BASES = ("/tmp", "/var/tmp", "/dev/shm")


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True, gates=GATES, budget=BUDGET) as j:
        yield j


@pytest.fixture(scope="module")
def hurried():
    """A judge that waits three seconds."""
    with Judge(device="cpu", quick=True, gates=GATES, budget=SHORT) as j:
        yield j


@pytest.fixture(scope="module")
def baseline(judge) -> Verdict:
    """The verdict on the wrong kernel that attacks nobody."""
    v = verdict(judge, candidate())
    assert v.failed == ("CMP-01",) and not v.integrity, v.message
    return v


def verdict(judge: Judge, source: str) -> Verdict:
    return judge.verify(load_problem(REFERENCE, "scale"), load_candidate(source, name="wrong"))


def canonical(v: Verdict) -> dict:
    """The canonical part without the hash of the candidate's text, which is another by construction."""
    return {k: x for k, x in json.loads(v.canonical()).items() if k != "candidate_sha256"}


def left_behind() -> list[str]:
    """Processes and files that carry the mark of this test's attacks."""
    found = []
    for base in BASES:
        for pattern in (f"{MARK}*", f"*/{MARK}*"):
            found += glob.glob(f"{base}/{pattern}")
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                name = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                continue
            found += [f"process {entry}"] if name == MARK else []
    return found


@pytest.mark.parametrize("name", SAME_VERDICT)
def test_attack_does_not_change_the_verdict(judge, baseline, tmp_path: Path, name: str):
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    precious.chmod(0o666)
    source = SAME_VERDICT[name].source(os.getpid(), str(tmp_path), MARK)
    v = verdict(judge, source)
    assert canonical(v) == canonical(baseline), (v.status, v.message)
    assert left_behind() == []
    assert precious.read_text() == "kept" and [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("name", TYPED)
def test_attack_that_ends_the_conversation_is_a_finding(hurried, name: str):
    attack, statuses = TYPED[name]
    v = verdict(hurried, attack.source(os.getpid(), "/nonexistent", MARK, RIGHT))
    assert str(v.status) in statuses, (v.status, v.message)
    assert v.status in CANDIDATE_FAULTS and v.violated and not v.clean
    assert left_behind() == []


def test_one_candidate_cannot_reach_the_builds_of_another(judge):
    """Build caches of all candidates lie side by side; each suspect sees its own."""
    builds = Path(judge._caches.name)
    source = candidate(
        f"found = [p for p in (os.listdir({str(builds)!r}) if os.access({str(builds)!r}, os.R_OK) else [])]\n"
        "own = os.environ['TRITON_CACHE_DIR'].split('/')\n"
        f"for name in found:\n    if name not in own:\n        try:\n"
        f"            open(f'{builds}/{{name}}/{MARK}', 'w').close()\n"
        "            return x * 1.5\n        except OSError:\n            pass"
    )
    assert verdict(judge, candidate("", "OTHER = 1")).failed == ("CMP-01",)
    assert verdict(judge, source).failed == ("CMP-01",)
    assert not list(builds.rglob(f"{MARK}*"))


def test_the_judge_still_knows_an_honest_kernel(judge, hurried):
    for j in (judge, hurried):
        v = verdict(j, candidate(answer=RIGHT))
        assert v.clean and v.status is Status.JUDGED, v.message
