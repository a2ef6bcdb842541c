"""The classifiers: twelve leads in, five logits out.

A stem turns the signal into tokens, pre-normalised residual blocks mix them, and the mean and the maximum
over the tokens are read out. The blocks are `MambaBlock` with its operator fused between the projections
(C5/C6), `Mamba3Block` (C3/C4), or none (`lethe.ecg.resnet`). `SIZES` holds the configurations that the paper
uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.ecg.ptbxl import CLASSES
from lethe.ecg.wfdb import LEADS

BLOCKS = ("mamba", "mamba3", "resnet")
BACKENDS = ("auto", "kernels", "torch")
DIRECTIONS = ("forward", "alternate")


@dataclass(frozen=True)
class Shape:
    """A classifier's architecture; everything that decides its parameters."""

    block: str = "mamba"
    """``mamba`` (C5/C6), ``mamba3`` (C3/C4) or ``resnet``."""
    d_model: int = 96
    layers: int = 5
    d_state: int = 16
    expand: str = "2"
    """Inner width over d_model, a whole number or a fraction such as ``5/8``."""
    dt_rank: int | None = None
    """Rank of the step's projection (`mamba`); None is ``ceil(d_model / 16)``."""
    headdim: int = 32
    """Width of a head (`mamba3`)."""
    stem: str = "conv"
    """``conv``: convolutions around a residual unit; ``patch``: one projection of `stride` samples."""
    stride: int = 8
    """Samples a token."""
    direction: str = "alternate"
    """``forward``: every layer reads forwards in time; ``alternate``: every second one backwards."""
    dropout: float = 0.0
    """Share of a layer's channels that are left out in training, for whole records."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("block", self.block, BLOCKS),
            ("stem", self.stem, ("conv", "patch")),
            ("direction", self.direction, DIRECTIONS),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(known)}")
        if self.stem == "conv" and self.stride % 4:
            raise ValueError(f"stride is {self.stride}; the convolutional stem needs a multiple of four")


SIZES = {
    "mamba": Shape(dropout=0.1),
    "mamba3": Shape("mamba3", d_state=32, dropout=0.1),
    "resnet": Shape("resnet", d_model=28, layers=2, dropout=0.1),
    "demo": Shape(d_model=32, layers=2, d_state=8),
    "demo3": Shape("mamba3", d_model=32, layers=2, d_state=16, headdim=16),
    "demo_resnet": Shape("resnet", d_model=8, layers=1),
    "paper": Shape(
        d_model=4096, layers=32, d_state=64, expand="5/8", dt_rank=320, stem="patch", stride=20,
        direction="forward",
    ),
}  # fmt: skip
"""``mamba``, ``mamba3`` and ``resnet`` have about 0.4 M parameters; ``demo...`` are for a CPU in a minute.

``paper`` is the published 1.10 B: width 4096, 32 layers and a state of 64 are published, the expand factor is
not. With `MambaBlock`'s gate a factor of one gives 1.7 B; 5/8, with the step's rank an eighth of the inner
width, gives 1.10 B.
"""


class Expand(Fraction):
    """An expand factor that need not be whole, for `MambaBlock`, which multiplies it with its width."""

    def __mul__(self, width: Any) -> Any:
        """The inner width. Raises ValueError unless it is whole."""
        inner = Fraction(self) * width
        if inner.denominator != 1:
            raise ValueError(f"expand={self} of the width {width} is {float(inner):g}, not a whole number")
        return int(inner)


def resolve(backend: str, device: torch.device) -> str:
    """``auto`` is ``kernels`` on a CUDA device and ``torch`` elsewhere; the others stand as they are."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    return "kernels" if device.type == "cuda" else "torch"


def block(shape: Shape, backend: str, device: torch.device | None = None) -> nn.Module:
    """One mixing block on the kernels or, with the same parameters, in torch operators."""
    from lethe.ecg.recurrence import PlainMamba, PlainMamba3
    from lethe.kernels.mamba3.block import MambaBlock
    from lethe.kernels.mamba3.block3 import Mamba3Block

    expand = cast(int, Expand(shape.expand))
    if shape.block == "mamba":
        kind = MambaBlock if backend == "kernels" else PlainMamba
        rank = shape.dt_rank
        return kind(shape.d_model, shape.d_state, 4, expand, rank, select="input", device=device)
    kind3 = Mamba3Block if backend == "kernels" else PlainMamba3
    return kind3(shape.d_model, shape.d_state, expand, shape.headdim, device=device)


class Unit(nn.Module):
    """A residual unit of two convolutions over seven samples, normalised over the channels; [B, C, T]."""

    def __init__(self, width: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5, device=device)
        self.first = nn.Conv1d(width, width, 7, padding=3, device=device)
        self.second = nn.Conv1d(width, width, 7, padding=3, device=device)
        with torch.no_grad():
            self.second.weight.mul_(0.3)  # it starts as little more than its shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + self.second(F.silu(self.first(F.silu(y))))


class Stem(nn.Module):
    """[B, 12, samples] to tokens [B, samples / stride, d_model].

    Nothing in it divides a record by its own size: amplitudes in millivolts are part of a diagnosis.
    """

    def __init__(self, shape: Shape, device: torch.device | None = None) -> None:
        super().__init__()
        width, stride = shape.d_model, shape.stride
        if shape.stem == "patch":
            self.layers = nn.Sequential(nn.Conv1d(len(LEADS), width, stride, stride, device=device))
            return
        half = width // 2
        self.layers = nn.Sequential(
            nn.Conv1d(len(LEADS), half, 15, 2, 7, device=device),
            nn.SiLU(),
            nn.Conv1d(half, half, 7, 2, 3, device=device),
            Unit(half, device),
            nn.SiLU(),
            nn.Conv1d(half, width, 7, stride // 4, 3, device=device),
        )

    def forward(self, signal: Tensor) -> Tensor:
        tokens: Tensor = self.layers(signal).transpose(1, 2)
        return tokens


class Classifier(nn.Module):
    """`shape` on a backend, ``kernels`` or ``torch``; [B, 12, samples] to logits [B, 5]."""

    def __init__(self, shape: Shape, backend: str, device: torch.device | None = None) -> None:
        super().__init__()
        self.shape, self.backend = shape, backend
        width = shape.d_model
        self.stem = Stem(shape, device)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5, device=device) for _ in range(shape.layers))
        self.blocks = nn.ModuleList(block(shape, backend, device) for _ in range(shape.layers))
        with torch.no_grad():  # the residual stream keeps its scale over the depth
            for one in self.blocks:
                cast(Any, one).out_proj.weight.mul_((2 * shape.layers) ** -0.5)
        self.norm = nn.RMSNorm(width, eps=1e-5, device=device)
        self.head = nn.Linear(2 * width, len(CLASSES), device=device)

    def forward(self, signal: Tensor, keep: Tensor | None = None) -> Tensor:
        """signal [B, 12, samples]; keep [B, layers, d_model] weighs the channels that every layer adds."""
        stream = self.stem(signal)
        for i, (norm, one) in enumerate(zip(self.norms, self.blocks, strict=True)):
            tokens = norm(stream)
            backwards = self.shape.direction == "alternate" and i % 2 == 1
            added = one(tokens.flip(1)).flip(1) if backwards else one(tokens)
            stream = stream + (added if keep is None else added * keep[:, i, None].to(added.dtype))
        stream = self.norm(stream)
        logits: Tensor = self.head(torch.cat([stream.mean(1), stream.amax(1)], -1))
        return logits


def build(shape: Shape, backend: str, device: torch.device | None = None) -> nn.Module:
    """The classifier of this shape. `backend` is ``kernels`` or ``torch``; a ResNet has no kernel of ours."""
    if shape.block == "resnet":
        from lethe.ecg.resnet import ResNet

        return ResNet(shape, device)
    return Classifier(shape, backend, device)


def masks(shape: Shape) -> tuple[int, int]:
    """Layers and channels of the dropout masks that `build`'s model takes."""
    if shape.block == "resnet":
        return 1, 4 * shape.d_model
    return shape.layers, shape.d_model


def parameters(shape: Shape) -> int:
    """The exact number of trainable parameters; allocates nothing."""
    model = build(shape, "torch", torch.device("meta"))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def resized(shape: Shape, **changes: Any) -> Shape:
    """`shape` with some fields replaced; None leaves a field as it is."""
    return replace(shape, **{name: value for name, value in changes.items() if value is not None})
