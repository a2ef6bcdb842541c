"""The baseline: a residual network of one-dimensional convolutions, as usual for electrocardiograms.

After He et al. (2016) with kernels of seven samples; the benchmark of Strodthoff et al. (2021) found networks
of this kind the best on PTB-XL. Batch normalisation makes it depend on the batch of a device: it is trained
on one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.ecg.ptbxl import CLASSES
from lethe.ecg.wfdb import LEADS

if TYPE_CHECKING:
    from lethe.ecg.model import Shape

KERNEL = 7


class _Unit(nn.Module):
    """Two convolutions around a shortcut, which is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, device: torch.device | None) -> None:
        super().__init__()
        pad = KERNEL // 2
        self.first = nn.Conv1d(before, after, KERNEL, stride, pad, bias=False, device=device)
        self.second = nn.Conv1d(after, after, KERNEL, 1, pad, bias=False, device=device)
        self.norms = nn.ModuleList(nn.BatchNorm1d(after, device=device) for _ in range(2))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv1d(before, after, 1, stride, bias=False, device=device),
                nn.BatchNorm1d(after, device=device),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of ``layers`` units, ``d_model``, twice and four times as wide, each at half the rate."""

    def __init__(self, shape: Shape, device: torch.device | None = None) -> None:
        super().__init__()
        self.shape = shape
        width = shape.d_model
        self.stem = nn.Sequential(
            nn.Conv1d(len(LEADS), width, 15, 2, 7, bias=False, device=device),
            nn.BatchNorm1d(width, device=device),
            nn.ReLU(),
            nn.MaxPool1d(3, 2, 1),
        )
        units, before = [], width
        for stage in range(3):
            for i in range(shape.layers):
                after = width << stage
                units.append(_Unit(before, after, 2 if i == 0 and stage else 1, device))
                before = after
        self.units = nn.Sequential(*units)
        self.head = nn.Linear(2 * before, len(CLASSES), device=device)

    def forward(self, signal: Tensor, keep: Tensor | None = None) -> Tensor:
        """signal [B, 12, samples] to logits [B, 5]; keep [B, 1, 4 d_model] weighs the last channels."""
        y = self.units(self.stem(signal))
        if keep is not None:
            y = y * keep[:, 0, :, None].to(y.dtype)
        logits: Tensor = self.head(torch.cat([y.mean(-1), y.amax(-1)], -1))
        return logits
