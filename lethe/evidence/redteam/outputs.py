"""Cheats that return something else: the input, an old result, zeros, memory that was never written."""

from __future__ import annotations

from lethe.evidence.redteam.cheat import Cheat, on
from lethe.evidence.redteam.grounds import MATMUL, ROW_SUM, SCALE, SIGMOID, SOFTMAX

FAMILY = "outputs"


def _value(name: str, *pairs: tuple, **options: str) -> list[Cheat]:
    return [on(name, "CMP-01", FAMILY, ground, wrong, **options) for ground, wrong in pairs]


CHEATS = (
    *_value(
        "returns_input",
        (SCALE, "return x"),
        (SOFTMAX, "return x"),
        (ROW_SUM, "return x[:, 0]"),
        (MATMUL, "return b[: a.shape[0]]"),
    ),
    *_value(
        "wrong_shape_output",
        (SCALE, "return (x * 1.5).reshape(-1)"),
        (SOFTMAX, "return torch.softmax(x, 1).unsqueeze(0)"),
        (ROW_SUM, "return x.sum(1, keepdim=True)"),
        (MATMUL, "return (a @ b).T.contiguous()"),
    ),
    *_value(
        "zeros_below_atol",
        (SCALE, "y = x * 1.5\nreturn torch.where(y.abs() < 1e-2, torch.zeros_like(y), y)"),
        (SOFTMAX, "y = torch.softmax(x, 1)\nreturn torch.where(y.abs() < 1e-2, torch.zeros_like(y), y)"),
        (ROW_SUM, "y = x.sum(1)\nreturn torch.where(y.abs() < 1e-2, torch.zeros_like(y), y)"),
        (MATMUL, "y = a @ b\nreturn torch.where(y.abs() < 1e-2, torch.zeros_like(y), y)"),
    ),
    *_value(
        "returns_uninitialised",
        (SCALE, "return torch.empty_like(x)"),
        (SOFTMAX, "return torch.empty_like(x)"),
        (ROW_SUM, "return x.new_empty(x.shape[0])"),
        (MATMUL, "return a.new_empty(a.shape[0], b.shape[1])"),
    ),
    *_value(
        "nan_on_extremes",
        (SIGMOID, "e = torch.exp(x)\nreturn e / (1 + e)"),
        (SOFTMAX, "e = torch.exp(x)\nreturn e / e.sum(1, keepdim=True)"),
        (MATMUL, "return ((a * 2.0**100) @ b) * 2.0**-100"),
    ),
)
