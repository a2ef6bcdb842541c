"""The reference, in KernelBench's format: what the operator is, and how its inputs are drawn."""

import torch
import torch.nn as nn

ROWS = 16
WIDTH = 256


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return []
