"""The rule every oracle keeps: float64 in, float64 out, anything else is refused by name."""

from __future__ import annotations

import torch


def require_float64(**tensors: torch.Tensor | None) -> None:
    """Raise TypeError naming the first argument that is not float64; None stands for an absent option."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != torch.float64:
            raise TypeError(
                f"the oracle needs float64, but {name} is {tensor.dtype}; cast it: {name}.double()"
            )


def require_shape(name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise ValueError when `tensor` has not exactly this shape: an oracle never broadcasts by accident."""
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
