"""One step of training over a global batch: forward, backward, clipping, AdamW, the moving average.

On one GPU the step may be captured once as a CUDA graph and replayed: a model of 0.4 M parameters is
otherwise bound by the launches of its many small kernels. Draws and learning rates stay outside the graph, in
buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.ecg.augment import augment, dropout_masks, generator
from lethe.ecg.model import Shape, masks
from lethe.ecg.parallel import World
from lethe.ecg.recipe import Recipe

WARM = 3
"""Steps before a capture: they compile the kernels and size the optimiser's state; then they are undone."""


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The context of forward passes, which also sets how a GPU makes float32 matrix products."""
    if device.type == "cuda":
        short = recipe.precision == "tf32"
        torch.set_float32_matmul_precision("high" if short else "highest")
        torch.backends.cudnn.allow_tf32 = short
    if recipe.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; vectors, rates and skips do not."""
    free = ("A_log", "D", "B_bias", "C_bias", "dt_bias")
    named = [(name.rpartition(".")[2], p) for name, p in model.named_parameters()]
    plain = [p for name, p in named if p.dim() < 2 or name in free]
    matrices = [p for name, p in named if p.dim() >= 2 and name not in free]
    return [{"params": matrices, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


class Stepper:
    """A model, its optimiser and its average, and the step that changes them."""

    def __init__(
        self, model: nn.Module, shape: Shape, recipe: Recipe, at: World, signals: Tensor, labels: Tensor,
        total: int, graph: bool = False,
    ) -> None:  # fmt: skip
        """signals [n, 12, T] and labels [n, 5] of the training folds, on the device."""
        self.model, self.shape, self.recipe, self.world, self.total = model, shape, recipe, at, total
        self.signals, self.labels = signals, labels
        self.wrapped = at.wrapped(model)
        cuda = at.device.type == "cuda"
        rate: Any = torch.tensor(recipe.lr, device=at.device) if graph else recipe.lr
        self.optimiser = torch.optim.AdamW(
            _groups(model, recipe.weight_decay), lr=rate, betas=(0.9, 0.95), fused=cuda, capturable=graph
        )
        self.averaged = copy.deepcopy(model) if recipe.average else model
        self.loss = torch.zeros((), device=at.device, dtype=torch.float64)
        self.curve = torch.zeros(total, device=at.device, dtype=torch.float64)
        self.non_finite = torch.zeros((), device=at.device, dtype=torch.int64)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.wants_graph = graph
        self.inputs: tuple[Tensor, Tensor, Tensor | None] | None = None

    def __call__(self, step: int, records: Tensor) -> None:
        """The step on these records (positions in `signals`), the same on every process."""
        for group in self.optimiser.param_groups:
            rate = self.recipe.rate(step, self.total)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        given = self._drawn(step, records)
        if self.wants_graph:
            self._replay(given)
        else:
            self._learn(*given)
        self.curve[step] = self.loss

    def _replay(self, given: tuple[Tensor, Tensor, Tensor | None]) -> None:
        if self.graph is None:
            self._capture(given)
        assert self.graph is not None and self.inputs is not None
        for held, new in zip(self.inputs, given, strict=True):
            if held is not None and new is not None:
                held.copy_(new)
        self.graph.replay()

    def _drawn(self, step: int, records: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """This process's signals, labels and dropout masks."""
        recipe, device = self.recipe, self.world.device
        draw = generator(recipe.seed, step, device)
        x, y = augment(self.signals[records], self.labels[records], recipe.augmentation, draw)
        y = y + recipe.smoothing * (0.5 - y)
        keep = None
        if self.shape.dropout:
            keep = dropout_masks((len(records), *masks(self.shape)), self.shape.dropout, draw, device)
            keep = self.world.part(keep)
        return self.world.part(x), self.world.part(y), keep

    def _learn(self, x: Tensor, y: Tensor, keep: Tensor | None) -> None:
        parts = self.recipe.accumulate
        self.loss.zero_()
        pieces = [(None,) * parts if t is None else t.chunk(parts) for t in (x, y, keep)]
        for i, (xs, ys, ks) in enumerate(zip(*pieces, strict=True)):
            with self.world.unsynchronised(self.wrapped, last=i == parts - 1):
                with autocast(self.recipe, self.world.device):
                    logits = self.wrapped(xs, ks)
                logits = logits if logits.dtype == torch.float64 else logits.float()
                loss = F.binary_cross_entropy_with_logits(logits, ys) / parts
                loss.backward()
            self.loss += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.non_finite += ~(torch.isfinite(norm) & torch.isfinite(self.loss))
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=not self.wants_graph)
        if self.averaged is not self.model:
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.averaged.parameters()), list(self.model.parameters()), 1 - self.recipe.average
                )

    def _capture(self, given: tuple[Tensor, Tensor, Tensor | None]) -> None:
        """Capture `_learn`; the steps that this takes leave no trace."""
        before = copy.deepcopy(self.state())
        self.inputs = tuple(None if t is None else t.clone() for t in given)  # type: ignore[assignment]
        assert self.inputs is not None
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self._learn(*self.inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._learn(*self.inputs)
        self.graph = graph
        self._restore(before)

    def _restore(self, before: dict[str, Any]) -> None:
        """Put `before` back into the tensors that the graph holds; an optimiser without state gets zeros."""
        self.model.load_state_dict(before["model"])
        self.averaged.load_state_dict(before["averaged"])
        self.non_finite.copy_(before["non_finite"])
        held = before["optimiser"]["state"]
        for i, state in enumerate(self._states()):
            for name, value in state.items():
                value.copy_(held[i][name]) if i in held else value.zero_()

    def _states(self) -> Iterable[dict[str, Tensor]]:
        for group in self.optimiser.param_groups:
            for p in group["params"]:
                yield self.optimiser.state[p]

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        return {
            "model": self.model.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "curve": self.curve,
            "non_finite": self.non_finite,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.model.load_state_dict(state["model"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.curve.copy_(state["curve"])
        self.non_finite.copy_(state["non_finite"])

    def kept(self) -> nn.Module:
        """The model that is validated and kept: the average, with the last batch statistics."""
        if self.averaged is not self.model:
            for ours, theirs in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
                ours.copy_(theirs)
        return self.averaged

    def losses(self, first: int, last: int) -> list[float]:
        """The losses of steps [first, last), over the global batch."""
        return [float(x) for x in self.world.mean(self.curve[first:last].clone())]
