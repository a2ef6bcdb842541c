"""Record an audit: ``python -m lethe.paper.record AUDIT.jsonl``.

The way verdicts get into ``data/measured``: from a GPU, or with ``--device cpu`` from a full run that takes
longer than the paper may. A record holds verdicts (`lines.compact`), never a candidate's source.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.provenance import ROOT


def record_audit(audit: Path, parameters: dict[str, Any], measured: Path, device: str = "cuda") -> Path:
    """Write ``<measured>/<device>/<corpus>_audit.json`` from a merged audit file; returns its path.

    Raises RuntimeError where `device` is cuda and torch sees none, LogError where the file is no audit.
    """
    from lethe.audit import lines
    from lethe.audit.run import merge

    on = provenance.device(device)
    samples = [lines.compact(line) for line in merge([audit])]
    path = measured / on.slug / f"{audit.stem}_audit.json"
    provenance.record(
        path,
        experiment=f"{audit.stem}_audit",
        samples=samples,
        parameters=parameters,
        script="lethe/cli_audit.py",
        on=on,
        units={"wall": "s"},
    )
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.paper.record", description=__doc__)
    parser.add_argument("audit", type=Path, nargs="+", help="merged audit files")
    parser.add_argument("--parameters", type=json.loads, default={}, help="the configuration, as JSON")
    parser.add_argument("--measured", type=Path, default=ROOT / "data" / "measured")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what judged them")
    arguments = parser.parse_args(argv)
    try:
        for audit in arguments.audit:
            print(record_audit(audit, arguments.parameters, arguments.measured, arguments.device))
    except (OSError, RuntimeError, ValueError) as e:
        print(f"record: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
