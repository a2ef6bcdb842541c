"""Training with the native kernels of the gated linear recurrence on a GPU, beside the torch backend.

`tasks` gives, for `gdn_gpu`, a line for each member and backend: the small models of `sequence_model` learn
the two tasks of `sequence_tasks`, `SEEDS` replicas of each task at once, each replica with initial weights
and data of its own seed, the same for every backend. ``native`` takes bfloat16 inputs and asks for
``cute``, which runs the native kernels or raises; ``torch`` takes float32 inputs; what the operator called
is counted. ``dropped`` is a control: the native kernels, but the state is lost after every `WITHIN` tokens,
as if no chunk knew of the one before it. Linear attention, whose states never forget, is trained for 4,000
steps as well.

A line keeps, for each task and seed, mean losses of `POINTS` stretches of equal length, in bits an answer;
the share of right answers in the last tenth of the steps; and in how many steps a loss or a gradient was
not finite. ``passed``: everything is finite, every call was of the backend that was asked for, and each
replica's loss in the last tenth is at most `LEARNT` of what a model needs that cannot look back. Whether
native and torch agree is judged where both lines are there (`gdn_training_judged`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.evidence import sequence_tasks
from lethe.evidence.gdn_precision import MEMBERS
from lethe.evidence.sequence_model import BLOCKS, DV, Replicas
from lethe.evidence.sequence_tasks import SILENT, TASKS
from lethe.kernels.gdn import dispatch
from lethe.kernels.gdn.chunks import CHUNK

SEEDS = 12
RATE, BETAS, WARM_UP = 2e-2, (0.9, 0.99), 0.1
"""Adam's; the rate rises over the first tenth of the steps and falls to zero over the others."""

POINTS, LEARNT, WITHIN = 30, 0.5, CHUNK

NATIVE, TORCH, DROPPED = "native", "torch", "dropped"
ASKED = {NATIVE: "cute", TORCH: "torch", DROPPED: "cute"}
"""How a line names its kernels -> the backend of the operator; none of these falls back to another."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """What is trained."""

    member: str
    backend: str = NATIVE
    steps: int = 300
    length: int = 128
    batch: int = 4
    seeds: int = SEEDS
    dv: int = DV


LONG = Training("linear", steps=4000, length=64)
"""Linear attention's second training."""

CONTROL = Training("gdn", DROPPED)


def plan() -> list[Training]:
    """What is trained natively, and again in torch."""
    return [*(Training(member) for member in reversed(MEMBERS)), LONG]


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found): the native ones, the control, and the torch backend."""
    ours, theirs = plan(), [replace(one, backend=TORCH) for one in plan()]
    for training in (*ours, CONTROL, *theirs):
        yield {"kind": "training", **asdict(training)}, functools.partial(train, training)


def train(training: Training, device: str = "cuda") -> Row:
    """The rest of a line. Raises ValueError where the backend cannot run the calls: none falls back."""
    tokens, answers, memoryless = sequence_tasks.stacked(
        training.seeds, training.steps, training.batch, training.length
    )
    io = torch.float32 if training.backend == TORCH else torch.bfloat16
    within = WITHIN if training.backend == DROPPED else 0
    seeds = list(range(training.seeds)) * len(TASKS)
    model = Replicas(training.member, seeds, io, ASKED[training.backend], within).to(device)
    with calls() as counted:
        losses, right, broken = optimised(model, tokens.to(device), answers.to(device))
    points = torch.stack([part.mean(0) for part in losses.tensor_split(min(POINTS, training.steps))], -1)
    last = right[-max(1, training.steps // 10) :].mean(0)
    wanted = {TORCH} if training.backend == TORCH else set(dispatch.CAPABILITY)
    row: Row = {
        "losses": dict(zip(TASKS, _numbers(points.unflatten(0, (len(TASKS), -1))), strict=True)),
        "right": dict(zip(TASKS, _numbers(last.unflatten(0, (len(TASKS), -1))), strict=True)),
        "memoryless": memoryless,
        "non_finite": {"losses": int((~losses.isfinite()).any(1).sum()), "gradients": int(broken.sum())},
        "calls": dict(counted),
        "as_asked": set(counted) <= wanted and counted.total() == 2 * BLOCKS * training.steps,
    }
    row["learnt"] = {task: learnt(row["losses"][task], memoryless[task]) for task in TASKS}
    row["passed"] = row["as_asked"] and not any(row["non_finite"].values()) and all(row["learnt"].values())
    return row


def optimised(model: Replicas, tokens: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Train `model` on tokens and answers [steps, replicas, batch, length].

    Returns on the CPU: losses in bits an answer and the shares of right answers, [steps, replicas], and
    whether a gradient was not finite, [steps].
    """
    steps, replicas = tokens.shape[:2]
    parameters = list(model.parameters())
    optimiser = torch.optim.Adam(parameters, lr=RATE, betas=BETAS)
    warm = max(1, round(WARM_UP * steps))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    losses, right = torch.empty(2, steps, replicas, device=tokens.device)
    broken = torch.empty(steps, dtype=torch.bool, device=tokens.device)
    for step in range(steps):
        optimiser.zero_grad(set_to_none=True)
        judged = answers[step] != SILENT
        wanted = answers[step].long().where(judged, 0)
        logits = model(tokens[step])
        each = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
        count = judged.sum((1, 2))
        loss = (each * judged).sum((1, 2)) / count / math.log(2)
        loss.sum().backward()  # each replica's gradient is that of its own loss
        gradients = [p.grad for p in parameters if p.grad is not None]
        broken[step] = ~torch.nn.utils.get_total_norm(gradients).isfinite()
        optimiser.step()
        rate.step()
        losses[step] = loss.detach()
        right[step] = ((logits.detach().argmax(-1) == wanted) & judged).sum((1, 2)) / count
    return losses.cpu(), right.cpu(), broken.cpu()


@contextlib.contextmanager
def calls() -> Iterator[Counter[str]]:
    """How often the operator ran each backend, forward and backward, while this is open."""
    counted: Counter[str] = Counter()
    chosen = dispatch.module

    def module(backend: str) -> Any:
        found = chosen(backend)

        def counting(run: Callable[..., Any]) -> Callable[..., Any]:
            def called(*given: Any) -> Any:
                counted[backend] += 1
                return run(*given)

            return called

        both = {name: counting(getattr(found, name)) for name in ("forward", "backward")}
        return SimpleNamespace(**{**vars(found), **both})

    with mock.patch.object(dispatch, "module", module):
        yield counted


def learnt(curves: Sequence[Sequence[float]], memoryless: float) -> bool:
    """Whether every curve ends at `LEARNT` of the memoryless loss, or below."""
    return all(end(curve) <= LEARNT * memoryless for curve in curves)


def end(curve: Sequence[float]) -> float:
    """Mean of a curve's last tenth."""
    return statistics.fmean(curve[-max(1, len(curve) // 10) :])


def _numbers(x: Tensor) -> Any:
    """As lists, to four significant digits."""
    return [_numbers(part) for part in x] if x.dim() else float(f"{float(x):.4g}")
