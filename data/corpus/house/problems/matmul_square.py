"""Product of two square float32 matrices."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


side = 128


def get_inputs():
    return [torch.randn(side, side), torch.randn(side, side)]


def get_init_inputs():
    return []
