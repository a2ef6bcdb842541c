"""Operands and comparisons for the Mamba-3 kernel tests; every draw is seeded."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BOUND = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""max |x - x64| / max |x64|: float32 sums, or two roundings of the output dtype."""


def error(got: Tensor, exact: Tensor) -> float:
    """max |got - exact| / max |exact|; NaN counts as infinite."""
    gap = (got.detach().double().cpu() - exact.cpu()).abs().max() / exact.abs().max().clamp(min=1e-30).cpu()
    return float("inf") if gap.isnan() else float(gap)


def doubled(operands: dict[str, Any]) -> dict[str, Any]:
    """The same values in float64 on the CPU: what the oracle sees is what the kernel saw."""
    return {k: v.detach().double().cpu() if isinstance(v, Tensor) else v for k, v in operands.items()}


def leaves(operands: dict[str, Any]) -> dict[str, Any]:
    return {k: v.requires_grad_() if isinstance(v, Tensor) else v for k, v in operands.items()}


def scan_operands(
    batch: int, length: int, width: int, n: int, dtype: torch.dtype = torch.float32, *, trap: bool = False,
    state: bool = False, device: str = "cpu",
) -> dict[str, Tensor]:  # fmt: skip
    torch.manual_seed(batch + 10 * length + 100 * width + 1000 * n)
    o = {
        "u": torch.randn(batch, length, width).to(dtype), "dt": F.softplus(torch.randn(batch, length,
        width) - 1).to(dtype),
        "A": -torch.exp(torch.randn(width, n)), "B": torch.randn(batch, length, n).to(dtype),
        "C": torch.randn(batch, length, n).to(dtype), "D": torch.randn(width),
    }  # fmt: skip
    if trap:
        o["trap"] = torch.randn(batch, length, width).to(dtype)
    if state:
        o["initial_state"] = torch.randn(batch, width, n)
    return {name: value.to(device) for name, value in o.items()}


def block_operands(
    batch: int, length: int, width: int, n: int, dtype: torch.dtype = torch.float32, *, taps: int = 4,
    device: str = "cpu",
) -> dict[str, Tensor]:  # fmt: skip
    torch.manual_seed(batch + 10 * length + 100 * width + 1000 * n)

    def io(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    o = {
        "x": io(batch, length, width), "dt": io(batch, length, width), "A": -torch.exp(torch.randn(width, n)),
        "B": io(batch, length, n), "C": io(batch, length, n), "D": torch.randn(width), "z": io(batch,
        length, width),
        "conv_weight": torch.randn(width, taps), "conv_bias": torch.randn(width),
        "dt_bias": torch.randn(width),
    }  # fmt: skip
    return {name: value.to(device) for name, value in o.items()}


def head_operands(
    batch: int, length: int, heads: int, groups: int, n: int, width: int, angles: int, rank: int = 1,
    dtype: torch.dtype = torch.float32, *, trap: bool = True, device: str = "cpu",
) -> dict[str, Tensor]:  # fmt: skip
    torch.manual_seed(batch + 10 * length + 100 * width + 1000 * n + rank)

    def io(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    dt = F.softplus(torch.randn(batch, heads, length) - 1)
    o = {
        "q": io(batch, length, rank, groups, n), "k": io(batch, length, rank, groups, n),
        "v": io(batch, length, heads, width), "adt": -dt * torch.rand(batch, heads, length), "dt": dt,
        "q_bias": torch.randn(heads, rank, n), "k_bias": torch.randn(heads, rank, n),
        "angle": torch.randn(batch, length, heads, angles), "D": torch.randn(heads),
        "z": io(batch, length, heads, width),
    }  # fmt: skip
    if trap:
        o["trap"] = torch.randn(batch, heads, length)
    if rank > 1:
        o |= {name: torch.randn(heads, rank, width) for name in ("mimo_x", "mimo_z", "mimo_o")}
    return {name: value.to(device) for name, value in o.items()}
