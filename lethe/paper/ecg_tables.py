"""Tables about the electrocardiograms: this build's small run, and what GPUs measured.

Areas and intervals are computed here from recorded predictions. Nothing from an excerpt of PTB-XL stands in
one table with a result on all of it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lethe.ecg import scores
from lethe.ecg.ptbxl import CLASSES, TEST, TRAIN, VALIDATION, Recordings
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import Measurement

MODELS = {"mamba": "MambaBlock (C5/C6)", "mamba3": "Mamba3Block (C3/C4)", "resnet": "ResNet1D"}
GIB = 1 << 30
Rows = Sequence[Mapping[str, Any]]


def _absent(columns: Sequence[str]) -> pd.DataFrame:
    """A table of one row that says that nothing was measured."""
    return pd.DataFrame([[MISSING] + [""] * (len(columns) - 1)], columns=list(columns))


# --- this build -------------------------------------------------------------------------------


def records_table(records: Recordings) -> pd.DataFrame:
    """Records of each part of the data, and how many have each superclass."""
    rows = []
    for name, folds in (
        ("training, folds 1–8", TRAIN),
        ("validation, fold 9", VALIDATION),
        ("test, fold 10", TEST),
    ):
        where = records.fold(folds)
        counts = records.labels[where].sum(0).astype(int).tolist()
        rows.append([name, len(where), *counts])
    return pd.DataFrame(rows, columns=["part", "records", *CLASSES])


def demo_table(outcomes: Mapping[str, Any], labels: NDArray[np.float32]) -> pd.DataFrame:
    """One row a model that this build trained; `outcomes` by name, `labels` of fold 10."""
    rows = []
    for name, found in outcomes.items():
        epochs = max(1, len(found.validation))
        per_epoch = max(1, found.steps // epochs)
        first, last = (float(np.mean(part)) for part in (found.losses[:per_epoch], found.losses[-per_epoch:]))
        area = scores.intervals(labels, found.test_scores, draws=300)["macro"] if len(labels) else MISSING
        rows.append(
            [
                name,
                found.parameters,
                found.backend,
                epochs,
                f"{first:.3f} → {last:.3f}",
                found.non_finite,
                str(area),
            ]
        )
    columns = ["model", "parameters", "backend", "epochs", "loss", "steps not finite", "test macro AUC (95%)"]
    return pd.DataFrame(rows, columns=columns)


# --- the excerpt ------------------------------------------------------------------------------


def runs(record: Measurement | None) -> dict[str, list[Mapping[str, Any]]]:
    """Model -> its finished runs, from the record of the excerpt."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in record.samples if record is not None else []:
        if row["kind"] == "run" and "test_scores" in row:
            found.setdefault(row["model"], []).append(row)
    return {name: found[name] for name in MODELS if name in found}


def about(record: Measurement) -> Mapping[str, Any]:
    """The row that says what the records were."""
    row: Mapping[str, Any] = next(r for r in record.samples if r["kind"] == "records")
    return row


def sizes(record: Measurement | None) -> dict[str, str]:
    """Records of the excerpt by part, as the prose prints them."""
    parts = ("train", "validation", "test", "skipped")
    if record is None:
        return dict.fromkeys(parts, MISSING)
    row = about(record)
    counts = [row["train"], len(row["validation_ids"]), len(row["test_ids"]), row["skipped"]]
    return {part: f"{n:,}" for part, n in zip(parts, counts, strict=True)}


def labels(record: Measurement) -> NDArray[np.float64]:
    """Labels of fold 10 [n, 5]."""
    return np.array(about(record)["test_labels"], dtype=float)


def _predicted(rows: Rows) -> list[NDArray[np.float64]]:
    return [np.array(row["test_scores"], dtype=float) for row in rows]


def _mean_intervals(y: NDArray[np.float64], predicted: Rows, draws: int) -> dict[str, scores.Interval]:
    """Intervals of the areas' means over the seeds: every draw takes the same records for all of them."""
    probabilities = _predicted(predicted)

    def means(i: NDArray[np.int64]) -> NDArray[np.float64]:
        areas = np.mean([scores.class_aucs(y[i], p[i]) for p in probabilities], axis=0)
        known = areas[~np.isnan(areas)]
        return np.append(areas, known.mean() if len(known) else np.nan)

    value = means(np.arange(len(y)))
    drawn = np.array([means(i) for i in scores.resamples(len(y), draws)])
    return {name: scores.interval(float(value[i]), drawn[:, i]) for i, name in enumerate((*CLASSES, "macro"))}


def tried(record: Measurement | None) -> str:
    """How many pairs of learning rate and dropout were compared for each model: ``"1"`` or ``"2 to 5"``."""
    rows = [] if record is None else [r for r in record.samples if r.get("kind") == "search"]
    counts = Counter(r["model"] for r in rows).values()
    if not counts:
        return MISSING
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def excerpt_table(record: Measurement | None, draws: int = scores.DRAWS) -> pd.DataFrame:
    """One row a model: its size, its seeds, its macro AUC on fold 10."""
    columns = [
        "model", "parameters", "learning rate, dropout", "validation macro AUC", "test macro AUC, seeds",
        "mean (95%)", "steps not finite",
    ]  # fmt: skip
    if record is None:
        return _absent(columns)
    y, rows = labels(record), []
    for name, found in runs(record).items():
        each = [scores.macro_auc(y, np.array(r["test_scores"])) for r in found]
        best = statistics.fmean(max(x for x in r["validation"] if x is not None) for r in found)
        mean = _mean_intervals(y, found, draws)["macro"]
        rows.append([
            MODELS[name], found[0]["parameters"], f"{found[0]['lr']:g}, {found[0]['dropout']:g}",
            f"{best:.3f}", ", ".join(f"{a:.3f}" for a in each), str(mean),
            sum(r["non_finite"] for r in found),
        ])  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def classes_table(record: Measurement | None, draws: int = scores.DRAWS) -> pd.DataFrame:
    """Area of every superclass on fold 10, the mean over a model's seeds, with its interval."""
    columns = ["superclass", "records", *MODELS.values()]
    if record is None:
        return _absent(columns)
    y = labels(record)
    found = {name: _mean_intervals(y, rows, draws) for name, rows in runs(record).items()}
    rows = [
        [c, int(y[:, i].sum()), *(str(found[m][c]) if m in found else MISSING for m in MODELS)]
        for i, c in enumerate(CLASSES)
    ]
    return pd.DataFrame(rows, columns=columns)


def lead(record: Measurement | None, ours: str, theirs: str, draws: int = scores.DRAWS) -> str:
    """Macro AUC of one model less that of another, means over the seeds, with a paired interval."""
    found = runs(record)
    if record is None or ours not in found or theirs not in found:
        return MISSING
    first, second = (_predicted(found[m]) for m in (ours, theirs))
    gap = scores.difference(labels(record), first, second, draws=draws)
    return f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"


def roc_panels(record: Measurement | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Curves and areas for `lethe.ecg.plotting.roc_curves`: of each model's first seed."""
    if record is None:
        return {}, {}
    y, curves, areas = labels(record), {}, {}
    for i, name in enumerate(CLASSES):
        first = {MODELS[m]: np.array(rows[0]["test_scores"])[:, i] for m, rows in runs(record).items()}
        curves[name] = {m: scores.roc(y[:, i], p) for m, p in first.items()}
        areas[name] = {m: f"{scores.auc(y[:, i], p):.3f}" for m, p in first.items()}
    return curves, areas


# --- the classifier of 1.10 B parameters --------------------------------------------------------


def speed(row: Mapping[str, Any]) -> float:
    """Records a second, from the median of the timed windows but the first, which compiles."""
    windows = row["step_seconds"][1:] or row["step_seconds"]
    return float(row["batch"] / statistics.median(windows))


def _measured(record: Measurement | None) -> list[Mapping[str, Any]]:
    return [r for r in (record.samples if record is not None else []) if r["kind"] == "steps"]


def paper_table(record: Measurement | None) -> pd.DataFrame:
    """One row a precision: what the steps of the large classifier cost, and that every one was finite."""
    columns = [
        "matrix products", "parameters", "steps", "steps not finite", "C5 and C6 a step (blocks)",
        "records/s", "tokens/s", "peak memory", "loss",
    ]  # fmt: skip
    if record is None:
        return _absent(columns)
    rows = []
    for r in _measured(record):
        calls = f"{r['calls']['forward']}, {r['calls']['backward']} ({r['calls']['blocks']})"
        rows.append([
            r["precision"], r["parameters"], f"{r['steps']} of {r['planned']}", r["non_finite"], calls,
            f"{speed(r):.0f}", f"{speed(r) * r['tokens']:,.0f}", f"{r['peak_bytes'] / GIB:.1f} GiB", _span(r),
        ])  # fmt: skip
    return pd.DataFrame(rows, columns=columns) if rows else _absent(columns)


def _span(row: Mapping[str, Any], width: int = 20) -> str:
    """Mean loss of the first and of the last steps."""
    known = [x for x in row["losses"] if x is not None]
    if not known:
        return MISSING
    return f"{statistics.fmean(known[:width]):.3f} → {statistics.fmean(known[-width:]):.3f}"


def processes_table(record: Measurement | None) -> pd.DataFrame:
    """One row a number of GPUs, against one GPU with the same global batch and seed."""
    columns = [
        "GPUs", "seed", "steps", "records/s", "efficiency", "peak memory a GPU", "steps not finite",
        "furthest from one GPU", "loss",
    ]  # fmt: skip
    if record is None:
        return _absent(columns)
    found = sorted(_measured(record), key=lambda r: (r["processes"], r["seed"]))
    alone = next((r for r in found if r["processes"] == 1 and r["seed"] == 0), None)
    rows = []
    for r in found:
        same = alone is not None and r is not alone
        part = f"{speed(r) / (r['processes'] * speed(alone)):.0%}" if alone is not None else MISSING
        gap = f"{_gap(r['losses'], alone['losses']):.2g}" if same and alone is not None else "–"
        rows.append([
            r["processes"], r["seed"], f"{r['steps']} of {r['planned']}", f"{speed(r):.0f}", part,
            f"{r['peak_bytes'] / GIB:.1f} GiB", r["non_finite"], gap, _span(r),
        ])  # fmt: skip
    return pd.DataFrame(rows, columns=columns) if rows else _absent(columns)


def _gap(ours: Sequence[float | None], theirs: Sequence[float | None], width: int = 20) -> float:
    """Largest difference of two loss curves, each averaged over `width` steps."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
    means = [
        abs(statistics.fmean(a for a, _ in part) - statistics.fmean(b for _, b in part))
        for part in (pairs[i : i + width] for i in range(0, len(pairs), width))
    ]
    return max(means, default=float("nan"))


def loss_curves(record: Measurement | None) -> dict[str, Sequence[float | None]]:
    """Name -> losses, for `lethe.ecg.plotting.same_loss`."""
    found = sorted(_measured(record), key=lambda r: (r["seed"], r["processes"]))
    return {f"{r['processes']} GPU{'s' * (r['processes'] > 1)}, seed {r['seed']}": r["losses"] for r in found}
