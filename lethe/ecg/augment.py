"""What the training records are changed by, drawn for a whole global batch from the step's own generator.

Every draw depends on the run's seed and the step alone: the same whether one device holds the batch or
several share it, and after a resumed run. All of it works on the device that holds the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """How much of each; zero leaves one out."""

    shift: float = 0.2
    """Largest share of the record by which it is turned in time, cyclically."""
    scale: float = 0.2
    """Largest relative change of the amplitude, one for each record."""
    noise: float = 0.05
    """Standard deviation of white noise, in units of the standardised signal."""
    wander: float = 0.1
    """Largest amplitude of a slow sine under all leads, up to half a hertz."""
    leads: float = 0.1
    """Probability that a lead is silent."""
    gap: float = 0.2
    """Largest share of the record that is silenced in all leads, at a random place."""
    mix: float = 0.5
    """Share of the batch that is a mixture with another record of it (Zhang et al. 2018, uniform weights)."""


NONE = Augmentation(*[0.0] * 7)


def generator(seed: int, step: int, device: torch.device) -> torch.Generator:
    """The generator of one step of one run."""
    return torch.Generator(device).manual_seed((seed * 1_000_003 + step) * 2_147_483_629 % (1 << 62))


def augment(
    signals: Tensor, labels: Tensor, how: Augmentation, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Changed signals [B, 12, T] and labels [B, 5] of a global batch."""
    if how == NONE:
        return signals, labels
    batch, leads, length = signals.shape
    device = signals.device

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=draw, device=device)

    time = torch.arange(length, device=device)
    turn = ((uniform(batch, 1) * 2 - 1) * how.shift * length).long()
    at = (time + turn) % length
    x = signals.gather(2, at[:, None].expand(-1, leads, -1))
    x = x * (1 + how.scale * (2 * uniform(batch, 1, 1) - 1))
    cycles = 5 * uniform(batch, 1, 1)
    phase = uniform(batch, 1, 1) + cycles * time / length
    x = x + how.wander * uniform(batch, leads, 1) * torch.sin(2 * torch.pi * phase)
    x = x + how.noise * torch.randn(batch, leads, length, generator=draw, device=device)
    x = x * (uniform(batch, leads, 1) >= how.leads)
    begin, share = uniform(batch, 1, 1), how.gap * uniform(batch, 1, 1)
    x = x * (((time / length - begin) % 1.0) >= share)
    mixed, share = uniform(batch) < how.mix, uniform(batch)
    weight = torch.where(mixed, share, torch.ones_like(share)).to(x.dtype)
    other = torch.randperm(batch, generator=draw, device=device)
    x = torch.lerp(x[other], x, weight[:, None, None])
    return x, torch.lerp(labels[other], labels, weight[:, None])


def dropout_masks(size: tuple[int, ...], share: float, draw: torch.Generator, device: torch.device) -> Tensor:
    """Weights of mean one: zero for `share` of the channels, 1 / (1 - share) for the others."""
    kept = torch.rand(size, generator=draw, device=device) >= share
    return kept.float() / (1 - share)
