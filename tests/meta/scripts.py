"""Counterexample scripts run as a stranger would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNNER = Path(__file__).with_name("run_scripts.py")


@dataclass(frozen=True)
class Ran:
    """How one script ended."""

    status: int
    printed: str


def run(jobs: Iterable[Sequence[str | Path]]) -> list[Ran]:
    """Run scripts (each a path and its arguments) where importing lethe fails."""
    done = subprocess.run(
        [sys.executable, "-I", str(RUNNER)],
        input=json.dumps([[str(part) for part in job] for job in jobs]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Ran(*result) for result in json.loads(done.stdout)]


def with_candidate(script: Path, source: str, target: Path) -> Path:
    """A copy of `script` that holds `source` in the candidate's place."""
    text = script.read_text()
    before, mark, rest = text.partition("\nCANDIDATE = ")
    _, after_mark, after = rest.partition("\n\n\ndef make_inputs(")
    assert mark and after_mark
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{before}{mark}{source!r}{after_mark}{after}")
    return target
