"""``python -m lethe.evidence.calibration --out FILE.jsonl``, with the options that ``--help`` lists."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lethe.evidence.calibration.run import Row, run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lethe.evidence.calibration", description="Calibrate the band gates."
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; the same command resumes")
    parser.add_argument("--quick", action="store_true", help="two operators, one pattern")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 measures in this one")
    parser.add_argument("--operator", action="append", default=[], help="only this one; may be repeated")
    given = parser.parse_args()
    try:
        for row in run(
            given.out, given.device, quick=given.quick, workers=given.workers, operators=given.operator
        ):
            print(_said(row), flush=True)
    except ValueError as e:
        sys.exit(f"lethe.evidence.calibration: {e}")


def _said(row: Row) -> str:
    head = f"{row['gate']:7}{row['operator']:10}{row['pattern']:14}{row['profile']:8}"
    if row["status"] != "measured":
        return f"{head} {row['status']}: {row.get('reason', '')}"
    noise, onset = row["noise"], row.get("onset")
    said = f"{head} noise {noise:.3g} of the threshold" if noise is not None else head
    said += f", onset {onset:.3g}" if onset is not None else ", no onset" if "onset" in row else ""
    return said + (" (thin)" if row["thin"] else "")


if __name__ == "__main__":
    main()
