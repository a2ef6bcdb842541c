"""Stress cases of the state-space engine on a CPU: small, in a process that interprets Triton."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from lethe import provenance

Row = dict[str, Any]


def here(count: int) -> list[Row]:
    """Accuracy of the first `count` stress cases. Raises RuntimeError where they do not run."""
    done = subprocess.run(
        [sys.executable, "-m", "lethe.evidence.ssd_here", str(count)],
        capture_output=True, text=True, cwd=provenance.ROOT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the interpreted cases did not run: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _print(count: int) -> None:
    from lethe.verifier.executors import library

    library.use_interpreter()
    from lethe.evidence import ssd_gpu_checks as checks
    from lethe.kernels.ssd.cases import stress

    for case in stress()[:count]:
        found = checks.accuracy(checks.small(case), "cpu")
        print(json.dumps({"kind": "accuracy", "case": case.id, **found}), flush=True)


if __name__ == "__main__":
    _print(int(sys.argv[1]))
