"""``python -m lethe.ecg``: fetch or generate records, train a classifier, count parameters.

    python -m lethe.ecg fetch --to data/ptbxl [--limit 2000]
    python -m lethe.ecg generate --to FOLDER [--records 400]
    python -m lethe.ecg train --data PATH [--model mamba] [--out FOLDER] ...
    torchrun --nproc-per-node 2 -m lethe.ecg train --data PATH --model paper --recipe paper ...
    python -m lethe.ecg count

`train` resumes from the checkpoint in ``--out`` and leaves ``result.json`` there; with torchrun the processes
share each batch. A mistake ends with one sentence and status 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

RESULT = "result.json"


def _parser() -> argparse.ArgumentParser:
    from lethe.ecg.model import BACKENDS, SIZES
    from lethe.ecg.recipe import PRECISIONS, RECIPES

    parser = argparse.ArgumentParser(
        prog="python -m lethe.ecg", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    get = commands.add_parser("fetch", help="PTB-XL from PhysioNet, checked against its checksums")
    get.add_argument("--to", type=Path, required=True)
    get.add_argument("--rate", type=int, default=100)
    get.add_argument("--limit", type=int)
    make = commands.add_parser("generate", help="records of the same layout from our own code")
    make.add_argument("--to", type=Path, required=True)
    make.add_argument("--records", type=int, default=400)
    make.add_argument("--seed", type=int, default=0)
    commands.add_parser("count", help="the exact number of parameters of every size")
    fit = commands.add_parser("train", help="one classifier")
    fit.add_argument("--data", type=Path, required=True, help="a folder or a tar archive")
    fit.add_argument("--rate", type=int, default=100)
    fit.add_argument("--model", choices=list(SIZES), default="mamba")
    fit.add_argument("--recipe", choices=list(RECIPES), default="default")
    fit.add_argument("--backend", choices=BACKENDS, default="auto", help="auto: kernels on a GPU, else torch")
    fit.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    fit.add_argument("--graph", action="store_true", help="capture the step as a CUDA graph")
    fit.add_argument("--out", type=Path)
    fit.add_argument(
        "--pause", type=int, metavar="EPOCHS", help="stop after so many epochs; run again to go on"
    )
    for name, kind in (
        ("seed", int), ("epochs", int), ("steps", int), ("batch", int), ("accumulate", int), ("lr", float),
        ("weight-decay", float), ("clip", float), ("patience", int), ("average", float),
    ):  # fmt: skip
        fit.add_argument(f"--{name}", type=kind)
    fit.add_argument("--precision", choices=PRECISIONS)
    for name, kind in (
        ("d-model", int),
        ("layers", int),
        ("d-state", int),
        ("stride", int),
        ("dt-rank", int),
    ):
        fit.add_argument(f"--{name}", type=kind)
    fit.add_argument("--expand", help="a whole number or a fraction")
    fit.add_argument("--dropout", type=float)
    fit.add_argument("--direction", choices=("forward", "alternate"))
    return parser


def _changed(default: Any, given: argparse.Namespace) -> Any:
    """`default`, a dataclass, with what the command line says."""
    named = {f.name: getattr(given, f.name, None) for f in fields(default)}
    return replace(default, **{name: value for name, value in named.items() if value is not None})


def _train(given: argparse.Namespace) -> None:
    from rich.console import Console

    from lethe import provenance
    from lethe.ecg import progress
    from lethe.ecg.model import SIZES
    from lethe.ecg.parallel import world
    from lethe.ecg.ptbxl import TEST, load
    from lethe.ecg.recipe import RECIPES
    from lethe.ecg.scores import intervals
    from lethe.ecg.train import train

    shape, recipe = _changed(SIZES[given.model], given), _changed(RECIPES[given.recipe], given)
    with world(given.device) as at:
        console = Console(quiet=not at.first)
        records = load(given.data, given.rate)
        console.print(f"{records.source}: {records.told()}", highlight=False)
        found = train(
            shape, recipe, records.standardised(), at, backend=given.backend, graph=given.graph,
            folder=given.out, pause=given.pause, tell=progress.shown(console, given.model),
        )  # fmt: skip
        if not at.first:
            return
        console.print(
            f"{found.parameters:,} parameters, backend {found.backend}, {found.steps} steps,"
            f" {found.non_finite} not finite, {found.seconds:.1f} s",
            highlight=False,
        )
        labels = records.labels[records.fold(TEST)]
        if found.finished and len(labels):
            for name, interval in intervals(labels, found.test_scores).items():
                console.print(f"fold 10, {name}: AUC {interval}", highlight=False)
        if given.out is not None:
            result = {**found.as_dict(), "source": records.source, "processes": at.size}
            provenance.write_atomically(given.out / RESULT, json.dumps(result) + "\n")


def main(argv: list[str] | None = None) -> int:
    from lethe.ecg.model import SIZES, parameters

    given = _parser().parse_args(argv)
    try:
        if given.command == "fetch":
            from lethe.ecg.download import fetch

            print(fetch(given.to, rate=given.rate, limit=given.limit))
        elif given.command == "generate":
            from lethe.ecg.synthetic import generate

            print(generate(given.to, given.records, given.seed))
        elif given.command == "count":
            for name, shape in SIZES.items():
                print(f"{name:12} {parameters(shape):>15,}")
        else:
            _train(given)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
