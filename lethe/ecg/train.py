"""Trains one classifier: epochs, validation, early stopping, checkpoints, and what came of it.

A run is its shape, its recipe, its records and its backend; from a checkpoint it goes on as if it had never
stopped, to the bit. Everything random is drawn from the recipe's seed and the step.
"""

from __future__ import annotations

import copy
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lethe.ecg import progress
from lethe.ecg.model import Shape, build, resolve
from lethe.ecg.parallel import World
from lethe.ecg.ptbxl import TEST, TRAIN, VALIDATION, DataError, Recordings
from lethe.ecg.recipe import Recipe
from lethe.ecg.scores import macro_auc
from lethe.ecg.step import Stepper, autocast

CHECKPOINT = "checkpoint.pt"


class CheckpointError(ValueError):
    """A checkpoint that this run cannot go on from; one sentence."""


@dataclass
class Outcome:
    """What a run found."""

    shape: Shape
    recipe: Recipe
    backend: str
    parameters: int
    steps: int
    """Steps that were taken; fewer than planned after early stopping."""
    losses: list[float]
    """Of every step, over the global batch."""
    validation: list[float]
    """Macro AUC on fold 9 after every epoch."""
    best_epoch: int
    """The epoch whose weights were kept, from one; zero where none was validated."""
    non_finite: int
    """Steps whose loss or gradient was not finite."""
    seconds: float
    """For training and validation, in this process's last stretch."""
    resumed_at: int
    """The step at which that stretch began."""
    validation_scores: NDArray[np.float32]
    test_scores: NDArray[np.float32]
    """Probabilities [n, 5] for the records of fold 10."""
    finished: bool = True

    def as_dict(self) -> dict[str, Any]:
        """JSON values; losses that are not finite become None."""
        d = {**vars(self), "shape": asdict(self.shape), "recipe": self.recipe.as_dict()}
        d["losses"] = [round(x, 6) if math.isfinite(x) else None for x in self.losses]
        d["validation"] = [round(x, 5) if math.isfinite(x) else None for x in self.validation]
        for name in ("validation_scores", "test_scores"):
            d[name] = [[round(float(p), 5) for p in row] for row in d[name]]
        return d


def initial_model(shape: Shape, backend: str, seed: int, device: torch.device) -> nn.Module:
    """The model before its first step; the same whatever the backend and the number of processes."""
    torch.manual_seed(seed)
    return build(shape, backend, device)


def train(
    shape: Shape,
    recipe: Recipe,
    records: Recordings,
    at: World,
    *,
    backend: str = "auto",
    graph: bool = False,
    folder: Path | None = None,
    pause: int | None = None,
    tell: progress.Teller | None = None,
) -> Outcome:
    """Train on folds 1 to 8 of standardised `records`, validate on 9, score 10.

    Args: folder: keeps a checkpoint after every epoch, and is resumed from if it has one; None keeps none.
    pause: stop after so many epochs, to go on later. graph: capture the step as a CUDA graph.

    Raises DataError if a fold is empty or smaller than a batch, CheckpointError for another run's checkpoint,
    ValueError for a batch that cannot be shared.
    """
    run = _Run(shape, recipe, records, at, resolve(backend, at.device), graph, folder)
    run.resume()
    with tell or progress.quiet() as teller:
        run.go(teller, pause)
    return run.outcome()


class _Run:
    """The state of one run."""

    def __init__(
        self, shape: Shape, recipe: Recipe, records: Recordings, at: World, backend: str, graph: bool,
        folder: Path | None,
    ) -> None:  # fmt: skip
        self.shape, self.recipe, self.at, self.backend, self.folder = shape, recipe, at, backend, folder
        parts = at.size * recipe.accumulate
        if recipe.batch % parts:
            raise ValueError(f"a batch of {recipe.batch} cannot be shared by {parts} equal parts")
        self.folds = {
            name: self._on_device(records, records.fold(folds))
            for name, folds in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))
        }
        self.labels = records.labels[records.fold(VALIDATION)]
        n = len(self.folds["train"][0])
        if n < recipe.batch:
            raise DataError(
                f"the training folds have {n} usable records, fewer than a batch of {recipe.batch}"
            )
        if recipe.validate and not len(self.labels):
            raise DataError("fold 9 has no usable record to validate on")
        self.per_epoch = n // recipe.batch
        self.total = recipe.steps or recipe.epochs * self.per_epoch
        model = initial_model(shape, backend, recipe.seed, at.device)
        model = model.double() if recipe.precision == "fp64" else model
        signals, labels = self.folds["train"]
        self.stepper = Stepper(model, shape, recipe, at, signals, labels, self.total, graph)
        self.step, self.stopped = 0, False
        self.validation: list[float] = []
        self.best: tuple[int, dict[str, Tensor]] = (0, {})
        self.seconds, self.resumed_at = 0.0, 0

    def _on_device(self, records: Recordings, where: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if self.recipe.precision == "fp64" else torch.float32
        pair = (torch.from_numpy(t[where]) for t in (records.signals, records.labels))
        signals, labels = (t.to(self.at.device, dtype) for t in pair)
        return signals, labels

    @property
    def epoch(self) -> int:
        return self.step // self.per_epoch

    def go(self, teller: progress.Teller, pause: int | None) -> None:
        start = time.monotonic()
        teller.start(self.step, self.total)
        while self.step < self.total and not self.stopped:
            if pause is not None and self.epoch >= pause:
                break
            first = self.step
            for records in self._order(self.epoch):
                self.stepper(self.step, records)
                self.step += 1
                teller.step(self.step)
                if self.step == self.total:
                    break
            if self.recipe.validate:
                self._validate()
            loss = sum(self.stepper.losses(first, self.step)) / (self.step - first)
            teller.epoch(self.epoch, loss, self.validation[-1] if self.validation else None)
            self._save()
        self._wait()
        self.seconds = time.monotonic() - start

    def _order(self, epoch: int) -> Tensor:
        """The epoch's batches [steps, batch]: a permutation, its incomplete last batch left out."""
        draw = torch.Generator().manual_seed(self.recipe.seed * 100_003 + epoch)
        order = torch.randperm(len(self.folds["train"][0]), generator=draw)
        batches = order[: self.per_epoch * self.recipe.batch].view(self.per_epoch, -1)
        return batches.to(self.at.device)

    def _validate(self) -> None:
        scores = self._scores("validation", self.stepper.kept())
        self.validation.append(float(self.at.agreed(macro_auc(self.labels, scores))))
        best = max(self.validation)
        if self.validation[-1] == best or not self.best[0]:
            weights = {k: v.detach().clone() for k, v in self.stepper.kept().state_dict().items()}
            self.best = (len(self.validation), weights)
        self.stopped = len(self.validation) - self.best[0] >= self.recipe.patience

    @torch.no_grad()
    def _scores(self, fold: str, model: nn.Module) -> NDArray[np.float32]:
        """Probabilities [n, 5]."""
        signals, _ = self.folds[fold]
        model.eval()
        found = []
        for part in signals.split(max(1, self.recipe.batch // self.recipe.accumulate)):
            with autocast(self.recipe, self.at.device):
                found.append(torch.sigmoid(model(part).float()).cpu())
        model.train()
        return torch.cat(found).numpy() if found else np.zeros((0, 5), np.float32)

    def _wait(self) -> None:
        if self.at.device.type == "cuda":
            torch.cuda.synchronize(self.at.device)

    # --- checkpoints ---

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with. The number of processes and the backend may change."""
        return {
            "shape": asdict(self.shape), "recipe": self.recipe.as_dict(),
            "records": len(self.folds["train"][0]), "total": self.total,
        }  # fmt: skip

    def _save(self) -> None:
        if self.folder is None or not self.at.first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self._identity(), "step": self.step, "stopped": self.stopped,
            "validation": self.validation, "best": self.best, "stepper": self.stepper.state(),
        }  # fmt: skip
        part = self.folder / f"{CHECKPOINT}.part"
        torch.save(state, part)
        os.replace(part, self.folder / CHECKPOINT)

    def resume(self) -> None:
        """Go on from the folder's checkpoint, if there is one."""
        file = self.folder / CHECKPOINT if self.folder is not None else None
        if file is None or not file.is_file():
            return
        try:
            state = torch.load(file, map_location=self.at.device, weights_only=True)
            theirs = state["identity"]
        except Exception as error:
            raise CheckpointError(f"{file} is not a whole checkpoint: {str(error).splitlines()[0]}") from None
        differing = [name for name, value in self._identity().items() if theirs.get(name) != value]
        if differing:
            raise CheckpointError(f"{file} is of another run: its {' and '.join(differing)} differ")
        self.stepper.load(state["stepper"])
        self.step, self.stopped = state["step"], state["stopped"]
        self.validation, self.best = state["validation"], tuple(state["best"])
        self.resumed_at = self.step

    def outcome(self) -> Outcome:
        model = copy.deepcopy(self.stepper.kept()) if self.best[0] else self.stepper.kept()
        if self.best[0]:
            model.load_state_dict(self.best[1])
        return Outcome(
            self.shape, self.recipe, self.backend if self.shape.block != "resnet" else "torch",
            sum(p.numel() for p in model.parameters()), self.step, self.stepper.losses(0, self.step),
            self.validation, self.best[0], int(self.stepper.non_finite), self.seconds, self.resumed_at,
            self._scores("validation", model), self._scores("test", model),
            self.stopped or self.step == self.total,
        )  # fmt: skip
