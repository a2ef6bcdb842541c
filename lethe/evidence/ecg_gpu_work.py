"""The processes of `ecg_gpu`: training on the excerpt, and steps of the classifier of 1.10 B parameters.

``excerpt`` trains one model: learning rate and dropout chosen by the validation AUC of one seed, then the
seeds that are reported. ``steps`` takes so many steps of the large classifier, alone or under torchrun, and
measures them. Results are written as soon as they exist; what fails leaves its error in the file that it
would have written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.ecg.augment import NONE
from lethe.ecg.model import SIZES, Shape, parameters
from lethe.ecg.ptbxl import TEST, TRAIN, VALIDATION, Recordings, load
from lethe.ecg.recipe import RECIPES, Recipe

MODELS = ("mamba", "mamba3", "resnet")
"""What is trained."""
CANDIDATES = ((2e-3, 0.1), (4e-3, 0.1), (2e-3, 0.3), (1e-3, 0.1), (4e-3, 0.3))
"""Learning rates and dropout from which each model's are chosen, as many as leave time for the seeds."""
SEEDS = (0, 1, 2)
SEARCH_SEED = 100
WARM_STEPS = 2
WINDOW = 10
"""Steps that are timed together."""

TINY = {
    "mamba": Shape("mamba", d_model=4, layers=1, d_state=2, stride=200, dropout=0.1),
    "mamba3": Shape("mamba3", d_model=4, layers=1, d_state=4, headdim=8, stride=200, dropout=0.1),
    "resnet": Shape("resnet", d_model=4, layers=1, dropout=0.1),
    "paper": Shape(
        "mamba", d_model=8, layers=1, d_state=2, expand="5/8", dt_rank=1, stem="patch", stride=250,
        direction="forward",
    ),
}  # fmt: skip
"""Shapes for a run in the interpreter."""

Row = dict[str, Any]


def _write(file: Path, row: Row) -> None:
    provenance.write_atomically(file, json.dumps(row, allow_nan=False) + "\n")


def _failed(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


def about(records: Recordings) -> Row:
    """What the records are, with the labels that the scores are judged by."""
    validation, test = records.fold(VALIDATION), records.fold(TEST)
    return {
        "kind": "records", "source": records.source, "generated": records.generated, "rate": records.rate,
        "train": len(records.fold(TRAIN)), "skipped": len(records.skipped),
        "validation_ids": [records.ids[i] for i in validation], "test_ids": [records.ids[i] for i in test],
        "validation_labels": records.labels[validation].astype(int).tolist(),
        "test_labels": records.labels[test].astype(int).tolist(),
    }  # fmt: skip


# --- the excerpt ------------------------------------------------------------------------------


def excerpt(model: str, data: Path, out: Path, seconds: float, graph: bool, dry: bool) -> None:
    """All runs of one model; a file a run."""
    end = time.monotonic() + seconds
    records = load(data)
    _write(out / "excerpt-records.json", about(records))
    records = records.standardised()
    shape = TINY[model] if dry else SIZES[model]
    recipe = replace(RECIPES["default"], epochs=1, batch=8) if dry else RECIPES["default"]
    _run(
        shape, replace(recipe, steps=WARM_STEPS), records, graph
    )  # compiles, so that times below are a run's
    found: dict[tuple[float, float], float] = {}
    took = 0.0
    for rate, dropout in CANDIDATES[: 1 if dry else None]:
        if time.monotonic() + (1 + len(SEEDS)) * took > end:
            break
        start = time.monotonic()
        tried = replace(recipe, lr=rate, seed=SEARCH_SEED)
        row = _run(replace(shape, dropout=dropout), tried, records, graph)
        took = time.monotonic() - start
        known = {k: v for k, v in row.items() if not k.endswith("_scores")}
        name = f"excerpt-{model}-search-{rate:g}-{dropout:g}.json"
        _write(out / name, {"kind": "search", "model": model, **known})
        found[rate, dropout] = max(x for x in [-1.0, *row["validation"]] if x is not None)
    rate, dropout = max(found, key=lambda candidate: found[candidate])
    for seed in SEEDS[: 1 if dry else None]:
        file = out / f"excerpt-{model}-seed{seed}.json"
        if time.monotonic() + took > end:
            _write(file, {"kind": "run", "model": model, "seed": seed, "error": "the time was over"})
            continue
        row = _run(replace(shape, dropout=dropout), replace(recipe, lr=rate, seed=seed), records, graph)
        _write(file, {"kind": "run", "model": model, "seed": seed, **row})


def _run(shape: Shape, recipe: Recipe, records: Recordings, graph: bool) -> Row:
    """One training, its losses averaged over each epoch."""
    from lethe.ecg.parallel import world
    from lethe.ecg.train import train

    with world() as at:
        found = train(shape, recipe, records, at, backend="kernels", graph=graph).as_dict()
    per_epoch = max(1, round(found["steps"] / max(1, len(found["validation"]))))
    losses = found["losses"]
    means = [_mean(losses[i : i + per_epoch]) for i in range(0, len(losses), per_epoch)]
    row = {**found, "losses": means, "graph": graph, "lr": recipe.lr, "dropout": shape.dropout}
    print(
        {k: row[k] for k in ("lr", "dropout", "best_epoch", "non_finite", "seconds")},
        max(row["validation"]),
        flush=True,
    )
    return row


def _mean(values: list[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return round(statistics.fmean(known), 5) if known else None


# --- the classifier of 1.10 B parameters --------------------------------------------------------


def steps(data: Path, result: Path, count: int, precision: str, seed: int, seconds: float, dry: bool) -> None:
    """So many steps, measured; the first process writes."""
    import torch

    from lethe.ecg.parallel import world
    from lethe.ecg.step import Stepper
    from lethe.ecg.train import initial_model

    end = time.monotonic() + seconds
    shape = TINY["paper"] if dry else SIZES["paper"]
    recipe = replace(
        RECIPES["paper"],
        steps=count,
        precision=precision,
        seed=seed,
        batch=4 if dry else 64,
        augmentation=NONE,
    )
    records = load(data).standardised()
    train = records.fold(TRAIN)
    row: Row = {
        "kind": "steps", "precision": precision, "seed": seed, "parameters": parameters(shape),
        "backend": "kernels", "batch": recipe.batch, "planned": count, "source": records.source,
        "tokens": records.signals.shape[2] // shape.stride,
    }  # fmt: skip
    with world() as at:
        row["processes"] = at.size
        cuda = at.device.type == "cuda"
        signals, labels = (
            torch.from_numpy(t[train]).to(at.device) for t in (records.signals, records.labels)
        )
        model = initial_model(shape, "kernels", seed, at.device)
        row["calls"] = kernel_calls(model, signals[:2])
        stepper = Stepper(model, shape, recipe, at, signals, labels, count)
        draw = torch.Generator().manual_seed(seed)
        order = torch.randint(len(train), (count, recipe.batch), generator=draw).to(at.device)
        windows: list[float] = []
        done = 0
        if cuda:
            torch.cuda.reset_peak_memory_stats(at.device)
        start = time.monotonic()
        while done < count and not at.agreed(time.monotonic() > end):
            for step in range(done, min(done + WINDOW, count)):
                stepper(step, order[step])
            taken, done = min(WINDOW, count - done), min(done + WINDOW, count)
            if cuda:
                torch.cuda.synchronize(at.device)
            now = time.monotonic()
            windows.append((now - start) / taken)
            start = now
            losses = stepper.losses(0, done)
            if at.first:
                _write(result, row | _measured(losses, windows, int(stepper.non_finite), at.device, done))
                print(done, round(losses[-1], 4), round(windows[-1], 4), flush=True)


def _measured(losses: list[float], windows: list[float], non_finite: int, device: Any, done: int) -> Row:
    import torch

    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        "steps": done, "losses": [round(x, 6) if abs(x) < float("inf") else None for x in losses],
        "step_seconds": [round(w, 6) for w in windows], "non_finite": non_finite, "peak_bytes": peak,
    }  # fmt: skip


def kernel_calls(model: Any, signals: Any) -> dict[str, int]:
    """How often C5 and C6 run in one forward and backward pass of `model`; its gradients are cleared."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(signals).sum().backward()
    model.zero_grad(set_to_none=True)
    counts = {event.key: event.count for event in seen.key_averages()}
    return {
        "forward": counts.get("lethe::mamba_scan", 0),
        "backward": counts.get("lethe::mamba_scan_backward", 0),
        "blocks": model.shape.layers,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.ecg_gpu_work", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fit, walk = commands.add_parser("excerpt"), commands.add_parser("steps")
    fit.add_argument("--model", choices=MODELS, required=True)
    fit.add_argument("--out", type=Path, required=True)
    fit.add_argument("--graph", action="store_true")
    walk.add_argument("--result", type=Path, required=True)
    walk.add_argument("--steps", type=int, required=True)
    walk.add_argument("--precision", default="fp32")
    walk.add_argument("--seed", type=int, default=0)
    for one in (fit, walk):
        one.add_argument("--data", type=Path, required=True)
        one.add_argument("--seconds", type=float, required=True)
        one.add_argument("--dry", action="store_true")
    given = parser.parse_args(argv)
    try:
        if given.command == "excerpt":
            excerpt(given.model, given.data, given.out, given.seconds, given.graph, given.dry)
        else:
            steps(
                given.data, given.result, given.steps, given.precision, given.seed, given.seconds, given.dry
            )
    except Exception as error:
        why = _failed(error)
        result = given.result if given.command == "steps" else given.out / f"excerpt-{given.model}-error.json"
        if given.command == "excerpt" or not result.is_file():
            _write(result, {"kind": "error", "error": why, "graph": getattr(given, "graph", False)})
        print(why, file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
