"""Leaky ReLU of each element, with the negative slope given at construction."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, negative_slope):
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x):
        return torch.where(x >= 0, x, x * self.negative_slope)


batch_size = 30
width = 1333
negative_slope = 0.07


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return [negative_slope]
