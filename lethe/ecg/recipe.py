"""How a classifier is trained: everything that decides the result, and the learning rate at every step."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lethe.ecg.augment import NONE, Augmentation

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


@dataclass(frozen=True)
class Recipe:
    """AdamW with a linear rise and a cosine fall of the learning rate, clipping and early stopping."""

    epochs: int = 50
    steps: int | None = None
    """Steps in all, whatever the epochs say; None leaves it to them."""
    batch: int = 64
    """Records of a step over all devices."""
    accumulate: int = 1
    """Parts in which a device takes its share of a batch, one after the other."""
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    patience: int = 25
    """Epochs without a better validation AUC after which training stops."""
    average: float = 0.98
    """Decay of the moving average of the weights that is validated and kept; zero keeps the weights."""
    validate: bool = True
    """False: the last weights are kept, and no epoch is validated."""
    precision: str = "fp32"
    """``fp32``; ``tf32`` for the matrix products alone; ``bf16`` by autocast; ``fp64`` for comparisons."""
    smoothing: float = 0.0
    """Labels are drawn so far towards one half."""
    seed: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step: up to `lr` in `warmup` of `total`, then a cosine down to zero."""
        rise = max(1, round(self.warmup * total))
        if step < rise:
            return self.lr * (step + 1) / rise
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


RECIPES = {
    "default": Recipe(),
    "demo": Recipe(epochs=6, batch=32, lr=5e-3, average=0.9, augmentation=replace(Augmentation(), mix=0.0)),
    "paper": Recipe(
        steps=300, batch=64, lr=1e-4, weight_decay=0.01, average=0.0, validate=False, augmentation=NONE
    ),
}
"""``paper`` has the published optimiser, learning rate and global batch."""
