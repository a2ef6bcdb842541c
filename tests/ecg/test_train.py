"""Training: the same bits after a stop, the same result from two processes, what is kept, what is refused."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from lethe.ecg.__main__ import main
from lethe.ecg.augment import NONE, Augmentation, augment, generator
from lethe.ecg.model import Shape, build, masks, parameters
from lethe.ecg.parallel import World
from lethe.ecg.ptbxl import DataError, load
from lethe.ecg.recipe import Recipe
from lethe.ecg.synthetic import generate
from lethe.ecg.train import CHECKPOINT, CheckpointError, train
from lethe.provenance import ROOT

HERE = World(torch.device("cpu"))
TINY = Shape("mamba", d_model=8, layers=2, d_state=2, stride=40, dropout=0.1)
QUICK = Recipe(epochs=4, batch=16, lr=1e-2, average=0.5)
SHAPES = {
    "mamba": TINY,
    "mamba3": replace(TINY, block="mamba3", d_state=4, headdim=8),
    "resnet": Shape("resnet", d_model=4, layers=1, dropout=0.1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("records"), 60)


@pytest.fixture(scope="module")
def records(folder):
    torch.set_num_threads(1)
    return load(folder).standardised()


@pytest.mark.parametrize("block", list(SHAPES))
def test_a_resumed_run_is_the_same_to_the_bit(records, tmp_path, block):
    whole = train(SHAPES[block], QUICK, records, HERE)
    for pause in (1, 3, None):
        parts = train(SHAPES[block], QUICK, records, HERE, folder=tmp_path, pause=pause)
        assert parts.finished == (pause is None)
    assert parts.resumed_at == 9 and parts.steps == whole.steps == 12
    assert parts.losses == whole.losses and parts.validation == whole.validation
    np.testing.assert_array_equal(parts.test_scores, whole.test_scores)
    assert whole.non_finite == 0 and whole.backend == "torch"


def test_it_learns(records):
    """The loss falls below that of knowing the classes' frequencies alone."""
    found = train(TINY, replace(QUICK, epochs=12, augmentation=NONE), records, HERE)
    labels = records.labels[records.fold(range(1, 9))].astype(np.float64)
    p = labels.mean(0)
    blind = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    assert np.mean(found.losses[-3:]) < blind


def test_the_best_epoch_is_kept_and_training_stops_early(records):
    found = train(TINY, replace(QUICK, epochs=30, patience=2, lr=0.05), records, HERE)
    assert found.validation[found.best_epoch - 1] == max(found.validation)
    assert found.steps == 3 * len(found.validation)
    assert found.finished and len(found.validation) - found.best_epoch <= 2


def test_parts_of_a_batch_add_up(records):
    """Accumulated gradients are those of the whole batch, in float64 and within the bound of `movement`."""
    recipe = replace(QUICK, precision="fp64", epochs=1, average=0.0)
    one, four = (train(TINY, replace(recipe, accumulate=n), records, HERE) for n in (1, 4))
    np.testing.assert_allclose(one.losses, four.losses, rtol=0, atol=movement(recipe, 3))


def movement(recipe: Recipe, steps: int) -> float:
    """How far two runs may part that sum their batches in different orders, in float64.

    A gradient, clipped to a norm of one, is a sum over batch * tokens terms: its rounding is below 2 * batch
    * tokens * u times the sum of their sizes, taken as 100 times the norm. AdamW divides a gradient by its
    own size plus eps = 1e-8, so where it is smallest a difference becomes lr / eps times larger, once a step.
    The loss changes by at most the gradient's norm, one here, times the way between the weights.
    """
    tokens, u, eps = 25, 2.0**-53, 1e-8
    rounding = 2 * recipe.batch * tokens * u * 100
    return steps * recipe.lr / eps * rounding


def test_two_processes_are_one(folder, records, tmp_path):
    """torchrun with two processes on the CPU (gloo) against one process with the same global batch."""
    recipe = replace(QUICK, precision="fp64", epochs=2, average=0.5)
    alone = train(TINY, recipe, records, HERE)
    options = ["--data", str(folder), "--device", "cpu", "--out", str(tmp_path), "--precision", "fp64"]
    for name in ("d_model", "layers", "d_state", "stride", "dropout"):
        options += [f"--{name.replace('_', '-')}", str(getattr(TINY, name))]
    for name in ("epochs", "batch", "lr", "average"):
        options += [f"--{name}", str(getattr(recipe, name))]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "lethe.ecg", "train", *options],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    together = json.loads((tmp_path / "result.json").read_text())
    assert together["processes"] == 2 and together["non_finite"] == 0
    bound = movement(recipe, alone.steps) + 1e-6  # losses are written with six digits after the point
    np.testing.assert_allclose(together["losses"], alone.losses, rtol=0, atol=bound)
    # probabilities are written with five digits
    np.testing.assert_allclose(together["test_scores"], alone.test_scores, rtol=0, atol=bound + 1e-5)
    assert np.ptp(alone.losses) > 1e3 * bound  # the bound is far below what training changes


def test_a_checkpoint_of_another_run_is_refused(records, tmp_path):
    train(TINY, replace(QUICK, epochs=1), records, HERE, folder=tmp_path)
    with pytest.raises(CheckpointError, match="another run: its shape and recipe and total differ"):
        train(replace(TINY, d_model=12), QUICK, records, HERE, folder=tmp_path)
    (tmp_path / CHECKPOINT).write_bytes((tmp_path / CHECKPOINT).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        train(TINY, replace(QUICK, epochs=1), records, HERE, folder=tmp_path)


def test_what_cannot_be_trained_is_one_sentence(records):
    with pytest.raises(DataError, match="48 usable records, fewer than a batch of 64"):
        train(TINY, Recipe(), records, HERE)
    with pytest.raises(ValueError, match="a batch of 16 cannot be shared by 3 equal parts"):
        train(TINY, replace(QUICK, accumulate=3), records, HERE)
    with pytest.raises(ValueError, match=r"the kernels need a CUDA device"):
        train(TINY, QUICK, records, HERE, backend="kernels")


def test_a_non_finite_step_is_counted(records):
    broken = replace(records, signals=records.signals.copy())
    broken.signals[broken.fold([1])[0]] = np.inf
    found = train(TINY, replace(QUICK, epochs=1, augmentation=NONE), broken, HERE)
    assert found.non_finite >= 1
    assert None in found.as_dict()["losses"]


# --- parts ------------------------------------------------------------------------------------


def test_the_learning_rate_rises_and_falls():
    recipe = Recipe(lr=1.0, warmup=0.1)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0 and all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(0.5) and rates[-1] < 1e-3


@pytest.mark.parametrize("block", list(SHAPES))
def test_dropout_masks_and_directions(block):
    torch.manual_seed(0)
    model, signal = build(SHAPES[block], "torch").eval(), torch.randn(3, 12, 1000)
    ones = torch.ones(3, *masks(SHAPES[block]))
    torch.testing.assert_close(model(signal, ones), model(signal), rtol=0, atol=0)
    assert not torch.equal(model(signal, ones * 0), model(signal))


def test_every_second_layer_reads_backwards():
    """A change at the end of the signal reaches the first token only through a layer that reads backwards."""
    signal = torch.randn(1, 12, 1000)
    later = signal.clone()
    later[..., -40:] += 1.0
    for direction, reaches in (("forward", False), ("alternate", True)):
        torch.manual_seed(0)
        model = build(replace(TINY, direction=direction, stem="patch"), "torch")
        seen = []
        model.norm.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out[:, 0]))
        model(signal), model(later)
        assert (not torch.equal(*seen)) is reaches


def test_augmentation_is_drawn_from_the_seed_and_the_step_alone():
    signals, labels = torch.randn(6, 12, 200), torch.eye(6)[:, :5]
    device = torch.device("cpu")

    def drawn(seed, step, how=Augmentation()):  # noqa: B008 - a frozen value
        return augment(signals, labels, how, generator(seed, step, device))

    assert all(torch.equal(a, b) for a, b in zip(drawn(1, 2), drawn(1, 2), strict=True))
    assert not torch.equal(drawn(1, 2)[0], drawn(1, 3)[0]) and not torch.equal(drawn(1, 2)[0], drawn(2, 2)[0])
    assert torch.equal(drawn(1, 2, NONE)[0], signals)
    x, y = drawn(0, 0, replace(NONE, shift=0.5))
    for before, after in zip(signals, x, strict=True):  # turned, nothing else
        assert any(torch.equal(before.roll(-k, 1), after) for k in range(200))
    x, y = drawn(0, 0, replace(NONE, mix=1.0))
    assert ((y >= 0) & (y <= 1)).all() and not torch.equal(y, labels)


def test_the_number_of_parameters_is_exact():
    from lethe.ecg.model import SIZES

    paper = parameters(SIZES["paper"])
    d, inner, n, rank, layers = 4096, 2560, 64, 320, 32
    each = (
        d * (2 * inner + rank + 2 * n) + 5 * inner + inner * rank + inner + n * inner + inner + inner * d + d
    )
    assert paper == layers * each + (12 * 20 * d + d) + d + (2 * d * 5 + 5) == 1_098_547_205
    sizes = [parameters(SIZES[name]) for name in ("mamba", "mamba3", "resnet")]
    assert max(sizes) < 1.05 * min(sizes) and 0.4e6 < min(sizes) < 0.45e6


def test_a_stem_that_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="stride is 10; the convolutional stem needs a multiple of four"):
        replace(TINY, stride=10)


def test_amplitudes_reach_the_logits():
    """No layer divides a record by its own size."""
    torch.manual_seed(0)
    signal = torch.randn(2, 12, 1000)
    for shape in SHAPES.values():
        model = build(shape, "torch").eval()
        assert (model(signal) - model(3 * signal)).abs().max() > 1e-2


def test_an_expand_factor_must_give_a_whole_width():
    with pytest.raises(ValueError, match="not a whole number"):
        build(replace(TINY, expand="5/7"), "torch")


# --- the command line -------------------------------------------------------------------------


def test_mistakes_are_one_sentence(folder, tmp_path, capsys):
    assert main(["train", "--data", str(tmp_path / "nothing")]) == 2
    assert main(["train", "--data", str(folder), "--device", "cuda"]) == (
        0 if torch.cuda.is_available() else 2
    )
    said = capsys.readouterr().err.strip().splitlines()
    assert said[0].endswith("does not exist") and len(said) == 2


def test_count(capsys):
    assert main(["count"]) == 0
    assert "1,098,547,205" in capsys.readouterr().out


def test_train_and_generate(tmp_path, capsys):
    assert main(["generate", "--to", str(tmp_path / "r"), "--records", "60"]) == 0
    options = ["--model", "demo", "--recipe", "demo", "--epochs", "1", "--batch", "16", "--d-model", "8"]
    options += ["--stride", "40", "--device", "cpu"]
    assert main(["train", "--data", str(tmp_path / "r"), *options, "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().out
    assert "generated records" in said and "backend torch" in said and "fold 10, macro: AUC" in said
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert result["steps"] == 3 and all(math.isfinite(x) for x in result["losses"])
