"""``python -m lethe.evidence``: the full evidence run, and its record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lethe.evidence import campaign

OUT = Path("data/results/evidence/full")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence", description=campaign.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run", help="do what is missing; resumes")
    keep = commands.add_parser("record", help="write what is there to data/measured")
    for command in (go, keep):
        command.add_argument("--out", type=Path, default=OUT)
        command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    keep.add_argument("--measured", type=Path, default=campaign.ROOT / "data" / "measured")
    go.add_argument("--workers", type=int, default=2)
    go.add_argument("--shard", default="1/1", metavar="i/n")
    go.add_argument("--limit", type=int, help="only so many rows of each corpus, stratified")
    go.add_argument("--step", action="append", default=[], help="only this step; may be repeated")
    go.add_argument("--stable-corpus", default="house", metavar="NAME[,KEY=VALUE...]")
    given = parser.parse_args(arguments)
    try:
        if given.command == "record":
            for path in campaign.record(given.out, given.device, given.measured):
                print(path)
            return 0
        shard, _, shards = given.shard.partition("/")
        name, *options = given.stable_corpus.split(",")
        plan = campaign.Plan(
            given.out,
            given.device,
            given.workers,
            int(shard),
            int(shards or 1),
            given.limit,
            stable_corpus=(name, dict(o.split("=", 1) for o in options)),
        )
        for step, seconds in campaign.execute(plan, tuple(given.step)):
            print(f"{step}: {seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as e:
        print(f"lethe.evidence: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
