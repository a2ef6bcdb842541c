"""The processes that train one model together: none but this one, or those that torchrun started.

Every process holds the whole data set, draws the same global batches and takes its own part of each;
gradients are averaged by DistributedDataParallel. The sum over a batch is the same as one process forms, in
another order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """This process among `size`."""

    device: torch.device
    rank: int = 0
    size: int = 1
    held: list[Any] = field(default_factory=list, compare=False)
    """Models that `wrapped` returned."""

    @property
    def first(self) -> bool:
        """Whether this process writes and tells."""
        return self.rank == 0

    def part(self, whole: Tensor) -> Tensor:
        """This process's rows of something that is drawn for the global batch."""
        return whole.chunk(self.size)[self.rank] if self.size > 1 else whole

    def wrapped(self, model: nn.Module) -> nn.Module:
        """`model`, its gradients averaged over the processes."""
        if self.size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        ids = [self.device] if self.device.type == "cuda" else None
        self.held.append(DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True))
        found: nn.Module = self.held[-1]
        return found

    def unsynchronised(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Keeps the gradients of a part of a batch here, until its last part."""
        return nullcontext() if last or self.size == 1 else model.no_sync()  # type: ignore[operator]

    def mean(self, value: Tensor) -> Tensor:
        """Mean of a value over the processes."""
        if self.size > 1:
            torch.distributed.all_reduce(value)
            value = value / self.size
        return value

    def agreed(self, value: Any) -> Any:
        """The first process's value, for all."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, device=self.device)
        return box[0]


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """This process's place, and the group of processes where torchrun started several.

    `device` is ``auto``, ``cpu`` or ``cuda``. Raises ValueError, in one sentence, where it is not there.
    """
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError("device=cuda was asked for, but torch sees no CUDA device on this machine")
    kind = "cuda" if found and device != "cpu" else "cpu"
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(torch.device(kind, 0) if kind == "cuda" else torch.device(kind))
        return
    local = int(os.environ["LOCAL_RANK"])
    if kind == "cuda" and local >= torch.cuda.device_count():
        raise ValueError(
            f"process {local} of this machine has no GPU of its own: it has {torch.cuda.device_count()};"
            " start as many processes as there are GPUs"
        )
    at = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(at)
    cuda = kind == "cuda"
    torch.distributed.init_process_group("nccl" if cuda else "gloo", device_id=at if cuda else None)
    here = World(at, torch.distributed.get_rank(), size)
    try:
        yield here
    finally:
        # A reducer that outlives its group ends the group's threads while it holds Python's lock, for which
        # they may be waiting.
        for model in here.held:
            model.reducer = model.logger = None
        torch.distributed.destroy_process_group()
