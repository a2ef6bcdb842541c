"""Tables and figures of the electrocardiograms, from records as GPUs leave them and from none."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from lethe.ecg import plotting, scores
from lethe.ecg.ptbxl import CLASSES
from lethe.paper import ecg_tables
from lethe.provenance import Device, Measurement

matplotlib.use("Agg")


def record(samples):
    return Measurement("ecg", "2026-01-01", Device("NVIDIA H200", "cuda"), {}, "", {}, samples, "")


@pytest.fixture(scope="module")
def excerpt():
    draw = np.random.default_rng(0)
    labels = (draw.random((80, 5)) < 0.4).astype(int)
    samples = [
        {
            "kind": "records", "test_labels": labels.tolist(), "test_ids": [str(i) for i in range(80)],
            "validation_ids": ["a"], "train": 100, "skipped": 3,
        }
    ]  # fmt: skip
    for model, noise in (("mamba", 0.5), ("resnet", 1.5)):
        for seed in range(3):
            p = labels + draw.normal(0, noise, labels.shape)
            samples.append(
                {
                    "kind": "run", "model": model, "seed": seed, "parameters": 420_000, "lr": 2e-3,
                    "dropout": 0.1, "validation": [0.5, None, 0.9] if seed else [0.8], "non_finite": 0,
                    "test_scores": p.round(5).tolist(),
                }
            )  # fmt: skip
    samples.append({"kind": "run", "model": "mamba3", "seed": 0, "error": "the time was over"})
    return record(samples)


def steps(processes, seed, seconds, losses, precision="fp32"):
    return {
        "kind": "steps", "precision": precision, "processes": processes, "seed": seed,
        "parameters": 1_098_547_205, "steps": len(losses), "planned": 300, "non_finite": 0,
        "step_seconds": [9.0, seconds, seconds], "batch": 64, "peak_bytes": 30 << 30, "losses": losses,
        "tokens": 50, "calls": {"forward": 32, "backward": 32, "blocks": 32},
    }  # fmt: skip


PROCESSES = record(
    [
        steps(1, 0, 0.4, [0.7] * 20 + [0.5] * 20),
        steps(1, 1, 0.4, [0.7] * 20 + [0.6] * 20),
        steps(2, 0, 0.25, [0.7] * 20 + [0.5] * 19 + [None]),
        {"kind": "error", "error": "out of memory"},
    ]
)


def test_areas_and_leads(excerpt):
    table = ecg_tables.excerpt_table(excerpt, draws=50)
    assert table["model"].tolist() == ["MambaBlock (C5/C6)", "ResNet1D"]
    y = ecg_tables.labels(excerpt)
    runs = ecg_tables.runs(excerpt)["mamba"]
    each = [scores.macro_auc(y, np.array(r["test_scores"])) for r in runs]
    assert table["test macro AUC, seeds"][0] == ", ".join(f"{a:.3f}" for a in each)
    assert table["mean (95%)"][0].startswith(f"{np.mean(each):.3f} (")
    assert table["validation macro AUC"][0] == f"{(0.8 + 0.9 + 0.9) / 3:.3f}"
    lead = ecg_tables.lead(excerpt, "mamba", "resnet", draws=50)
    assert lead.startswith("+0.") and " (+" in lead
    assert ecg_tables.lead(excerpt, "mamba3", "resnet") == "not measured yet"
    assert ecg_tables.sizes(excerpt) == {"train": "100", "validation": "1", "test": "80", "skipped": "3"}
    assert set(ecg_tables.sizes(None).values()) == {"not measured yet"}


def test_classes(excerpt):
    table = ecg_tables.classes_table(excerpt, draws=50)
    assert table["superclass"].tolist() == list(CLASSES)
    assert (table["Mamba3Block (C3/C4)"] == "not measured yet").all()
    assert table["records"].tolist() == ecg_tables.labels(excerpt).sum(0).astype(int).tolist()


def test_efficiency_is_against_one_gpu_with_the_same_seed():
    table = ecg_tables.processes_table(PROCESSES)
    assert table["GPUs"].tolist() == [1, 1, 2]
    assert table["records/s"].tolist() == ["160", "160", "256"]
    assert table["efficiency"].tolist() == ["100%", "100%", "80%"]
    assert table["furthest from one GPU"].tolist() == ["–", "0.1", "0"]
    assert table["peak memory a GPU"][2] == "30.0 GiB"


def test_the_first_window_compiles_and_is_not_timed():
    assert ecg_tables.speed(steps(1, 0, 0.5, [])) == 128


def test_the_large_classifier():
    (row,) = ecg_tables.paper_table(record([steps(1, 0, 0.5, [0.7, 0.6])])).to_dict("records")
    assert row["C5 and C6 a step (blocks)"] == "32, 32 (32)" and row["tokens/s"] == "6,400"
    assert row["parameters"] == 1_098_547_205 and row["steps"] == "2 of 300"


@pytest.mark.parametrize("name", ["excerpt_table", "classes_table", "paper_table", "processes_table"])
def test_nothing_measured_is_a_row_that_says_so(name):
    table = getattr(ecg_tables, name)(None)
    assert len(table) == 1 and table.iloc[0, 0] == "not measured yet"


@pytest.mark.parametrize("there", [True, False], ids=["measured", "nothing"])
def test_figures_are_drawn_from_records_and_from_none(excerpt, there):
    curves, areas = ecg_tables.roc_panels(excerpt if there else None)
    figures = [
        plotting.roc_curves(curves, areas),
        plotting.same_loss(ecg_tables.loss_curves(PROCESSES if there else None)),
        plotting.learning({"a": [0.7, None, 0.5]}, {"a": [0.5, 0.6]}) if there else plotting.learning({}, {}),
    ]
    texts = [t.get_text() for f in figures for ax in f.axes for t in ax.texts]
    assert texts.count("not measured here yet") == (0 if there else 3)
    if there:
        assert [ax.get_title().split("\n")[0] for ax in figures[0].axes] == list(CLASSES)


def test_an_electrocardiogram_is_drawn_to_scale():
    """One second is 25 mm of paper and one millivolt 10 mm; the rhythm strip is the whole of lead II."""
    signal = np.zeros((12, 1000), np.float32)
    signal[1, 500] = 1.0
    figure = plotting.twelve_leads(signal, 100, "x")
    (ax,) = figure.axes
    millimetres = np.array(figure.get_size_inches()) * 25.4
    np.testing.assert_allclose(millimetres, [ax.get_xlim()[1], ax.get_ylim()[1]])
    traces = [line.get_xydata() for line in ax.lines if len(line.get_xdata()) > 100]
    assert [len(t) for t in traces] == [250] * 12 + [1000]
    strip = traces[-1]
    assert strip[100, 0] - strip[0, 0] == pytest.approx(25.0)
    assert strip[500, 1] - strip[0, 1] == pytest.approx(10.0)
    names = [t.get_text() for t in ax.texts]
    assert names[:4] == ["I", "aVR", "V1", "V4"] and names.count("II") == 2


def test_pairs_that_were_tried_are_counted_by_model():
    rows = [{"kind": "search", "model": model} for model in ("mamba", "mamba", "resnet")]
    assert ecg_tables.tried(record(rows)) == "1 to 2"
    assert ecg_tables.tried(record(rows[1:])) == "1" and ecg_tables.tried(None) == ecg_tables.MISSING
