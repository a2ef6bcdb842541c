"""Stress cases of the state-space engine on a CPU: small, in a process that interprets Triton."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from lethe import provenance

Row = dict[str, Any]


def here(count: int) -> list[Row]:
    """Rows of `ssd_check` for the first `count` small cases. Raises RuntimeError where they do not run."""
    done = subprocess.run(
        [sys.executable, "-m", "lethe.evidence.ssd_here", str(count)],
        capture_output=True, text=True, cwd=provenance.ROOT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the interpreted cases did not run: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _print(count: int) -> None:
    from lethe.evidence import ssd_check
    from lethe.evidence.ssd_accuracy import ours
    from lethe.evidence.ssd_cases import SMALL

    ssd_check.interpret()
    for case in SMALL[:count]:
        found = ssd_check.measured_row(case, ours(), "cpu")
        print(json.dumps({"id": case.id, "engine": ssd_check.OURS, **found}), flush=True)


if __name__ == "__main__":
    _print(int(sys.argv[1]))
