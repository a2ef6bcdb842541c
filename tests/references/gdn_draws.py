"""Inputs of the gated linear recurrence for tests, in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("q", "k", "v", "g", "b", "w")


def draw(
    length: int, dk: int, dv: int, *, batch: int = 1, heads: int = 1, gate: float = 1.0, seed: int = 0
) -> dict[str, Tensor]:
    """q, k (unit), v, g in [-gate, 0], b in [0, 2], w in [0, 1]."""
    r = torch.Generator().manual_seed(seed)
    shape = (batch, length, heads)
    normal = lambda d: torch.randn(*shape, d, generator=r, dtype=torch.float64)  # noqa: E731
    uniform = lambda d: torch.rand(*shape, d, generator=r, dtype=torch.float64)  # noqa: E731
    return {
        "q": normal(dk),
        "k": F.normalize(normal(dk), dim=-1),
        "v": normal(dv),
        "g": -gate * uniform(dk),
        "b": 2 * uniform(dk),
        "w": uniform(dv),
    }


def state(sequences: int, heads: int, dk: int, dv: int, seed: int = 1) -> Tensor:
    return torch.randn(
        sequences, heads, dk, dv, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def worst(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest max|x - x64| / max|x64| over the named tensors; the names must agree."""
    assert set(got) == set(expected)
    errors = [
        float((got[n].double() - x).abs().max() / x.abs().max().clamp(min=1e-300))
        for n, x in expected.items()
    ]
    assert all(error == error for error in errors)
    return max(errors)
